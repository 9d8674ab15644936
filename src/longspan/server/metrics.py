"""Prometheus metrics under vLLM's names, so that existing dashboards work; our own are under `longspan:`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from longspan.request import Timings
from longspan.server.contract import ServingEngine
from longspan.server.engine_collector import ENGINE_LABEL, LABELS, EngineCollector

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
            return Histogram(f"vllm:{name}", text, LABELS, buckets=buckets, registry=registry).labels(*values)

        successes = Counter(
            "vllm:request_success", "Requests that ended.", (*LABELS, "finished_reason"), registry=registry
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


class ServerMetrics:
    """The registry of one application, and its text for `/metrics`."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, engine: ServingEngine) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self.requests = RequestMetrics(self._registry, engine.model.id)
        self._registry.register(EngineCollector(engine))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format. Waits for the engine: call it on a worker thread."""
        return generate_latest(self._registry)
