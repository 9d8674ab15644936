"""Pictures of results, where people would rather look than read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from longspan.bench.profile import ProfileFigures, draw_profile
from longspan.observe.picture import new_figure, save_picture
from tools.results.measurement import Bars, Flame, Heat, Lines, Measurement
from tools.results.value import value_at, value_text

COLOURS = ("#2a6fbb", "#b26b00", "#1b6e3c", "#7a4fa3", "#aa3333", "#555577")
PANEL_WIDTH, HEIGHT = 5.0, 3.6


def draw(measurement: Measurement, result: Any, path: Path) -> None:
    """Write the picture of a result. Raises UsageError without matplotlib."""
    match measurement.picture:
        case Lines() as lines:
            _draw_lines(lines, result, path)
        case Bars() as bars:
            _draw_bars(bars, result, path)
        case Heat() as heat:
            _draw_heat(heat, result, path)
        case Flame():
            draw_profile(msgspec.convert(result, ProfileFigures), path)


def _draw_lines(lines: Lines, result: Any, path: Path) -> None:
    rows = value_at(lines.rows, result)
    panels = list(dict.fromkeys(row[lines.panel] for row in rows)) if lines.panel else [""]
    figure = new_figure(PANEL_WIDTH * len(panels), HEIGHT)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        shown = [row for row in rows if not lines.panel or row[lines.panel] == panel]
        series = (
            [
                (str(name), lines.ys[0], [row for row in shown if row[lines.by] == name])
                for name in _names(shown, lines.by)
            ]
            if lines.by
            else [(_words(key), key, shown) for key in lines.ys]
        )
        for colour, (name, key, points) in zip(COLOURS, series, strict=False):
            xs, ys = [row[lines.x] for row in points], [row[key] for row in points]
            axes.plot(xs, ys, marker="o", markersize=4, color=colour, label=name)
        if lines.logarithmic:
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(sorted({row[lines.x] for row in shown}))
            axes.minorticks_off()
            axes.xaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(_words(lines.x))
        axes.set_ylabel(_words(lines.ys[0]) if lines.by else "")
        axes.set_title(str(panel), fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save_picture(figure, path)


def _draw_bars(bars: Bars, result: Any, path: Path) -> None:
    rows = value_at(bars.rows, result)
    names = [", ".join(f"{_words(key)} {value_text(row[key])}" for key in bars.labels) for row in rows]
    figure = new_figure(2 * PANEL_WIDTH, 1.2 + 0.25 * len(rows) * (1 + len(bars.values)))
    axes = figure.add_subplot()
    size = 0.8 / len(bars.values)
    for number, (colour, key) in enumerate(zip(COLOURS, bars.values, strict=False)):
        places = [place + (number - (len(bars.values) - 1) / 2) * size for place in range(len(rows))]
        drawn = axes.barh(places, [row[key] or 0.0 for row in rows], size, color=colour, label=_words(key))
        axes.bar_label(drawn, [value_text(row[key]) for row in rows], fontsize=7, padding=2)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.legend(fontsize=8)
    save_picture(figure, path)


def _draw_heat(heat: Heat, result: Any, path: Path) -> None:
    rows = value_at(heat.rows, result)
    xs, ys = (sorted({row[key] for row in rows}) for key in (heat.x, heat.y))
    found = {(row[heat.x], row[heat.y]): row[heat.value] for row in rows}
    most = max(found.values())
    figure = new_figure(PANEL_WIDTH + 1, HEIGHT + 0.4)
    axes = figure.add_subplot()
    axes.imshow([[found.get((x, y), 0.0) for x in xs] for y in ys], cmap="Blues", vmin=0, aspect="auto")
    for (x, y), value in found.items():
        colour = "white" if value > 0.6 * most else "black"
        axes.text(xs.index(x), ys.index(y), value_text(value), ha="center", va="center", color=colour, fontsize=9)
    axes.set_xticks(range(len(xs)), list(map(str, xs)))
    axes.set_yticks(range(len(ys)), list(map(str, ys)))
    axes.set_xlabel(_words(heat.x))
    axes.set_ylabel(_words(heat.y))
    axes.set_title(_words(heat.value), fontsize=10)
    save_picture(figure, path)


def _names(rows: list[dict[str, Any]], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _words(key: str) -> str:
    return key.replace("_", " ")
