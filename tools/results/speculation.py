"""Measurements of speculation over distance."""

from __future__ import annotations

from tools.results.measurement import Bars, Figure, Heat, Lines, Measurement

SPECULATION: tuple[Measurement, ...] = (
    Measurement(
        "wan",
        "Speculation by link delay",
        "Two stages in processes of their own with an emulated delay of every link, one request. Arms side by "
        "side, forwards and backwards in each round: no speculation, the head alone, what the server chooses by "
        "itself, and trees (`--latency tree`). `identical` says that the tokens are those of `none`. Copied and "
        "novel texts are told apart: what helps one does nothing for the other.",
        "longspan bench wan --texts copy --texts prose --delays 0 --delays 25 --delays 100 --concurrency 1 "
        "--arms none --arms mtp --arms auto --arms tree --tokens 96 --frontier off --json",
        tuple(
            Figure(
                f"100 ms each way, one request, {text}: {arm} against no speculation",
                ("rows", f"text={text}", "delay_ms=100.0", f"arm={arm}", "ratio_to_none"),
                "{:.2f} ×",
                ("rows", f"text={text}", "delay_ms=100.0", f"arm={arm}", "noise"),
            )
            for text, arm in (("copy", "auto"), ("prose", "mtp"), ("prose", "auto"), ("prose", "tree"))
        ),
        Lines(("rows",), "delay_ms", ("ratio_to_none",), by="arm", panel="text"),
    ),
    Measurement(
        "wan-crowd",
        "Speculation with a crowd",
        "The same at 100 ms each way, for four and eight requests at once: a crowd hides trips too.",
        "longspan bench wan --texts copy --texts prose --delays 100 --concurrency 4 --concurrency 8 "
        "--arms none --arms auto --tokens 48 --frontier off --json",
        tuple(
            Figure(
                f"100 ms each way, eight requests, {text}: auto against no speculation",
                ("rows", f"text={text}", "concurrency=8", "arm=auto", "ratio_to_none"),
                "{:.2f} ×",
                ("rows", f"text={text}", "concurrency=8", "arm=auto", "noise"),
            )
            for text in ("copy", "prose")
        ),
        Lines(("rows",), "concurrency", ("tokens_per_second",), by="arm", panel="text"),
    ),
    Measurement(
        "frontier",
        "Width and depth of windows",
        "Fixed widths and depths of windows on the text that the model copies, 100 ms each way, and how close "
        "comes what the server chooses by itself.",
        "longspan bench wan --quick --texts copy --concurrency 1 --arms none --arms auto --tokens 96 --json",
        (
            Figure(
                "chosen width and depth of windows, against the best of nine fixed ones",
                ("frontier", "auto_to_best"),
                "{:.2f} ×",
            ),
        ),
        Heat(("frontier", "cells"), "width", "depth", "tokens_per_second"),
    ),
    Measurement(
        "lab-ring",
        "The lab's ring against a real one",
        "Three settings of width, depth and link delay are measured to learn what stages and links take; six "
        "others are predicted by running the server's own planner in virtual time, and measured.",
        "longspan lab ring --tokens 128 --json",
        (
            Figure(
                "lab: tokens a second of a ring of processes, predicted in virtual time: worst of six settings",
                ("worst_rate_error",),
                "off by {:.1%}",
                ("noise",),
            ),
            Figure("lab: the same, rows sent for nothing", ("worst_stale_error",), "off by {:.1%}"),
        ),
        Bars(("rows",), ("delay_ms", "width", "depth"), ("tokens_per_second", "lab_tokens_per_second")),
    ),
)
