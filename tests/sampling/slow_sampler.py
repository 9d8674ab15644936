"""The sampler once more, in plain Python over lists: slow, obvious, and written without the fast one's code."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from longspan.sampling.parameters import SamplingParameters

MASK = (1 << 64) - 1


def splitmix64(state: int, count: int) -> list[int]:
    """The first outputs of the generator as published, by its own state."""
    outputs = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        value = state
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(value ^ (value >> 31))
    return outputs


def slow_uniform(seed: int, position: int) -> float:
    key = splitmix64(seed & MASK, 1)[0]
    return float((splitmix64(key, position + 1)[-1] >> 11) / 2**53)


def slow_adjusted(
    logits: Sequence[float], parameters: SamplingParameters, position: int, history: Sequence[int]
) -> list[float]:
    changed = [float(logit) for logit in logits]

    def put(token: int, value: float) -> None:
        changed[token] = float(np.float32(value))

    for token, bias in parameters.logit_bias:
        put(token, changed[token] + bias)
    if position - parameters.prompt_length < parameters.min_tokens:
        for token in parameters.suppress:
            put(token, -math.inf)
    if parameters.repetition_penalty != 1.0:
        for token in set(history):
            penalty = parameters.repetition_penalty
            put(token, changed[token] / penalty if changed[token] > 0 else changed[token] * penalty)
    answer = list(history)[parameters.prompt_length :]
    for token in set(answer):
        times = answer.count(token)
        put(token, changed[token] - (times * parameters.frequency_penalty + parameters.presence_penalty))
    return changed


def slow_allowed(logits: Sequence[float], parameters: SamplingParameters) -> tuple[dict[int, float], float]:
    """Weight by token of what the filters leave, and how near (relative) a filter's border came to a weight."""
    peak = max(logits)
    temperature = np.float32(max(parameters.temperature, 1e-5))
    weights: dict[int, float] = {}
    with np.errstate(over="ignore"):
        for token, logit in enumerate(logits):
            weights[token] = float(np.exp((np.float32(logit) - np.float32(peak)) / temperature))
    # Python's sort is stable: equal logits stay in the order of their ids.
    order = sorted(weights, key=lambda token: -logits[token])
    if parameters.top_k:
        order = order[: parameters.top_k]
    margin = 1.0
    if parameters.top_p < 1.0:
        target = parameters.top_p * math.fsum(weights[token] for token in order)
        # Weights may tie where logits do not (both 0, say): the nucleus goes by weight, then by id.
        order.sort(key=lambda token: (-weights[token], token))
        kept, reached = [], 0.0
        for token in order:
            kept.append(token)
            reached += weights[token]
            margin = min(margin, abs(reached - target) / target)
            if reached >= target:
                break
        order = kept
    if parameters.min_p > 0:
        order = [token for token in order if weights[token] >= float(np.float32(parameters.min_p))]
    return {token: weights[token] for token in sorted(order)}, margin


def slow_token(
    logits: Sequence[float], parameters: SamplingParameters, position: int, history: Sequence[int]
) -> tuple[int, float]:
    """The token, and how near (relative to the whole) a border came: below about 1e-6 rounding may decide."""
    changed = slow_adjusted(logits, parameters, position, history)
    if parameters.temperature <= 0:
        return changed.index(max(changed)), 1.0
    allowed, margin = slow_allowed(changed, parameters)
    total = math.fsum(allowed.values())
    target = slow_uniform(parameters.seed, position) * total
    reached, chosen = 0.0, -1
    for token, weight in allowed.items():
        reached += weight
        if weight > 0:
            margin = min(margin, abs(reached - target) / total)
            if chosen < 0 and reached > target:
                chosen = token
    return chosen, margin
