"""Measurements of the planner, of the lab, and of how well models predict."""

from __future__ import annotations

from tools.results.measurement import Bars, Figure, Lines, Measurement

PLANNING: tuple[Measurement, ...] = (
    Measurement(
        "planner",
        "What a plan costs",
        "The planner alone, without a model: so many sequences run and so many wait; nearly every running one has "
        "a decode row in every plan.",
        "longspan bench planner --json",
        (
            Figure(
                "planning an iteration, 64 requests running", ("rows", "running=64", "plan_us_p50"), "{:.0f} µs"
            ),
            Figure("the same, 512 running and 4,096 waiting", ("rows", "running=512", "plan_us_p50"), "{:.0f} µs"),
        ),
        Lines(("rows",), "running", ("plan_us_p50", "plan_us_p99", "complete_us_p50"), logarithmic=True),
    ),
    Measurement(
        "staggered-prefill",
        "Mixed scheduling in the lab: staggered prompts",
        "The server's planner under a virtual clock, against the reference's way without mixing (`bounded`) and "
        "our own without mixing (`homogeneous`). Percentages are of the other policy.",
        "longspan lab run staggered-prefill --json",
        (
            Figure(
                "lab: mixed iterations against bounded prefill, makespan",
                ("changes", "against=bounded", "percent", "makespan_ms"),
                "{:+.1f} %",
            ),
            Figure(
                "lab: the same, 95th percentile of the first token",
                ("changes", "against=bounded", "percent", "p95_ttft_ms"),
                "{:+.1f} %",
            ),
        ),
        Bars(("rows",), ("policy",), ("makespan_ms", "p50_ttft_ms", "p95_ttft_ms", "p95_gap_ms")),
        ("scenario", "costs", "stage_busy"),
    ),
    Measurement(
        "representative",
        "Mixed scheduling in the lab: a representative load",
        "The same policies under 200 requests, chat turns and some documents, at two thirds of what the ring can "
        "do.",
        "longspan lab run representative --json",
        (
            Figure(
                "lab: a representative load, mixed against bounded, median of the first token",
                ("changes", "against=bounded", "percent", "p50_ttft_ms"),
                "{:+.1f} %",
            ),
        ),
        Bars(("rows",), ("policy",), ("p50_ttft_ms", "p95_ttft_ms", "p95_gap_ms")),
        ("scenario", "costs", "stage_busy"),
    ),
    Measurement(
        "cost",
        "How well the cost models predict",
        "A trace of the real engine; every iteration is predicted from what came before it. Errors are shares of "
        "the measured time. The noise floor is what iterations of one shape differ by, and no model can beat it.",
        "longspan bench cost --seconds 45 --history 2000 --json",
        (
            Figure(
                "what an iteration takes, predicted by the server's model: mean error",
                ("rows", "model=analytic", "mean_relative_error"),
                "{:.1%}",
            ),
            Figure("the same, of what no model can beat", ("noise_floor", "mean_relative_error"), "{:.1%}"),
        ),
        Bars(("rows",), ("model",), ("mean_relative_error", "decode", "prefill", "mixed")),
    ),
    Measurement(
        "plan",
        "How well placing predicts a ring",
        "Stages in processes of their own measure their speed, then they form a ring that decodes: tokens a second "
        "and the memory of the stage that needs most, against what `longspan plan` said beforehand.",
        "longspan bench plan --rounds 1 --json",
        (Figure("speed of five rings, predicted before they are formed: worst", ("worst",), "off by {:.1%}"),),
        Bars(("rows",), ("stages", "delay_ms", "streams"), ("predicted", "actual")),
    ),
)
