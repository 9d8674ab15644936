"""A head that the user names drafts on the last stage, wherever that is; and only that very file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from longspan.engine import Engine, EngineOptions
from longspan.errors import LongspanError, ModelError, UsageError
from longspan.model.source import GgufSource
from longspan.request import GenerationRequest
from longspan.ring.fetched_loader import FetchedLoader
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.stage_server import StageServer
from tests.tiny_heads import write_tiny_head
from tests.tiny_models import write_tiny_model

PROMPT = (40, 41, 42, 80, 90, 7)
TOKENS = 24


@pytest.fixture
def head(tiny_model: Path, tmp_path: Path) -> Path:
    return write_tiny_head(tmp_path / "head.safetensors", GgufSource(tiny_model))


def options(model: Path, head: Path | None, **fields: object) -> EngineOptions:
    known = {"threads": 1, "slots": 2, "context": 96, "proposer": "mtp", "width": 4, "depth": 2}
    named = None if head is None else str(head)
    return EngineOptions(str(model), mtp_head=named, **{**known, **fields})  # type: ignore[arg-type]


async def answer(options: EngineOptions) -> tuple[tuple[int, ...], int]:
    """The answer, and how many drafts of a head were judged."""
    engine = Engine(options)
    await engine.start()
    try:
        stream = engine.submit(GenerationRequest(PROMPT, TOKENS, ignore_eos=True))
        tokens = tuple([token async for piece in stream for token in piece.tokens])
        speculation = engine.statistics().speculation
        return tokens, 0 if speculation is None else speculation.judged_by_proposer.get("mtp", 0)
    finally:
        await engine.stop()


async def test_it_drafts_in_this_process_and_in_children(tiny_model: Path, head: Path) -> None:
    plain, none = await answer(options(tiny_model, None))
    assert none == 0, "Longspan carries no head for this model"
    for stages in (1, 2):
        found, judged = await answer(options(tiny_model, head, stages=stages))
        assert found == plain
        assert judged > 0


async def test_stages_elsewhere_need_the_same_file(tiny_model: Path, head: Path, tmp_path: Path) -> None:
    plain, _ = await answer(options(tiny_model, None))
    other = write_tiny_head(tmp_path / "other.safetensors", GgufSource(tiny_model), seed=4)
    source = GgufSource(tiny_model)
    servers = [
        StageServer(LlamaLoader(source, threads=1, mtp_head=head)),
        StageServer(FetchedLoader(threads=1, mtp_head=head)),
        StageServer(LlamaLoader(source, threads=1, mtp_head=other)),
        StageServer(LlamaLoader(source, threads=1)),
    ]
    for server in servers:
        await server.start("127.0.0.1", 0)
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    try:
        for address in addresses[:2]:
            found, judged = await answer(options(tiny_model, head, ring=(address,), hold_first_stage=True))
            assert found == plain
            assert judged > 0
        for address, has in zip(addresses[2:], (r"other\.safetensors", "none that was named"), strict=True):
            with pytest.raises(LongspanError, match=rf"this stage has .*{has}.*--mtp-head"):
                await answer(options(tiny_model, head, ring=(address,), hold_first_stage=True))
    finally:
        await asyncio.gather(*(server.close() for server in servers))


async def test_a_head_that_nothing_can_use_is_refused(tiny_model: Path, head: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'none' uses none; leave --mtp-head"):
        await answer(options(tiny_model, head, proposer="none", width=None, depth=None))
    with pytest.raises(ModelError, match="cannot be read"):
        await answer(options(tiny_model, tmp_path / "missing.safetensors"))
    another = write_tiny_model(tmp_path / "another.gguf", "llama", seed=7)
    with pytest.raises(ModelError, match="belongs to tiny"):
        await answer(options(another, head))
