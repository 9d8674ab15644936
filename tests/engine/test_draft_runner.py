"""A model that drafts beside the coordinator changes no token, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from longspan.engine import Engine, EngineOptions
from longspan.errors import ModelError, UsageError
from longspan.model.source import GgufSource
from longspan.request import GenerationRequest
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.stage_server import StageServer
from longspan.runtime.llama.runtime import LlamaRuntime
from longspan.sampling.parameters import SamplingParameters
from tests.tiny_models import write_tiny_model

PROMPTS = ((40, 41, 42, 80, 90, 7), (200, 3, 55), (12, 13, 14, 15, 16, 17, 18, 19, 20), tuple(range(30, 160)))
TOKENS = 24
SAMPLINGS = (SamplingParameters(), SamplingParameters(temperature=0.7, top_p=0.9))


@pytest.fixture
def other_model(engine_folder: Path, tiny_model: Path) -> Path:
    """Another random model of the same vocabulary: it hardly ever drafts right."""
    path = engine_folder / "other.gguf"
    return path if path.exists() else write_tiny_model(path, "llama", weight_type="Q8_0", layers=1, seed=5)


@contextlib.asynccontextmanager
async def running(model: Path, draft: Path | None, **fields: object) -> AsyncIterator[Engine]:
    """An engine over two stages; the second is reached over a socket that takes its time."""
    server = StageServer(LlamaLoader(GgufSource(model), threads=1))
    await server.start("127.0.0.1", 0)
    known: dict[str, object] = {
        "ring": (f"127.0.0.1:{server.port}",),
        "hold_first_stage": True,
        "threads": 1,
        "slots": 3,
        "context": 192,
        "link_delay_ms": 3.0,
        "proposer": "none" if draft is None else "draft",
        "draft_model": None if draft is None else str(draft),
    }
    engine = Engine(EngineOptions(str(model), **{**known, **fields}))  # type: ignore[arg-type]
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()
        await server.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "longspan-draft"]


async def ask(
    engine: Engine, prompt: tuple[int, ...], sampling: SamplingParameters, cancel_after: int | None = None
) -> tuple[int, ...]:
    stream = engine.submit(GenerationRequest(prompt, TOKENS, sampling, seed=5, ignore_eos=True))
    found: list[int] = []
    async for piece in stream:
        found += piece.tokens
        if cancel_after is not None and len(found) >= cancel_after:
            stream.cancel()
    return tuple(found)


async def all_answers(engine: Engine, prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[tuple[int, ...]]:
    """More requests at once than slots, one of them cancelled half-way."""
    *answers, _ = await asyncio.gather(
        *(ask(engine, prompt, sampling) for prompt in prompts for sampling in SAMPLINGS),
        ask(engine, PROMPTS[0], SAMPLINGS[0], cancel_after=6),
    )
    return answers


def judged(engine: Engine) -> tuple[int, int]:
    """Drafts of the model that were compared with what was taken, and those that came true."""
    speculation = engine.statistics().speculation
    assert speculation is not None
    return speculation.judged_by_proposer.get("draft", 0), speculation.accepted_by_proposer.get("draft", 0)


_plain: list[tuple[int, ...]] = []


@pytest.fixture
async def plain(tiny_model: Path) -> list[tuple[int, ...]]:
    """The answers without drafts, computed once."""
    if not _plain:
        async with running(tiny_model, None) as engine:
            _plain.extend(await all_answers(engine))
    return _plain


async def test_a_model_that_drafts_for_itself_is_right_and_changes_no_token(
    tiny_model: Path, plain: list[tuple[int, ...]]
) -> None:
    async with running(tiny_model, tiny_model, width=4, depth=3) as engine:
        assert await all_answers(engine) == plain
        drafts, _ = judged(engine)
        assert drafts > 0
        assert await ask(engine, PROMPTS[0], SAMPLINGS[0]) == plain[0]
        before, right = judged(engine)
        for prompt, expected in zip(PROMPTS, plain[::2], strict=True):
            assert await ask(engine, prompt, SAMPLINGS[0]) == expected
        after, more = judged(engine)
        # Greedy, alone: nearly every token was drafted, and the model agrees with itself.
        assert after - before > 0.5 * len(PROMPTS) * TOKENS
        assert more - right >= 0.98 * (after - before)


async def test_a_model_that_drafts_wrong_changes_no_token(
    tiny_model: Path, other_model: Path, plain: list[tuple[int, ...]]
) -> None:
    async with running(tiny_model, other_model, width=4, depth=2) as engine:
        assert await all_answers(engine, PROMPTS[:2]) == plain[: 2 * len(SAMPLINGS)]
        drafts, right = judged(engine)
        assert right < drafts


async def test_a_model_that_fails_is_done_without(
    tiny_model: Path, plain: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, runs = LlamaRuntime.run, 0

    def run(self: LlamaRuntime, *arguments: object) -> object:
        nonlocal runs
        if threading.current_thread().name == "longspan-draft":
            runs += 1
            if runs == 4:
                raise RuntimeError("out of order")
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LlamaRuntime, "run", run)
    async with running(tiny_model, tiny_model, width=4, depth=3) as engine:
        assert await all_answers(engine, PROMPTS[:2]) == plain[: 2 * len(SAMPLINGS)]
    assert runs == 4


async def test_another_vocabulary_is_refused_before_anything_starts(tiny_model: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", "llama")
    data = other.read_bytes()
    other.write_bytes(data.replace(b"<|im_start|>", b"<|im_begin|>"))
    reason = r"other cannot draft for tiny: its token 1 is '<\|im_begin\|>' instead of '<\|im_start\|>'"
    with pytest.raises(ModelError, match=reason):
        async with running(tiny_model, other):
            pass


def test_the_proposer_and_its_model_go_together() -> None:
    with pytest.raises(UsageError, match="--draft-model REF, or neither"):
        EngineOptions("demo", proposer="draft")
    with pytest.raises(UsageError, match="--draft-model REF, or neither"):
        EngineOptions("demo", draft_model="demo")
