"""The model that runs ahead: texts that go their own way, slots that run out, thoughts that come late."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from longspan.schedule.span import Iteration, IterationResult, Sample, SpanFailure
from longspan.speculate.ahead import Ahead, Thought, Told
from longspan.speculate.run_ahead import RunAhead

VOCABULARY = 50
CELLS = 40


def following(tokens: Sequence[int]) -> int:
    """What the toy model says behind tokens: it depends on all of them."""
    return zlib.crc32(bytes(tokens)) % VOCABULARY


class Toy:
    """A model with KV slots that holds exactly what was run in them, and answers from that."""

    def __init__(self, slots: int, rows: int = 16) -> None:
        self.slots: list[list[int]] = [[] for _ in range(slots)]
        self.rows = rows
        self.most_rows = 0

    def run(self, iteration: Iteration, refused: frozenset[int] = frozenset()) -> IterationResult:
        samples, failures = [], []
        assert [span.slot for span in iteration.spans] == sorted({span.slot for span in iteration.spans})
        assert 0 < iteration.rows <= self.rows
        for index, span in enumerate(iteration.spans):
            held = self.slots[span.slot]
            assert 0 <= span.start <= len(held) and span.end <= CELLS
            if span.sequence in refused:
                failures.append(SpanFailure(index, "no"))
                continue
            held[span.start :] = span.tokens
            samples += [Sample(index, row, following(held[: span.start + row + 1])) for row in span.sample_rows]
        return IterationResult(iteration.id, tuple(samples), tuple(failures))


def run(ahead: RunAhead, toy: Toy, iterations: int = 1000) -> list[Thought]:
    """Let the model think until it has nothing to do, or for so many iterations."""
    thoughts = []
    for _ in range(iterations):
        iteration = ahead.plan()
        if iteration is None:
            break
        thoughts += ahead.complete(iteration, toy.run(iteration))
    return thoughts


def chain(tokens: Sequence[int], length: int) -> tuple[int, ...]:
    known = list(tokens)
    for _ in range(length):
        known.append(following(known))
    return tuple(known[len(tokens) :])


def test_it_thinks_as_far_as_is_wanted_and_no_further() -> None:
    toy, ahead = Toy(1), RunAhead(1, CELLS, 16, VOCABULARY)
    ahead.take(Told(7, (1, 2, 3), wanted=8))
    thoughts = run(ahead, toy)
    assert [len(thought.draft) for thought in thoughts] == [1, 2, 3, 4, 5]
    assert thoughts[-1] == Thought(7, 3, chain((1, 2, 3), 5))
    assert ahead.plan() is None
    ahead.take(Told(7, (), wanted=1000))
    assert len(run(ahead, toy)[-1].draft) == CELLS - 3, "a slot has no more positions"


def test_a_text_that_goes_another_way_is_trimmed_and_caught_up_with() -> None:
    toy, ahead = Toy(1), RunAhead(1, CELLS, 16, VOCABULARY)
    ahead.take(Told(7, (1, 2, 3), wanted=8))
    draft = run(ahead, toy)[-1].draft
    other = (draft[1] + 1) % VOCABULARY
    ahead.take(Told(7, (draft[0], other), wanted=8))
    iteration = ahead.plan()
    assert iteration is not None
    (span,) = iteration.spans
    assert (span.start, span.tokens) == (4, (other,)), "what came true stays in the slot"
    assert ahead.complete(iteration, toy.run(iteration))[-1].draft == chain((1, 2, 3, draft[0], other), 1)


def test_a_long_prompt_comes_in_pieces_and_does_not_hold_up_others() -> None:
    toy, ahead = Toy(2), RunAhead(2, CELLS, 16, VOCABULARY)
    ahead.take(Told(1, tuple(range(30)), wanted=32))
    ahead.take(Told(2, (5, 6), wanted=10))
    iteration = ahead.plan()
    assert iteration is not None
    assert {span.sequence: len(span.tokens) for span in iteration.spans} == {1: 14, 2: 2}
    ahead.complete(iteration, toy.run(iteration))
    newest = {thought.key: thought for thought in run(ahead, toy)}
    assert newest[1].draft == chain(range(30), 2)
    assert newest[2].draft == chain((5, 6), 8)


def test_without_a_free_slot_the_one_that_wants_nothing_gives_way() -> None:
    toy, ahead = Toy(1), RunAhead(1, CELLS, 16, VOCABULARY)
    ahead.take(Told(1, (1, 2), wanted=4))
    run(ahead, toy)
    ahead.take(Told(2, (3, 4), wanted=5))
    assert run(ahead, toy)[-1] == Thought(2, 2, chain((3, 4), 3))
    ahead.take(Told(1, (), wanted=6))
    assert run(ahead, toy)[-1] == Thought(1, 2, chain((1, 2), 4)), "it is replayed"
    ahead.take(Told(1, ended=True))
    ahead.take(Told(3, (9,), wanted=3))
    assert run(ahead, toy)[-1] == Thought(3, 1, chain((9,), 2))


def test_what_cannot_be_run_is_left_alone() -> None:
    toy, ahead = Toy(1), RunAhead(1, CELLS, 16, VOCABULARY)
    ahead.take(Told(1, (1, VOCABULARY), wanted=9))
    assert ahead.plan() is None, "that token has no row"
    ahead.take(Told(2, (1,), wanted=9))
    iteration = ahead.plan()
    assert iteration is not None
    assert ahead.complete(iteration, toy.run(iteration, frozenset({2}))) == []
    assert ahead.plan() is None
    ahead.take(Told(3, (4,), wanted=3))
    assert run(ahead, toy)[-1] == Thought(3, 1, chain((4,), 2))
    ahead.take(Told(99, ended=True))


def test_a_proposer_gives_what_has_arrived_and_says_what_it_wants() -> None:
    told: list[Told] = []
    woken: list[int] = []
    proposer = Ahead(7, told.append)
    proposer.attach(lambda: woken.append(1))
    proposer.observe([1, 2])
    proposer.observe([3])
    assert proposer.propose([], 5).tokens == ()
    assert proposer.propose([], 5).tokens == ()
    assert told == [Told(7, (1, 2, 3), 8)]
    proposer.think(Thought(7, 3, (10, 11, 12)))
    assert woken == [1]
    draft = proposer.propose([], 2)
    assert (draft.tokens, draft.rank, draft.continues) == ([10, 11], 1, True)
    draft = proposer.propose([10, 11], 5)
    assert (draft.tokens, draft.rank) == ([12], 3)
    assert proposer.propose([10, 9], 5).tokens == (), "the tail went another way"
    proposer.observe([10, 20])
    assert proposer.propose([], 4).tokens == ()
    assert told[-1] == Told(7, (10, 20), 9)
    # Thought before the model knew of 20: of no use. Then one that knew, and 21 was committed since.
    proposer.think(Thought(7, 4, (11, 12)))
    assert proposer.propose([], 4).tokens == ()
    proposer.observe([21])
    proposer.think(Thought(7, 5, (21, 22)))
    assert list(proposer.propose([], 4).tokens) == [22]
    proposer.end()
    assert told[-1] == Told(7, ended=True)


@given(data=st.data())
def test_every_thought_is_what_the_model_says_behind_what_is_committed(data: st.DataObject) -> None:
    """Texts that follow the drafts or not, end and begin, while messages and thoughts are under way."""
    slots = data.draw(st.integers(1, 3))
    toy, ahead = Toy(slots), RunAhead(slots, CELLS, 16, VOCABULARY)
    sent: deque[Told] = deque()
    back: deque[Thought] = deque()
    texts: dict[int, tuple[Ahead, list[int]]] = {}
    for step in range(data.draw(st.integers(1, 60))):
        action = data.draw(st.sampled_from(("begin", "commit", "ask", "run", "hear", "arrive", "end")))
        key = data.draw(st.sampled_from(sorted(texts))) if texts else None
        if action == "begin" and len(texts) < 4:
            prompt = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20))
            texts[step] = Ahead(step, sent.append), list(prompt)
            texts[step][0].observe(prompt)
        elif action == "run":
            for thought in run(ahead, toy, 1):
                back.append(thought)
        elif action == "hear" and sent:
            ahead.take(sent.popleft())
        elif action == "arrive" and back:
            thought = back.popleft()
            if thought.key in texts:
                texts[thought.key][0].think(thought)
        elif key is not None:
            proposer, tokens = texts[key]
            if action == "end":
                proposer.end()
                del texts[key]
                continue
            draft = proposer.propose([], data.draw(st.integers(1, 12)))
            assert tuple(draft.tokens) == chain(tokens, len(draft.tokens))
            if action == "commit":
                right = draft.tokens[: data.draw(st.integers(0, 3))]
                more = [*right, data.draw(st.integers(0, VOCABULARY - 1))]
                tokens += more
                proposer.observe(more)
    while sent:
        ahead.take(sent.popleft())
    for thought in [*back, *run(ahead, toy)]:
        if thought.key in texts:
            texts[thought.key][0].think(thought)
    for proposer, tokens in texts.values():
        draft = proposer.propose([], 12)
        assert tuple(draft.tokens) == chain(tokens, len(draft.tokens))
