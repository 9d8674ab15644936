"""Logits of one row to the token that follows it.

Position-keyed: the token is a function of the logits, the parameters, the position and, with penalties, the tokens
before. Nothing is kept between calls, so a draft is right exactly when it equals the token sampled in its place.

The order: bias, suppression, penalties; then greedy (the first of the highest), or temperature, top_k, top_p,
min_p, and the inverse of the cumulative distribution over the tokens that are left, in the order of their ids, at
the draw that belongs to (seed, position).

Weights are float32, like the logits that they come from; sums are float64. A float64 exponential would cost three
times as much and move a probability by less than the logits' own rounding does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longspan.errors import LongspanError
from longspan.sampling.adjustment import Logits, adjusted
from longspan.sampling.draw import uniform
from longspan.sampling.parameters import SamplingParameters
from longspan.sampling.selection import descending, highest, nucleus, pick
from longspan.schedule.span import TokenLogprob

LOWEST_TEMPERATURE = 1e-5
"""Lower temperatures are taken as this one, so that float32 can divide by it; its draws are greedy but for ties."""


class SamplingError(LongspanError):
    """No token can be sampled: the logits are not finite, or nothing is left to choose from."""


def sample(
    logits: Logits, parameters: SamplingParameters, position: int, history: Sequence[int]
) -> tuple[int, TokenLogprob | None]:
    """The token at `position` and, when asked, its log-probability.

    logits: (vocabulary,), float32, not changed; -inf marks a token that cannot come. position: of the token being
    sampled. history: token ids at positions 0 … position - 1; read only when `needs_history(parameters)`.
    Parameters must have passed `limits.check`.
    Raises SamplingError when a logit is NaN or +inf, or when no token is left.
    """
    best = _best(logits, position)
    allowed = adjusted(logits, parameters, position, history)
    if allowed is not logits:
        best = int(allowed.argmax())
        if not np.isfinite(allowed[best]):
            raise SamplingError(
                f"no token is left to sample at position {position}: "
                "logit_bias, min_tokens and the penalties exclude every one. Relax them."
            )
    token = best if parameters.greedy else _drawn(allowed, best, parameters, position)
    return token, None if parameters.logprobs < 0 else log_probability(logits, token, parameters.logprobs)


def score(logits: Logits, token: int, alternatives: int, position: int) -> TokenLogprob:
    """How likely a given token was at `position`. logits, alternatives: as for `sample` and `log_probability`.

    Raises SamplingError when a logit is NaN or +inf, or when the token is not one of the model.
    """
    _best(logits, position)
    if not 0 <= token < len(logits):
        raise SamplingError(f"the prompt has token {token} at position {position}; the model has {len(logits)}")
    return log_probability(logits, token, alternatives)


def log_probability(logits: Logits, token: int, alternatives: int) -> TokenLogprob:
    """Natural log of the softmax of the raw logits, for `token` and for the `alternatives` most likely tokens.

    The alternatives are in the order of their probability, ties by the lower id, and may contain the token itself.
    """
    peak = float(logits.max())
    total = math.log(float(_weights(logits, peak, 1.0).sum(dtype=np.float64))) + peak
    best = descending(logits, highest(logits, alternatives)) if alternatives else np.empty(0, np.intp)
    top = tuple((int(index), float(logits[index]) - total) for index in best)
    return TokenLogprob(float(logits[token]) - total, top)


def _best(logits: Logits, position: int) -> int:
    """The first of the highest. Raises SamplingError when a logit is NaN or +inf."""
    best = int(logits.argmax())
    # The index of the highest is the index of the first NaN if there is one.
    if not np.isfinite(logits[best]):
        raise SamplingError(
            f"the model gave no usable logits at position {position}: token {best} has {logits[best]}. "
            "Expected finite numbers; the model file may be damaged, or its activations overflowed."
        )
    return best


def _drawn(logits: Logits, best: int, parameters: SamplingParameters, position: int) -> int:
    """The token at the draw of the position, after temperature and filters. best: index of the highest logit."""
    peak = float(logits[best])
    kept: npt.NDArray[np.intp] | None = None
    if 0 < parameters.top_k < len(logits):
        kept = highest(logits, parameters.top_k)
        logits = logits[kept]
    weights = _weights(logits, peak, max(parameters.temperature, LOWEST_TEMPERATURE))
    if parameters.top_p < 1.0:
        kept, weights = _narrowed(kept, weights, nucleus(weights, parameters.top_p))
    if parameters.min_p > 0.0:
        kept, weights = _narrowed(kept, weights, np.flatnonzero(weights >= np.float32(parameters.min_p)))
    index = pick(weights, uniform(parameters.seed, position))
    return index if kept is None else int(kept[index])


def _weights(logits: Logits, peak: float, temperature: float) -> npt.NDArray[np.float32]:
    """exp((logit - peak) / temperature): the heaviest weighs 1, -inf weighs 0."""
    with np.errstate(over="ignore"):
        result: npt.NDArray[np.float32] = logits - np.float32(peak)
        if temperature != 1.0:
            result /= np.float32(temperature)
        np.exp(result, out=result)
    return result


def _narrowed(
    kept: npt.NDArray[np.intp] | None, weights: npt.NDArray[np.float32], subset: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Token ids and weights of a subset of the tokens kept so far (None: all of them)."""
    return (subset if kept is None else kept[subset]), weights[subset]
