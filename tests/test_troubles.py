"""The guide of troubles: every row says what is done, and the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
PAGE = (ROOT.parent / "docs" / "guides" / "troubles.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")
][1:]
REFERENCE = re.compile(r"([\w/]+\.py)::(\w+)")


def test_every_trouble_has_its_row() -> None:
    assert [int(row[0].strip("| ")) for row in ROWS] == list(range(1, 49))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_tests_that_are_named_exist(row: list[str]) -> None:
    text = " | ".join(row)
    named = REFERENCE.findall(text)
    assert named, "a row without a test is a promise"
    for file, test in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"def {test}\(", source), f"tests/{file} has no {test}"
