"""The grammars that the answers of a stage's slots follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from longspan.model.grammar import GrammarError, GrammarVocabulary, Matcher
from longspan.runtime.draft_stream import committed_path
from longspan.runtime.slots import SlotBook, SlotPlan
from longspan.sampling.adjustment import Logits
from longspan.schedule.span import DraftRequest, Sample, Span

MAX_FORCED = 32
"""Most forced tokens that ride in one reply."""


class AnswerGrammars:
    """One matcher for each slot whose answer follows a grammar.

    A matcher is moved along the path that a row stands on, forward or back; which rows were asked for before, and
    on which path, changes nothing about what is allowed after a row.
    vocabulary: called at the first use.
    """

    def __init__(self, vocabulary: Callable[[], GrammarVocabulary]) -> None:
        self._open = vocabulary
        self._vocabulary: GrammarVocabulary | None = None
        self._matchers: dict[int, tuple[str, Matcher]] = {}

    def restricted(self, slot: int, grammar: str, answer: Sequence[int], logits: Logits) -> Logits:
        """`logits`, -inf for every token that cannot follow `answer` (the tokens after the prompt).

        After an answer that is itself against the grammar, a wrong draft, the logits are returned as they are.
        Raises GrammarError when nothing can follow, or the grammar is too much for its parser.
        """
        allowed = self._matcher(slot, grammar).allowed(answer)
        if allowed is None:
            return logits
        if not allowed.any():
            raise GrammarError(f"the grammar allows no token after {len(answer)} tokens of the answer")
        result = np.full_like(logits, -np.inf)
        # The output matrix may have rows that are no tokens.
        np.copyto(result[: len(allowed)], logits[: len(allowed)], where=allowed[: len(logits)])
        return result

    def with_forced(self, plan: SlotPlan, book: SlotBook, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """The samples; at the tips that ask for drafts, what the grammar leaves no choice about is the draft."""
        spans = {
            index: span
            for index, _, span in plan.runnable
            if span.draft is not DraftRequest.NEVER and book.sampling[span.slot].grammar
        }
        if not spans:
            return tuple(samples)
        sampled: dict[int, dict[int, int]] = {}
        for sample in samples:
            sampled.setdefault(sample.span, {})[sample.row] = sample.token
        tips = {
            index: committed_path(spans[index], rows).steps[-1].row
            for index, rows in sampled.items()
            if index in spans
        }
        return tuple(
            self._drafted(spans[sample.span], book, sample) if tips.get(sample.span) == sample.row else sample
            for sample in samples
        )

    def _drafted(self, span: Span, book: SlotBook, sample: Sample) -> Sample:
        parameters = book.sampling[span.slot]
        answer = [*book.history(span, sample.row)[parameters.prompt_length :], sample.token]
        forced = self._matcher(span.slot, parameters.grammar).forced(answer)[:MAX_FORCED]
        return msgspec.structs.replace(sample, draft=tuple(forced)) if forced else sample

    def _matcher(self, slot: int, grammar: str) -> Matcher:
        held = self._matchers.get(slot)
        if held is not None and held[0] == grammar:
            return held[1]
        if self._vocabulary is None:
            self._vocabulary = self._open()
        matcher = self._vocabulary.matcher(grammar)
        self._matchers[slot] = grammar, matcher
        return matcher
