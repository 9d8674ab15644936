"""Recorded traces: read as they are published, refused by line when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from longspan.errors import UsageError
from longspan.lab.run import simulate
from longspan.lab.scenarios import trace_scenario
from longspan.lab.traces import TRACE_READERS, trace_arrivals

MOONCAKE = """\
{"timestamp": 1000, "input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]}
{"timestamp": 1250, "input_length": 1030, "output_length": 0, "hash_ids": [1, 2, 9]}

{"timestamp": 2000, "input_length": 60, "output_length": 5}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319610,96,9
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
6.5,ChatGPT,100,0,100,Conversation log
8,GPT-4,200,30,230,API log
"""
TEXTS = {"mooncake": MOONCAKE, "azure": AZURE, "burstgpt": BURSTGPT}


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def test_mooncake_shares_blocks_by_their_ids(tmp_path: Path) -> None:
    first, second, third = trace_arrivals("mooncake", written(tmp_path, MOONCAKE), requests=9, speed=1.0)
    assert [arrival.at for arrival in (first, second, third)] == [0.0, 0.25, 1.0]
    assert (len(first.prompt), len(second.prompt), len(third.prompt)) == (1100, 1030, 60)
    assert (first.answer, second.answer) == (20, 1)
    assert first.prompt[:1024] == second.prompt[:1024]
    assert first.prompt[1024:1030] != second.prompt[1024:]


def test_azure(tmp_path: Path) -> None:
    first, second = trace_arrivals("azure", written(tmp_path, AZURE), requests=9, speed=2.0)
    assert (len(first.prompt), first.answer, len(second.prompt), second.answer) == (374, 44, 96, 9)
    assert second.at == pytest.approx(0.052001 / 2)


def test_burstgpt_leaves_failed_requests_out(tmp_path: Path) -> None:
    first, second = trace_arrivals("burstgpt", written(tmp_path, BURSTGPT), requests=9, speed=1.0)
    assert (len(first.prompt), first.answer, len(second.prompt), second.answer) == (472, 18, 200, 30)
    assert (first.at, second.at) == (0.0, 3.0)


@pytest.mark.parametrize("kind", TRACE_READERS)
def test_a_trace_runs_in_the_lab(kind: str, tmp_path: Path) -> None:
    scenario = trace_scenario(kind, written(tmp_path, TEXTS[kind]), requests=2, speed=1.0)
    row, _ = simulate(scenario, "mixed")
    assert (row.scenario, row.requests) == (kind, 2)
    assert row.cached_tokens == (1024 if kind == "mooncake" else 0)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("mooncake", '{"timestamp": 1}\n', "line 1, is not of a mooncake trace"),
        ("mooncake", MOONCAKE + "{oops\n", "line 5, is not of a mooncake trace"),
        ("mooncake", '{"timestamp": 1, "input_length": 9999999, "output_length": 1}', "must be within 0 and"),
        ("mooncake", "\n", "has no requests"),
        ("azure", "TIMESTAMP,ContextTokens\n", "no column 'GeneratedTokens'"),
        ("azure", AZURE + "yesterday,1,1\n", "line 4, is not of an Azure trace"),
        ("azure", AZURE + "2023-11-16 18:17:05\n", "line 4, has too few columns"),
        ("burstgpt", BURSTGPT + "9,x,many,1,1,x\n", "line 5, is not of a BurstGPT trace"),
        ("burstgpt", BURSTGPT + "9,x,-4,1,1,x\n", "line 5: -4 prompt"),
    ],
)
def test_a_damaged_trace_is_named_by_line(kind: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        trace_arrivals(kind, written(tmp_path, text), requests=99, speed=1.0)


def test_a_missing_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        trace_arrivals("azure", tmp_path / "none.csv", requests=1, speed=1.0)
