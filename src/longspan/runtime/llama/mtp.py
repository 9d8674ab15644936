"""Drafts by an MTP head, on the stage that samples.

Rows are fed to the head when a draft is asked for, together with the first step of the draft. All drafts of an
iteration step together.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from longspan.errors import LongspanError
from longspan.llamacpp.library import Library
from longspan.model.draft_model import DraftModel
from longspan.runtime.draft_lexicon import DraftLexicon
from longspan.runtime.draft_stream import DraftStream, Hidden, Path, committed_path
from longspan.runtime.llama.head_context import MAX_ROWS, Array, HeadContext
from longspan.runtime.llama.head_tree import TREE_FORKS, HeadTree
from longspan.runtime.slots import KvCopy, KvTrim, SlotPlan
from longspan.schedule.span import DraftRequest, Sample, Span
from longspan.speculate.tree import BRANCHES

DRAFT_LENGTH = 8
LEAST_CHANCE = 0.05
"""A chain ends where the chance that all of it is right falls below this. Measured on the demo's head, whose
probabilities are those at which it is right: longer chains where it is sure and shorter ones where it is not give
7 % more tokens a traversal than chains of 4, with a fifth fewer rows (see the head's README)."""
WINDOW = 192
"""Most rows of a slot that the head attends to, besides the prefix."""
_DROPPED = 64
"""Rows that leave at once when the window is full."""
_MOST_WAITING = 64
"""Rows with hidden states that wait in memory for a draft to be asked for. When more come, the oldest are dropped:
the head's time is spent where somebody wants its drafts."""

Candidates = tuple[tuple[int, float], ...]
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Draft:
    """A chain of tokens.

    chances: of each token, the probability that the head gives it behind those before it. candidates: of each step
    the likeliest tokens and their probabilities, likeliest first.
    parents: given for a tree, see `schedule.span.Sample`; then `chances` are those of whole paths.
    """

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    candidates: tuple[Candidates, ...] = ()
    parents: tuple[int, ...] = ()


class MtpDrafter:
    """Follows the slots of a stage and drafts from their committed tips. One owner thread, as the stage has.

    length: most tokens of a draft. least_chance: a chain ends where the chance that all of it is right falls below
    this. top: candidates to return for each step, 0 for none. trees: drafts are token trees, for the one slot.
    failures: drafts that were lost because llama.cpp refused; the slots go on without. seconds: what the head took
    in the last iteration.
    """

    def __init__(
        self,
        library: Library,
        model: DraftModel,
        *,
        slots: int,
        threads: int,
        length: int = DRAFT_LENGTH,
        least_chance: float = LEAST_CHANCE,
        top: int = 0,
        trees: bool = False,
    ) -> None:
        self._length = length
        self._least_chance = least_chance
        self._top = top
        self.failures = 0
        self.seconds = 0.0
        self._vocabulary = model.vocabulary
        self._streams = [DraftStream() for _ in range(slots)]
        common = np.zeros(model.output.vocabulary, np.bool_)
        common[model.vocabulary] = True
        self._lexicons = [DraftLexicon(model.output, common) for _ in range(slots)]
        self._forks = range(slots, slots + (TREE_FORKS if trees else 0))
        self._head = HeadContext(
            library, model, slots=slots + len(self._forks), cells=WINDOW + length, threads=threads
        )
        self._work = self._tree if trees else self._chain

    def close(self) -> None:
        """Release model and context."""
        self._head.close()

    def act(self, action: KvTrim | KvCopy) -> None:
        """Follow what happens to a slot."""
        if isinstance(action, KvTrim):
            self._streams[action.slot].trim(action.keep)
        else:
            # The prefix serves a new sequence about as well as the rows of another one would.
            self._streams[action.target].clear()
            self._lexicons[action.target] = self._lexicons[action.source].copy()

    def follow(
        self,
        plan: SlotPlan,
        firsts: Sequence[int],
        samples: Sequence[Sample],
        hidden: Callable[[int], Hidden] | None,
    ) -> tuple[Sample, ...]:
        """Enter what an iteration committed; gives the samples, those at asked tips with drafts.

        firsts: row of the batch where each runnable span begins. hidden: gives the hidden state of a row of the
        batch; None when they were not kept.
        """
        self.seconds = 0.0
        sampled: dict[int, dict[int, int]] = {}
        for sample in samples:
            sampled.setdefault(sample.span, {})[sample.row] = sample.token
        tips: dict[int, tuple[int, int]] = {}  # by slot
        for (index, _, span), first in zip(plan.runnable, firsts, strict=True):
            tokens = sampled.get(index, {})
            if len(tokens) < len(span.sample_rows):
                continue  # sampling failed, and the slot with it
            path = committed_path(span, tokens)
            tip = path.steps[-1]
            self._lexicons[span.slot].note(span.tokens if tip.token is None else (*span.tokens, tip.token))
            states = None
            if hidden is not None and span.draft is not DraftRequest.NEVER:
                states = _finite([hidden(first + step.row) for step in path.steps])
            stream = self._streams[span.slot]
            live = stream.follow(span, path, states)
            if live and states is not None and _asks(span, path) and tip.row in tokens:
                tips[span.slot] = (index, tip.row)
            else:
                stream.keep_waiting(_MOST_WAITING)
        if not tips:
            return tuple(samples)
        drafts = dict(zip(tips.values(), self.draft(list(tips)), strict=True))
        return tuple(_with_draft(sample, drafts.get((sample.span, sample.row))) for sample in samples)

    def draft(self, slots: Sequence[int]) -> list[Draft]:
        """A draft for each of the slots, which hold at least one row that waits; all slots step together."""
        return self._guard(slots, self._work) or [Draft()] * len(slots)

    def _guard(self, slots: Sequence[int], work: Callable[[Sequence[int]], _Result]) -> _Result | None:
        """Do work; when llama.cpp refuses, the slots lose what the head has seen, and nothing else happens."""
        started = time.perf_counter()
        try:
            return work(slots)
        except LongspanError:
            self.failures += 1
            for slot in slots:
                self._streams[slot].lose()
            for slot in (*slots, *self._forks):
                self._head.trim(slot, 0)
            return None
        finally:
            self.seconds += time.perf_counter() - started

    def _feed(self, slots: Sequence[int]) -> tuple[Array, Array]:
        """Run the waiting rows of the slots; gives (logits, hidden states) of the last one of each."""
        results: list[tuple[Array, Array]] = []
        group: list[int] = []
        rows = 0
        for slot in slots:
            stream = self._streams[slot]
            self._head.trim(slot, stream.fed)
            while len(stream) > WINDOW and stream.fed:
                leaving = min(_DROPPED, stream.fed)
                stream.forget_oldest(leaving)
                self._head.drop_oldest(slot, leaving)
            if group and rows + stream.waiting > MAX_ROWS:
                results.append(self._feed_group(group))
                group, rows = [], 0
            group.append(slot)
            rows += stream.waiting
        results.append(self._feed_group(group))
        logits, states = zip(*results, strict=True)
        return np.concatenate(logits), np.concatenate(states)

    def _feed_group(self, slots: Sequence[int]) -> tuple[Array, Array]:
        tokens: list[int] = []
        hidden: list[Hidden] = []
        owners: list[int] = []
        outputs: list[int] = []
        for slot in slots:
            new_tokens, new_hidden = self._streams[slot].take()
            tokens += new_tokens
            hidden += new_hidden
            owners += [slot] * len(new_tokens)
            outputs.append(len(owners) - 1)
        return self._head.run(tokens, np.stack(hidden), owners, outputs)

    def _chain(self, slots: Sequence[int]) -> list[Draft]:
        logits, states = self._feed(slots)
        chains = {slot: _Chain() for slot in slots}
        going = list(slots)
        for step in range(self._length):
            going, rows = self._extend(chains, going, logits, states)
            if not going or step + 1 == self._length:
                break
            tokens = [chains[slot].tokens[-1] for slot in going]
            logits, states = self._head.run(tokens, states[rows], going, range(len(going)))
        for slot in slots:
            self._head.trim(slot, self._streams[slot].fed)
        return [chain.draft() for chain in chains.values()]

    def _tree(self, slots: Sequence[int]) -> list[Draft]:
        (slot,) = slots
        logits, states = self._feed(slots)
        lexicon = self._lexicons[slot]
        tree = HeadTree(self._head, slot, self._forks).grow(
            states[0], logits[0], lambda state, scores: self._likeliest(lexicon, state, scores)
        )
        self._head.trim(slot, self._streams[slot].fed)
        return [Draft(tree.tokens, tree.chances, (), tree.parents)]

    def _likeliest(self, lexicon: DraftLexicon, state: Array, logits: Array) -> Candidates:
        """The likeliest tokens of a step and their probabilities, likeliest first."""
        scores = np.concatenate([logits, lexicon.logits(state)])
        weights = np.exp(scores - scores.max())
        likeliest = np.argpartition(weights, -BRANCHES)[-BRANCHES:]
        likeliest = likeliest[np.argsort(-weights[likeliest])]
        words = [self._token(lexicon, place) for place in likeliest.tolist()]
        return tuple(zip(words, (weights[likeliest] / weights.sum()).tolist(), strict=True))

    def _extend(
        self, chains: dict[int, _Chain], slots: Sequence[int], logits: Array, states: Array
    ) -> tuple[list[int], list[int]]:
        """Give each chain its next token; gives the slots whose chains go on, and their places among all."""
        going, rows = [], []
        for place, slot in enumerate(slots):
            lexicon, chain = self._lexicons[slot], chains[slot]
            scores = np.concatenate([logits[place], lexicon.logits(states[place])])
            best = int(scores.argmax())
            weights = np.exp(scores - scores[best])
            total = float(weights.sum())
            if chain.survival / total < self._least_chance:
                continue
            chain.survival /= total
            chain.tokens.append(self._token(lexicon, best))
            chain.chances.append(1.0 / total)
            if self._top:
                likeliest = np.argpartition(weights, -self._top)[-self._top :]
                likeliest = likeliest[np.argsort(-weights[likeliest])]
                words = [self._token(lexicon, index) for index in likeliest.tolist()]
                chances = (weights[likeliest] / total).tolist()
                chain.candidates.append(tuple(zip(words, chances, strict=True)))
            going.append(slot)
            rows.append(place)
        return going, rows

    def _token(self, lexicon: DraftLexicon, place: int) -> int:
        common = self._vocabulary
        return int(common[place] if place < len(common) else lexicon.tokens[place - len(common)])


class _Chain:
    """A draft in the making. survival: chance that all of it is right."""

    def __init__(self) -> None:
        self.survival = 1.0
        self.tokens: list[int] = []
        self.chances: list[float] = []
        self.candidates: list[Candidates] = []

    def draft(self) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.chances), tuple(self.candidates))


def _finite(states: list[Hidden]) -> list[Hidden] | None:
    """The states, unless one is spoiled: in a shared cache it would spoil every slot."""
    return states if all(np.isfinite(state).all() for state in states) else None


def _asks(span: Span, path: Path) -> bool:
    return span.draft is DraftRequest.ALWAYS or path.diverged


def _with_draft(sample: Sample, draft: Draft | None) -> Sample:
    if draft is None or not draft.tokens:
        return sample
    chances = draft.chances if draft.parents else ()
    return Sample(sample.span, sample.row, sample.token, sample.logprob, draft.tokens, draft.parents, chances)
