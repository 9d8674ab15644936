"""A model that carries its own MTP layer is served with its drafts, and answers as without."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longspan.engine import Engine, EngineOptions
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from longspan.request import GenerationRequest
from longspan.ring.fetched_loader import FetchedLoader
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.loader import StageLoader
from longspan.ring.stage_server import StageServer
from longspan.sampling.parameters import SamplingParameters
from tests.model.mixture_models import write_mixture_model

CARRIERS = ("glm4moe", "deepseek2")
PROMPTS = ((40, 41, 42, 80, 90, 7), (200, 3, 55), (12, 13, 14, 15, 16, 17, 18, 19, 20))
TOKENS = 24
SAMPLINGS = (SamplingParameters(), SamplingParameters(temperature=0.7, top_p=0.9))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path


async def answers(options: EngineOptions) -> tuple[list[tuple[int, ...]], int, list[str]]:
    """The answers to all prompts at once, greedy and drawn; drafts of the head that were judged; what was said."""
    said: list[str] = []
    engine = Engine(options, on_progress=said.append)
    await engine.start()
    try:

        async def ask(prompt: tuple[int, ...], sampling: SamplingParameters) -> tuple[int, ...]:
            stream = engine.submit(GenerationRequest(prompt, TOKENS, sampling, seed=5, ignore_eos=True))
            return tuple([token async for piece in stream for token in piece.tokens])

        found = await asyncio.gather(*(ask(prompt, sampling) for prompt in PROMPTS for sampling in SAMPLINGS))
        speculation = engine.statistics().speculation
        judged = 0 if speculation is None else speculation.judged_by_proposer.get("mtp", 0)
        return found, judged, said
    finally:
        await engine.stop()


def options(model: Path, proposer: str, **fields: object) -> EngineOptions:
    shape = {} if proposer == "none" else {"width": 4, "depth": 2}
    known = {"hold_first_stage": True, "threads": 1, "slots": 4, "context": 128, "proposer": proposer}
    return EngineOptions(str(model), **{**known, **shape, **fields})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def last_stage(loader: StageLoader) -> AsyncIterator[tuple[str, ...]]:
    """A stage that listens; its address as a ring."""
    server = StageServer(loader)
    await server.start("127.0.0.1", 0)
    try:
        yield (f"127.0.0.1:{server.port}",)
    finally:
        await server.close()


@pytest.mark.parametrize("name", CARRIERS)
async def test_its_drafts_change_no_token(name: str, cache: Path) -> None:
    model = write_mixture_model(cache / "model.gguf", name, layers=3, dense=1, draft=1, spoken=True)
    async with last_stage(LlamaLoader(GgufSource(model), threads=1)) as ring:
        plain, none, _ = await answers(options(model, "none", ring=ring))
        drafted, judged, _ = await answers(options(model, "mtp", ring=ring))
        assert drafted == plain
        assert none == 0 < judged
        trees = options(model, "auto", ring=ring, latency="tree", width=None, depth=None)
        grown, _, _ = await answers(trees)
        assert grown == plain


async def test_a_stage_without_a_model_gets_the_layer(cache: Path) -> None:
    model = write_mixture_model(cache / "model.gguf", "glm4moe", layers=3, dense=1, draft=1, spoken=True)
    plain, _, _ = await answers(options(model, "none"))
    async with last_stage(FetchedLoader(threads=1)) as ring:
        found, judged, _ = await answers(options(model, "mtp", ring=ring))
    assert found == plain
    assert judged > 0
    assert list((cache / "cache" / "fetched").rglob("mtp.gguf"))


async def test_a_layer_that_cannot_draft_is_named_once_and_the_model_served(cache: Path) -> None:
    model = write_mixture_model(
        cache / "model.gguf", "glm4moe", layers=3, draft=1, spoken=True, left_out=("nextn.enorm.weight",)
    )
    found, judged, said = await answers(options(model, "mtp"))
    assert judged == 0
    assert all(len(answer) == TOKENS for answer in found)
    assert [text for text in said if "MTP layers" in text] == [
        "the MTP layers of the model draft nothing: the tensor blk.3.nextn.enorm.weight is missing; whoever made "
        "the file left it out"
    ]
