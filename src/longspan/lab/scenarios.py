"""Named loads. Each is the same at every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from longspan.errors import UsageError
from longspan.lab.traces import trace_arrivals
from longspan.lab.workload import Arrival, poisson_times, tokens_of


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A load and what it runs on.

    arrivals: for a time unit, by which they are spread. policies: compared by default.
    slots, cells_per_slot, token_budget, chunk: limits. cells: positions over all slots; None: every slot its own.
    """

    name: str
    about: str
    arrivals: Callable[[float], Sequence[Arrival]]
    policies: tuple[str, ...] = ("bounded", "homogeneous", "mixed")
    slots: int = 32
    cells_per_slot: int = 8192
    cells: int | None = None
    token_budget: int = 2048
    chunk: int = 256


def _staggered_prefill(unit: float) -> list[Arrival]:
    decoder = Arrival(at=0.0, prompt=tokens_of(1, 32), answer=64)
    prefills = [Arrival(at=i * 1e-3 * unit, prompt=tokens_of(100 + i, 1024), answer=4) for i in range(1, 5)]
    return [decoder, *prefills]


def _cold_burst(unit: float) -> list[Arrival]:
    return [Arrival(at=0.0, prompt=tokens_of(200 + i, 512), answer=32) for i in range(16)]


def _warm_divergent(unit: float) -> list[Arrival]:
    """One request warms a prefix of 1024 tokens, then twelve go on from it, each in its own way."""
    prefix = tokens_of(300, 1024)
    first = Arrival(at=0.0, prompt=prefix + tokens_of(301, 16), answer=8)
    rest = [
        Arrival(at=(5 + 0.5 * i) * 1e-3 * unit, prompt=prefix + tokens_of(310 + i, 64), answer=32)
        for i in range(12)
    ]
    return [first, *rest]


def _cache_orders(unit: float) -> list[Arrival]:
    """Six documents with four questions each, asked in turn: in order of arrival no document stays cached."""
    documents = [tokens_of(400 + i, 768) for i in range(6)]
    return [
        Arrival(
            at=0.05e-3 * unit * (question * len(documents) + i),
            prompt=document + tokens_of(500 + 10 * i + question, 32),
            answer=16,
        )
        for question in range(4)
        for i, document in enumerate(documents)
    ]


def _mix(seed: int, count: int, rate: float, long_share: float, unit: float) -> list[Arrival]:
    """Chat turns of 32 to 512 tokens and documents of 1024 to 3072, answers of 16 to 192, Poisson arrivals."""
    generator = random.Random(seed)
    arrivals = []
    for index, at in enumerate(poisson_times(generator, count, rate / unit)):
        is_long = generator.random() < long_share
        length = generator.randint(1024, 3072) if is_long else generator.randint(32, 512)
        arrivals.append(
            Arrival(at=at, prompt=tokens_of(seed * 10_000 + index, length), answer=generator.randint(16, 192))
        )
    return arrivals


def _representative(unit: float) -> list[Arrival]:
    return _mix(seed=7, count=200, rate=130.0, long_share=0.15, unit=unit)


def _stress(unit: float) -> list[Arrival]:
    return _mix(seed=8, count=250, rate=220.0, long_share=0.4, unit=unit)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="staggered-prefill",
            about="one stream decodes 64 tokens while four prompts of 1024 tokens arrive 1 ms apart",
            arrivals=_staggered_prefill,
        ),
        Scenario(
            name="staggered-prefill-bounded",
            about="the same with at most 256 rows an iteration",
            arrivals=_staggered_prefill,
            token_budget=256,
        ),
        Scenario(name="cold-burst", about="16 prompts of 512 tokens at once", arrivals=_cold_burst),
        Scenario(
            name="warm-divergent",
            about="12 prompts go on from a prefix of 1024 tokens that one request has warmed",
            arrivals=_warm_divergent,
            policies=("cold", "mixed"),
        ),
        Scenario(
            name="cache-orders",
            about="six documents, four questions each, asked in turn, on four slots",
            arrivals=_cache_orders,
            policies=("cold", "arrival-order", "mixed"),
            slots=4,
        ),
        Scenario(
            name="representative",
            about="200 requests, chat turns and some documents, at two thirds of what the ring can do",
            arrivals=_representative,
        ),
        Scenario(
            name="stress",
            about="250 requests, many documents, more than the ring can do at once",
            arrivals=_stress,
        ),
    )
}


def scenario(name: str) -> Scenario:
    """A scenario by name. Raises UsageError for an unknown name."""
    if name not in SCENARIOS:
        raise UsageError(f"there is no scenario {name!r}; known are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def trace_scenario(kind: str, path: Path, *, requests: int, speed: float) -> Scenario:
    """The first requests of a recorded trace; the slots share a pool that holds the two longest at least.

    Raises UsageError as `trace_arrivals` does.
    """
    arrivals = trace_arrivals(kind, path, requests=requests, speed=speed)
    longest = max(len(arrival.prompt) + arrival.answer for arrival in arrivals) + 1
    return Scenario(
        name=kind,
        about=f"{len(arrivals)} requests of {path.name}",
        arrivals=lambda unit: arrivals,
        cells_per_slot=longest,
        cells=max(2 * longest, 32 * 2048),
    )
