"""How results are printed: JSON for programs, aligned lines and tables that fit a terminal for people."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from longspan.errors import LongspanError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_GAP = "  "
_NOTHING = "–"
_NARROWEST = 4


def print_json(value: object) -> None:
    """Print one JSON document, indented. Structs become objects."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def write_result(path: Path, data: bytes) -> None:
    """Write a file of results, and the folders it lies in. Raises LongspanError when that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise LongspanError(f"{path} cannot be written: {error.strerror or error}") from error


def human_bytes(count: float) -> str:
    """A size for people: `human_bytes(98 << 20)` is "98.0 MiB"."""
    for unit in _UNITS:
        if abs(count) < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print labelled lines, the texts one under the other."""
    pairs = list(facts)
    width = max(len(label) for label, _ in pairs)
    for label, text in pairs:
        print(f"{label:<{width}}  {text}")


def format_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None) -> str:
    """A table as text: numbers to the right, texts to the left, no line wider than the terminal.

    None is shown as a dash, a float with two digits after the point. When the columns do not fit, the widest ones
    are made narrower, and their texts take several lines.
    width: columns of the terminal; asked from the terminal when None.
    """
    lines = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    room = (width or shutil.get_terminal_size().columns) - len(_GAP) * (len(headings) - 1)
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    numeric = [all(_is_number(line[column]) for line in lines[1:]) for column in range(len(headings))]
    lines.insert(1, ["─" * column_width for column_width in widths])
    return "\n".join(text for line in lines for text in _lines_of_row(line, widths, numeric))


def _lines_of_row(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> Iterator[str]:
    """The lines that one row takes."""
    wrapped = [textwrap.wrap(text, width) or [""] for text, width in zip(cells, widths, strict=True)]
    for parts in itertools.zip_longest(*wrapped, fillvalue=""):
        columns = zip(parts, widths, numeric, strict=True)
        yield _GAP.join(
            text.rjust(width) if right else text.ljust(width) for text, width, right in columns
        ).rstrip()


def _cell(value: object) -> str:
    """One value as it stands in a table."""
    if value is None:
        return _NOTHING
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    """Whether a cell belongs to the right."""
    try:
        float(text)
    except ValueError:
        return text == _NOTHING
    return True
