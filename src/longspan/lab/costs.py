"""What an iteration costs on a modelled stage."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from longspan.errors import UsageError
from longspan.schedule.geometry import Geometry

StageCost = Callable[[Geometry], float]
"""Seconds of one stage for an iteration."""


def reference_cost(geometry: Geometry) -> float:
    """The costs of the reference's lab: 50 us + 2 us a prefill token; 100 us + 20 us a decode row.

    A mixed iteration runs its rows in one pass, so the fixed part is paid once, the larger of the two: 100 us. The
    rows cost what they cost alone.
    """
    fixed = 100e-6 if geometry.exact_rows else 50e-6
    return fixed + 20e-6 * geometry.exact_rows + 2e-6 * geometry.prefill_rows


def two_core_cost(geometry: Geometry) -> float:
    """SmolLM2-135M Q4_0 on two CPU cores, fitted by hand to measured calls of llama.cpp.

    5.9 ms a pass over the layers and 2.44 ms a row give 8.3 ms for one row (measured 8.3), 16 for four rows on
    consecutive slots (16), 33 on scattered slots (32), 25 for a window of 8 (26), 162 for one of 64 (162).
    Attention: 4.1 us a pair of query and key, from a trace of the demo model in which a row cost as much as 600.
    """
    attention = 4.1e-6 * (geometry.history_rows + geometry.square_rows / 2)
    return 5.9e-3 * geometry.sub_batches + 2.44e-3 * geometry.rows + attention


class StageModel(msgspec.Struct, frozen=True):
    """What a stage is modelled after.

    cost: seconds by geometry. exact_rows: the exact-row limit that goes with it. time_unit: how much slower a
    prefill row is than in the reference; scenarios spread their arrivals by it, so that the load is the same.
    """

    cost: StageCost
    exact_rows: int
    time_unit: float


STAGE_MODELS: dict[str, StageModel] = {
    "reference": StageModel(reference_cost, exact_rows=1 << 20, time_unit=1.0),
    "two-cores": StageModel(two_core_cost, exact_rows=64, time_unit=2.44e-3 / 2e-6),
}


def stage_model(name: str) -> StageModel:
    """A stage model by name. Raises UsageError for an unknown name."""
    if name not in STAGE_MODELS:
        raise UsageError(f"there are no stage costs {name!r}; known are {', '.join(STAGE_MODELS)}")
    return STAGE_MODELS[name]


def share_of(cost: StageCost, stages: int) -> StageCost:
    """The cost of one of `stages` equal parts of the layers."""
    return lambda geometry: cost(geometry) / stages
