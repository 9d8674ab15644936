"""Speculation changes no token: the demo model, real processes, emulated distance."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from longspan.engine import Engine, EngineOptions
from longspan.request import GenerationRequest
from longspan.sampling.parameters import SamplingParameters

SENTENCE = "The old lighthouse keeper climbed the stairs every evening to light the lamp for the ships at sea. "
PROMPTS = (SENTENCE * 5, "def fibonacci(n):\n", SENTENCE * 3)
TOKENS = 32

Answers = list[tuple[int, ...]]


async def _answers(options: EngineOptions, sampling: SamplingParameters) -> tuple[Answers, int, int]:
    """Answers to all prompts at once, one of them cut short from outside; drafts that were sent and accepted."""
    engine = Engine(options)
    await engine.start()
    try:
        tokenizer = engine.model.tokenizer

        async def ask(prompt: str, seed: int, cancel_after: int | None = None) -> tuple[int, ...]:
            tokens = tuple(tokenizer.encode(prompt, add_special=True, parse_special=True))
            stream = engine.submit(GenerationRequest(tokens, TOKENS, sampling, seed=seed, ignore_eos=True))
            found: list[int] = []
            async for piece in stream:
                found += piece.tokens
                if cancel_after is not None and len(found) >= cancel_after:
                    stream.cancel()
            return tuple(found)

        *answers, _ = await asyncio.gather(
            *(ask(prompt, seed) for seed, prompt in enumerate(PROMPTS)), ask(PROMPTS[0], 9, cancel_after=8)
        )
        statistics = engine.statistics().speculation
        drafts = (statistics.draft_tokens, statistics.accepted_tokens) if statistics is not None else (0, 0)
        return answers, *drafts
    finally:
        await engine.stop()


def _options(proposer: str, width: int | None = None, depth: int | None = None) -> EngineOptions:
    return EngineOptions(
        "demo",
        stages=2,
        hold_first_stage=True,
        link_delay_ms=5.0,
        threads=1,
        slots=4,
        context=512,
        proposer=proposer,
        width=width,
        depth=depth,
    )


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(),
        SamplingParameters(temperature=0.5, top_p=0.9, repetition_penalty=1.02),
    ],
    ids=["greedy", "drawn"],
)
async def test_speculation_changes_no_token(sampling: SamplingParameters) -> None:
    plain, drafted, _ = await _answers(_options("none"), sampling)
    assert drafted == 0
    trees = dataclasses.replace(_options("auto"), latency="tree")
    for options in (_options("ngram-suffix", 8, 4), _options("auto"), trees):
        answers, drafted, accepted = await _answers(options, sampling)
        assert answers == plain, f"{options.proposer}, {options.latency} changed the answer"
        if options.width is not None or options is trees:
            assert 0 < accepted < drafted, "neither accepted nor rejected drafts were tried"
