"""Prometheus metrics under vLLM's names, so that existing dashboards work; our own are under `longspan:`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from longspan.request import Timings
from longspan.server.contract import ServingEngine

ENGINE_LABEL = "0"
"""vLLM numbers its engines; there is one here."""

_LABELS = ("model_name", "engine")
# Bucket borders in seconds, as vLLM's dashboards expect them.
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_GAP_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BUCKETS = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FINISHED_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort"}
"""Our finish reasons, and what vLLM calls them."""


class RequestMetrics:
    """What the server sees of requests as they come and go. Updated on the HTTP event loop."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        values = (model_name, ENGINE_LABEL)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=registry).labels(*values)

        successes = Counter(
            "vllm:request_success", "Requests that ended.", (*_LABELS, "finished_reason"), registry=registry
        )
        self._successes = {ours: successes.labels(*values, theirs) for ours, theirs in _FINISHED_REASONS.items()}
        self._first_token = histogram(
            "time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN_BUCKETS
        )
        self._gap = histogram("inter_token_latency_seconds", "Between committed bursts.", _TOKEN_GAP_BUCKETS)
        self._whole = histogram("e2e_request_latency_seconds", "Arrival to last token.", _REQUEST_BUCKETS)
        self._queue = histogram("request_queue_time_seconds", "Arrival to admission.", _REQUEST_BUCKETS)
        self._prefill = histogram("request_prefill_time_seconds", "Admission to first token.", _REQUEST_BUCKETS)
        self._decode = histogram("request_decode_time_seconds", "First to last token.", _REQUEST_BUCKETS)

    def gap(self, seconds: float) -> None:
        """Between one committed burst of a request and its next."""
        self._gap.observe(seconds)

    def ended(self, reason: str, timings: Timings | None) -> None:
        """A request ended; `reason` as in Piece."""
        self._successes[reason].inc()
        if timings is None:
            return
        self._first_token.observe(timings.time_to_first_token_seconds)
        self._queue.observe(timings.queue_seconds)
        self._prefill.observe(max(0.0, timings.time_to_first_token_seconds - timings.queue_seconds))
        self._decode.observe(timings.generation_seconds)
        self._whole.observe(timings.time_to_first_token_seconds + timings.generation_seconds)


class EngineCollector(Collector):
    """Asks the engine for its figures when somebody reads the metrics."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of the engine, then of every stage."""
        statistics = self._engine.statistics()
        values = (self._engine.model.id, ENGINE_LABEL)
        for name, text, value in (
            ("vllm:num_requests_running", "Requests that hold a slot.", statistics.running),
            ("vllm:num_requests_waiting", "Requests that wait for a slot.", statistics.waiting),
            ("vllm:kv_cache_usage_perc", "Share of the KV cells in use; 1 is all.", statistics.kv_usage),
            ("longspan:slots", "KV slots.", statistics.slots),
            ("longspan:slots_free", "KV slots that no request holds.", statistics.free_slots),
            ("longspan:iterations_in_flight", "Iterations sent and not answered.", statistics.in_flight),
        ):
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            gauge.add_metric(values, value)
            yield gauge
        for name, text, count in (
            ("vllm:prompt_tokens", "Prompt tokens run.", statistics.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated.", statistics.generated_tokens),
            ("vllm:num_preemptions", "Requests that lost their slot for a while.", statistics.preemptions),
            ("longspan:requests_failed", "Requests that ended with an error.", statistics.requests_failed),
            ("longspan:mixed_iterations", "Iterations with prefill and decode.", statistics.mixed_iterations),
        ):
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            counter.add_metric(values, count)
            yield counter
        rows = SummaryMetricFamily("vllm:iteration_tokens_total", "Rows of each iteration.", labels=_LABELS)
        rows.add_metric(values, statistics.iterations, statistics.iteration_rows)
        yield rows
        yield from self._stages(values)

    def _stages(self, values: tuple[str, str]) -> Iterator[Metric]:
        labels = (*_LABELS, "stage")
        compute = GaugeMetricFamily("longspan:stage_compute_seconds", "Newest iteration's compute.", labels=labels)
        round_trip = GaugeMetricFamily("longspan:link_round_trip_seconds", "Newest ping of a stage.", labels=labels)
        memory = GaugeMetricFamily("longspan:stage_memory_bytes", "Resident memory of a stage.", labels=labels)
        for stage in self._engine.ring().stages:
            where = (*values, str(stage.index))
            if stage.compute_ms is not None:
                compute.add_metric(where, stage.compute_ms / 1000)
            if stage.round_trip_ms is not None:
                round_trip.add_metric(where, stage.round_trip_ms / 1000)
            if stage.memory_bytes is not None:
                memory.add_metric(where, stage.memory_bytes)
        yield from (compute, round_trip, memory)


class ServerMetrics:
    """The registry of one application, and its text for `/metrics`."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, engine: ServingEngine) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self.requests = RequestMetrics(self._registry, engine.model.id)
        self._registry.register(EngineCollector(engine))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
