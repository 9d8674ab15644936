"""Measurements of exactness, with and without faults."""

from __future__ import annotations

from tools.results.measurement import Bars, Figure, Measurement

EXACTNESS: tuple[Measurement, ...] = (
    *(
        Measurement(
            f"certify-{stages}",
            f"Is it exact? The whole model against {words} stages",
            "Every row's logits, bit by bit: one row at a time, windows of every size below the exact-row limit, "
            "random trims, interleaved sequences, windows beside another sequence's prefill.",
            f"longspan certify demo --stages {stages} --json",
            figures,
        )
        for stages, words, figures in (
            (
                2,
                "two",
                (
                    Figure(
                        "largest difference of a logit, whole model against two stages",
                        ("max_abs_difference",),
                        "{}",
                    ),
                    Figure("rows compared for it", ("rows_checked",), "{:,}"),
                ),
            ),
            (3, "three", (Figure("the same against three stages", ("max_abs_difference",), "{}"),)),
        )
    ),
    Measurement(
        "chaos",
        "Faults at random",
        "Rings of two and of three processes (a tiny model), eight streams with speculation on. Processes are "
        "killed, stopped and replaced, links cut, stalled, half closed and corrupted. Every token is compared "
        "with the unsplit model's. Requests that run while the coordinator itself is killed get a clear error; no "
        "other may be lost.",
        "python -m tests.chaos.run --stages 2 --stages 3 --faults 30 --json",
        tuple(
            Figure(f"{text}, {stages} stages", (f"stages={stages}", *path), form)
            for stages in (2, 3)
            for text, path, form in (
                ("faults at random", ("faults_all",), "{}"),
                ("tokens compared meanwhile", ("tokens_compared",), "{:,}"),
                ("requests with other tokens", ("requests_with_other_tokens",), "{}"),
            )
        ),
    ),
    Measurement(
        "heal",
        "What the loss of a stage costs",
        "A stage's process is killed (SIGKILL) while four answers run; the launcher starts another one and the "
        "answers go on with the same tokens. Seconds, phases one after the other.",
        "longspan bench heal --rounds 5 --json",
        (
            Figure("a stage killed: pause of a stream, median", ("pause",), "{:.2f} s"),
            Figure("the same without loading the layers again", ("beyond_load",), "{:.2f} s"),
        ),
        Bars(("rounds",), ("stage",), ("detect", "relaunch", "load", "replay", "pause")),
    ),
)
