"""Measurements of speed on one machine, and beside other servers."""

from __future__ import annotations

from tools.results.measurement import Bars, Figure, Flame, Lines, Measurement

SPEED: tuple[Measurement, ...] = (
    Measurement(
        "ring",
        "What the ring costs",
        "The one-stage engine against a bare llama_decode loop (A B B A), the time of a one-row frame outside of "
        "compute on loopback, reading the residual stream, and the memory of half a model.",
        "longspan bench ring --json",
        (
            Figure(
                "decoding, against a bare llama_decode loop",
                ("decode_ratio_to_bare",),
                "{:.2f} ×",
                ("decode_noise",),
            ),
            Figure(
                "what a hop takes besides compute, on loopback", ("hop_overhead_ms",), "{:.2f} ms", ("hop_noise",)
            ),
            Figure(
                "reading the residual stream out of half a model",
                ("callback_overhead_ms",),
                "{:.2f} ms",
                ("callback_noise",),
            ),
            Figure(
                "memory of a stage with half the layers, against the whole", ("stage_memory_ratio",), "{:.2f} ×"
            ),
        ),
    ),
    Measurement(
        "api",
        "What the API adds to a token",
        "One engine asked both ways, A B B A: by a client process that streams completions over HTTP, and by "
        "coroutines that read the engine's streams. Without speculation, so each token is an event.",
        "longspan bench api --rounds 1 --json",
        (
            Figure(
                "what the API adds to a token, 1 stream",
                ("rows", "streams=1", "added_ms"),
                "{:.2f} ms",
                ("rows", "streams=1", "noise"),
            ),
            Figure(
                "throughput over the API at 32 streams, against the engine called directly",
                ("rows", "streams=32", "throughput_ratio"),
                "{:.2f} ×",
                ("rows", "streams=32", "noise"),
            ),
        ),
    ),
    Measurement(
        "viewers",
        "What an open dashboard costs",
        "The same four streams with three viewers of the dashboard and without, A B B A. Viewers and the client "
        "that asks are processes of their own, and what these take of the same two cores counts too.",
        "longspan bench viewers --rounds 4 --json",
        (
            Figure(
                "throughput with three viewers of the dashboard, against none", ("ratio",), "{:.3f} ×", ("noise",)
            ),
        ),
    ),
    Measurement(
        "profile",
        "Where a token's time goes, on one machine",
        "One stream without speculation over one stage, so that every token is one trip. What is listed as "
        "`beside` runs while a stage computes, and no token waits for it.",
        "longspan bench profile --json",
        (
            Figure(
                "share of a token's time that is neither compute nor on links, one stage", ("outside",), "{:.1%}"
            ),
        ),
        Flame(),
    ),
    Measurement(
        "profile-wan",
        "Where a token's time goes, over 25 ms",
        "The same over two stages in processes of their own, with 25 ms each way between them.",
        "longspan bench profile --stages 2 --link-delay 25 --http off --json",
        (Figure("the same, two stages 25 ms apart", ("outside",), "{:.1%}"),),
        Flame(),
    ),
    Measurement(
        "interference",
        "What long prompts do to streams that decode",
        "Four streams decode while prompts of 1,500 tokens arrive, over two stages. Mixed iterations against "
        "iterations that hold either decode rows or prefill, A B B A. Ratios are mixed over homogeneous: below 1 "
        "is better for gaps and first tokens, above 1 for throughput.",
        "longspan bench interference --stages 2 --rounds 1 --json",
        tuple(
            Figure(
                f"long prompts beside four streams, mixed iterations against homogeneous: {what}",
                ("stages=2", key),
                "{:.2f} ×",
                ("stages=2", "noise"),
            )
            for what, key in (
                ("throughput", "throughput_ratio"),
                ("first token of the prompts", "ttft_p50_ratio"),
                ("95th percentile of the streams' gaps", "p95_gap_ratio"),
            )
        ),
        Bars((), ("stages",), ("p95_gap_ratio", "max_gap_ratio", "ttft_p50_ratio", "throughput_ratio")),
    ),
    Measurement(
        "concurrency",
        "Throughput by concurrent requests",
        "Without speculation, beside llama.cpp's own server out of the same library: the same file, prompts and "
        "threads over HTTP, A B B A in one run.",
        "longspan bench concurrency --rounds 1 --json",
        tuple(
            Figure(
                f"throughput at {count} request{'s' if count > 1 else ''}, against llama.cpp's own server",
                ("rows", f"concurrency={count}", "ratio"),
                "{:.2f} ×",
                ("rows", f"concurrency={count}", "noise"),
            )
            for count in (1, 4, 8)
        ),
        Lines(("rows",), "concurrency", ("tokens_per_second", "peer_tokens_per_second")),
    ),
    Measurement(
        "peers",
        "Beside other servers",
        "As `longspan serve` is by itself, with speculation, on a text that the model copies and one that it makes "
        "up; ratio is ours over the peer's. A peer that is not installed has a line that says so.",
        "longspan bench peers --peers llama.cpp --peers transformers --rounds 2 --tokens 48 --json",
        tuple(
            Figure(
                f"{text}, {count} request{'s' if count > 1 else ''}: against llama.cpp's server",
                ("rows", "peer=llama.cpp", f"text={text}", f"concurrency={count}", "ratio"),
                "{:.2f} ×",
                ("rows", "peer=llama.cpp", f"text={text}", f"concurrency={count}", "noise"),
            )
            for text in ("prose", "copy")
            for count in (1, 4, 8)
        ),
        Bars(("rows",), ("peer", "text", "concurrency"), ("tokens_per_second", "peer_tokens_per_second")),
    ),
)
