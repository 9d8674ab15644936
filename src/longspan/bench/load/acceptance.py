"""How many drafts came true during a load, from the server's counters or from what it says of each answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from longspan.bench.load.answer import LoadAnswer

_PREFIX = "vllm:spec_decode_num_"


class Counts(msgspec.Struct, frozen=True):
    """Totals. drafts: windows. by_position: accepted draft tokens by place in the window."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    by_position: tuple[float, ...] = ()

    def __sub__(self, earlier: Counts) -> Counts:
        before = (*earlier.by_position, *[0.0] * len(self.by_position))
        return Counts(
            self.drafts - earlier.drafts,
            self.draft_tokens - earlier.draft_tokens,
            self.accepted_tokens - earlier.accepted_tokens,
            tuple(now - then for now, then in zip(self.by_position, before, strict=False)),
        )


def counts_of_metrics(text: str | None) -> Counts | None:
    """vLLM's counters of speculative decoding in Prometheus' text; None when they are not there."""
    if text is None:
        return None
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            if not family.name.startswith(_PREFIX):
                continue
            for sample in family.samples:
                name = sample.name.removeprefix(_PREFIX).removesuffix("_total")
                if name == "accepted_tokens_per_pos" and "position" in sample.labels:
                    place = int(sample.labels["position"])
                    positions[place] = positions.get(place, 0.0) + sample.value
                elif not name.endswith("_created"):
                    totals[name] = totals.get(name, 0.0) + sample.value
    except ValueError:
        return None
    if "drafts" not in totals:
        return None
    return Counts(
        totals["drafts"],
        totals.get("draft_tokens", 0.0),
        totals.get("accepted_tokens", 0.0),
        tuple(positions.get(place, 0.0) for place in range(max(positions, default=-1) + 1)),
    )


def counts_of_answers(answers: Iterable[LoadAnswer]) -> Counts | None:
    """The same, added up from the `metrics.speculative_decoding` of answers; None when none had it."""
    found: list[dict[str, Any]] = [
        block for answer in answers if isinstance(block := answer.metrics.get("speculative_decoding"), dict)
    ]
    if not found:
        return None

    def total(key: str) -> float:
        return float(sum(block.get(key) or 0 for block in found))

    return Counts(total("num_spec_steps"), total("num_draft_tokens"), total("num_accepted_draft_tokens"))


def acceptance_keys(counts: Counts | None) -> dict[str, float | Sequence[float]]:
    """Under the keys of vLLM; nothing when there were no drafts.

    acceptance_rate: percent of draft tokens. acceptance_length: 1 + accepted draft tokens for each window.
    per_position_acceptance_rates: windows whose draft at this place came true, over windows.
    """
    if counts is None or counts.drafts <= 0:
        return {}
    rate = 100 * counts.accepted_tokens / counts.draft_tokens if counts.draft_tokens else 0.0
    return {
        "spec_decode_acceptance_rate": rate,
        "spec_decode_acceptance_length": 1 + counts.accepted_tokens / counts.drafts,
        "spec_decode_num_drafts": int(counts.drafts),
        "spec_decode_draft_tokens": int(counts.draft_tokens),
        "spec_decode_accepted_tokens": int(counts.accepted_tokens),
        "spec_decode_per_position_acceptance_rates": [value / counts.drafts for value in counts.by_position],
    }
