"""What a load measured: from answers to figures, under the keys of vLLM's `bench serve`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from longspan.bench.load.answer import LoadAnswer
from longspan.bench.load.goodput import Goal, is_good

PERCENTILES = (50, 90, 95, 99)


class Spread(msgspec.Struct, frozen=True):
    """A latency over requests, or over gaps, in milliseconds."""

    mean: float
    median: float
    std: float
    p50: float
    p90: float
    p95: float
    p99: float


class CategoryFigures(msgspec.Struct, frozen=True):
    """The requests of one category. Milliseconds are medians."""

    requests: int
    output_tokens: int
    ttft_ms: float
    tpot_ms: float
    itl_ms: float
    longest_gap_ms: float
    tokens_per_chunk: float


class LoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A whole load.

    duration: seconds from the first request to the last chunk. goodput: requests a second that met all goals.
    ttft: first chunk after sending. tpot: (e2el - ttft) / (tokens - 1) of each request. itl: gaps between chunks,
    over all gaps. e2el: last chunk after sending. longest_gap: of each request. late: seconds by which requests
    were sent after they were due, at the 99th percentile: the client's own lag.
    """

    duration: float
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    good: int | None
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2el: Spread
    longest_gap: Spread
    tokens_per_chunk: float
    peak_concurrency: int
    late: float
    categories: dict[str, CategoryFigures]

    @property
    def output_throughput(self) -> float:
        """Generated tokens a second."""
        return self.output_tokens / self.duration if self.duration else 0.0


def spread(seconds: Iterable[float]) -> Spread:
    """Milliseconds of seconds; zeros when there are none."""
    found = np.fromiter(seconds, float)
    if not len(found):
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    found = found * 1000
    percentiles = [float(value) for value in np.percentile(found, PERCENTILES)]
    return Spread(float(found.mean()), float(np.median(found)), float(found.std()), *percentiles)


def load_figures(answers: Sequence[LoadAnswer], goals: Sequence[Goal] = ()) -> LoadFigures:
    """The figures of all answers; those that failed count as failed and for nothing else."""
    good = [answer for answer in answers if not answer.error]
    begin = min((answer.sent for answer in good), default=0.0)
    end = max((answer.chunks[-1] for answer in good if answer.chunks), default=begin)
    later = [answer for answer in good if answer.output_tokens > 1]
    chunks = sum(len(answer.chunks) for answer in good)
    output = sum(answer.output_tokens for answer in good)
    return LoadFigures(
        duration=end - begin,
        completed=len(good),
        failed=len(answers) - len(good),
        input_tokens=sum(answer.prompt_tokens for answer in good),
        output_tokens=output,
        good=sum(is_good(goals, _latencies(answer)) for answer in good) if goals else None,
        ttft=spread(answer.time_to_first for answer in good),
        tpot=spread(answer.time_per_token for answer in later),
        itl=spread(gap for answer in good for gap in answer.gaps),
        e2el=spread(answer.latency for answer in good),
        longest_gap=spread(max(answer.gaps) for answer in good if len(answer.chunks) > 1),
        tokens_per_chunk=output / chunks if chunks else 0.0,
        peak_concurrency=peak_concurrency(good),
        late=float(np.percentile([answer.sent - answer.due for answer in answers], 99)) if answers else 0.0,
        categories={
            name: _category([answer for answer in good if answer.category == name])
            for name in sorted({answer.category for answer in good} - {""})
        },
    )


def peak_concurrency(answers: Sequence[LoadAnswer]) -> int:
    """Most requests that were under way at the same time."""
    changes = sorted(
        change for answer in answers if answer.chunks for change in ((answer.sent, 1), (answer.chunks[-1], -1))
    )
    running = most = 0
    for _, step in changes:
        running += step
        most = max(most, running)
    return most


def _latencies(answer: LoadAnswer) -> dict[str, float]:
    return {
        "ttft": 1000 * answer.time_to_first,
        "tpot": 1000 * answer.time_per_token,
        "e2el": 1000 * answer.latency,
    }


def _category(answers: Sequence[LoadAnswer]) -> CategoryFigures:
    gaps = [gap for answer in answers for gap in answer.gaps]
    output = sum(answer.output_tokens for answer in answers)
    chunks = sum(len(answer.chunks) for answer in answers)
    return CategoryFigures(
        requests=len(answers),
        output_tokens=output,
        ttft_ms=spread(answer.time_to_first for answer in answers).median,
        tpot_ms=spread(answer.time_per_token for answer in answers if answer.output_tokens > 1).median,
        itl_ms=spread(gaps).median,
        longest_gap_ms=1000 * max(gaps, default=0.0),
        tokens_per_chunk=output / chunks if chunks else 0.0,
    )


def latency_keys(figures: LoadFigures) -> dict[str, float]:
    """The latencies flat, as vLLM names them: `mean_ttft_ms`, `p99_itl_ms` and so on."""
    found: dict[str, Any] = {}
    for name in ("ttft", "tpot", "itl", "e2el", "longest_gap"):
        values = msgspec.structs.asdict(getattr(figures, name))
        found |= {f"{statistic}_{name}_ms": value for statistic, value in values.items()}
    return found
