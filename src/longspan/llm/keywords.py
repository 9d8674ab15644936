"""What can be asked of a model, and how it can be started, as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from longspan.engine import ServedModel
from longspan.errors import ContextLengthError, RequestError
from longspan.request import GenerationRequest
from longspan.ring.security import SecurityOptions
from longspan.sampling.limits import check
from longspan.sampling.parameters import SamplingParameters


class EngineKeywords(TypedDict, total=False):
    """Fields of `longspan.engine.EngineOptions` besides the model; what they mean is said there."""

    stages: int
    splits: str | None
    ring: tuple[str, ...]
    join: str | None
    lock: str | None
    hold_first_stage: bool
    link_delay_ms: float
    slots: int
    context: int | None
    threads: int | None
    activation_dtype: str
    library: str | None
    max_waiting: int
    queue_timeout: float | None
    proposer: str
    draft_model: str | None
    mtp_head: str | None
    width: int | None
    depth: int | None
    latency: str
    mixing: bool
    cost_model: str
    trace: str | None
    heal_seconds: float
    silence_seconds: float | None
    security: SecurityOptions


class SamplingKeywords(TypedDict, total=False):
    """How the tokens of an answer are chosen, and when it ends.

    max_tokens: most tokens of the answer. temperature: 0, which is the default, always takes the likeliest token.
    top_k: 0 is all. top_p, min_p: shares. seed: the same one gives the same tokens, in any crowd and for any split.
    stop: strings that end the answer and are no part of it. stop_token_ids: tokens that end it. ignore_eos: go on
    past the model's end tokens. min_tokens: it does not end before. The penalties and logit_bias (by token id) mean
    what they mean in the OpenAI API. logprobs: alternatives to report for each token; 0 reports the token's own.
    prompt_logprobs: the same for each token of the prompt but the first.
    priority: lower runs first. cache_salt: the prompt's KV is shared only with requests of the same salt.
    """

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int
    prompt_logprobs: int
    priority: int
    cache_salt: str


def generation_request(
    model: ServedModel, prompt: Sequence[int], keywords: SamplingKeywords, default_max_tokens: int | None
) -> GenerationRequest:
    """The request that the keywords describe.

    default_max_tokens: when `max_tokens` is not given; None is what is left of the context. Raises
    ContextLengthError when prompt and answer do not fit, RequestError for another value that cannot be honoured.
    """
    room = model.context_length - len(prompt)
    if not prompt:
        raise RequestError("the prompt is empty, and the model has no token to start with.", param="prompt")
    wanted = keywords.get("max_tokens")
    if wanted is not None and wanted < 1:
        raise RequestError(f"max_tokens is {wanted}, expected at least 1", param="max_tokens")
    if room < max(wanted or 1, 1):
        raise ContextLengthError(
            f"the context has {model.context_length} positions, but the prompt has {len(prompt)} tokens and "
            f"{wanted or 1} were asked for. Shorten one of them, or start with a larger `context`.",
            param="prompt",
        )
    most = wanted if wanted is not None else min(room, default_max_tokens or room)
    minimum = keywords.get("min_tokens", 0)
    if minimum > most:
        raise RequestError(f"min_tokens is {minimum}, more than the {most} of max_tokens", param="min_tokens")
    stop, stop_tokens = keywords.get("stop", ()), tuple(keywords.get("stop_token_ids", ()))
    seed = keywords.get("seed")
    sampling = SamplingParameters(
        temperature=keywords.get("temperature", 0.0),
        top_k=keywords.get("top_k", 0),
        top_p=keywords.get("top_p", 1.0),
        min_p=keywords.get("min_p", 0.0),
        repetition_penalty=keywords.get("repetition_penalty", 1.0),
        presence_penalty=keywords.get("presence_penalty", 0.0),
        frequency_penalty=keywords.get("frequency_penalty", 0.0),
        logit_bias=tuple(keywords.get("logit_bias", {}).items()),
        min_tokens=minimum,
        suppress=tuple(sorted(model.tokenizer.end_tokens.union(stop_tokens))) if minimum else (),
        logprobs=keywords.get("logprobs", -1),
        prompt_logprobs=keywords.get("prompt_logprobs", -1),
    )
    check(sampling, model.tokenizer.vocabulary_size)
    return GenerationRequest(
        prompt=tuple(prompt),
        max_tokens=most,
        sampling=sampling,
        seed=None if seed is None else seed % 2**64,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=stop_tokens,
        ignore_eos=keywords.get("ignore_eos", False),
        priority=keywords.get("priority", 0),
        cache_salt=keywords.get("cache_salt", ""),
    )
