"""The bench of plans measures rings that it formed."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.bench.plan import RingCase, bench_plan, parse_case
from longspan.errors import UsageError
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


@pytest.mark.parametrize(
    ("text", "case"), [("2:10", RingCase(2, 10.0)), ("3:0.5:4", RingCase(3, 0.5, 4)), ("1:0:1", RingCase(1, 0.0))]
)
def test_a_ring_in_short(text: str, case: RingCase) -> None:
    assert parse_case(text) == case


@pytest.mark.parametrize("text", ["", "2", "x:1", "0:1", "2:-1", "2:nan", "2:1:99", "2:1:1:1"])
def test_what_is_no_ring(text: str) -> None:
    with pytest.raises(UsageError):
        parse_case(text)


def test_delays_are_predicted_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny model nearly all of the time is the links': three of 40 ms."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0", context=1024)
    figures = bench_plan(
        str(model), cases=(RingCase(2, 40.0),), threads=1, tokens=8, rounds=1, report=lambda text: None
    )
    (row,) = figures.rows
    assert 4 < row.actual < 1 / 0.12
    assert 4 < row.predicted < 1 / 0.12
    assert row.ratio == row.predicted / row.actual
    assert figures.worst == abs(row.ratio - 1)
    assert row.memory_actual > 0
