"""A timeline as a picture: a row for each stage, and what was in flight."""

from __future__ import annotations

from pathlib import Path

from longspan.observe.picture import new_figure, save_picture
from longspan.observe.timeline import Timeline
from longspan.schedule.trace import kind_of

COLOURS = {"decode": "#2a6fbb", "prefill": "#b26b00", "mixed": "#7a4fa3"}
MOST_TRIPS = 400


def draw_timeline(found: Timeline, path: Path) -> None:
    """Draw the last trips, at most MOST_TRIPS. Raises UsageError without matplotlib."""
    trips = found.trips[-MOST_TRIPS:]
    start = min(trip.planned for trip in trips)
    end = max(trip.completed for trip in trips)
    figure = new_figure(12, 2.2 + 0.6 * found.stages)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[found.stages, 1.5])
    for trip in trips:
        colour = COLOURS[kind_of(trip.spans)]
        for span in trip.stages:
            bar = (1000 * (span.started - start), 1000 * (span.finished - span.started))
            axes.broken_barh([bar], (span.stage - 0.4, 0.8), facecolors=colour)
        for earlier, later in zip(trip.stages, trip.stages[1:], strict=False):
            axes.plot(
                [1000 * (earlier.finished - start), 1000 * (later.received - start)],
                [earlier.stage, later.stage],
                color="#8888",
                linewidth=0.6,
            )
    axes.set_yticks(range(found.stages), [f"stage {stage}" for stage in range(found.stages)])
    axes.invert_yaxis()
    axes.set_title("compute: blue decode, orange prefill, violet both; grey: on the link", fontsize=9, loc="left")
    changes = sorted(change for trip in trips for change in ((trip.planned, 1), (trip.completed, -1)))
    times, counts, running = [0.0], [0], 0
    for at, step in changes:
        running += step
        times.append(1000 * (at - start))
        counts.append(running)
    below.step(times, counts, where="post", color="#444", linewidth=0.8)
    below.set_ylabel("in flight")
    below.set_xlabel("ms")
    below.set_xlim(0, 1000 * (end - start))
    save_picture(figure, path)
