"""A file of prompts, a JSON object a line, and the file of their answers."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from longspan.cli.progress import CountBar
from longspan.cli.timing import timings_object
from longspan.errors import LongspanError, RequestError, UsageError

if TYPE_CHECKING:
    from longspan.engine import Engine
    from longspan.llm.batch import Result
    from longspan.llm.keywords import SamplingKeywords
    from longspan.request import GenerationRequest

STANDARD = "-"
"""The name that means standard input or output."""


class BatchLine(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a prompt (text or token ids) or messages, and what is different from the command's options.

    id: anything; it comes back with the answer. Without one the line's number does, counted from 1.
    """

    id: Any = None
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    priority: int | None = None


_decoder = msgspec.json.Decoder(BatchLine)
_OWN = ("id", "prompt", "messages")


class BatchFile:
    """The lines of a file, as requests. Blank lines are left out.

    ids: filled in here: what the answer of a line is called, by number of the line.
    """

    def __init__(
        self, engine: Engine, lines: Iterator[bytes], common: SamplingKeywords, ids: dict[int, Any], *, chat: bool
    ) -> None:
        self._engine = engine
        self._lines = lines
        self._common = common
        self._ids = ids
        self._chat = chat

    def requests(self, answers: BatchAnswers) -> Iterator[tuple[int, GenerationRequest]]:
        """(number, request) of every line that is one; the others are told to `answers`."""
        number = 0
        for line in self._lines:
            if not line.strip():
                continue
            number += 1
            self._ids[number] = number
            try:
                request = self._request(number, line)
            except LongspanError as error:
                answers.take(number, error)
            else:
                yield number, request

    def _request(self, number: int, line: bytes) -> GenerationRequest:
        from longspan.llm.keywords import generation_request
        from longspan.llm.prompts import chat_tokens, prompt_tokens

        try:
            given = _decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RequestError(f"this line cannot be used: {error}") from None
        if given.id is not None:
            self._ids[number] = given.id
        if (given.prompt is None) == (given.messages is None):
            raise RequestError("a line has either `prompt` or `messages`", param="prompt")
        model = self._engine.model
        if given.messages is not None:
            tokens = chat_tokens(model, given.messages)
        elif self._chat and isinstance(given.prompt, str):
            tokens = chat_tokens(model, given.prompt)
        else:
            tokens = prompt_tokens(model, given.prompt or "")
        keywords: dict[str, Any] = {**self._common}
        for name in given.__struct_fields__:
            if name not in _OWN and (value := getattr(given, name)) is not None:
                keywords[name] = value
        return generation_request(model, tokens, keywords, None)  # type: ignore[arg-type]


class BatchAnswers:
    """Writes answers in the order of the lines, as soon as all before them are there.

    ids: what the answer of a line is called, by number of the line; taken out as they are written.
    """

    def __init__(self, file: IO[str], bar: CountBar, ids: dict[int, Any]) -> None:
        self._file = file
        self._bar = bar
        self._waiting: dict[int, Result] = {}
        self._next = 1
        self._started = time.perf_counter()
        self._ids = ids
        self.answered = self.failed = self.tokens = 0

    def take(self, number: int, result: Result) -> None:
        """The answer of a line, or what was wrong."""
        if isinstance(result, LongspanError):
            self.failed += 1
        else:
            self.answered += 1
            self.tokens += len(result.tokens)
        self._waiting[number] = result
        while self._next in self._waiting:
            line = _written(self._ids.pop(self._next), self._waiting.pop(self._next))
            self._file.write(msgspec.json.encode(line).decode() + "\n")
            self._next += 1
        self._file.flush()
        self._bar.advance(f"{self.tokens_per_second:.1f} tokens/s")

    @property
    def tokens_per_second(self) -> float:
        """Of all answers together, since the beginning."""
        return self.tokens / max(time.perf_counter() - self._started, 1e-9)


async def complete_batch(
    engine: Engine,
    slots: int,
    source: str,
    target: str,
    common: SamplingKeywords,
    *,
    chat: bool,
) -> BatchAnswers:
    """Answer every line of `source` into `target`, paths or "-". Raises UsageError when one cannot be opened."""
    from longspan.llm.batch import run_batch

    with contextlib.ExitStack() as stack:
        lines, total = _opened(source, stack)
        if target == STANDARD:
            file: IO[str] = sys.stdout
        else:
            file = stack.enter_context(_open(Path(target), "w"))
        bar = CountBar("answering", total)
        stack.callback(bar.finish)
        ids: dict[int, Any] = {}
        answers = BatchAnswers(file, bar, ids)
        batch = BatchFile(engine, lines, common, ids, chat=chat)
        await run_batch(engine, batch.requests(answers), slots, answers.take)
    return answers


def _written(name: Any, result: Result) -> dict[str, Any]:
    if isinstance(result, LongspanError):
        param = result.param if isinstance(result, RequestError) else None
        return {"id": name, "error": {"message": str(result), "param": param}}
    line = {"id": name, "text": result.text, "tokens": result.tokens, "finish_reason": result.finish_reason}
    if result.logprobs:
        line["logprobs"] = result.logprobs
    return {**line, "timings": timings_object(result.timings)}


def _opened(source: str, stack: contextlib.ExitStack) -> tuple[Iterator[bytes], int | None]:
    """The lines, and how many there are where that can be known."""
    if source == STANDARD:
        return iter(sys.stdin.buffer), None
    file = stack.enter_context(_open(Path(source), "rb"))
    total = None
    if Path(source).is_file():
        total = sum(1 for line in file if line.strip())
        file.seek(0)
    return iter(file), total


def _open(path: Path, mode: Literal["w", "rb"]) -> IO[Any]:
    try:
        return path.open(mode, encoding="utf-8" if mode == "w" else None)
    except OSError as error:
        raise UsageError(f"{path} cannot be opened: {error.strerror or error}.") from error
