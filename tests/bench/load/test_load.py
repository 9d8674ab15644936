"""The load client against the real server, and against one that breaks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from longspan.bench.load.endpoint import Endpoint, Sampling
from longspan.bench.load.prompts import LoadPrompt
from longspan.bench.load.run import run_load
from longspan.cli.main import main
from longspan.request import Piece
from longspan.server import ServerOptions
from tests.server.conftest import running_server, tokenizer  # noqa: F401  a fixture
from tests.server.scripted_engine import ScriptedEngine, always

PIECES = (Piece("one", (5,)), 0.05, Piece(" two three", (6, 7)), Piece("", (8,), finish_reason="stop"))


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> ScriptedEngine:
    engine = ScriptedEngine(request.getfixturevalue("tokenizer"))
    engine.script = always(*PIECES)
    return engine


def test_the_command_measures_a_server(
    engine: ScriptedEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(engine, ServerOptions()) as url:
        arguments = ["bench", "serve", "--base-url", url, "--num-prompts", "6", "--max-concurrency", "2"]
        arguments += ["--input-len", "8", "--output-len", "6", "--goodput", "ttft:60000 tpot:1"]
        page = tmp_path / "load.html"
        files = ["--save-result", "--result-dir", str(tmp_path), "--html", str(page)]
        assert main([*arguments, *files, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert main(arguments) == 0
        table = capsys.readouterr().out
    assert result["model_id"] == "Tiny-Model"
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (6, 0, 24)
    assert result["max_concurrent_requests"] == 2
    assert all(len(gaps) == 1 and 0.04 < gaps[0] < 5 for gaps in result["itls"])
    # Four tokens, 50 ms from the first chunk to the last: three later tokens share them.
    assert result["p99_tpot_ms"] == pytest.approx(result["p99_itl_ms"] / 3)
    assert result["request_goodput"] == 0.0
    assert result["generated_texts"] == ["one two three"] * 6
    (saved,) = tmp_path.glob("openai-chat-infqps-concurrency2-Tiny-Model-*.json")
    assert json.loads(saved.read_bytes()) == result
    assert "Tiny-Model" in page.read_text(encoding="utf-8")
    assert "6 of 6" in table and "tokens a second" in table
    # A warm-up before each of the two loads, with a prompt that is not measured: its KV would serve that one.
    assert len(engine.requests) == 14
    warm, *measured = (asked.prompt for asked in engine.requests[:7])
    assert warm not in measured


async def test_a_conversation_carries_its_answers_on(engine: ScriptedEngine) -> None:
    def run(url: str) -> list[int]:
        async def converse() -> list[int]:
            talk = LoadPrompt(("a", "b"), max_tokens=3, history=(("system", "c"),))
            endpoint = Endpoint(url, "openai-chat")
            try:
                await endpoint.find_model()
                answers = await run_load(
                    endpoint,
                    [talk],
                    [0.0],
                    Sampling(max_tokens=9),
                )
            finally:
                await endpoint.close()
            assert [answer.error for answer in answers] == ["", ""]
            return [answer.prompt_tokens for answer in answers]

        return asyncio.run(converse())

    with running_server(engine, ServerOptions()) as url:
        first, second = await asyncio.to_thread(run, url)
    assert second > first
    assert [request.max_tokens for request in engine.requests] == [3, 3]


async def _answered(reply: bytes) -> str:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", "openai", model="m")
        try:
            answer = await endpoint.ask([{"role": "user", "content": "x"}], Sampling(), due=0.0)
        finally:
            await endpoint.close()
        return answer.error


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 503 No\r\ncontent-length: 5\r\n\r\nsorry", "the server answered 503: sorry"),
        (STREAM + b'data: {"error": {"message": "lost"}}\n\n', "broke the answer off"),
        (STREAM + b"data: {\n\n", "truncated"),
        (STREAM + b"data: [DONE]\n\n", "without any text"),
        (b"", "disconnected"),
    ],
)
async def test_what_a_server_does_wrong_stands_in_the_answer(reply: bytes, message: str) -> None:
    assert message in await _answered(reply)


async def test_without_usage_a_chunk_is_a_token() -> None:
    reply = STREAM + b'data: {"choices": [{"text": "a"}]}\n\n' * 3 + b"data: [DONE]\n\n"
    assert await _answered(reply) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--base-url", "x"), "begins with http"),
        (("--base-url", "http://127.0.0.1:9"), "does not say which model"),
        (("--extra-body", "["), "not a JSON object"),
    ],
)
def test_wrong_use_is_told(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--num-prompts", "1", *arguments]) != 0
    assert message in capsys.readouterr().err


def test_a_server_that_refuses_the_warm_up_is_told(
    engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(engine, ServerOptions()) as url:
        assert main(["bench", "serve", "--base-url", url, "--num-prompts", "1", "--extra-body", '{"nope": 1}']) == 1
    assert "nope" in capsys.readouterr().err
