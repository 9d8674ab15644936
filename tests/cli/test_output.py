"""Tables, sizes and JSON."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cli.output import format_table, human_bytes, print_facts, print_json


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (98 << 20, "98.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_the_largest_unit_takes_what_is_left() -> None:
    assert human_bytes(5 << 50) == "5120.0 TiB"


def test_numbers_stand_right_and_texts_left() -> None:
    table = format_table(["stage", "layers", "ms"], [[0, "0-15", 1.5], [11, "15-30", None]], width=80)
    assert table.splitlines() == [
        "stage  layers    ms",
        "─────  ──────  ────",
        "    0  0-15    1.50",
        "   11  15-30      –",
    ]


def test_what_does_not_fit_takes_several_lines() -> None:
    table = format_table(
        ["name", "what it is"], [["first", "one two three four five"], ["second", "six"]], width=20
    )
    assert table.split("\n") == [
        "name    what it is",
        "──────  ────────────",
        "first   one two",
        "        three four",
        "        five",
        "second  six",
    ]


def test_a_table_without_rows_shows_its_headings() -> None:
    assert format_table(["a", "b"], [], width=80).splitlines()[0] == "a  b"


cells = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text("abc …", max_size=60))


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1)))
def test_a_table_fits_the_terminal(rows: list[list[object]]) -> None:
    table = format_table([f"heading {column}" for column in range(len(rows[0]))], rows, width=80)
    lines = table.split("\n")
    assert len(lines) >= len(rows) + 2
    assert max(len(line) for line in lines) <= 80


def test_facts_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts([("a", "one"), ("longer", "two")])
    assert capsys.readouterr().out == "a       one\nlonger  two\n"


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    class Row(msgspec.Struct):
        name: str
        values: tuple[int, ...]

    print_json({"rows": [Row("ä", (1, 2))]})
    assert json.loads(capsys.readouterr().out) == {"rows": [{"name": "ä", "values": [1, 2]}]}
