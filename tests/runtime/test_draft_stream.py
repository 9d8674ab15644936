"""What a head may see of a slot: only committed rows, whatever was in flight."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from longspan.runtime.draft_stream import DraftStream, Path, Step, committed_path
from longspan.schedule.span import Phase, Span
from tests.runtime.pipeline import span


def _chain(tokens: Sequence[int], sampled: dict[int, int]) -> Path:
    return committed_path(span(0, 10, tokens), sampled)


def test_a_chain_is_committed_up_to_the_first_mismatch() -> None:
    path = _chain([1, 2, 3, 4], {0: 2, 1: 9, 2: 4, 3: 5})
    assert path == Path((Step(0, 10, 2), Step(1, 11, 9)), diverged=True)
    path = _chain([1, 2, 3], {0: 2, 1: 3, 2: 4})
    assert path == Path((Step(0, 10, 2), Step(1, 11, 3), Step(2, 12, 4)), diverged=False)
    assert _chain([1], {0: 7}) == Path((Step(0, 10, 7),), diverged=False)


def test_rows_that_are_not_sampled_are_followed_by_what_the_span_has() -> None:
    path = _chain([1, 2, 3], {})
    assert path == Path((Step(0, 10, 2), Step(1, 11, 3), Step(2, 12, None)), diverged=False)


def test_a_tree_is_committed_along_the_branch_that_was_sampled() -> None:
    tree = span(0, 10, [1, 2, 3, 4, 5, 6], parents=(-1, 0, 0, 2, 2, 4))
    path = committed_path(tree, {0: 3, 1: 8, 2: 5, 3: 9, 4: 6, 5: 7})
    assert [step.row for step in path.steps] == [0, 2, 4, 5]
    assert [step.position for step in path.steps] == [10, 11, 12, 13]
    assert (path.steps[-1].token, path.diverged) == (7, False)
    path = committed_path(tree, {0: 3, 1: 8, 2: 9, 3: 9, 4: 6, 5: 7})
    assert [step.row for step in path.steps] == [0, 2]
    assert (path.steps[-1].token, path.diverged) == (9, True)


def test_a_prompt_in_chunks_loses_no_row_between_them() -> None:
    stream = DraftStream()
    states = [np.full(4, row, np.float32) for row in range(5)]
    for start, tokens, sampled in [(0, [5, 6], {}), (2, [7], {}), (3, [8, 9], {1: 4})]:
        chunk = span(0, start, tokens, phase=Phase.PREFILL)
        assert stream.follow(chunk, committed_path(chunk, sampled), states[start:])
    tokens, hidden = stream.take()
    assert tokens == [6, 7, 8, 9, 4]
    assert [state[0] for state in hidden] == [0, 1, 2, 3, 4]


def test_a_decode_row_is_committed_whatever_was_sampled() -> None:
    stream = DraftStream()
    prompt = span(0, 0, [5], phase=Phase.PREFILL)
    state = np.zeros(4, np.float32)
    assert stream.follow(prompt, committed_path(prompt, {0: 9}), [state])
    window, decode = span(0, 1, [8]), span(0, 1, [8], phase=Phase.DECODE)
    path = committed_path(window, {0: 7})
    assert not stream.follow(window, path, [state])
    assert stream.follow(decode, path, [state])
    assert stream.take()[0] == [7]


def test_a_window_may_begin_with_committed_rows_again() -> None:
    stream = DraftStream()
    states = [np.full(4, row, np.float32) for row in range(6)]
    prompt = span(0, 0, [5, 6, 7], phase=Phase.PREFILL)
    assert stream.follow(prompt, committed_path(prompt, {2: 8}), states[:3])
    window = span(0, 3, [8, 9], sample_rows=(0, 1))
    assert stream.follow(window, committed_path(window, {0: 9, 1: 4}), states[3:5])
    assert stream.take()[0] == [6, 7, 8, 9, 4]
    again = span(0, 2, [7, 8, 9], sample_rows=(2,))
    assert not stream.follow(again, committed_path(again, {2: 4}), states[:3]), (
        "it stops before the token that came"
    )
    again = span(0, 3, [8, 1, 4], sample_rows=(1, 2))
    assert not stream.follow(again, committed_path(again, {1: 4, 2: 2}), states[3:6]), "another text led there"
    again = span(0, 3, [8, 9, 4, 1], sample_rows=(1, 2, 3))
    path = committed_path(again, {1: 4, 2: 2, 3: 3})
    assert (path.steps[-1], path.diverged) == (Step(2, 5, 2), True)
    assert stream.follow(again, path, states[3:6])
    assert (stream.take()[0], stream.fed) == ([2], 6)
    assert stream.follow(again, path, states[3:6]) is False
    stream.trim(3)
    repeated = span(0, 3, [8, 9], sample_rows=(0, 1))
    assert stream.follow(repeated, committed_path(repeated, {0: 9, 1: 4}), states[3:5])
    assert stream.take()[0] == [9, 4]


def test_a_trimmed_slot_keeps_the_row_of_the_token_that_comes_next() -> None:
    stream = DraftStream()
    prompt = span(0, 0, [5, 6, 7, 8], phase=Phase.PREFILL)
    states = [np.full(4, row, np.float32) for row in range(4)]
    assert stream.follow(prompt, committed_path(prompt, {3: 9}), states)
    assert len(stream) == 4
    stream.trim(2)
    assert len(stream) == stream.waiting == 2
    other = span(0, 2, [3], phase=Phase.PREFILL)
    assert stream.follow(other, committed_path(other, {0: 1}), states[:1])
    tokens, hidden = stream.take()
    assert tokens == [6, 1]
    assert [state[0] for state in hidden] == [0, 0]


VOCABULARY = 3
"""Few tokens, so that wrong drafts are often right, and stale windows look like good ones."""


def _after(context: Sequence[int]) -> int:
    """The token that the model takes after a context."""
    return hashlib.sha256(bytes(context)).digest()[0] % VOCABULARY


def _state(context: Sequence[int]) -> npt.NDArray[np.float32]:
    """The hidden state after a context: no two contexts share one."""
    return np.frombuffer(hashlib.sha256(b"h" + bytes(context)).digest()[:4], np.uint8).astype(np.float32)


@dataclasses.dataclass
class Reply:
    """What comes back for a span: its epoch, start and samples."""

    epoch: int
    start: int
    tokens: tuple[int, ...]
    samples: list[int]


class Ring:
    """A coordinator that sends windows ahead, and a stage that runs them in order; the stream follows the stage."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stream = DraftStream()
        self.cache: list[tuple[int, npt.NDArray[np.float32]]] = []
        self.held: list[int] = []
        self.sequence = self.entered = 0
        self._new_request(self._tokens(), 0)

    def _tokens(self) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(self.random.randint(1, 6))]

    def _new_request(self, prompt: list[int], keep: int) -> None:
        self.sequence += 1
        self.epoch = 0
        self.truth = list(prompt)
        while len(self.truth) < len(prompt) + 200:
            self.truth.append(_after(self.truth))
        self.committed = len(prompt)
        self.sent = len(prompt)
        self.drafts: list[int] = []
        self.flight: list[Span] = []
        self.replies: list[Reply] = []
        cut = self.random.randint(keep, len(prompt) - 1)
        for start, end in ((keep, cut), (cut, len(prompt))):
            if start < end:
                kept = self.random.random() < 0.8
                self._run(
                    self._span(Phase.PREFILL, start, prompt[start:end]), sampled=end == len(prompt), kept=kept
                )
        self.committed += 1  # the prompt's own sample

    def _span(self, phase: Phase, start: int, tokens: Sequence[int]) -> Span:
        return Span(self.sequence, 0, self.epoch, start, tuple(tokens), phase)

    def _run(self, entry: Span, *, sampled: bool, kept: bool) -> Reply:
        """The stage: trim to the start, run, follow."""
        if len(self.held) > entry.start:
            self.stream.trim(entry.start)
        del self.held[entry.start :]
        before = list(self.held)
        self.held += entry.tokens
        contexts = [before + list(entry.tokens[: row + 1]) for row in range(len(entry.tokens))]
        exact = entry.phase.is_exact
        samples = {row: _after(context) for row, context in enumerate(contexts) if exact}
        if sampled:
            samples[len(contexts) - 1] = _after(contexts[-1])
        path = committed_path(msgspec.structs.replace(entry, sample_rows=tuple(samples)), samples)
        states = [_state(contexts[step.row]) for step in path.steps]
        live = self.stream.follow(entry, path, states if kept else None)
        self.entered += live and kept
        if live and kept and path.steps[-1].token is not None:
            assert self.stream.waiting > 0
        return Reply(entry.epoch, entry.start, entry.tokens, [samples.get(row, -1) for row in range(len(contexts))])

    def send(self) -> None:
        """A window: the next token of the stream and drafts, of which the first `right` follow the truth."""
        if len(self.flight) == 4 or self.sent > len(self.truth) - 20:
            return
        rows, right = self.random.randint(1, 5), self.random.randint(0, 8)
        stream = [*self.truth[: self.committed], *self.drafts]
        while len(stream) < self.sent + rows:
            token = self.random.randrange(VOCABULARY)
            if right > 0 and stream == self.truth[: len(stream)]:
                token = self.truth[len(stream)]
            right -= 1
            stream.append(token)
        self.drafts = stream[self.committed :]
        tokens = stream[self.sent : self.sent + rows]
        drafted = self.sent + rows > self.committed
        self.flight.append(self._span(Phase.VERIFY if drafted else Phase.DECODE, self.sent, tokens))
        self.sent += rows

    def run_some(self) -> None:
        """Some windows run; of a few the hidden states are not kept."""
        for _ in range(min(len(self.flight), self.random.randint(1, 4))):
            kept = self.random.random() < 0.9
            self.replies.append(self._run(self.flight.pop(0), sampled=True, kept=kept))

    def commit_some(self) -> None:
        for _ in range(min(len(self.replies), self.random.randint(1, 4))):
            self._commit(self.replies.pop(0))

    def _commit(self, reply: Reply) -> None:
        if reply.epoch != self.epoch:
            return
        for row, token in enumerate(reply.samples):
            position = reply.start + row + 1
            assert token == self.truth[position], "a window that is not stale follows the truth"
            if position >= self.committed:
                self.committed = position + 1
                draft = self.drafts.pop(0) if self.drafts else None
                if draft != token:
                    if draft is not None or self.sent > position:
                        self.epoch += 1
                        self.drafts.clear()
                        self.sent = position
                    return

    def feed(self) -> None:
        self._settle()
        tokens, states = self.stream.take()
        self.cache += zip(tokens, states, strict=True)
        assert len(self.cache) == self.stream.fed

    def forget(self) -> None:
        self._settle()
        rows = min(self.random.randint(1, 4), self.stream.fed)
        self.stream.forget_oldest(rows)
        del self.cache[:rows]

    def next_request(self) -> None:
        """What is in flight runs into the void, then another request takes the slot, perhaps with a prefix."""
        for entry in self.flight:
            self._run(entry, sampled=True, kept=True)
        same = [a == b for a, b in zip(self.held, self.truth, strict=False)]
        keep = min(
            self.random.randint(0, 12),
            len(self.held),
            self.committed,
            *([same.index(False)] if False in same else []),
        )
        self._new_request(self.held[:keep] + self._tokens(), keep)

    def replay(self) -> None:
        """The slot was lost: everything committed runs again."""
        self.epoch += 1
        self.flight.clear()
        self.replies.clear()
        self.drafts.clear()
        self.stream.trim(0)
        self.held.clear()
        self._run(self._span(Phase.RECOMPUTE, 0, self.truth[: self.committed - 1]), sampled=False, kept=True)
        self.sent = self.committed - 1

    def lose(self) -> None:
        self.stream.lose()
        assert len(self.stream) == self.stream.fed == self.stream.waiting == 0

    def _settle(self) -> None:
        """What the drafter does with the cells behind those that count."""
        assert self.stream.fed <= len(self.cache)
        del self.cache[self.stream.fed :]

    def check(self) -> None:
        """Every row in the cache and every waiting one is what the truth says."""
        stream = self.stream
        positions, tokens = stream._positions, stream._tokens
        assert positions == sorted(set(positions))
        assert len(stream) == stream.fed + stream.waiting
        states = [state for _, state in self.cache[: stream.fed]] + stream._hidden
        assert [token for token, _ in self.cache[: stream.fed]] == tokens[: stream.fed]
        for position, token, state in zip(positions, tokens, states, strict=True):
            assert np.array_equal(state, _state(self.truth[:position])), position
            assert token == self.truth[position]


WEIGHTS = {
    Ring.send: 30,
    Ring.run_some: 30,
    Ring.commit_some: 25,
    Ring.feed: 8,
    Ring.forget: 2,
    Ring.next_request: 2,
    Ring.replay: 2,
    Ring.lose: 1,
}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_in_flight_only_committed_rows_enter(seed: int) -> None:
    ring = Ring(seed)
    for step in ring.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=300):
        step(ring)
        ring.check()
    assert ring.entered > 20
