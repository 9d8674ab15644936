"""What `longspan lab ring` makes of measured runs; the command itself is run by hand, for it takes a minute."""

from __future__ import annotations

import pytest

from longspan.bench.ring_model import FittedRing, Run, Setting, fitted_ring, simulate
from longspan.errors import LongspanError
from longspan.schedule.geometry import Geometry
from longspan.schedule.span import Phase
from longspan.schedule.trace import SpanShape, StageTime, TraceRecord

FIRST, ROW, OVERHEAD = 0.004, 0.001, 0.0005


def record(delay: float, rows: int, *, slower: float = 1.0) -> TraceRecord:
    """An iteration of two stages; the second is twice as slow, and waits a millisecond."""
    worked = [slower * factor * (FIRST + ROW * rows) for factor in (1, 2)]
    stages = tuple(
        StageTime(stage, waited, seconds, 0.0, 1)
        for stage, (waited, seconds) in enumerate(zip((0.0, 0.001), worked, strict=True))
    )
    trip = sum(worked) + 0.001 + 2 * (delay + OVERHEAD)
    shape = SpanShape(0, 0, 10, rows, Phase.VERIFY, rows)
    return TraceRecord(0, 1.0, 1.0 + trip, (shape,), 0, 0, {}, 0.0, 0.0, "off", 1, 0, rows, 0, stages)


def fitted() -> FittedRing:
    slow = Run(1.0, 0, (), tuple(record(0.05, rows, slower=slower) for rows in (1, 4) for slower in (1, 1, 3)))
    wide = Run(1.0, 0, (), tuple(record(0.02, rows) for rows in (1, 16)))
    return fitted_ring([(Setting(50, 4, 1), slow), (Setting(20, 16, 4), wide)])


def test_costs_are_medians_joined_by_lines_and_links_take_what_is_left() -> None:
    ring = fitted()
    assert ring.overhead == pytest.approx(OVERHEAD)
    for rows in (1, 4, 10, 16, 32):
        geometry = Geometry(exact_rows=rows, sequences=1)
        assert [cost(geometry) for cost in ring.costs] == pytest.approx(
            [FIRST + ROW * rows, 2 * (FIRST + ROW * rows)]
        )


def test_runs_of_one_size_say_nothing_about_rows() -> None:
    run = Run(1.0, 0, (), (record(0.05, 1),))
    with pytest.raises(LongspanError, match="what rows cost"):
        fitted_ring([(Setting(50, 1, 1), run)])


def test_a_text_without_repeats_goes_one_row_a_trip() -> None:
    rate, stale = simulate(range(20), range(100, 130), Setting(50, 8, 4), fitted(), 1000)
    assert rate == pytest.approx(1 / (3 * (FIRST + ROW) + 2 * (0.05 + OVERHEAD)))
    assert stale == 0


def test_a_text_that_repeats_itself_fills_the_ring() -> None:
    text = [*range(16)] * 4
    rate, stale = simulate(text, text, Setting(50, 8, 8), fitted(), 1000)
    plain = 1 / (3 * (FIRST + ROW) + 2 * (0.05 + OVERHEAD))
    assert rate > 5 * plain
    assert rate < 8 / (2 * (FIRST + 8 * ROW)) * 1.5, "faster than the slowest stage"
    assert stale >= 0
