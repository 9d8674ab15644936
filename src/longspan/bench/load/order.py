"""One load from its order to its result."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec

from longspan.bench.load.acceptance import counts_of_answers, counts_of_metrics
from longspan.bench.load.answer import LoadAnswer
from longspan.bench.load.arrivals import Ramp, arrival_times
from longspan.bench.load.datasets import DatasetOrder, load_prompts
from longspan.bench.load.endpoint import Backend, Endpoint, Sampling
from longspan.bench.load.figures import load_figures
from longspan.bench.load.goodput import Goal
from longspan.bench.load.result import LoadSetting, load_result, result_name
from longspan.bench.load.run import run_load
from longspan.errors import LongspanError


class LoadOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask, of whom, and when. See the options of `longspan bench serve`."""

    base_url: str
    backend: Backend
    dataset: DatasetOrder
    sampling: Sampling
    request_rate: float
    model: str = ""
    api_key: str = ""
    burstiness: float = 1.0
    ramp: Ramp | None = None
    max_concurrency: int | None = None
    warmups: int = 1
    goals: tuple[Goal, ...] = ()
    seed: int = 0


class Load(msgspec.Struct, frozen=True):
    """A load that is over. result: what `load_result` made. name: of its file."""

    result: dict[str, Any]
    answers: list[LoadAnswer]
    name: str

    def json(self) -> bytes:
        """The result as a JSON document."""
        return msgspec.json.format(msgspec.json.encode(self.result), indent=1) + b"\n"


async def carry_out(order: LoadOrder, on_answer: Callable[[LoadAnswer], None]) -> Load:
    """Warm up, then measure. on_answer: at the end of every request.

    Raises LongspanError when the server is not there or does not answer the warm-up, UsageError when the prompts
    cannot be had.
    """
    # A warm-up with a measured prompt would leave its KV for it, and the first answers would come from a cache.
    count = order.dataset.count
    found = load_prompts(msgspec.structs.replace(order.dataset, count=count + order.warmups))
    prompts, spare = found[:count], found[count:] or found
    if all(prompt.at is not None for prompt in prompts):
        times = [prompt.at or 0.0 for prompt in prompts]
    else:
        times = arrival_times(len(prompts), order.request_rate, order.burstiness, order.ramp, order.seed)
    endpoint = Endpoint(order.base_url, order.backend, model=order.model, api_key=order.api_key)
    try:
        model = await endpoint.find_model()
        for number in range(order.warmups):
            prompt = spare[number % len(spare)]
            (warm, *_) = await run_load(endpoint, [msgspec.structs.replace(prompt, at=None)], [0.0], order.sampling)
            if warm.error:
                raise LongspanError(f"{order.base_url} does not answer: {warm.error}")
        before = counts_of_metrics(await endpoint.metrics())
        when = datetime.datetime.now()
        answers = await run_load(
            endpoint, prompts, times, order.sampling, most=order.max_concurrency, on_answer=on_answer
        )
        after = counts_of_metrics(await endpoint.metrics())
    finally:
        await endpoint.close()
    setting = LoadSetting(
        backend=order.backend,
        base_url=order.base_url,
        model=model,
        dataset=order.dataset.name,
        request_rate=order.request_rate,
        burstiness=order.burstiness,
        ramp=order.ramp,
        max_concurrency=order.max_concurrency,
    )
    result = load_result(
        setting,
        load_figures(answers, order.goals),
        answers,
        counted=after - before if after is not None and before is not None else None,
        told=counts_of_answers(answers),
        when=when,
    )
    return Load(result, answers, result_name(setting, when))
