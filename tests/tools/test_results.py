"""Results: README, pages and pictures are in step with the JSON, and a failed measurement spoils nothing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.test_readme import assert_parses
from tools.results import __main__ as command
from tools.results import measure, page, record, table
from tools.results.measurement import Bars, Figure, Heat, Lines, Measurement
from tools.results.measurements import MEASUREMENTS
from tools.results.picture import draw
from tools.results.value import figure_text, value_text

AGAIN = "run: make results ARGS=--table"
MACHINE = {"system": "Linux", "processor": "a processor", "cores": 2, "memory": 1, "python": "3", "llama.cpp": "1"}


def test_the_table_is_what_was_measured() -> None:
    readme = table.README.read_text(encoding="utf-8")
    assert table.BEGIN in readme and table.END in readme
    assert table.with_table(readme) == readme, AGAIN


def test_the_list_of_results_is_in_step() -> None:
    assert table.INDEX.read_text(encoding="utf-8") == table.index(), AGAIN


def test_every_page_is_what_was_measured() -> None:
    for measurement, found in table.measured():
        text = (record.RESULTS / f"{measurement.name}.md").read_text(encoding="utf-8")
        assert text == page.page(measurement, found), f"{measurement.name}: {AGAIN}"


def test_nothing_lies_there_that_no_measurement_wrote() -> None:
    known = {measurement.name for measurement in MEASUREMENTS} | {"README"}
    assert {path.stem for path in record.RESULTS.iterdir()} <= known


def test_the_table_shows_every_figure_that_was_measured() -> None:
    for measurement, found in table.measured():
        for figure in measurement.figures:
            assert f"| {figure.text} | {figure_text(figure, found.result)} |" in table.table()


def test_a_changed_result_would_be_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measurement, found = next(table.measured())
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    before = table.table()
    changed = {**found.result, measurement.figures[0].path[0]: 987654}
    record.write_record(
        measurement.name, record.Record(found.command, found.date, found.commit, found.machine, changed)
    )
    assert "987654" in table.table() and "987654" not in before


def test_every_measurement_is_a_command_of_ours() -> None:
    for measurement in MEASUREMENTS:
        program, *rest = shlex.split(measurement.command)
        if program == "longspan":
            assert_parses("tools/results", rest)
        else:
            assert [program, *rest[:2]] == ["python", "-m", "tests.chaos.run"]
        assert "--json" in rest


def test_names_are_told_apart() -> None:
    assert len({measurement.name for measurement in MEASUREMENTS}) == len(MEASUREMENTS)


def test_a_figure_is_found_in_rows_too() -> None:
    figure = Figure("", ("rows", "policy=mixed", "kind=b", "makespan_ms"), "{:.1f} ms", ("noise",))
    rows = [
        {"policy": "bounded", "kind": "b", "makespan_ms": 3.0},
        {"policy": "mixed", "kind": "a", "makespan_ms": 2.0},
        {"policy": "mixed", "kind": "b", "makespan_ms": 1.0},
    ]
    assert figure_text(figure, {"rows": rows, "noise": 0.015}) == "1.0 ms (noise 1.5%)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (12345, "12,345"),
        (0.0, "0"),
        (0.123456, "0.1235"),
        (123456.7, "123,457"),
        ([[0, 15], [15, 30]], "0–15, 15–30"),
        ([], "none"),
        (list(range(9)), "9 values"),
        ("a | b", "a \\| b"),
    ],
)
def test_values_are_written_for_people(value: object, text: str) -> None:
    assert value_text(value) == text


def test_a_page_shows_every_row_of_every_depth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    (tmp_path / "x.png").touch()
    result = {
        "model": "tiny",
        "rows": [{"a": 1, "b": {"c": 2.5, "d": None}}, {"a": 3, "b": {"c": 4.5, "d": 6}}],
        "frontier": {"best": {"width": 4}, "cells": [{"width": 2, "raw": [1]}]},
        "raw": 1,
    }
    found = record.Record("longspan x --json", "2000-01-01", "abc", MACHINE, result, 61.4)
    text = page.page(
        Measurement("x", "A title", "What it is.", found.command, (), Heat((), "", "", ""), ("raw",)), found
    )
    assert text.startswith(
        "# A title\n\nWhat it is.\n\n`longspan x --json` on 2000-01-01 at commit abc, in 61 s, on 2 cores"
    )
    assert "![A title](x.png)" in text
    assert "| what | value |\n|---|---|\n| model | tiny |" in text
    assert "## Rows\n\n| a | b c | b d |\n|---:|---:|---:|\n| 1 | 2.5 | – |\n| 3 | 4.5 | 6 |" in text
    assert "## Frontier: best\n\n| what | value |\n|---|---|\n| width | 4 |" in text
    assert "## Frontier: cells\n\n| width |\n|---:|\n| 2 |" in text
    assert "raw" not in text


@pytest.mark.parametrize(
    "picture",
    [
        Lines(("rows",), "x", ("y", "z")),
        Lines(("rows",), "x", ("y",), by="name", panel="text"),
        Bars(("rows",), ("name", "x"), ("y", "z")),
        Heat(("rows",), "x", "y", "z"),
    ],
)
def test_pictures_are_drawn(picture: Lines | Bars | Heat, tmp_path: Path) -> None:
    rows = [
        {"x": x, "y": 2 * x, "z": z, "name": name, "text": text}
        for text in ("copy", "prose")
        for name, z in (("a", 1.5), ("b", 2.0))
        for x in (1, 4)
    ]
    path = tmp_path / "x.png"
    draw(Measurement("x", "", "", "", (), picture), {"rows": rows}, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_result_that_was_measured_has_its_picture() -> None:
    for measurement, _ in table.measured():
        there = (record.RESULTS / f"{measurement.name}.png").exists()
        assert there == (measurement.picture is not None), f"{measurement.name}: {AGAIN}"


def measurements(tmp_path: Path) -> tuple[Measurement, ...]:
    good = "python -c 'print(\"[1]\")'"
    return (
        Measurement("fails", "", "", "python -c 'raise SystemExit(3)'"),
        Measurement("babbles", "", "", "python -c 'print(1, 2)'"),
        Measurement("lacks", "", "", good, (Figure("a figure", ("rows",), "{}"),)),
        Measurement("works", "It works", "", 'python -c \'print("{\\"n\\": 7}")\'', (Figure("n", ("n",), "{}"),)),
    )


def test_a_failed_measurement_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = measurements(tmp_path)
    monkeypatch.setattr(command, "MEASUREMENTS", chosen)
    monkeypatch.setattr(table, "MEASUREMENTS", chosen)
    for module in (record, page, measure):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    readme, index = tmp_path / "top.md", tmp_path / "README.md"
    readme.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(measure, "README", readme)
    monkeypatch.setattr(measure, "INDEX", index)
    assert command.main([]) == 1
    told = capsys.readouterr()
    assert "[4 of 4] works" in told.err
    assert "exit code 3" in told.out and "no JSON" in told.out and "lacks 'a figure'" in told.out
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["works.json"]
    assert json.loads((tmp_path / "works.json").read_bytes())["result"] == {"n": 7}
    assert "| n | 7 | [`python -c" in readme.read_text(encoding="utf-8")
    assert "[It works](works.md)" in index.read_text(encoding="utf-8")
    assert command.main(["works"]) == 0


def test_a_name_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["rink"]) == 2
    assert "rink" in capsys.readouterr().err
    assert command.main(["--list"]) == 0
    assert "longspan bench ring --json" in capsys.readouterr().out
