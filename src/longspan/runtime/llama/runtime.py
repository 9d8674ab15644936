"""The stage runtime over llama.cpp."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from longspan.errors import LongspanError, ProtocolError, UsageError
from longspan.llamacpp.library import Library
from longspan.model.draft_model import DraftModel
from longspan.model.grammar import GrammarError, GrammarVocabulary
from longspan.runtime.answer_grammars import AnswerGrammars
from longspan.runtime.base import Activations, Capacity, StageOutput, StageRuntime
from longspan.runtime.llama import note
from longspan.runtime.llama.branches import MOST_BRANCHES, Branches
from longspan.runtime.llama.context import LlamaContext
from longspan.runtime.llama.exactness import Exactness, ExactnessProbe
from longspan.runtime.llama.graph_tap import GraphTap
from longspan.runtime.llama.memory import check_memory
from longspan.runtime.llama.mtp import DRAFT_LENGTH, LEAST_CHANCE, MtpDrafter
from longspan.runtime.llama.row_batch import RowBatch, row_position
from longspan.runtime.slots import MAX_VOCABULARY, KvCopy, KvTrim, SlotBook, SlotPlan
from longspan.sampling.adjustment import Logits, needs_history
from longspan.sampling.parameters import SamplingParameters
from longspan.sampling.sampler import sample, score
from longspan.schedule.span import DraftRequest, Iteration, Sample, SpanFailure, TokenLogprob

DEFAULT_MAX_ROWS = 512
MAX_SAMPLES = 128
"""Most rows that one iteration may sample: each needs a row of logits as wide as the vocabulary."""


Sampler = Callable[[Logits, SamplingParameters, int, Sequence[int]], tuple[int, TokenLogprob | None]]
"""(logits, parameters, position of the sampled token, tokens before it) → token; see `sampling.sampler.sample`."""


class LlamaRuntime(StageRuntime):
    """Runs a stage file whose blocks are numbered from 0.

    last: whether the file ends with the output head, so that this stage samples.
    layers: blocks in the file. residual: name of the residual tensor without the layer's number. input_tensor: see
    `model.architecture.Architecture`.
    sampler: turns a row of logits into a token; whoever wants to look at logits hands in his own.
    head: what drafts on the last stage where a span asks for it; None for nothing. draft_length, least_chance: see
    `MtpDrafter`.
    trees: whether spans may be token trees. Then there is one slot, in a cache that its branches share.
    vocabulary: opens the vocabulary for answers that follow a grammar, at the first of them; without it their
    spans fail.
    """

    def __init__(
        self,
        library: Library,
        path: Path,
        *,
        layers: int,
        last: bool,
        slots: int,
        cells_per_slot: int,
        threads: int,
        residual: str = "l_out",
        input_tensor: str | None = None,
        max_rows: int = DEFAULT_MAX_ROWS,
        sampler: Sampler = sample,
        width: int,
        head: DraftModel | None = None,
        draft_length: int = DRAFT_LENGTH,
        least_chance: float = LEAST_CHANCE,
        vocabulary: Callable[[], GrammarVocabulary] | None = None,
        trees: bool = False,
    ) -> None:
        if trees and slots != 1:
            raise UsageError(f"a stage that runs token trees has one slot, not {slots}")
        check_memory(library, path, slots, cells_per_slot)
        self._last = last
        self._sampler = sampler
        output = None if last else f"{residual}-{layers - 1}"
        self._tap = (
            GraphTap(library, output, width, max_rows, input=input_tensor) if output or input_tensor else None
        )
        # Every row of a stage that is not the last is an output, or llama.cpp prunes it before the residual.
        outputs = min(max_rows, max(slots, MAX_SAMPLES)) if last else max_rows
        self._max_samples = outputs
        sequences = slots + (MOST_BRANCHES if trees else 0)
        self._context = LlamaContext(
            library,
            path,
            slots=sequences,
            cells=-(-(cells_per_slot + max_rows) // sequences) if trees else cells_per_slot,
            unified=trees,
            threads=threads,
            max_rows=max_rows,
            max_outputs=outputs,
            callback=self._tap.callback if self._tap else None,
            by_token=input_tensor is not None,
        )
        self._branches = Branches(self._context) if trees else None
        self._drafter: MtpDrafter | None = None
        try:
            exactness = self._exactness(library, path, threads, max_rows, drafts=last and head is not None)
            if last and head is not None:
                self._drafter = MtpDrafter(
                    library,
                    head,
                    slots=slots,
                    threads=threads,
                    length=draft_length,
                    least_chance=least_chance,
                    trees=trees,
                )
        except BaseException:
            self._context.close()
            raise
        self._hidden_rows = exactness.hidden_rows or 0
        self._pad = exactness.pad
        # Padding rows need room of their own: a cell behind the last position, and a row for each slot.
        cells = min(cells_per_slot, self._context.cells - (1 if self._pad else 0))
        rows = max(1, max_rows - slots) if self._pad else max_rows
        self._capacity = Capacity(slots, cells, rows, exactness.exact_rows)
        self._book = SlotBook(self._capacity, self._context.vocabulary if last else MAX_VOCABULARY)
        self._grammars = AnswerGrammars(vocabulary or _no_vocabulary)

    def _exactness(self, library: Library, path: Path, threads: int, max_rows: int, *, drafts: bool) -> Exactness:
        """What is known or measured about this stage's batches; with `drafts`, also about kept hidden states."""
        probe = ExactnessProbe(self._context, self._tap, max_rows)
        found = note.recall(library.path, path, threads, probe.max_rows)
        if found is not None and (found.hidden_rows is not None or not drafts):
            return found
        if found is None:
            found = probe.find()
        if drafts:
            found = dataclasses.replace(found, hidden_rows=probe.hidden_rows(found, MAX_SAMPLES))
        note.remember(library.path, path, threads, probe.max_rows, found)
        return found

    def capacity(self) -> Capacity:
        """What this runtime can hold."""
        return self._capacity

    @property
    def drafter(self) -> MtpDrafter | None:
        """What drafts on this stage, if anything does."""
        return self._drafter

    def close(self) -> None:
        """Release model and context."""
        if self._drafter is not None:
            self._drafter.close()
        self._context.close()

    def run(
        self, iteration: Iteration, activations: Activations, failed: frozenset[int] = frozenset()
    ) -> StageOutput:
        """Run one iteration; see `StageRuntime.run`. Trees only where they were asked for."""
        self._check(iteration, activations)
        plan = self._book.begin(iteration, failed)
        for action in plan.actions:
            self._act(action)
        if not plan.runnable:
            empty = None if self._last else np.zeros((iteration.rows, self._context.width), np.float32)
            return StageOutput(empty, (), plan.failures, 0)
        rows = RowBatch(plan, iteration.rows, pad=self._pad)
        keep_hidden = (
            self._drafter is not None
            and rows.count <= self._hidden_rows
            and any(span.draft is not DraftRequest.NEVER for span in rows.spans)
        )
        self._context.keep_hidden(keep_hidden)
        inputs = rows.gather(activations)
        failure = self._decode(rows, inputs)
        for slot, end in rows.padded:
            self._context.trim(slot, end)
        if failure:
            for _, _, span in plan.runnable:
                self._act(self._book.undo(span))
            failures = tuple(SpanFailure(index, failure) for index, _, _ in plan.runnable)
            empty = None if self._last else np.zeros((iteration.rows, self._context.width), np.float32)
            return StageOutput(empty, (), plan.failures + failures, len(rows.parts))
        if self._last:
            samples, failures = self._sample(plan, rows)
            output = None
            if self._drafter is not None:
                hidden = self._context.hidden if keep_hidden else None
                samples = self._drafter.follow(plan, rows.firsts, samples, hidden)
            samples = self._grammars.with_forced(plan, self._book, samples)
        else:
            assert self._tap is not None
            samples, output = (), rows.restore(self._tap.buffer[: rows.count])
            failures = self._not_finite(plan, output)
        if failures:
            self._scrub({iteration.spans[failure.span].slot for failure in failures})
        seconds = self._tap.seconds if self._tap is not None else 0.0
        drafting = self._drafter.seconds if self._drafter is not None else 0.0
        return StageOutput(output, samples, plan.failures + failures, len(rows.parts), seconds, drafting)

    def _check(self, iteration: Iteration, activations: Activations) -> None:
        """Refuse what llama.cpp would read past the end of, or would answer wrongly."""
        if activations.shape != (iteration.rows, self._context.width):
            raise ProtocolError(
                f"activations of shape {activations.shape}, expected {(iteration.rows, self._context.width)}"
            )
        wanted = sum(len(span.sample_rows) for span in iteration.spans)
        if self._last and wanted > self._max_samples:
            raise ProtocolError(
                f"{wanted} rows to sample in one iteration, at most {self._max_samples} are allowed"
            )
        for parents in (span.parents for span in iteration.spans if span.parents is not None):
            if self._branches is None:
                raise ProtocolError("a token tree came to a stage that keeps exact streams and runs chains only")
            # The book has not looked at them yet; a parent is counted whatever it is.
            if len(parents) - len({parent for parent in parents if parent >= 0}) > MOST_BRANCHES:
                raise ProtocolError(f"a token tree has more than the {MOST_BRANCHES} branches that are possible")

    def _act(self, action: KvTrim | KvCopy) -> None:
        if self._drafter is not None:
            self._drafter.act(action)
        if isinstance(action, KvTrim):
            if self._branches is not None:
                self._branches.take_back()
            self._context.trim(action.slot, action.keep)
        else:
            self._context.copy(action.source, action.target, action.length)

    def _decode(self, rows: RowBatch, inputs: Activations) -> str:
        """Run the rows; an empty string, or why that was not possible."""
        tap = self._tap
        outputs = rows.outputs() if self._last else None
        parents = rows.spans[0].parents
        branches = self._branches.lend(parents) if self._branches is not None and parents is not None else None
        if tap is None:
            return self._context.decode(inputs, rows.positions, rows.slots, outputs, branches)
        written = rows.computed_order(inputs) if tap.writes else inputs
        for _ in range(2):
            tap.prepare(written, len(rows.parts))
            failure = self._context.decode(inputs, rows.positions, rows.slots, outputs, branches)
            if failure or tap.finish(rows.count, len(rows.parts)):
                return failure
            # The graph was not the one that was learned: run the same rows again, this time looking at names.
            for span in rows.spans:
                for sequence in range(1 + self._branches.used) if self._branches is not None else (span.slot,):
                    self._context.trim(sequence, span.start)
        return "llama.cpp did not compute the input or residual tensor of this stage"

    def _not_finite(self, plan: SlotPlan, output: Activations) -> tuple[SpanFailure, ...]:
        """Failures of the spans whose rows hold NaN or infinities; their rows become zeros."""
        if np.isfinite(output).all():
            return ()
        failures = []
        for index, first, span in plan.runnable:
            rows = output[first : first + len(span.tokens)]
            if not np.isfinite(rows).all():
                row = int(np.isfinite(rows).all(axis=1).argmin())
                rows[:] = 0.0
                failures.append(
                    SpanFailure(
                        index,
                        f"the activations of position {row_position(span, row)} are not finite numbers; the model "
                        "file may be damaged, or they overflowed (float16 activations overflow above 65504)",
                    )
                )
        return tuple(failures)

    def _scrub(self, slots: set[int]) -> None:
        """Empty slots in which numbers went wrong, down to the bytes of their cells.

        Kernels multiply masked cells by zero instead of leaving them out (the CPU's attention does from 64 rows on,
        build 11549), so a NaN that stays behind the positions in use spoils the sequences that come after. A copy
        of another stream overwrites all cells of one.
        """
        clean = next((slot for slot in range(self._capacity.slots) if slot not in slots), None)
        for slot in slots:
            self._act(self._book.forget(slot))
            if clean is not None:
                self._context.copy(clean, slot, 0)
        if clean is None:
            self._context.clear()

    def _sample(self, plan: SlotPlan, rows: RowBatch) -> tuple[tuple[Sample, ...], tuple[SpanFailure, ...]]:
        samples: list[Sample] = []
        failures: list[SpanFailure] = []
        for (index, _, span), first in zip(plan.runnable, rows.firsts, strict=True):
            parameters = self._book.sampling[span.slot]
            remembers = bool(parameters.grammar) or needs_history(parameters)
            for place, row in enumerate(span.sample_rows):
                logits = self._context.logits(first + row)
                position = row_position(span, row) + 1
                try:
                    if place < len(span.given):
                        given = span.given[place]
                        logprob: TokenLogprob | None = score(logits, given, parameters.prompt_logprobs, position)
                        samples.append(Sample(index, row, given, logprob))
                        continue
                    history = self._book.history(span, row) if remembers else ()
                    if parameters.grammar:
                        answer = history[parameters.prompt_length :]
                        logits = self._grammars.restricted(span.slot, parameters.grammar, answer, logits)
                    token, logprob = self._sampler(logits, parameters, position, history)
                except LongspanError as error:
                    failures.append(SpanFailure(index, str(error)))
                    break
                samples.append(Sample(index, row, token, logprob))
        return tuple(samples), tuple(failures)


def _no_vocabulary() -> GrammarVocabulary:
    raise GrammarError("this stage was opened without a vocabulary, so no answer can follow a grammar")
