"""The commands of the lab and of the benches that need no model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longspan.cli.bench_cost import bench_cost
from longspan.cli.bench_planner import bench_planner
from longspan.cli.lab import lab_list, lab_run
from longspan.errors import UsageError
from longspan.lab.run import simulate
from longspan.lab.scenarios import scenario
from longspan.schedule.trace import encode_trace


def test_the_list_names_scenarios_and_policies(capsys: pytest.CaptureFixture[str]) -> None:
    lab_list(json=True)
    found = json.loads(capsys.readouterr().out)
    names = [entry["scenario"] for entry in found["scenarios"]]
    assert {"staggered-prefill", "representative", "stress", "mooncake", "azure", "burstgpt"} <= set(names)
    assert "mixed" in [entry["policy"] for entry in found["policies"]]
    lab_list()
    assert "staggered-prefill" in capsys.readouterr().out


def test_a_run_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    lab_run("staggered-prefill", policy=("bounded", "mixed"), json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["policy"] for row in rows] == ["bounded", "mixed"]
    wanted = {
        "policy",
        "makespan_ms",
        "requests_per_second",
        "p50_ttft_ms",
        "p95_ttft_ms",
        "p95_max_gap_ms",
        "mean_batch",
        "occupancy",
        "iterations",
        "mixed_iterations",
    }
    assert wanted <= rows[0].keys()
    lab_run("staggered-prefill", stages=2, link_delay=5.0, costs="two-cores")
    text = capsys.readouterr().out
    assert "2 stage(s), two-cores costs, 5 ms a link" in text
    assert "mixed against bounded" in text


def test_traces_need_a_file_and_scenarios_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--file PATH"):
        lab_run("azure")
    with pytest.raises(UsageError, match="not with the scenario 'stress'"):
        lab_run("stress", file=tmp_path / "x")
    with pytest.raises(UsageError, match="no scenario 'quick'"):
        lab_run("quick")


def test_a_trace_file_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n")
    lab_run("azure", file=path, policy=("mixed",), json=True)
    assert json.loads(capsys.readouterr().out)["rows"][0]["requests"] == 1


def test_planner_figures(capsys: pytest.CaptureFixture[str]) -> None:
    bench_planner(plans=10, json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["running"], row["waiting"]) for row in rows] == [(64, 256), (128, 1024), (256, 2048), (512, 4096)]
    bench_planner(plans=10)
    assert "plan p50" in capsys.readouterr().out


def test_cost_figures_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(encode_trace(simulate(scenario("cache-orders"), "mixed", costs="two-cores")[1].records))
    bench_cost(path, json=True)
    report = json.loads(capsys.readouterr().out)
    assert {"model", "mean_relative_error", "p95_relative_error"} <= report["rows"][0].keys()
    assert "noise_floor" in report
    bench_cost(path)
    assert "better than ema" in capsys.readouterr().out
