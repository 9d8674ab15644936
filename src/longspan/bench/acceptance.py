"""How many drafted tokens of the MTP head the model accepts, counted on its own greedy answers.

The whole model runs in this process, one row a step, and the head drafts at every position of every answer. Two
figures come out of one run. `acceptance` is an average over all positions: the share at which the first, the first
two, … drafted tokens were right. `tokens_per_traversal` cuts each answer into the windows that a ring would send,
so it counts only the positions at which a draft would really have begun. Those are harder than the average (a draft
that is right skips the easy positions), and this is the figure that a ring's speed follows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longspan.errors import LongspanError, ModelError
from longspan.model.chat_template import ChatTemplate
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.messages import Assignment
from longspan.runtime.llama.mtp import DRAFT_LENGTH, LEAST_CHANCE
from longspan.runtime.llama.runtime import LlamaRuntime
from longspan.schedule.span import DraftRequest, Iteration, Phase, Sample, Span

PROMPTS: tuple[str, ...] = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Explain in simple words how photosynthesis works.",
    "Give me three tips for staying healthy while working from home.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "What are the main differences between TCP and UDP?",
    "Summarize the plot of Romeo and Juliet.",
    "How do I make a simple tomato soup?",
    "Write an email to my manager asking for a day off next Friday.",
)


@dataclasses.dataclass(frozen=True)
class Answer:
    """One prompt's answer. drafts: at each position of `tokens`, what the head expected to follow that token."""

    prompt: str
    tokens: tuple[int, ...]
    drafts: tuple[tuple[int, ...], ...]

    def accepted(self) -> list[int]:
        """At each position that has a successor, how many drafted tokens the answer then had."""
        counts = []
        for place, draft in enumerate(self.drafts[:-1]):
            following = self.tokens[place + 1 :]
            pairs = zip(draft, following, strict=False)
            counts.append(
                next((count for count, (a, b) in enumerate(pairs) if a != b), min(len(draft), len(following)))
            )
        return counts


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """acceptance: share of positions at which the first, the first two, … drafted tokens were right.

    tokens_per_traversal, drafts_per_traversal: answer tokens and drafted tokens by window, see above.
    draft_milliseconds: median time of one draft for one sequence, feeding included.
    """

    positions: int
    acceptance: tuple[float, ...]
    tokens_per_traversal: float
    drafts_per_traversal: float
    draft_milliseconds: float
    answers: tuple[Answer, ...]

    @property
    def tokens_per_position(self) -> float:
        """1 + the sum of `acceptance`: what a traversal would give if every position began one."""
        return 1.0 + sum(self.acceptance)


def measure_acceptance(
    source: ModelSource,
    *,
    prompts: Sequence[str] = PROMPTS,
    tokens: int = 256,
    length: int = DRAFT_LENGTH,
    least_chance: float = LEAST_CHANCE,
    threads: int = 1,
    head: Path | None = None,
    library: str | None = None,
) -> Acceptance:
    """Let the model answer the prompts greedily, at most `tokens` each, drafting at every position.

    length, least_chance: see `MtpDrafter`; a `least_chance` of 0 makes all chains equally long. head: a head's
    file, None for the one that Longspan carries. Raises ModelError when there is none for the model, or when the
    model has no chat template.
    """
    if source.chat_template is None:
        raise ModelError(f"{source.path} has no chat template, so it answers no prompts.")
    tokenizer = Tokenizer(source.vocabulary_file())
    template = ChatTemplate(source.chat_template)
    loader = LlamaLoader(
        source,
        threads=threads,
        library=library,
        mtp_head=True if head is None else head,
        draft_length=length,
        least_chance=least_chance,
    )
    layers = source.description.layers
    encoded = [
        tokenizer.encode(
            template.render([{"role": "user", "content": prompt}], add_generation_prompt=True),
            add_special=False,
            parse_special=True,
        )
        for prompt in prompts
    ]
    cells = max(map(len, encoded), default=0) + tokens + 1
    runtime = loader.load(Assignment(0, 1, 0, layers, 0, None, 1, cells, "float32"), lambda _text: None)
    assert isinstance(runtime, LlamaRuntime)
    try:
        if runtime.drafter is None:
            raise ModelError(f"Longspan carries no MTP head for {source.description.model_id}. Name one.")
        embedding = source.token_embedding(library)
        runner = _Runner(runtime, lambda ids: embedding.rows(np.array(ids, np.int32)), tokenizer.end_tokens)
        answers = tuple(runner.answer(prompt, ids, tokens) for prompt, ids in zip(prompts, encoded, strict=True))
    finally:
        runtime.close()
    counts = [count for answer in answers for count in answer.accepted()]
    if not counts:
        raise ModelError("the model answered nothing, so there is nothing to count.")
    windows = [window for answer in answers for window in _windows(answer)]
    return Acceptance(
        positions=len(counts),
        acceptance=tuple(sum(count > depth for count in counts) / len(counts) for depth in range(length)),
        tokens_per_traversal=sum(accepted + 1 for _, accepted in windows) / len(windows),
        drafts_per_traversal=sum(drafted for drafted, _ in windows) / len(windows),
        draft_milliseconds=1e3 * float(np.median(runner.draft_seconds)),
        answers=answers,
    )


def _windows(answer: Answer) -> list[tuple[int, int]]:
    """The windows that a ring would send for an answer: (drafted, accepted) tokens of each."""
    counts = answer.accepted()
    windows = []
    place = 0
    while place < len(counts):
        windows.append((len(answer.drafts[place]), counts[place]))
        place += 1 + counts[place]
    return windows


class _Runner:
    """Answers prompts one row at a time on slot 0 of a stage that holds the whole model."""

    def __init__(
        self,
        runtime: LlamaRuntime,
        rows: Callable[[Sequence[int]], npt.NDArray[np.float32]],
        end_tokens: frozenset[int],
    ) -> None:
        self._runtime = runtime
        self._rows = rows
        self._end_tokens = end_tokens
        self._sequence = 0
        self.draft_seconds: list[float] = []

    def answer(self, prompt: str, ids: Sequence[int], count: int) -> Answer:
        self._sequence += 1
        most = self._runtime.capacity().max_rows
        for start in range(0, len(ids), most):
            chunk = ids[start : start + most]
            last = start + len(chunk) == len(ids)
            sample = self._run(Phase.PREFILL, start, chunk, sample=last)
        tokens: list[int] = []
        drafts: list[tuple[int, ...]] = []
        position = len(ids)
        while sample is not None:
            tokens.append(sample.token)
            if len(tokens) == count or sample.token in self._end_tokens:
                break
            drafts.append(sample.draft)
            sample = self._run(Phase.DECODE, position, tokens[-1:], sample=True)
            position += 1
        drafts.append(())
        return Answer(prompt, tuple(tokens), tuple(drafts))

    def _run(self, phase: Phase, start: int, tokens: Sequence[int], *, sample: bool) -> Sample | None:
        asked = (len(tokens) - 1,) if sample else ()
        span = Span(self._sequence, 0, 0, start, tuple(tokens), phase, asked, None, DraftRequest.ALWAYS)
        output = self._runtime.run(Iteration(0, (), (), (span,)), self._rows(tokens))
        if output.failures:
            raise LongspanError(f"the answer failed: {output.failures[0].reason}")
        if phase is Phase.DECODE and self._runtime.drafter is not None:
            self.draft_seconds.append(self._runtime.drafter.seconds)
        return output.samples[0] if output.samples else None
