"""Values out of JSON, and how they are written for people."""

from __future__ import annotations

from typing import Any

from tools.results.measurement import Figure, Path

MOST_LISTED = 8
"""A longer list of plain values is only counted."""


def value_at(path: Path, value: Any) -> Any:
    """What stands at a path of a JSON document. Raises KeyError or IndexError when nothing does."""
    rows: list[Any] = []
    for step in path:
        if isinstance(step, str) and "=" in step:
            key, _, wanted = step.partition("=")
            rows = [row for row in (value if isinstance(value, list) else rows) if str(row[key]) == wanted]
            value = rows[0]
        else:
            value = value[step]
    return value


def figure_text(figure: Figure, result: Any) -> str:
    """A figure as it stands in the table. Raises KeyError or IndexError when the result does not have it."""
    text = figure.form.format(value_at(figure.path, result))
    return f"{text} (noise {value_at(figure.noise, result):.1%})" if figure.noise else text


def value_text(value: Any) -> str:
    """A plain value, or a short list of such, in a cell of a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, list):
        if len(value) > MOST_LISTED:
            return f"{len(value)} values"
        return ", ".join(_within(part) for part in value) or "none"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _within(part: Any) -> str:
    return f"{part[0]}–{part[1]}" if isinstance(part, list) and len(part) == 2 else value_text(part)
