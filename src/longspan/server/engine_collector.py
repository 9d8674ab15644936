"""The engine's figures for Prometheus, asked for when somebody reads the metrics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    StateSetMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from longspan.schedule.guard import GuardState
from longspan.schedule.statistics import ROW_BUCKETS, PlannerStatistics
from longspan.server.contract import ServingEngine
from longspan.speculate.ledger import SpeculationStatistics
from longspan.status import EngineStatistics, StageStatus

LABELS = ("model_name", "engine")
ENGINE_LABEL = "0"
"""vLLM numbers its engines; there is one here."""


class EngineCollector(Collector):
    """Gauges and counters of the engine, of its planner and of every stage."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Ask the engine once for all of them. Raises RingError when it does not run."""
        statistics = self._engine.statistics()
        values = (self._engine.model.id, ENGINE_LABEL)
        yield from _engine_metrics(statistics, values)
        if statistics.planner is not None:
            yield from _planner_metrics(statistics.planner, statistics.iteration_rows, values)
        if statistics.speculation is not None:
            yield from _speculation_metrics(statistics.speculation, values)
        yield from _stage_metrics(self._engine.ring().stages, values)


def _gauge(name: str, text: str, value: float, values: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=LABELS)
    family.add_metric(values, value)
    return family


def _counter(name: str, text: str, value: float, values: tuple[str, ...]) -> Metric:
    family = CounterMetricFamily(name, text, labels=LABELS)
    family.add_metric(values, value)
    return family


