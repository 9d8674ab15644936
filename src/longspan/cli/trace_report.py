"""`longspan trace report`: what a run did, from its trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longspan.cli.output import format_table, print_facts, print_json, write_result

if TYPE_CHECKING:
    from longspan.observe.timeline_figures import TimelineFigures


def trace_report(
    file: Path,
    /,
    *,
    perfetto: Path | None = None,
    otlp: Path | None = None,
    picture: Path | None = None,
    json: bool = False,
) -> None:
    """Say what stages and links did, from the file that `longspan serve --trace` wrote.

    For example:

        longspan serve demo --stages 2 --link-delay 100 --trace trace.jsonl
        longspan trace report trace.jsonl --picture trace.png
        longspan trace report trace.jsonl --perfetto trace.json --json

    Parameters
    ----------
    file
        The trace.
    perfetto
        Write the timeline for ui.perfetto.dev or chrome://tracing.
    otlp
        Write OpenTelemetry spans, as OTLP's JSON; they end when the file was last written.
    picture
        Draw its end (needs matplotlib: the extra "pictures").
    json
        Print the figures as JSON.
    """
    from longspan.observe.chrome_trace import chrome_trace
    from longspan.observe.otlp import otlp_trace
    from longspan.observe.timeline import timeline
    from longspan.observe.timeline_figures import timeline_figures
    from longspan.observe.timeline_picture import draw_timeline
    from longspan.observe.trace_reader import read_trace

    found = timeline(read_trace(file))
    figures = timeline_figures(found)
    if perfetto is not None:
        write_result(perfetto, chrome_trace(found))
    if otlp is not None:
        write_result(otlp, otlp_trace(found, ended=file.stat().st_mtime))
    if picture is not None:
        draw_timeline(found, picture)
    if json:
        print_json(figures)
    else:
        _print(figures)


def _print(figures: TimelineFigures) -> None:
    rows = figures.useful_rows + figures.stale_rows
    print_facts(
        [
            (
                "iterations",
                f"{figures.iterations} in {figures.seconds:.2f} s, active for {figures.active_seconds:.2f}",
            ),
            ("a trip", f"{figures.trip_ms:.1f} ms (median)"),
            ("computing at once", ", ".join(f"{n}: {share:.1%}" for n, share in enumerate(figures.computing))),
            ("exposed wait", f"{figures.exposed_wait:.1%}: in flight, and nobody computes"),
            ("on the links", f"{figures.propagation_seconds:.2f} s, {figures.propagation_hidden:.1%} of it hidden"),
            ("in flight", f"{figures.in_flight:.2f} iterations, {figures.depth:.2f} windows of a request"),
            (
                "rows",
                f"{figures.useful_rows} useful, {_share(figures.stale_rows, rows)} stale",
            ),
            ("links, one way", ", ".join(f"{delay:.1f} ms" for delay in figures.delays_ms)),
        ]
    )
    stages = [
        (
            row.stage,
            f"{row.busy:.1%}",
            f"{row.waited:.1%}",
            f"{row.work_ms:.2f}",
            f"{row.callback_ms:.2f}",
            f"{row.offset_ms:+.2f}",
        )
        for row in figures.stages
    ]
    print("\n" + format_table(("stage", "busy", "queue", "work ms", "callback ms", "clock ms"), stages))
    if len(figures.seconds_by_depth) > 1:
        total = sum(figures.seconds_by_depth)
        depths = [
            (depth, f"{value:.2f}", f"{value / total:.1%}")
            for depth, value in enumerate(figures.seconds_by_depth, 1)
        ]
        print("\n" + format_table(("windows in flight", "seconds", "share"), depths))


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "none"
