"""What a request changes in the logits before anything is chosen: bias, suppressed tokens, penalties."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longspan.sampling.parameters import SamplingParameters

Logits = npt.NDArray[np.float32]


def needs_history(parameters: SamplingParameters) -> bool:
    """Whether a penalty looks at the tokens before; without one the sampler never reads its `history`."""
    return (
        parameters.repetition_penalty != 1.0
        or parameters.presence_penalty != 0.0
        or parameters.frequency_penalty != 0.0
    )


def adjusted(logits: Logits, parameters: SamplingParameters, position: int, history: Sequence[int]) -> Logits:
    """The logits with bias, suppression and penalties applied in this order; `logits` itself when nothing applies.

    Bias is added. Suppressed tokens become -inf while position - prompt_length < min_tokens, unless the answer's
    grammar allows nothing else: an answer that is complete ends. The repetition penalty
    divides positive and multiplies other logits of tokens anywhere in `history`; then the frequency penalty, once
    an occurrence, and the presence penalty are subtracted for tokens in `history[prompt_length:]`.
    Each changed logit is computed in float64 and rounded to float32 after each step.
    """
    suppress = parameters.suppress and position - parameters.prompt_length < parameters.min_tokens
    penalised = needs_history(parameters) and len(history) > 0
    if not (parameters.logit_bias or suppress or penalised):
        return logits
    result = logits.copy()
    for token, bias in parameters.logit_bias:
        result[token] = float(result[token]) + bias
    if suppress:
        _suppress(result, parameters)
    if penalised:
        _penalise(result, parameters, history)
    return result


def _suppress(result: Logits, parameters: SamplingParameters) -> None:
    """Take the suppressed tokens out of `result` in place."""
    tokens = list(parameters.suppress)
    before = result[tokens]
    result[tokens] = -np.inf
    if parameters.grammar and result.max() == -np.inf:
        result[tokens] = before


def _penalise(result: Logits, parameters: SamplingParameters, history: Sequence[int]) -> None:
    """Apply the penalties to `result` in place."""
    if parameters.repetition_penalty != 1.0:
        seen = np.fromiter(set(history), dtype=np.intp)
        values = result[seen].astype(np.float64)
        penalty = parameters.repetition_penalty
        result[seen] = np.where(values > 0, values / penalty, values * penalty)
    if parameters.presence_penalty == 0.0 and parameters.frequency_penalty == 0.0:
        return
    counts = collections.Counter(history[parameters.prompt_length :])
    tokens = np.fromiter(counts.keys(), dtype=np.intp, count=len(counts))
    occurrences = np.fromiter(counts.values(), dtype=np.float64, count=len(counts))
    subtrahend = occurrences * parameters.frequency_penalty + parameters.presence_penalty
    result[tokens] = result[tokens].astype(np.float64) - subtrahend