def _engine_metrics(statistics: EngineStatistics, values: tuple[str, ...]) -> Iterator[Metric]:
    for name, text, figure in (
        ("vllm:num_requests_running", "Requests that hold a slot.", statistics.running),
        ("vllm:num_requests_waiting", "Requests that wait for a slot.", statistics.waiting),
        ("vllm:kv_cache_usage_perc", "Share of the KV cells in use; 1 is all.", statistics.kv_usage),
        ("longspan:slots", "KV slots.", statistics.slots),
        ("longspan:slots_free", "KV slots that no request holds.", statistics.free_slots),
        ("longspan:iterations_in_flight", "Iterations sent and not answered.", statistics.in_flight),
    ):
        yield _gauge(name, text, figure, values)
    for name, text, figure in (
        ("vllm:prompt_tokens", "Prompt tokens of requests that were let in.", statistics.prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated.", statistics.generated_tokens),
        ("vllm:num_preemptions", "Times that a request lost its slot for a while.", statistics.preemptions),
        ("longspan:requests_failed", "Requests that ended with an error.", statistics.requests_failed),
        ("longspan:mixed_iterations", "Iterations with prefill and decode rows.", statistics.mixed_iterations),
    ):
        yield _counter(name, text, figure, values)


def _planner_metrics(planner: PlannerStatistics, rows: int, values: tuple[str, ...]) -> Iterator[Metric]:
    for name, text, figure in (
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in cached prefixes.", planner.prefix_queries),
        ("vllm:prefix_cache_hits", "Prompt tokens found in cached prefixes.", planner.prefix_hits),
        ("longspan:decode_rows", "Rows of decoding sequences.", planner.decode_rows),
        ("longspan:prefill_rows", "Rows of prompts.", planner.prefill_rows),
        ("longspan:recompute_rows", "Rows run again after a preemption or a lost stage.", planner.recompute_rows),
        ("longspan:joined_prefill_rows", "Prompt rows that ran beside decode rows.", planner.joined_prefill_rows),
        ("longspan:guard_breaches", "Mixed iterations that took longer than allowed.", planner.guard_breaches),
        ("longspan:guard_suspensions", "Times that mixing was suspended.", planner.guard_suspensions),
    ):
        yield _counter(name, text, figure, values)
    for name, text, value in (
        ("longspan:occupancy", "Rows planned over the rows that fitted.", planner.occupancy),
        ("longspan:decode_debt_seconds", "Seconds that decoding is owed.", planner.decode_debt),
        ("longspan:oldest_wait_seconds", "Age of the request that waits longest.", planner.oldest_wait),
        ("longspan:longest_wait_seconds", "Longest wait of an admitted request.", planner.longest_wait),
        ("longspan:most_overtakes", "Most overtakes of an admitted request.", planner.most_overtakes),
    ):
        yield _gauge(name, text, value, values)
    if planner.prediction_error is not None:
        text = "Relative error of predicted iteration times, smoothed."
        yield _gauge("longspan:cost_prediction_error", text, planner.prediction_error, values)
    histogram = HistogramMetricFamily("vllm:iteration_tokens_total", "Rows of each iteration.", labels=LABELS)
    borders = [*map(str, ROW_BUCKETS), "+Inf"]
    counts = itertools.accumulate(planner.rows_histogram)
    histogram.add_metric(values, list(zip(borders, counts, strict=True)), rows)
    yield histogram
    guard = StateSetMetricFamily("longspan:guard_state", "Whether prefill may join decode.", labels=LABELS)
    guard.add_metric(values, {state.value: state is planner.guard for state in GuardState})
    yield guard


def _speculation_metrics(speculation: SpeculationStatistics, values: tuple[str, ...]) -> Iterator[Metric]:
    for name, text, figure in (
        ("vllm:spec_decode_num_drafts", "Windows sent with drafts.", speculation.drafts),
        ("vllm:spec_decode_num_draft_tokens", "Draft tokens sent.", speculation.draft_tokens),
        ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that came true.", speculation.accepted_tokens),
        ("longspan:useful_rows", "Decode and verify rows whose token was committed.", speculation.useful_rows),
        ("longspan:stale_rows", "Decode and verify rows that came back for nothing.", speculation.stale_rows),
        ("longspan:windows", "Windows that came back and counted.", speculation.windows),
        ("longspan:stale_windows", "Windows that came back after their epoch.", speculation.stale_windows),
    ):
        yield _counter(name, text, figure, values)
    for name, text, value in (
        ("longspan:tokens_per_traversal", "Tokens for each window.", speculation.tokens_per_traversal),
        (
            "longspan:useful_rows_in_flight",
            "Live rows in flight, averaged over time.",
            speculation.useful_in_flight,
        ),
        ("longspan:stale_rows_in_flight", "Void rows in flight, averaged over time.", speculation.stale_in_flight),
        ("longspan:rows_in_flight", "Decode and verify rows in flight now.", speculation.rows_in_flight),
    ):
        yield _gauge(name, text, value, values)
    for name, text, label, figures in (
        (
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that came true, by place in the window.",
            "position",
            dict(enumerate(speculation.accepted_by_position)),
        ),
        (
            "longspan:draft_tokens_judged",
            "Draft tokens that were compared with the target.",
            "proposer",
            speculation.judged_by_proposer,
        ),
        (
            "longspan:draft_tokens_accepted",
            "Draft tokens that came true.",
            "proposer",
            speculation.accepted_by_proposer,
        ),
    ):
        family = CounterMetricFamily(name, text, labels=(*LABELS, label))
        for key, count in figures.items():
            family.add_metric((*values, str(key)), count)
        yield family


def _stage_metrics(stages: tuple[StageStatus, ...], values: tuple[str, ...]) -> Iterator[Metric]:
    labels = (*LABELS, "stage")
    compute = GaugeMetricFamily("longspan:stage_compute_seconds", "Newest iteration's compute.", labels=labels)
    round_trip = GaugeMetricFamily("longspan:link_round_trip_seconds", "Newest ping of a stage.", labels=labels)
    memory = GaugeMetricFamily("longspan:stage_memory_bytes", "Resident memory of a stage.", labels=labels)
    for stage in stages:
        where = (*values, str(stage.index))
        if stage.compute_ms is not None:
            compute.add_metric(where, stage.compute_ms / 1000)
        if stage.round_trip_ms is not None:
            round_trip.add_metric(where, stage.round_trip_ms / 1000)
        if stage.memory_bytes is not None:
            memory.add_metric(where, stage.memory_bytes)
    yield from (compute, round_trip, memory)
