"""Which spans of an iteration succeeded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longspan.schedule.events import FailureKind
from longspan.schedule.outcome import SpanFault, outcomes
from longspan.schedule.span import Iteration, IterationResult, Phase, Sample, Span, SpanFailure


def iteration(*asked: tuple[int, ...]) -> Iteration:
    spans = tuple(Span(i, i, 0, 0, (1,) * 5, Phase.VERIFY, rows) for i, rows in enumerate(asked))
    return Iteration(4, (), (), spans)


def decide(asked: list[tuple[int, ...]], samples: list[Sample], *failures: SpanFailure) -> list[object]:
    return list(outcomes(iteration(*asked), IterationResult(4, tuple(samples), failures)).spans)


def test_samples_come_back_in_row_order() -> None:
    first, second = Sample(0, 1, 7), Sample(0, 3, 8)
    assert decide([(1, 3)], [second, first]) == [(first, second)]


def test_a_span_without_samples_succeeds_without_any() -> None:
    assert decide([()], []) == [()]


def test_faults_stay_with_their_span() -> None:
    good = Sample(2, 0, 9)
    decided = decide([(0,), (0,), (0,), ()], [Sample(1, 0, 5), Sample(1, 0, 6), good, Sample(3, 2, 1)])
    assert [isinstance(outcome, SpanFault) for outcome in decided] == [True, True, False, True]
    assert decided[2] == (good,)
    assert isinstance(decided[0], SpanFault)
    assert decided[0].kind is FailureKind.PROTOCOL
    assert "iteration 4 span 0" in decided[0].reason


def test_a_failed_span_fails_even_with_a_sample() -> None:
    assert decide([(0,)], [Sample(0, 0, 5)], SpanFailure(0, "no memory")) == [
        SpanFault(FailureKind.STAGE, "no memory")
    ]


def test_strays_are_counted() -> None:
    result = IterationResult(4, (Sample(0, 0, 5), Sample(1, 0, 5), Sample(-1, 0, 5)), (SpanFailure(7, "?"),))
    decided = outcomes(iteration((0,)), result)
    assert decided.strays == 3
    assert decided.spans == [(Sample(0, 0, 5),)]


@given(
    st.lists(st.sets(st.integers(0, 4)).map(lambda rows: tuple(sorted(rows))), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 5)), max_size=20),
)
def test_a_span_succeeds_exactly_when_its_rows_came_once_each(
    asked: list[tuple[int, ...]], came: list[tuple[int, int]]
) -> None:
    samples = [Sample(span, row, 1) for span, row in came]
    decided = outcomes(iteration(*asked), IterationResult(4, tuple(samples)))
    for index, (rows, outcome) in enumerate(zip(asked, decided.spans, strict=True)):
        wanted = sorted(row for span, row in came if span == index) == list(rows)
        assert isinstance(outcome, SpanFault) != wanted
    assert decided.strays == sum(not 0 <= span < len(asked) for span, _ in came)
