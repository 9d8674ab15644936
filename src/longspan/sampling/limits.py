"""What sampling parameters may be: refused here, before a request is admitted, never on the last stage."""

from __future__ import annotations

import math

from longspan.errors import RequestError
from longspan.sampling.parameters import MAX_GRAMMAR_BYTES, MAX_LOGIT_BIAS, SamplingParameters

MAX_LOGPROBS = 20
MAX_SUPPRESS = 1024
MAX_BIAS = 100.0
"""OpenAI's range of a logit bias."""


def check(parameters: SamplingParameters, vocabulary: int) -> None:
    """Raise RequestError, with the field's name in `param`, for the first value that cannot be honoured.

    vocabulary: how many tokens the model has; ids of logit_bias and suppress must lie below.
    """
    for name, lowest, highest in (
        ("temperature", 0.0, 100.0),
        ("top_p", 0.0, 1.0),
        ("min_p", 0.0, 1.0),
        ("repetition_penalty", 0.01, 100.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
        ("top_k", 0, vocabulary),
        ("seed", 0, 2**64 - 1),
        ("logprobs", -1, MAX_LOGPROBS),
        ("prompt_logprobs", -1, MAX_LOGPROBS),
        ("min_tokens", 0, 2**31 - 1),
        ("prompt_length", 0, 2**31 - 1),
    ):
        value = getattr(parameters, name)
        # Written so that NaN, which compares false with everything, is refused.
        if not lowest <= value <= highest:
            raise RequestError(f"{name} is {value}, expected a number from {lowest} to {highest}", param=name)
    if parameters.top_p == 0.0:
        raise RequestError("top_p is 0, which leaves no token; expected a number above 0", param="top_p")
    _check_bias(parameters, vocabulary)
    if len(parameters.suppress) > MAX_SUPPRESS:
        raise RequestError(
            f"{len(parameters.suppress)} suppressed tokens, at most {MAX_SUPPRESS}", param="min_tokens"
        )
    for token in parameters.suppress:
        _check_token(token, vocabulary, "min_tokens")
    size = len(parameters.grammar.encode("utf-8", "replace"))
    if size > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"the grammar or schema of the answer has {size} bytes, at most {MAX_GRAMMAR_BYTES} are possible",
            param="grammar",
        )


def _check_bias(parameters: SamplingParameters, vocabulary: int) -> None:
    if len(parameters.logit_bias) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias has {len(parameters.logit_bias)} entries, at most {MAX_LOGIT_BIAS}", param="logit_bias"
        )
    seen = set()
    for token, bias in parameters.logit_bias:
        _check_token(token, vocabulary, "logit_bias")
        if token in seen:
            raise RequestError(f"logit_bias names token {token} twice", param="logit_bias")
        seen.add(token)
        if not math.isfinite(bias) or abs(bias) > MAX_BIAS:
            raise RequestError(
                f"logit_bias of token {token} is {bias}, expected a number from -{MAX_BIAS:g} to {MAX_BIAS:g}",
                param="logit_bias",
            )


def _check_token(token: int, vocabulary: int, param: str) -> None:
    if not 0 <= token < vocabulary:
        raise RequestError(
            f"{param} names token {token}, but the model has tokens 0 to {vocabulary - 1}", param=param
        )
