"""Where a token's time goes: one stream, no speculation, so that every token is one trip around the ring."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from longspan.bench.api import bench_api
from longspan.bench.prompts import prompt_of_length
from longspan.bench.stopwatch import Stopwatch, Watched
from longspan.bench.timeline import follow
from longspan.engine import Engine, EngineOptions
from longspan.engine.answers import Answers
from longspan.errors import LongspanError
from longspan.model.detokenizer import IncrementalDetokenizer
from longspan.model.embedding import TokenEmbedding
from longspan.observe.picture import new_figure, save_picture
from longspan.request import GenerationRequest
from longspan.ring import driver, stage_compute
from longspan.ring.outbox import Outbox
from longspan.runtime.llama.runtime import LlamaRuntime
from longspan.schedule.planner import Planner
from longspan.schedule.trace import TraceRecord

PROMPT_TOKENS = 32
WARM_UP_TOKENS = 16

COORDINATOR, LINKS, BESIDE = "coordinator", "links", "beside"

PLAN, COMPLETE, ROWS, BUILD, SEND = "plan", "take the result", "token rows", "frame build", "send"
SAMPLING, LEARN, DETOKENISE, TEXTS = "sampling", "learn", "detokenise", "hand texts over"

WATCHED = (
    Watched(PLAN, Planner, "plan"),
    Watched(COMPLETE, Planner, "complete"),
    Watched(LEARN, Planner, "learn"),
    Watched(ROWS, TokenEmbedding, "rows"),
    Watched(BUILD, driver, "encode_iteration"),
    Watched(BUILD, stage_compute, "encode_iteration"),
    Watched(SEND, Outbox, "put"),
    Watched(SEND, Outbox, "send_from_thread"),
    Watched(SAMPLING, LlamaRuntime, "_sample"),
    Watched(TEXTS, Answers, "dispatch"),
    Watched(DETOKENISE, IncrementalDetokenizer, "push"),
)


class ProfilePart(msgspec.Struct, frozen=True):
    """A part of a token's time. group: who spends it: "coordinator", "links", "stage N", or "beside": while a stage
    computes, so that no token waits for it. ms: for each token. share: of a token's time."""

    group: str
    name: str
    ms: float
    share: float


class ProfileFigures(msgspec.Struct, frozen=True):
    """token_ms: from one token to the next, mean. parts: they sum to it, but for those of "beside". outside: share
    of it that is neither compute nor on links. sampling is known where the last stage is in this process."""

    token_ms: float
    parts: tuple[ProfilePart, ...]
    outside: float
    tokens: int
    stages: int
    link_delay_ms: float
    threads: int


async def bench_profile(
    model: str,
    *,
    stages: int,
    link_delay_ms: float,
    tokens: int,
    rounds: int,
    threads: int,
    http: bool,
    report: Callable[[str], None],
) -> ProfileFigures:
    """Measure. Raises LongspanError."""
    options = EngineOptions(
        model,
        stages=stages,
        threads=threads,
        slots=1,
        context=PROMPT_TOKENS + tokens + 1,
        link_delay_ms=link_delay_ms,
        proposer="none",
    )
    engine = Engine(options)
    watch = Stopwatch()
    gaps: list[float] = []
    records: list[TraceRecord] = []
    report("starting the engine")
    await engine.start()
    try:
        prompt = prompt_of_length(engine.model.description.vocabulary, PROMPT_TOKENS, 0)
        with watch.watching(WATCHED):
            for number in range(rounds + 1):
                report("warm-up" if not number else f"round {number} of {rounds}")
                length = tokens if number else WARM_UP_TOKENS
                if number == 1:
                    watch.reset()
                begun = engine.activity(0.0).now
                answer = await follow(engine.submit(GenerationRequest(prompt, length, ignore_eos=True, seed=0)))
                if number:
                    gaps += answer.gaps()
                    records += _decoding(engine.activity(begun).iterations)
    finally:
        await engine.stop()
    if not gaps or not records:
        raise LongspanError("the answer came in one piece, so there is nothing between two tokens to look at")
    added = None
    if http:
        report("HTTP")
        api = await bench_api(model, streams=(1,), tokens=tokens, rounds=rounds, threads=threads, report=report)
        added = max(0.0, api.rows[0].added_ms)
    token_ms = 1000 * statistics.mean(gaps)
    parts = _parts(watch, records, token_ms, added, rounds * tokens)
    inside = sum(part.ms for part in parts if part.name in ("compute", "on the way"))
    return ProfileFigures(
        token_ms, parts, max(0.0, 1 - inside / token_ms), len(gaps), stages, link_delay_ms, threads
    )


