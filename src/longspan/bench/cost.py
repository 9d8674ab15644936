"""How well cost models predict a recorded trace.

Every iteration of the trace is predicted by each model from what came before it, and only then shown to it, in the
order of the trace and for each stage apart.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from longspan.errors import UsageError
from longspan.schedule.cost import COST_MODELS, cost_model
from longspan.schedule.geometry import Geometry
from longspan.schedule.trace import TraceRecord

WARM_UP = 50
"""Iterations of each stage at the start of the trace that teach the models but are not judged."""

REPEATS = 5
"""A geometry that occurs at least so often says how much its time varies by itself."""

_BIN = 1.02
"""Two histories count as the same when they fall into the same bin of this width."""


class CostRow(msgspec.Struct, frozen=True):
    """One model. Errors are |predicted - measured| / measured, over all judged iterations of all stages.

    better_than_ema: by how much its mean error is smaller than that of `ema`, as a share.
    mixed, decode, prefill: mean errors of iterations of that kind; None when there were none.
    """

    model: str
    mean_relative_error: float
    p95_relative_error: float
    better_than_ema: float
    decode: float | None
    prefill: float | None
    mixed: float | None


class NoiseFloor(msgspec.Struct, frozen=True):
    """How much iterations of one geometry differ from their median, in the same measure; what no model can beat.

    geometries, iterations: how many were repeated at least REPEATS times, and how often altogether.
    """

    mean_relative_error: float
    p95_relative_error: float
    geometries: int
    iterations: int


class CostReport(msgspec.Struct, frozen=True):
    """What a trace says about the cost models.

    judged: predictions of each model. longest_history: positions behind a row. left_out: iterations that copied a
    prefix, or that came back without timings.
    """

    iterations: int
    judged: int
    left_out: int
    stages: int
    longest_history: int
    noise_floor: NoiseFloor | None
    rows: list[CostRow]


class _Observation(msgspec.Struct, frozen=True):
    geometry: Geometry
    seconds: float


def judge_cost_models(records: Iterable[TraceRecord]) -> CostReport:
    """Predict a trace with every model. Raises UsageError when it is too short to judge anything."""
    stages: dict[int, list[_Observation]] = defaultdict(list)
    iterations = left_out = longest = 0
    for record in records:
        iterations += 1
        if record.copied or not record.stages:
            left_out += 1
            continue
        geometry = record.geometry
        longest = max(longest, *(span.start + span.rows for span in record.spans))
        for stage in record.stages:
            stages[stage.stage].append(_Observation(geometry, stage.worked))
    judged = sum(max(0, len(observations) - WARM_UP) for observations in stages.values())
    if not judged:
        raise UsageError(
            f"the trace has {iterations} iterations, {left_out} of them without use; "
            f"more than {WARM_UP} are needed to judge a cost model"
        )
    errors = {name: [_errors(name, observations) for observations in stages.values()] for name in COST_MODELS}
    ema = statistics.fmean(error for stage in errors["ema"] for _, error in stage)
    return CostReport(
        iterations=iterations,
        judged=judged,
        left_out=left_out,
        stages=len(stages),
        longest_history=longest,
        noise_floor=_noise_floor(list(stages.values())),
        rows=[_row(name, [entry for stage in found for entry in stage], ema) for name, found in errors.items()],
    )


def _errors(name: str, observations: Sequence[_Observation]) -> list[tuple[Geometry, float]]:
    model = cost_model(name)
    errors = []
    for index, observation in enumerate(observations):
        predicted = model.predict(observation.geometry)
        model.observe(observation.geometry, observation.seconds)
        if index >= WARM_UP:
            errors.append((observation.geometry, abs(predicted - observation.seconds) / observation.seconds))
    return errors


def _row(name: str, errors: Sequence[tuple[Geometry, float]], ema: float) -> CostRow:
    values = [error for _, error in errors]
    mean = statistics.fmean(values)

    def of_kind(mixed: bool, exact: bool) -> float | None:
        chosen = [error for g, error in errors if g.mixed == mixed and (g.exact_rows > 0) == exact]
        return round(statistics.fmean(chosen), 5) if chosen else None

    return CostRow(
        model=name,
        mean_relative_error=round(mean, 5),
        p95_relative_error=round(_p95(values), 5),
        better_than_ema=round(1.0 - mean / ema, 5),
        decode=of_kind(False, True),
        prefill=of_kind(False, False),
        mixed=of_kind(True, True),
    )


def _noise_floor(stages: Sequence[Sequence[_Observation]]) -> NoiseFloor | None:
    deviations: list[float] = []
    geometries = 0
    for observations in stages:
        groups: dict[tuple[int, ...], list[float]] = defaultdict(list)
        for observation in observations[WARM_UP:]:
            groups[_same(observation.geometry)].append(observation.seconds)
        for times in groups.values():
            if len(times) >= REPEATS:
                geometries += 1
                median = statistics.median(times)
                deviations += [abs(seconds - median) / seconds for seconds in times]
    if not deviations:
        return None
    return NoiseFloor(
        mean_relative_error=round(statistics.fmean(deviations), 5),
        p95_relative_error=round(_p95(deviations), 5),
        geometries=geometries,
        iterations=len(deviations),
    )


def _same(geometry: Geometry) -> tuple[int, ...]:
    return (
        geometry.exact_rows,
        geometry.prefill_rows,
        geometry.sequences,
        geometry.sub_batches,
        geometry.sampled_rows,
        geometry.widest,
        round(math.log(1 + geometry.kv_read, _BIN)),
        round(math.log(1 + geometry.history_rows, _BIN)),
    )


def _p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
