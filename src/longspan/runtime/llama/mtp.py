"""Drafts by an MTP head, on the stage that samples.

The head runs in a context of its own: one layer, all slots in one shared cache, because nothing here has to be
exact. Every slot's rows follow a prefix that is the same for all (see `model.mtp_head`), so the cells of the prefix
are held once. Rows are fed when a draft is asked for, together with the first step of the draft.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from longspan.errors import LongspanError
from longspan.llamacpp.library import Library
from longspan.model.draft_model import DraftModel
from longspan.runtime.draft_lexicon import DraftLexicon
from longspan.runtime.draft_stream import DraftStream, Hidden, Path, committed_path
from longspan.runtime.llama.context import LlamaContext
from longspan.runtime.llama.graph_tap import GraphTap
from longspan.runtime.slots import KvCopy, KvTrim, SlotPlan
from longspan.schedule.span import DraftRequest, Sample, Span

DRAFT_LENGTH = 4
WINDOW = 192
"""Most rows of a slot that the head attends to, besides the prefix."""
_DROPPED = 64
"""Rows that leave at once when the window is full."""
_MOST_WAITING = 64
"""Rows with hidden states that wait in memory for a draft to be asked for."""
_MAX_ROWS = 512
_MOST_TOKEN_HALVES = 4096
"""Tokens whose half of the input row is kept: text repeats its tokens."""

Array = npt.NDArray[np.float32]
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Draft:
    """A chain of tokens. candidates: of each step the likeliest tokens and their probabilities, likeliest first."""

    tokens: tuple[int, ...]
    candidates: tuple[tuple[tuple[int, float], ...], ...] = ()


class MtpDrafter:
    """Follows the slots of a stage and drafts from their committed tips. One owner thread, as the stage has.

    length: tokens of a draft. top: candidates to return for each step, 0 for none.
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
        top: int = 0,
    ) -> None:
        self._model = model
        self._length = length
        self._top = top
        self.failures = 0
        self.seconds = 0.0
        self._prefix = len(model.prefix_hidden)
        self._streams = [DraftStream() for _ in range(slots)]
        common = np.zeros(model.output.vocabulary, np.bool_)
        common[model.vocabulary] = True
        self._lexicons = [DraftLexicon(model.output, common) for _ in range(slots)]
        self._token_halves: dict[int, Array] = {}
        # numpy's matrix products are small here; its own threads would only take the cores from llama.cpp's.
        self._blas = ThreadpoolController().select(user_api="blas")
        self._cells = [self._prefix] * slots
        self._tap = GraphTap(library, "result_norm", model.width, slots)
        room = slots * (WINDOW + length) + self._prefix + _MAX_ROWS
        self._context = LlamaContext(
            library,
            model.file,
            slots=slots,
            cells=-(-room // slots),
            threads=threads,
            max_rows=_MAX_ROWS,
            max_outputs=slots,
            callback=self._tap.callback,
            unified=True,
        )
        self._feed_prefix(slots)

    def close(self) -> None:
        """Release model and context."""
        self._context.close()

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
        crowded: list[int] = []
        for (index, _, span), first in zip(plan.runnable, firsts, strict=True):
            tokens = sampled.get(index, {})
            if len(tokens) < len(span.sample_rows):
                continue  # sampling failed, and the slot with it
            path = committed_path(span, tokens)
            tip = path.steps[-1].token
            self._lexicons[span.slot].note(span.tokens if tip is None else (*span.tokens, tip))
            states = None
            if hidden is not None and span.draft is not DraftRequest.NEVER:
                states = _finite([hidden(first + step.row) for step in path.steps])
            stream = self._streams[span.slot]
            live = stream.follow(span, path, states)
            if live and states is not None and _asks(span, path) and path.steps[-1].row in tokens:
                tips[span.slot] = (index, path.steps[-1].row)
            elif stream.waiting > _MOST_WAITING:
                crowded.append(span.slot)
        if crowded:
            self._guard(crowded, self._feed)
        if not tips:
            return tuple(samples)
        drafts = dict(zip(tips.values(), self.draft(list(tips)), strict=True))
        return tuple(_with_draft(sample, drafts.get((sample.span, sample.row))) for sample in samples)

    def draft(self, slots: Sequence[int]) -> list[Draft]:
        """A draft for each of the slots, which hold at least one row that waits; all slots step together."""
        return self._guard(slots, self._chain) or [Draft(())] * len(slots)

    def _guard(self, slots: Sequence[int], work: Callable[[Sequence[int]], _Result]) -> _Result | None:
        """Do work; when llama.cpp refuses, the slots lose what the head has seen, and nothing else happens."""
        started = time.perf_counter()
        try:
            with self._blas.limit(limits=1):
                return work(slots)
        except LongspanError:
            self.failures += 1
            for slot in slots:
                self._streams[slot].lose()
                self._settle(slot)
            return None
        finally:
            self.seconds += time.perf_counter() - started

    def _feed_prefix(self, slots: int) -> None:
        if not self._prefix:
            return
        rows = self._fuse(self._model.prefix_tokens[1:].tolist(), self._model.prefix_hidden)
        self._run(rows, [0] * self._prefix, range(self._prefix), [self._prefix - 1])
        for slot in range(1, slots):
            self._context.copy(0, slot, self._prefix)

    def _settle(self, slot: int) -> None:
        """Bring the cache of a slot to what its stream counts as fed."""
        end = self._prefix + self._streams[slot].fed
        if self._cells[slot] > end:
            self._context.trim(slot, end)
            self._cells[slot] = end

    def _make_room(self, slot: int) -> None:
        stream = self._streams[slot]
        while len(stream) > WINDOW and stream.fed:
            rows = min(_DROPPED, stream.fed)
            stream.forget_oldest(rows)
            self._context.remove(slot, self._prefix, self._prefix + rows)
            self._cells[slot] -= rows

    def _feed(self, slots: Sequence[int]) -> tuple[Array, Array]:
        """Run the waiting rows of the slots; gives (logits, hidden states) of the last one of each."""
        logits, states = [], []
        group: list[int] = []
        rows = 0
        for slot in slots:
            self._settle(slot)
            self._make_room(slot)
            if group and rows + self._streams[slot].waiting > _MAX_ROWS:
                logits_part, states_part = self._feed_group(group)
                logits.append(logits_part)
                states.append(states_part)
                group, rows = [], 0
            group.append(slot)
            rows += self._streams[slot].waiting
        logits_part, states_part = self._feed_group(group)
        return np.concatenate([*logits, logits_part]), np.concatenate([*states, states_part])

    def _feed_group(self, slots: Sequence[int]) -> tuple[Array, Array]:
        tokens: list[int] = []
        hidden: list[Hidden] = []
        ids: list[int] = []
        positions: list[int] = []
        outputs: list[int] = []
        for slot in slots:
            new_tokens, new_hidden = self._streams[slot].take()
            count, start = len(new_tokens), self._cells[slot]
            tokens += new_tokens
            hidden += new_hidden
            ids += [slot] * count
            positions += range(start, start + count)
            self._cells[slot] = start + count
            outputs.append(len(ids) - 1)
        return self._run(self._fuse(tokens, np.stack(hidden)), ids, positions, outputs)

    def _chain(self, slots: Sequence[int]) -> list[Draft]:
        logits, states = self._feed(slots)
        chosen: list[npt.NDArray[np.int32]] = []
        candidates = []
        ids, ends = list(slots), [self._cells[slot] for slot in slots]
        for step in range(self._length):
            tokens, likeliest = self._choose(slots, logits, states)
            chosen.append(tokens)
            if self._top:
                candidates.append(likeliest)
            if step + 1 < self._length:
                rows = self._fuse(tokens.tolist(), states)
                for slot in slots:
                    self._cells[slot] += 1
                logits, states = self._run(rows, ids, [end + step for end in ends], range(len(slots)))
        for slot in slots:
            self._settle(slot)
        chains = np.stack(chosen, axis=1).tolist()
        by_slot = zip(*candidates, strict=True) if candidates else [()] * len(slots)
        return [Draft(tuple(chain), tuple(steps)) for chain, steps in zip(chains, by_slot, strict=True)]

    def _choose(
        self, slots: Sequence[int], logits: Array, states: Array
    ) -> tuple[npt.NDArray[np.int32], list[tuple[tuple[int, float], ...]]]:
        """For each slot the likeliest token, and the `top` likeliest with their probabilities."""
        tokens: npt.NDArray[np.int32] = np.empty(len(slots), np.int32)
        candidates = []
        for index, slot in enumerate(slots):
            lexicon = self._lexicons[slot]
            scores = np.concatenate([logits[index], lexicon.logits(states[index])])
            tokens[index] = self._token(lexicon, int(scores.argmax()))
            if self._top:
                best = np.argpartition(scores, -self._top)[-self._top :]
                best = best[np.argsort(-scores[best])]
                chances = np.exp(scores[best] - scores[best[0]]) / np.exp(scores - scores[best[0]]).sum()
                words = [self._token(lexicon, place) for place in best.tolist()]
                candidates.append(tuple(zip(words, chances.tolist(), strict=True)))
        return tokens, candidates

    def _token(self, lexicon: DraftLexicon, place: int) -> int:
        common = self._model.vocabulary
        return int(common[place] if place < len(common) else lexicon.tokens[place - len(common)])

    def _fuse(self, tokens: Sequence[int], hidden: Array) -> Array:
        """Input rows of the head, (n, width)."""
        known = self._token_halves
        missing = [token for token in dict.fromkeys(tokens) if token not in known]
        if missing:
            if len(known) + len(missing) > _MOST_TOKEN_HALVES:
                known.clear()
                missing = list(dict.fromkeys(tokens))
            halves = self._model.fusion.token_half(self._model.embedding.rows(np.array(missing, np.int32)))
            known.update(zip(missing, halves, strict=True))
        rows = self._model.fusion.hidden_half(hidden)
        for row, token in zip(rows, tokens, strict=True):
            row += known[token]
        return rows

    def _run(
        self, rows: Array, slots: Sequence[int], positions: Sequence[int], outputs: Sequence[int]
    ) -> tuple[Array, Array]:
        """Run rows of the head; gives copies of the logits and of the hidden states of the rows in `outputs`."""
        marks = np.zeros(len(rows), np.int8)
        marks[list(outputs)] = 1
        at, ids = np.array(positions, np.int32), np.array(slots, np.int32)
        for _ in range(2):  # the reader may have to look at names once more
            self._tap.prepare(rows, 1)
            failure = self._context.decode(rows, at, ids, marks)
            if failure:
                raise LongspanError(f"the MTP head: {failure}")
            if self._tap.finish(len(outputs), 1):
                logits = np.stack([self._context.logits(row) for row in outputs])
                return logits, self._tap.buffer[: len(outputs)].copy()
            for slot, position in reversed(list(zip(slots, positions, strict=True))):
                self._context.trim(slot, position)
        raise LongspanError("the MTP head: llama.cpp did not compute result_norm")


def _finite(states: list[Hidden]) -> list[Hidden] | None:
    """The states, unless one is spoiled: in a shared cache it would spoil every slot."""
    return states if all(np.isfinite(state).all() for state in states) else None


def _asks(span: Span, path: Path) -> bool:
    return span.draft is DraftRequest.ALWAYS or path.diverged


def _with_draft(sample: Sample, draft: Draft | None) -> Sample:
    if draft is None or not draft.tokens:
        return sample
    return Sample(sample.span, sample.row, sample.token, sample.logprob, draft.tokens)
