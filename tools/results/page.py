"""The page about one result: what was measured, how, where and when, and every row of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tools.results.measurement import Measurement
from tools.results.record import RESULTS, Record
from tools.results.value import value_text

Facts = dict[str, Any]


def page(measurement: Measurement, record: Record) -> str:
    """The page as Markdown."""
    name = measurement.name
    took = "" if record.seconds is None else f", in {record.seconds:,.0f} s"
    lines = [
        f"# {measurement.title}",
        "",
        measurement.about,
        "",
        f"`{record.command}` on {record.date} at commit {record.commit}{took}, on {record.machine_text}. "
        f"The whole answer is in [{name}.json]({name}.json).",
        "",
    ]
    if measurement.picture is not None and (RESULTS / f"{name}.png").exists():
        lines += [f"![{measurement.title}]({name}.png)", ""]
    lines += _sections(record.result, "", set(measurement.hidden))
    return "\n".join(lines).rstrip() + "\n"


def _sections(value: Any, title: str, hidden: Collection[str]) -> Iterator[str]:
    """A table of what is plain in an object, then one for each list of objects in it, and so on inwards."""
    if isinstance(value, list):
        yield from _rows([_flat(row, hidden) for row in value], title)
        return
    shown = {key: part for key, part in value.items() if key not in hidden}
    facts = {key: part for key, part in shown.items() if _is_plain(part)}
    if facts:
        yield from _heading(title)
        yield from ("| what | value |", "|---|---|")
        yield from (f"| {_words(key)} | {value_text(part)} |" for key, part in facts.items())
        yield ""
    for key, part in shown.items():
        if key not in facts:
            yield from _sections(part, f"{title}: {_words(key)}" if title else _words(key), hidden)


def _rows(rows: list[Facts], title: str) -> Iterator[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = [all(isinstance(row.get(key), int | float | None) for row in rows) for key in columns]
    yield from _heading(title)
    yield f"| {' | '.join(map(_words, columns))} |"
    yield f"|{'|'.join('---:' if right else '---' for right in numeric)}|"
    for row in rows:
        yield f"| {' | '.join(value_text(row.get(key)) for key in columns)} |"
    yield ""


def _heading(title: str) -> tuple[str, ...]:
    return (f"## {title[0].upper()}{title[1:]}", "") if title else ()


def _flat(row: Facts, hidden: Collection[str]) -> Facts:
    """A row without what is hidden, and with the fields of its objects as its own."""
    found: Facts = {}
    for key, part in row.items():
        if key in hidden:
            continue
        if isinstance(part, dict):
            found |= {f"{key}_{inner}": inside for inner, inside in _flat(part, hidden).items()}
        else:
            found[key] = part
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return not value or not isinstance(value[0], dict)
    return not isinstance(value, dict)


def _words(key: str) -> str:
    return key.replace("_", " ")
