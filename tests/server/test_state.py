"""Health, readiness, ring, version, metrics and models."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

import longspan
from longspan.errors import RingError
from longspan.request import Piece
from tests.server.scripted_engine import ScriptedEngine

BODY = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}


def samples(client: httpx.Client) -> dict[tuple[str, ...], float]:
    """Value by name and labels, without the creation times."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = dict(sample.labels)
                assert labels.pop("model_name") == "Tiny-Model"
                assert labels.pop("engine") == "0"
                found[(sample.name, *labels.values())] = sample.value
    return found


def test_models(client: httpx.Client) -> None:
    model = {
        "id": "Tiny-Model",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "longspan",
        "root": "models/tiny.gguf",
        "parent": None,
        "max_model_len": 64,
    }
    assert client.get("/v1/models").json() == {"object": "list", "data": [model]}
    assert client.get("/v1/models/Tiny-Model").json() == model
    assert client.get("/v1/models/models/tiny.gguf").json() == model
    response = client.get("/v1/models/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_health_and_version(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/version").json() == {"version": longspan.__version__}


def test_readiness_names_what_is_missing(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert client.get("/ready").json() == {"ready": True, "missing": []}
    engine.missing = ("stage 1 (layers 15-30, 127.0.0.1:4242) has not answered",)
    response = client.get("/ready")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "missing": list(engine.missing)}
    assert int(response.headers["retry-after"]) > 0


def test_the_ring(client: httpx.Client) -> None:
    ring = client.get("/ring").json()
    assert (ring["epoch"], ring["link_delay_ms"], ring["layers"]) == (3, 25.0, 4)
    assert [(stage["start"], stage["end"], stage["state"]) for stage in ring["stages"]] == [
        (0, 2, "ready"),
        (2, 4, "ready"),
    ]


def test_before_the_model_is_known(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.fail = RingError("the engine has not started yet")
    for path in ("/v1/models", "/ring", "/metrics"):
        assert client.get(path).status_code == 503
    assert client.get("/health").status_code == 200


def test_metrics_of_the_engine(client: httpx.Client) -> None:
    found = samples(client)
    for name, value in (
        ("vllm:num_requests_running", 2),
        ("vllm:num_requests_waiting", 3),
        ("vllm:kv_cache_usage_perc", 0.25),
        ("vllm:prompt_tokens_total", 111),
        ("vllm:generation_tokens_total", 222),
        ("vllm:num_preemptions_total", 2),
        ("vllm:iteration_tokens_total_count", 50),
        ("vllm:iteration_tokens_total_sum", 400),
        ("vllm:prefix_cache_queries_total", 90),
        ("vllm:prefix_cache_hits_total", 30),
        ("longspan:mixed_iterations_total", 5),
        ("longspan:decode_rows_total", 200),
        ("longspan:recompute_rows_total", 50),
        ("longspan:joined_prefill_rows_total", 40),
        ("longspan:guard_breaches_total", 3),
        ("longspan:occupancy", 0.5),
        ("longspan:decode_debt_seconds", 0.25),
        ("longspan:cost_prediction_error", 0.125),
        ("longspan:longest_wait_seconds", 2.5),
        ("longspan:most_overtakes", 6),
        ("longspan:requests_failed_total", 1),
        ("longspan:slots", 8),
        ("longspan:slots_free", 6),
        ("longspan:iterations_in_flight", 1),
    ):
        assert found[(name,)] == value, name
    assert found["longspan:guard_state", "suspended"] == 1
    assert found["longspan:guard_state", "open"] == 0
    assert found["vllm:iteration_tokens_total_bucket", "1"] == 10
    assert found["vllm:iteration_tokens_total_bucket", "2"] == 30
    assert found["vllm:iteration_tokens_total_bucket", "+Inf"] == 50
    assert found["longspan:stage_compute_seconds", "0"] == 0.004
    assert found["longspan:link_round_trip_seconds", "1"] == 0.05
    assert found["longspan:stage_memory_bytes", "0"] == 1000


def test_metrics_of_requests(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [
        Piece("a", (5,)),
        Piece("b", (6, 7)),
        Piece("", (), finish_reason="length"),
    ]
    before = samples(client)
    client.post("/v1/chat/completions", json=BODY)
    client.post("/v1/chat/completions", json={**BODY, "stream": True, "n": 2})
    engine.script = lambda request: [RingError("lost")]
    client.post("/v1/chat/completions", json=BODY)
    after = samples(client)
    change = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key)}
    assert change["vllm:request_success_total", "length"] == 3
    assert change["vllm:request_success_total", "abort"] == 1
    # From one burst to the next; the end that comes alone is none.
    assert change[("vllm:inter_token_latency_seconds_count",)] == 3
    for name, mean in (
        ("time_to_first_token_seconds", 0.75),
        ("request_queue_time_seconds", 0.5),
        ("request_prefill_time_seconds", 0.25),
        ("request_decode_time_seconds", 2.0),
        ("e2e_request_latency_seconds", 2.75),
    ):
        assert change[(f"vllm:{name}_count",)] == 3, name
        assert change[(f"vllm:{name}_sum",)] == 3 * mean, name
