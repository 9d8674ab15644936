"""Figures of a load, from answers whose times are known."""

from __future__ import annotations

import datetime
import math

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from longspan.bench.load.acceptance import Counts, acceptance_keys, counts_of_answers, counts_of_metrics
from longspan.bench.load.answer import LoadAnswer
from longspan.bench.load.arrivals import Ramp
from longspan.bench.load.figures import load_figures
from longspan.bench.load.goodput import parse_goals
from longspan.bench.load.html_report import html_report
from longspan.bench.load.result import LoadSetting, load_result, result_name
from longspan.errors import UsageError

ANSWERS = (
    # Two tokens in each of the later chunks, as with speculation.
    LoadAnswer(
        due=0.0, sent=0.0, chunks=(0.2, 0.3, 0.5), prompt_tokens=10, output_tokens=5, text="abc", category="a"
    ),
    LoadAnswer(due=0.1, sent=0.15, chunks=(0.25,), prompt_tokens=20, output_tokens=1, text="d", category="b"),
    LoadAnswer(due=0.2, sent=0.2, error="the server answered 500: <no>"),
)
SETTING = LoadSetting(
    backend="openai-chat",
    base_url="http://x",
    model="org/Some-Model",
    dataset="synthetic-high",
    request_rate=math.inf,
    burstiness=1.0,
    ramp=None,
    max_concurrency=4,
)
WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5)


def test_latencies_are_what_their_formulas_say() -> None:
    figures = load_figures(ANSWERS)
    assert (figures.completed, figures.failed) == (2, 1)
    assert figures.duration == pytest.approx(0.5)
    assert figures.output_throughput == pytest.approx(6 / 0.5)
    assert figures.ttft.mean == pytest.approx(1000 * (0.2 + 0.1) / 2)
    assert figures.tpot.mean == pytest.approx(1000 * 0.3 / 4)  # of the answer with several tokens only
    assert figures.itl.mean == pytest.approx(1000 * (0.1 + 0.2) / 2)
    assert figures.longest_gap.p99 == pytest.approx(200.0)
    assert figures.e2el.mean == pytest.approx(1000 * (0.5 + 0.1) / 2)
    assert figures.tokens_per_chunk == 6 / 4
    assert figures.peak_concurrency == 2
    assert figures.late == pytest.approx(0.05, rel=0.05)
    assert figures.categories["a"].tpot_ms == pytest.approx(75.0)
    assert figures.categories["b"].requests == 1


def test_goodput_counts_requests_that_met_all_goals() -> None:
    assert load_figures(ANSWERS).good is None
    for text, good in (("ttft:150", 1), ("ttft:200 tpot:80", 2), ("e2el:400", 1), ("tpot:1", 1)):
        assert load_figures(ANSWERS, parse_goals([text])).good == good, text
    with pytest.raises(UsageError, match="NAME:MS"):
        parse_goals(["ttft=200"])
    with pytest.raises(UsageError, match="NAME:MS"):
        parse_goals(["itl:200"])


def test_the_result_has_the_keys_of_vllm() -> None:
    result = load_result(SETTING, load_figures(ANSWERS), ANSWERS, counted=None, told=None, when=WHEN)
    keys = """date backend model_id num_prompts request_rate burstiness max_concurrency duration completed failed
        total_input_tokens total_output_tokens request_throughput request_goodput output_throughput
        total_token_throughput input_lens output_lens ttfts itls errors"""
    assert set(keys.split()) <= set(result)
    for latency in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99"):
            assert f"{statistic}_{latency}_ms" in result
    assert result["request_rate"] == "inf"
    assert result["output_lens"] == [5, 1, 0]
    assert result_name(SETTING, WHEN) == "openai-chat-infqps-concurrency4-Some-Model-20260102-030405.json"


def test_a_ramp_stands_in_the_name() -> None:
    import msgspec

    ramped = msgspec.structs.replace(SETTING, ramp=Ramp("linear", 1, 8), max_concurrency=None)
    assert result_name(ramped, WHEN) == "openai-chat-ramp-up-linear-1qps-8qps-Some-Model-20260102-030405.json"


def test_nothing_came_back() -> None:
    figures = load_figures(ANSWERS[2:])
    assert (figures.completed, figures.duration, figures.output_throughput) == (0, 0.0, 0.0)
    result = load_result(SETTING, figures, ANSWERS[2:], counted=None, told=None, when=WHEN)
    assert result["request_throughput"] == 0.0


def test_the_page_shows_figures_and_escapes_what_servers_say() -> None:
    result = load_result(SETTING, load_figures(ANSWERS), ANSWERS, counted=None, told=None, when=WHEN)
    page = html_report({**result, "model_id": "<b>model"}, ANSWERS)
    assert "&lt;b&gt;model" in page and "<b>model" not in page
    assert page.count('<rect class="make"') == 2
    assert "12.000" in page  # output_throughput


def test_acceptance_is_the_change_of_the_counters() -> None:
    registry = CollectorRegistry()
    drafts = Counter("vllm:spec_decode_num_drafts", "x", ["engine"], registry=registry).labels("0")
    tokens = Counter("vllm:spec_decode_num_draft_tokens", "x", ["engine"], registry=registry).labels("0")
    accepted = Counter("vllm:spec_decode_num_accepted_tokens", "x", ["engine"], registry=registry).labels("0")
    places = Counter("vllm:spec_decode_num_accepted_tokens_per_pos", "x", ["engine", "position"], registry=registry)

    def now() -> Counts:
        counts = counts_of_metrics(generate_latest(registry).decode())
        assert counts is not None
        return counts

    drafts.inc(10)
    before = now()
    drafts.inc(4)
    tokens.inc(8)
    accepted.inc(6)
    places.labels("0", "0").inc(4)
    places.labels("0", "1").inc(2)
    keys = acceptance_keys(now() - before)
    assert keys["spec_decode_acceptance_rate"] == pytest.approx(75.0)
    assert keys["spec_decode_acceptance_length"] == pytest.approx(2.5)
    assert keys["spec_decode_per_position_acceptance_rates"] == [1.0, 0.5]
    assert acceptance_keys(now() - now()) == {}
    assert counts_of_metrics("nonsense {") is None
    assert counts_of_metrics("other_metric 1\n") is None


def test_acceptance_from_what_servers_say_of_answers() -> None:
    block = {"num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3}
    answers = [LoadAnswer(due=0, sent=0, metrics={"speculative_decoding": block}) for _ in range(2)]
    assert counts_of_answers(answers) == Counts(4, 12, 6)
    assert counts_of_answers(ANSWERS) is None
