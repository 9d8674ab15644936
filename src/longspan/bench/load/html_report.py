"""A load's result as one HTML page that loads nothing else."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jinja2

from longspan.bench.load.answer import LoadAnswer

WIDTH, ROW = 900, 10
"""Pixels of the drawing, and of a request's line in it."""
MOST_ROWS = 400

_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Load of {{ result.model_id }}</title>
<style>
:root { color-scheme: light dark; --wait: #b26b00; --make: #2a6fbb; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } .wait { fill: var(--wait); } .make { fill: var(--make); }
.line { stroke: var(--make); fill: none; stroke-width: 1.5; } text { font-size: 11px; fill: currentColor; }
</style></head><body>
<h1>Load of {{ result.model_id }}</h1>
<p>{{ result.base_url }}, {{ result.dataset_name }}, {{ result.num_prompts }} requests, rate
{{ result.request_rate }}, burstiness {{ result.burstiness }}, at most
{{ result.max_concurrency or "any number" }} at once. {{ result.date }}.</p>
<table><tr><th>figure</th><th>value</th></tr>
{% for name, value in scalars %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}</table>
<h2>Latencies, ms</h2>
<table><tr><th></th>{% for statistic in statistics %}<th>{{ statistic }}</th>{% endfor %}</tr>
{% for name, meaning in latencies %}<tr><td title="{{ meaning }}">{{ name }}</td>
{% for statistic in statistics %}<td>{{ "%.1f" % result[statistic ~ "_" ~ name ~ "_ms"] }}</td>{% endfor %}</tr>
{% endfor %}</table>
<ul>{% for name, meaning in latencies %}<li><b>{{ name }}</b>: {{ meaning }}</li>{% endfor %}</ul>
{% if result.categories %}<h2>By category</h2>
<table><tr><th>category</th><th>requests</th><th>tokens</th><th>ttft ms</th><th>tpot ms</th><th>gap ms</th>
<th>longest gap ms</th><th>tokens a chunk</th></tr>
{% for name, row in result.categories.items() %}<tr><td>{{ name }}</td><td>{{ row.requests }}</td>
<td>{{ row.output_tokens }}</td><td>{{ "%.1f" % row.ttft_ms }}</td><td>{{ "%.2f" % row.tpot_ms }}</td>
<td>{{ "%.2f" % row.itl_ms }}</td><td>{{ "%.1f" % row.longest_gap_ms }}</td>
<td>{{ "%.2f" % row.tokens_per_chunk }}</td></tr>
{% endfor %}</table>{% endif %}
<h2>Requests</h2>
<p>Each line is a request: <span style="color: var(--wait)">waiting for its first chunk</span>, then
<span style="color: var(--make)">generating</span>. The whole width is {{ "%.2f" % end }} s.</p>
<svg viewBox="0 0 {{ width }} {{ bars | length * row + 4 }}" role="img" aria-label="When each request ran">
{% for bar in bars %}<rect class="wait" x="{{ bar[0] }}" y="{{ loop.index0 * row }}" width="{{ bar[1] }}" \
height="{{ row - 2 }}"/><rect class="make" x="{{ bar[2] }}" y="{{ loop.index0 * row }}" width="{{ bar[3] }}" \
height="{{ row - 2 }}"/>
{% endfor %}</svg>
{% if hidden %}<p>{{ hidden }} more requests are not drawn.</p>{% endif %}
</body></html>
"""

_SCALARS = (
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput", "tokens_per_chunk"),
    *("max_concurrent_requests", "p99_send_lag_ms", "spec_decode_acceptance_rate", "spec_decode_acceptance_length"),
)
LATENCIES = (
    ("ttft", "from sending to the first chunk with text"),
    ("tpot", "(e2el - ttft) / (tokens - 1) of each request"),
    ("itl", "gap between two chunks of a request; a chunk may hold several tokens"),
    ("longest_gap", "the longest of these gaps of each request"),
    ("e2el", "from sending to the last chunk"),
)
STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")


def html_report(result: dict[str, Any], answers: Sequence[LoadAnswer]) -> str:
    """The page of a `load_result` and its answers."""
    drawn = [answer for answer in answers if answer.chunks]
    end = max((answer.chunks[-1] for answer in drawn), default=1.0) or 1.0
    scale = WIDTH / end
    bars = [
        tuple(
            round(scale * value, 1)
            for value in (
                answer.sent,
                answer.time_to_first,
                answer.chunks[0],
                answer.latency - answer.time_to_first,
            )
        )
        for answer in drawn[:MOST_ROWS]
    ]
    return _template().render(
        result=result,
        scalars=[(name, _shown(result[name])) for name in _SCALARS if result.get(name) is not None],
        latencies=LATENCIES,
        statistics=STATISTICS,
        bars=bars,
        hidden=max(0, len(drawn) - MOST_ROWS),
        end=end,
        width=WIDTH,
        row=ROW,
    )


@functools.cache
def _template() -> jinja2.Template:
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_PAGE)


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
