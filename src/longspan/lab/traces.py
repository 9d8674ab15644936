"""Reads the public request traces: when, how long a prompt, how long an answer. Prompts are made up to match."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from longspan.errors import UsageError
from longspan.lab.workload import Arrival, tokens_of

MOONCAKE_BLOCK = 512
"""Tokens that one entry of `hash_ids` stands for: requests with the same id share that part of their prompts."""

LONGEST = 1 << 20
"""Tokens of a prompt or an answer beyond which a line is taken for damaged."""


class TraceRequest(msgspec.Struct, frozen=True):
    """One line of a trace. at: seconds. hash_ids: identities of the prompt's blocks, if the trace has them."""

    at: float
    prompt_tokens: int
    answer_tokens: int
    hash_ids: tuple[int, ...] = ()


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read_mooncake(path: Path) -> Iterator[TraceRequest]:
    """JSON lines {timestamp in ms, input_length, output_length, hash_ids}."""
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in _lines(path):
        try:
            entry = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}, line {number}, is not of a mooncake trace: {error}") from error
        yield _checked(
            path,
            number,
            TraceRequest(entry.timestamp / 1e3, entry.input_length, entry.output_length, tuple(entry.hash_ids)),
        )


def read_azure(path: Path) -> Iterator[TraceRequest]:
    """CSV with the columns TIMESTAMP (a date and time), ContextTokens, GeneratedTokens."""
    start: datetime.datetime | None = None
    for number, row in _rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        try:
            # The trace has seven digits of a second, one more than Python reads.
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
            prompt, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except ValueError as error:
            raise UsageError(f"{path}, line {number}, is not of an Azure trace: {error}") from error
        start = start or at
        yield _checked(path, number, TraceRequest((at - start).total_seconds(), prompt, answer))


def read_burstgpt(path: Path) -> Iterator[TraceRequest]:
    """CSV with the columns Timestamp (seconds), Request tokens, Response tokens. Failed requests are left out."""
    for number, row in _rows(path, ("Timestamp", "Request tokens", "Response tokens")):
        try:
            at, prompt, answer = float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"])
        except ValueError as error:
            raise UsageError(f"{path}, line {number}, is not of a BurstGPT trace: {error}") from error
        if answer > 0:
            yield _checked(path, number, TraceRequest(at, prompt, answer))


TRACE_READERS: dict[str, Callable[[Path], Iterator[TraceRequest]]] = {
    "mooncake": read_mooncake,
    "azure": read_azure,
    "burstgpt": read_burstgpt,
}


def trace_arrivals(kind: str, path: Path, *, requests: int, speed: float) -> list[Arrival]:
    """The first `requests` requests of a trace, `speed` times as fast as recorded, from time 0 on.

    Raises UsageError when the file cannot be read, has a damaged line (named), or no request at all.
    """
    arrivals: list[Arrival] = []
    start: float | None = None
    for request in TRACE_READERS[kind](path):
        if len(arrivals) == requests:
            break
        start = request.at if start is None else min(start, request.at)
        arrivals.append(
            Arrival(at=request.at, prompt=_prompt(request, len(arrivals)), answer=max(1, request.answer_tokens))
        )
    if start is None:
        raise UsageError(f"the trace {path} has no requests")
    return [msgspec.structs.replace(arrival, at=(arrival.at - start) / speed) for arrival in arrivals]


def _prompt(request: TraceRequest, index: int) -> tuple[int, ...]:
    tokens: list[int] = []
    for identity in request.hash_ids:
        tokens += tokens_of(2 * identity, MOONCAKE_BLOCK)
    missing = max(1, request.prompt_tokens) - len(tokens)
    if missing > 0:
        tokens += tokens_of(2 * index + 1, missing)
    return tuple(tokens[: max(1, request.prompt_tokens)])


def _checked(path: Path, number: int, request: TraceRequest) -> TraceRequest:
    if not (0 <= request.prompt_tokens <= LONGEST and 0 <= request.answer_tokens <= LONGEST):
        raise UsageError(
            f"{path}, line {number}: {request.prompt_tokens} prompt and {request.answer_tokens} answer tokens; "
            f"both must be within 0 and {LONGEST}"
        )
    return request


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the trace {path} cannot be read: {error}") from error


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(line for _, line in _lines(path))
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{path} has no column {missing[0]!r}; it needs {', '.join(columns)}")
    for row in reader:
        if any(row[column] is None for column in columns):
            raise UsageError(f"{path}, line {reader.line_num}, has too few columns")
        yield reader.line_num, row
