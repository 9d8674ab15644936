"""Drafts of a model that runs ahead beside the coordinator: what the model runs next, for which text.

Every text that wants drafts has a KV slot. It holds the text's committed tokens and the draft behind them; where
the text went another way than the draft, the next span's start trims it. Short pieces go first, so a text that
draws level or drafts does not wait behind another one's prompt. When slots run out, the text that was worked on
least lately gives its own away, if it wants nothing now; a text without a slot is replayed from its tokens. A plan
is an `Iteration`, as stages run them, greedy; nothing here has to be exact, for drafts are compared with what the
target takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from longspan.schedule.span import Iteration, IterationResult, Phase, Sample, Span
from longspan.speculate.ahead import Thought, Told

MOST_PIECE = 128
"""Rows of one iteration: what arrives meanwhile waits for it."""


class _Text:
    """held: positions that its slot holds. worked: when that was last done. refused: it cannot be run."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.committed: list[int] = []
        self.draft: list[int] = []
        self.wanted = 0
        self.slot: int | None = None
        self.held = 0
        self.worked = 0
        self.refused = False

    @property
    def length(self) -> int:
        return len(self.committed) + len(self.draft)

    def grow(self, tokens: Iterable[int]) -> None:
        """More of the text is committed: the draft came true so far, or it ends here."""
        for token in tokens:
            if self.draft and self.draft[0] == token:
                del self.draft[0]
            else:
                self.draft.clear()
                self.held = min(self.held, len(self.committed))
            self.committed.append(token)

    def pending(self, most: int) -> list[int]:
        """The tokens that the slot lacks, at most so many."""
        start, known = self.held, len(self.committed)
        tokens = self.committed[start : start + most]
        if len(tokens) < most:
            first = max(0, start - known)
            tokens += self.draft[first : first + most - len(tokens)]
        return tokens


class RunAhead:
    """All texts of one draft model. Take messages, run what `plan` gives, hand the result to `complete`."""

    def __init__(self, slots: int, cells: int, rows: int, vocabulary: int) -> None:
        """cells: positions of a slot. rows: most rows of an iteration. vocabulary: tokens outside it end a text."""
        self._cells = cells
        self._rows = min(rows, MOST_PIECE)
        self._vocabulary = vocabulary
        self._texts: dict[int, _Text] = {}
        self._free = list(range(slots))
        self._owners: dict[int, _Text] = {}
        self._count = 0

    def take(self, told: Told) -> None:
        """A message of a proposer."""
        if told.ended:
            text = self._texts.pop(told.key, None)
            if text is not None:
                self._leave(text)
            return
        text = self._texts.setdefault(told.key, _Text(told.key))
        text.grow(told.tokens)
        text.wanted = told.wanted
        text.refused |= any(not 0 <= token < self._vocabulary for token in told.tokens)

    def plan(self) -> Iteration | None:
        """What to run now; None when no text wants more than it has."""
        wanting = [text for text in self._texts.values() if self._wants(text)]
        wanting.sort(key=lambda text: (text.length - text.held, text.worked))
        spans: list[Span] = []
        room = self._rows
        for text in wanting:
            if not room or not self._seat(text):
                break
            assert text.slot is not None
            tokens = text.pending(room)
            room -= len(tokens)
            last = text.held + len(tokens) == text.length
            sampled = (len(tokens) - 1,) if last else ()
            spans.append(Span(text.key, text.slot, 0, text.held, tuple(tokens), Phase.PREFILL, sampled))
            text.worked = self._count
        if not spans:
            return None
        self._count += 1
        return Iteration(self._count, (), (), tuple(sorted(spans, key=lambda span: span.slot)))

    def complete(self, iteration: Iteration, result: IterationResult) -> list[Thought]:
        """The iteration has run; what it brought. No message may be taken between `plan` and this."""
        failed = {failure.span for failure in result.failures}
        samples: dict[int, Sample] = {sample.span: sample for sample in result.samples}
        thoughts: list[Thought] = []
        for index, span in enumerate(iteration.spans):
            text = self._texts[span.sequence]
            if index in failed:
                text.refused = True
                self._leave(text)
                continue
            text.held = span.end
            if index in samples:
                text.draft.append(samples[index].token)
                thoughts.append(Thought(text.key, len(text.committed), tuple(text.draft)))
        return thoughts

    def _wants(self, text: _Text) -> bool:
        return not text.refused and 0 < text.length < min(text.wanted, self._cells)

    def _seat(self, text: _Text) -> bool:
        """Give a text a slot; False when all belong to others that want more too."""
        if text.slot is not None:
            return True
        if not self._free:
            idle = [owner for owner in self._owners.values() if not self._wants(owner)]
            if not idle:
                return False
            self._leave(min(idle, key=lambda owner: owner.worked))
        text.slot = self._free.pop(0)
        self._owners[text.slot] = text
        return True

    def _leave(self, text: _Text) -> None:
        if text.slot is not None:
            del self._owners[text.slot]
            self._free = sorted(itertools.chain(self._free, (text.slot,)))
            text.slot, text.held = None, 0