def _decoding(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    return [record for record in records if all(span.phase.is_exact for span in record.spans)]


def _parts(
    watch: Stopwatch, records: Sequence[TraceRecord], token_ms: float, http_ms: float | None, tokens: int
) -> tuple[ProfilePart, ...]:
    own = {name: 1000 * seconds / tokens for name, seconds in watch.seconds.items()}
    found: list[tuple[str, str, float]] = [
        (COORDINATOR, name, own.get(name, 0.0)) for name in (PLAN, ROWS, BUILD, SEND, COMPLETE)
    ]
    trip = 1000 * statistics.mean(record.completed_at - record.planned_at for record in records)
    stages = len(records[0].stages)
    staged = 0.0
    for stage in range(stages):
        worked, waited, callback = (
            1000 * statistics.mean(getattr(record.stages[stage], name) for record in records)
            for name in ("worked", "waited", "callback")
        )
        staged += worked + waited
        sampling = own.get(SAMPLING, 0.0) if stage == stages - 1 else 0.0
        group = f"stage {stage}"
        found += [
            (group, "queue", waited),
            (group, "compute", worked - callback - sampling),
            (group, "callback", callback),
        ]
        if sampling:
            found.append((group, SAMPLING, sampling))
    before = sum(own.get(name, 0.0) for name in (PLAN, ROWS, BUILD, SEND))
    found.append((LINKS, "on the way", max(0.0, trip - staged - before)))
    found.append((COORDINATOR, "everything else", max(0.0, token_ms - sum(ms for _, _, ms in found))))
    texts, detokenise = own.get(TEXTS, 0.0), own.get(DETOKENISE, 0.0)
    found += [
        (BESIDE, LEARN, own.get(LEARN, 0.0)),
        (BESIDE, DETOKENISE, detokenise),
        (BESIDE, TEXTS, max(0.0, texts - detokenise)),
    ]
    if http_ms is not None:
        found.append((BESIDE, "HTTP", http_ms))
    return tuple(ProfilePart(group, name, ms, ms / token_ms) for group, name, ms in found)


def draw_profile(figures: ProfileFigures, path: Path) -> None:
    """A flame-style picture: the token's time, who spends it, and on what. Raises UsageError without matplotlib."""
    figure = new_figure(12, 2.6)
    axes = figure.subplots()
    colours = ("#2a6fbb", "#b26b00", "#7a4fa3", "#1b6e3c", "#a33", "#557", "#884")
    groups = list(dict.fromkeys(part.group for part in figures.parts if part.group != BESIDE))
    axes.broken_barh([(0, figures.token_ms)], (2, 0.9), facecolors="#888")
    axes.text(0.0, 2.3, f" a token: {figures.token_ms:.2f} ms", fontsize=9)
    at = 0.0
    for colour, group in zip(colours, groups, strict=False):
        begin = at
        for part in (part for part in figures.parts if part.group == group):
            axes.broken_barh([(at, part.ms)], (0, 0.9), facecolors=colour, edgecolor="white", linewidth=0.5)
            if part.share > 0.04:
                axes.text(at, 0.3, f" {part.name}\n {part.ms:.2f}", fontsize=7, color="white", clip_on=True)
            at += part.ms
        axes.broken_barh([(begin, at - begin)], (1, 0.9), facecolors=colour, alpha=0.75)
        axes.text(begin, 1.3, f" {group}", fontsize=8, clip_on=True)
    axes.set_yticks([])
    axes.set_xlim(0, max(at, figures.token_ms))
    axes.set_xlabel("ms")
    save_picture(figure, path)
