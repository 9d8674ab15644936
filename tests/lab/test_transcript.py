"""The model whose answer is known."""

from __future__ import annotations

from longspan.lab.transcript import Transcript
from longspan.schedule.span import Drop, Iteration, Phase, Span

TOKENS = (5, 6, 7, 8, 9, 10)
OTHER = 99


def run(model: Transcript, start: int, tokens: tuple[int, ...], *, drop: bool = False) -> list[int]:
    span = Span(0, 0, 0, start, tokens, Phase.VERIFY, tuple(range(len(tokens))))
    samples, failures = model.run(Iteration(0, (Drop(0),) if drop else (), (), (span,)))
    return [sample.token for sample in samples] or [-len(failures)]


def test_right_rows_are_followed_by_the_transcript_and_others_by_nothing_of_it() -> None:
    model = Transcript(TOKENS, 1, OTHER)
    assert run(model, 0, (5, 6)) == [6, 7]
    assert run(model, 2, (7, 3, 9)) == [8, OTHER, OTHER]
    assert run(model, 3, (8, 9)) == [9, 10], "the start says what is kept"
    assert run(model, 5, (10,)) == [OTHER], "nothing is known behind the end"
    assert run(model, 0, (6,)) == [OTHER]


def test_a_span_behind_what_a_slot_holds_fails() -> None:
    model = Transcript(TOKENS, 1, OTHER)
    run(model, 0, (5, 6))
    assert run(model, 3, (8,)) == [-1]
    assert run(model, 1, (6,), drop=True) == [-1]
