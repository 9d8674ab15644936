"""How an engine starts, and what it says when it cannot."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from longspan.engine import Engine, EngineOptions
from longspan.errors import ArchitectureError, LongspanError, ModelError, RingError, UsageError
from longspan.model.source import GgufSource
from longspan.ring.assignment import MAX_SLOTS
from longspan.ring.frame import PROTOCOL_VERSION
from longspan.sampling.parameters import SamplingParameters
from tests.engine.answers import request, whole
from tests.engine.test_engine import PROMPT
from tests.ring.scripted_ring import ScriptedLoader, stage_servers
from tests.tiny_models import write_tiny_model


async def failure(options: EngineOptions) -> LongspanError:
    """Why an engine does not start; nothing of it is left running."""
    engine = Engine(options)
    with pytest.raises(LongspanError) as raised:
        await engine.start()
    assert not [
        thread for thread in threading.enumerate() if thread.name in ("longspan-engine", "longspan-stage-0")
    ]
    with pytest.raises(RingError, match="has not started"):
        _ = engine.model
    assert not engine.readiness().ready
    return raised.value


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"model": "/no/such/model.gguf"}, ModelError, "no such model: '/no/such/model.gguf'"),
        ({"splits": "0-2,2-9"}, UsageError, "2-9"),
        ({"splits": "0-2,3-4"}, UsageError, "no stage holds the layers 2-3"),
        ({"splits": "0-2", "stages": 2}, UsageError, "no stage holds the layers 2-4"),
        (
            {"splits": "0-1,1-4", "stages": 3},
            UsageError,
            "--splits 0-1,1-4 names 2 layer ranges, but the ring has 3",
        ),
        ({"stages": 5}, UsageError, "4 layers"),
        ({"context": 1000}, UsageError, "a context of 1000 positions is asked for, the model has 512"),
        ({"activation_dtype": "float8"}, UsageError, "use float32 or float16"),
        ({"ring": ("localhost",)}, UsageError, "'localhost' is not an address"),
        ({"library": "/no/such/libllama.so"}, LongspanError, "no llama.cpp library at /no/such/libllama.so"),
    ],
)
async def test_says_why_it_cannot_start(
    tiny_model: Path, changes: dict[str, Any], kind: type[LongspanError], message: str
) -> None:
    options: dict[str, Any] = {"model": str(tiny_model), "threads": 1, **changes}
    error = await failure(EngineOptions(**options))
    assert isinstance(error, kind)
    assert message in str(error)


@pytest.fixture
def damaged(tiny_model: Path, tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "text.gguf").write_text("once upon a time")
    (tmp_path / "short.gguf").write_bytes(tiny_model.read_bytes()[:-1000])
    whole_model = write_tiny_model(tmp_path / "whole.gguf", "llama").read_bytes()
    (tmp_path / "other.gguf").write_bytes(whole_model.replace(b"llama", b"mamba"))
    return {name: tmp_path / f"{name}.gguf" for name in ("text", "short", "other")}


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("text", ModelError, "text.gguf is not a GGUF"),
        ("short", ModelError, "short.gguf is truncated"),
        ("other", ArchitectureError, "mamba"),
    ],
)
async def test_a_file_that_is_no_model_we_can_split(
    damaged: dict[str, Path], name: str, kind: type[LongspanError], message: str
) -> None:
    error = await failure(EngineOptions(str(damaged[name])))
    assert isinstance(error, kind)
    assert message in str(error)


async def test_a_stage_that_cannot_be_reached(tiny_model: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        error = await failure(EngineOptions(str(tiny_model), ring=(address,), hold_first_stage=True, threads=1))
    assert isinstance(error, RingError)
    assert f"stage 1 (layers 2-4, {address}): cannot reach {address}: Connection refused" in str(error)


async def test_a_stage_of_another_model(tiny_model: Path) -> None:
    async with stage_servers(ScriptedLoader(digest="77" * 32, width=64, layers=4)) as (server,):
        error = await failure(EngineOptions(str(tiny_model), ring=(f"127.0.0.1:{server.port}",)))
    for part in ("model mismatch", "77" * 6, GgufSource(tiny_model).digest[:12]):
        assert part in str(error)


async def test_a_stage_of_another_protocol(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = GgufSource(tiny_model).digest
    async with stage_servers(ScriptedLoader(digest=digest, width=64, layers=4)) as (server,):
        monkeypatch.setattr("longspan.ring.stage_server.PROTOCOL_VERSION", 9)
        error = await failure(EngineOptions(str(tiny_model), ring=(f"127.0.0.1:{server.port}",)))
    for part in (
        "protocol version mismatch",
        "speaks 9",
        f"speaks {PROTOCOL_VERSION}",
        digest[:12],
        "Install the same Longspan",
    ):
        assert part in str(error)


async def test_more_memory_than_there_is(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan.runtime.llama.memory.free_bytes", lambda library: 1000)
    error = await failure(EngineOptions(str(tiny_model), threads=1))
    assert "8 slots with 512 positions each need 0.0 GB for keys and values" in str(error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 0}, "stages is 0, expected 1 to 256"),
        ({"slots": 0}, "slots is 0, expected 1 to 256"),
        ({"slots": 257}, "slots is 257"),
        ({"link_delay_ms": -1.0}, "link_delay_ms is -1.0"),
        ({"link_delay_ms": float("nan")}, "link_delay_ms is nan"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"context": 1}, "context is 1"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_options_that_make_no_sense_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EngineOptions(**changes)
    assert MAX_SLOTS == 256, "an engine must not ask for more slots than a stage gives"


async def test_real_processes_answer_as_one(tiny_model: Path) -> None:
    wanted = [
        request(PROMPT, 40),
        request([*range(30, 130)], 30, sampling=SamplingParameters(temperature=0.8), seed=7),
    ]
    rings: list[dict[str, Any]] = [
        {},
        {"stages": 3, "hold_first_stage": True, "splits": "0-2,2-3,3-4"},
        {"stages": 2, "link_delay_ms": 2.0},
    ]
    found = []
    for ring in rings:
        lines: list[str] = []
        given: dict[str, Any] = {"model": str(tiny_model), "threads": 1, "context": 256, **ring}
        engine = Engine(EngineOptions(**given), on_progress=lines.append)
        await engine.start()
        try:
            streams = [engine.submit(each) for each in wanted]
            found.append([(await whole(stream)).tokens for stream in streams])
            stages = engine.ring().stages
            assert len(stages) == ring.get("stages", 1)
            assert (stages[0].address == "in this process") == (ring.get("hold_first_stage", not ring))
        finally:
            await engine.stop()
        if ring:
            assert any("starting 2 stage processes" in line for line in lines)
            assert any("stage 1: loading layers" in line for line in lines)
    assert found[0] == found[1] == found[2]


async def test_the_demo_model_over_three_stages() -> None:
    """The real model, once: whole, and as a ring that begins in this process."""
    found = []
    for stages in (1, 3):
        engine = Engine(
            EngineOptions("demo", stages=stages, hold_first_stage=stages > 1, threads=1, context=128, slots=2)
        )
        await engine.start()
        try:
            prompts = [
                engine.model.tokenizer.encode(text, add_special=True, parse_special=False)
                for text in ("The capital of France is", "1, 2, 3, 4,")
            ]
            streams = [engine.submit(request(prompt, 10)) for prompt in prompts]
            found.append([await whole(stream) for stream in streams])
        finally:
            await engine.stop()
    assert [answer.tokens for answer in found[0]] == [answer.tokens for answer in found[1]]
    assert "Paris" in found[0][0].text
    assert " 5, 6, 7" in found[0][1].text
