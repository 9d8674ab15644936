"""The result of a load as JSON: vLLM's keys and file name, and what Longspan adds."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from longspan.bench.load.acceptance import Counts, acceptance_keys
from longspan.bench.load.answer import LoadAnswer
from longspan.bench.load.arrivals import Ramp
from longspan.bench.load.endpoint import Backend
from longspan.bench.load.figures import LoadFigures, latency_keys


class LoadSetting(msgspec.Struct, frozen=True, kw_only=True):
    """How the load was made, as far as its result says."""

    backend: Backend
    base_url: str
    model: str
    dataset: str
    request_rate: float
    burstiness: float
    ramp: Ramp | None
    max_concurrency: int | None


def load_result(
    setting: LoadSetting,
    figures: LoadFigures,
    answers: Sequence[LoadAnswer],
    *,
    counted: Counts | None,
    told: Counts | None,
    when: datetime.datetime,
) -> dict[str, Any]:
    """One flat object. counted: drafts by the server's metrics; told: by what it said of each answer."""
    ramp = setting.ramp
    duration = figures.duration or math.inf
    result: dict[str, Any] = {
        "date": when.strftime("%Y%m%d-%H%M%S"),
        "backend": setting.backend,
        "endpoint_type": setting.backend,
        "base_url": setting.base_url,
        "model_id": setting.model,
        "dataset_name": setting.dataset,
        "num_prompts": len(answers),
        "request_rate": setting.request_rate if math.isfinite(setting.request_rate) else "inf",
        "burstiness": setting.burstiness,
        "max_concurrency": setting.max_concurrency,
    }
    if ramp is not None:
        result |= {"ramp_up_strategy": ramp.growth, "ramp_up_start_rps": ramp.start, "ramp_up_end_rps": ramp.end}
    return result | {
        "duration": figures.duration,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.input_tokens,
        "total_output_tokens": figures.output_tokens,
        "request_throughput": figures.completed / duration,
        "request_goodput": None if figures.good is None else figures.good / duration,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": (figures.input_tokens + figures.output_tokens) / duration,
        **latency_keys(figures),
        "tokens_per_chunk": figures.tokens_per_chunk,
        "max_concurrent_requests": figures.peak_concurrency,
        "p99_send_lag_ms": 1000 * figures.late,
        **acceptance_keys(counted),
        "response_acceptance": acceptance_keys(told),
        "categories": figures.categories,
        "input_lens": [answer.prompt_tokens for answer in answers],
        "output_lens": [answer.output_tokens for answer in answers],
        "start_times": [answer.sent for answer in answers],
        "ttfts": [answer.time_to_first for answer in answers],
        "itls": [answer.gaps for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
    }


def result_name(setting: LoadSetting, when: datetime.datetime) -> str:
    """The file's name, as vLLM makes it."""
    ramp = setting.ramp
    rate = f"{setting.request_rate}qps"
    if ramp is not None:
        rate = f"ramp-up-{ramp.growth}-{ramp.start:g}qps-{ramp.end:g}qps"
    most = "" if setting.max_concurrency is None else f"-concurrency{setting.max_concurrency}"
    model = setting.model.rstrip("/").rpartition("/")[2]
    return f"{setting.backend}-{rate}{most}-{model}-{when:%Y%m%d-%H%M%S}.json"
