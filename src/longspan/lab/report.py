"""The figures of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from longspan.lab.simulation import Journey, Simulation


class LabRow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one scenario. Times are virtual.

    makespan: first arrival to last token. ttft: arrival to first token. gap: between successive tokens of one.
    p95_max_gap: 95th percentile over requests of each one's longest gap. mean_batch: spans an iteration.
    occupancy: rows of all iterations over the rows that the token budget would have allowed.
    cached_tokens: prompt tokens that were served from a cached prefix. stage_busy: share of the makespan, by stage.
    """

    scenario: str
    costs: str
    policy: str
    requests: int
    makespan_ms: float
    requests_per_second: float
    tokens_per_second: float
    p50_ttft_ms: float
    p95_ttft_ms: float
    p50_gap_ms: float
    p95_gap_ms: float
    p95_max_gap_ms: float
    longest_gap_ms: float
    mean_batch: float
    occupancy: float
    iterations: int
    mixed_iterations: int
    cached_tokens: int
    preemptions: int
    longest_wait_ms: float
    most_overtakes: int
    stage_busy: tuple[float, ...]


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between the two nearest values; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def lab_row(simulation: Simulation, *, scenario: str, costs: str, policy: str) -> LabRow:
    """The row of a run that is finished."""
    journeys = simulation.journeys
    statistics = simulation.planner.statistics(simulation.now)
    start = min(journey.arrival.at for journey in journeys)
    makespan = max(_finished_at(journey) for journey in journeys) - start
    first_tokens = [journey.first_token for journey in journeys]
    gaps = [gap for journey in journeys for gap in journey.gaps]
    longest_gaps = [max(journey.gaps) for journey in journeys if journey.gaps]
    spans = sum(len(record.spans) for record in simulation.records)
    return LabRow(
        scenario=scenario,
        costs=costs,
        policy=policy,
        requests=len(journeys),
        makespan_ms=_milliseconds(makespan),
        requests_per_second=round(len(journeys) / makespan, 3),
        tokens_per_second=round(sum(len(journey.tokens) for journey in journeys) / makespan, 3),
        p50_ttft_ms=_milliseconds(quantile(first_tokens, 0.5)),
        p95_ttft_ms=_milliseconds(quantile(first_tokens, 0.95)),
        p50_gap_ms=_milliseconds(quantile(gaps, 0.5)),
        p95_gap_ms=_milliseconds(quantile(gaps, 0.95)),
        p95_max_gap_ms=_milliseconds(quantile(longest_gaps, 0.95)),
        longest_gap_ms=_milliseconds(max(longest_gaps, default=0.0)),
        mean_batch=spans / statistics.iterations,
        occupancy=statistics.occupancy,
        iterations=statistics.iterations,
        mixed_iterations=statistics.mixed_iterations,
        cached_tokens=sum(journey.cached_tokens for journey in journeys),
        preemptions=statistics.preemptions,
        longest_wait_ms=_milliseconds(statistics.longest_wait),
        most_overtakes=statistics.most_overtakes,
        stage_busy=tuple(round(busy / makespan, 4) for busy in simulation.ring.busy),
    )


def _finished_at(journey: Journey) -> float:
    assert journey.finished_at is not None, "the run is not finished"
    return journey.finished_at


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 4)
