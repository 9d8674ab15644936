from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longspan.schedule.span import Phase, Span
from longspan.speculate.ledger import Ledger


def window(sequence: int, epoch: int, rows: int) -> Span:
    return Span(sequence, 0, epoch, 0, (0,) * rows, Phase.VERIFY)


def test_time_in_flight_is_weighted() -> None:
    ledger = Ledger()
    ledger.advance(10.0)
    ledger.sent(window(1, 0, 4), 3)
    ledger.advance(11.0)
    ledger.sent(window(1, 0, 4), 4)
    ledger.advance(13.0)
    ledger.returned(window(1, 0, 4))
    ledger.voided(1, 1)
    ledger.sent(window(1, 1, 2), 1)
    ledger.advance(14.0)
    ledger.returned(window(1, 0, 4))
    ledger.returned(window(1, 1, 2))
    ledger.advance(20.0)  # nothing in flight: no time
    known = ledger.statistics(25.0)
    assert known.seconds == 4.0
    assert known.useful_in_flight == (1 * 4 + 2 * 8 + 1 * 2) / 4
    assert known.stale_in_flight == 1 * 4 / 4
    assert known.seconds_by_depth[:3] == (1.0 + 1.0, 2.0, 0.0)
    assert known.windows_by_rows[:4] == (0, 1, 0, 2)


def test_what_is_in_flight_of_a_sequence_that_is_over_is_void() -> None:
    ledger = Ledger()
    ledger.sent(window(1, 0, 4), 3)
    ledger.voided(1, 0)
    assert (ledger.live_rows, ledger.void_rows) == (0, 4)
    ledger.voided(1, 0)
    ledger.returned(window(1, 0, 4))
    assert (ledger.live_rows, ledger.void_rows) == (0, 0)
    assert ledger.statistics(0.0).stale_windows == 1


def test_a_lost_ring_leaves_nothing_in_flight() -> None:
    ledger = Ledger()
    ledger.sent(window(1, 0, 4), 3)
    ledger.sent(window(2, 0, 1), 0)
    ledger.lost()
    assert ledger.rows == 0
    ledger.returned(window(1, 0, 4))  # cannot come, and would do no harm
    assert ledger.rows == 0
    assert ledger.statistics(0.0).stale_rows == 5


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["send", "back", "void"]), st.integers(0, 3), st.integers(1, 5)), max_size=60
    )
)
def test_rows_in_flight_are_always_those_of_the_windows_in_flight(steps: list[tuple[str, int, int]]) -> None:
    ledger = Ledger()
    epochs = [0] * 4
    flying: list[Span] = []
    for now, (what, sequence, rows) in enumerate(steps):
        ledger.advance(float(now))
        if what == "send":
            flying.append(window(sequence, epochs[sequence], rows))
            ledger.sent(flying[-1], rows - 1)
        elif what == "back" and flying:
            ledger.returned(flying.pop(0))
        elif what == "void":
            epochs[sequence] += 1
            ledger.voided(sequence, epochs[sequence])
        live = sum(len(span.tokens) for span in flying if span.epoch == epochs[span.sequence])
        assert (ledger.live_rows, ledger.rows) == (live, sum(len(span.tokens) for span in flying))
