"""Request fields that chat and text completions share, and what they mean for the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from longspan.errors import ContextLengthError, RequestError, UnknownModelError
from longspan.request import GenerationRequest
from longspan.sampling import limits
from longspan.sampling.limits import MAX_LOGPROBS
from longspan.sampling.parameters import MAX_LOGIT_BIAS, SamplingParameters
from longspan.server.contract import ServedModel
from longspan.server.identity import REQUEST_ID_PATTERN
from longspan.server.openai.structured import FormFields

MAX_STOPS = 16
MAX_STOP_LENGTH = 512
MAX_STOP_TOKENS = 256
MAX_CHOICES = 64
"""Most values of `n`."""

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """include_usage: a last chunk without choices tells the usage. continuous_usage_stats: every chunk does."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationFields(FormFields, frozen=True, kw_only=True):
    """Fields of both kinds of completion. None means the default; the names are those of the OpenAI API and vLLM.

    prompt_logprobs: alternatives for each token of the prompt; the answer tells how likely each of them was.
    return_metrics adds the block `metrics` to the answer. cache_salt: the prompt's KV is shared only with requests
    of the same salt. user, safety_identifier, prompt_cache_key and metadata are the caller's own notes: they change
    nothing about an answer and are recorded nowhere.
    """

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100.0)] | None = None
    logit_bias: (
        Annotated[dict[int, Annotated[float, Meta(ge=-100.0, le=100.0)]], Meta(max_length=MAX_LOGIT_BIAS)] | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    request_id: Annotated[str, Meta(pattern=REQUEST_ID_PATTERN)] | None = None
    return_token_ids: bool | None = None
    return_metrics: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    skip_special_tokens: bool | None = None

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None

    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None

    # Refused unless they ask for nothing.
    best_of: int | None = None
    service_tier: str | None = None
    store: bool | None = None


NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
}
"""Fields that are known but not supported, with the values that ask for nothing."""


def refuse_unsupported(fields: msgspec.Struct, neutral_values: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise RequestError for the first field that asks for something that is not there."""
    for name, neutral in neutral_values.items():
        if getattr(fields, name) not in neutral:
            raise RequestError(
                f"`{name}` is not supported by this server; leave it out.", param=name, code="unsupported_parameter"
            )


def check_model(name: str | None, model: ServedModel) -> None:
    """Raise UnknownModelError unless `name` is the served model's id or root, "default", or not given."""
    if name not in (None, model.id, model.root, "default"):
        raise UnknownModelError(f"The model `{name}` is not served here; this server has `{model.id}`.")


def check_fields(fields: GenerationFields, model: ServedModel) -> None:
    """Raise RequestError for fields that contradict each other, or UnknownModelError for another model."""
    check_model(fields.model, model)
    refuse_unsupported(fields, NEUTRAL_VALUES)
    if fields.prompt_logprobs is not None and fields.stream:
        raise RequestError(
            "`prompt_logprobs` belong to answers that are not streamed; `echo` with `logprobs` can be streamed.",
            param="prompt_logprobs",
        )
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise RequestError("`stream_options` needs `stream` to be true.", param="stream_options")
    if options is not None and options.include_obfuscation:
        raise RequestError(
            "`stream_options.include_obfuscation` is not supported by this server; leave it out.",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )


def generation_requests(
    fields: GenerationFields,
    model: ServedModel,
    prompt: list[int],
    *,
    max_tokens: int | None,
    default_max_tokens: int | None,
    logprobs: int,
    prompt_field: str,
    prompt_logprobs: int = -1,
    grammar: str = "",
    write_special: bool = False,
) -> list[GenerationRequest]:
    """One request a choice; the first carries the seed itself, the others seeds derived from it.

    max_tokens: as asked; None takes `default_max_tokens` or, without one, what is left of the context.
    logprobs, prompt_logprobs: alternatives to report, -1 for none at all.
    prompt_field: what an error about the prompt names.
    grammar: what the answers must follow. write_special: control tokens are written out.
    Raises ContextLengthError when prompt and answer do not fit, RequestError for values that do not fit the model.
    """
    most = _most_tokens(model, len(prompt), max_tokens, default_max_tokens, prompt_field)
    minimum = fields.min_tokens or 0
    if minimum > most:
        raise RequestError(
            f"`min_tokens` is {minimum}, more than the {most} that the answer may have.", param="min_tokens"
        )
    stop_tokens = tuple(fields.stop_token_ids or ())
    for token in stop_tokens:
        if token >= model.tokenizer.vocabulary_size:
            raise RequestError(
                f"`stop_token_ids` names token {token}, but the model has tokens 0 to "
                f"{model.tokenizer.vocabulary_size - 1}.",
                param="stop_token_ids",
            )
    ends = model.tokenizer.end_tokens.union(stop_tokens)
    sampling = SamplingParameters(
        temperature=_or(fields.temperature, 1.0),
        # More than the vocabulary, and vLLM's -1, mean all of it.
        top_k=min(max(fields.top_k or 0, 0), model.tokenizer.vocabulary_size),
        top_p=_or(fields.top_p, 1.0),
        min_p=_or(fields.min_p, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        logit_bias=tuple((fields.logit_bias or {}).items()),
        min_tokens=minimum,
        suppress=tuple(sorted(ends)) if minimum else (),
        logprobs=logprobs,
        grammar=grammar,
        prompt_logprobs=prompt_logprobs,
    )
    limits.check(sampling, model.tokenizer.vocabulary_size)
    stops = fields.stop or ()
    return [
        GenerationRequest(
            prompt=tuple(prompt),
            max_tokens=most,
            sampling=sampling,
            seed=None if fields.seed is None else choice_seed(fields.seed, choice),
            stop=(stops,) if isinstance(stops, str) else tuple(stops),
            include_stop=bool(fields.include_stop_str_in_output),
            stop_token_ids=stop_tokens,
            ignore_eos=bool(fields.ignore_eos),
            write_special=write_special or fields.skip_special_tokens is False,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt or "",
        )
        for choice in range(fields.n or 1)
    ]


def choice_seed(seed: int, choice: int) -> int:
    """A 64-bit seed for one of several samples. The first has the request's own, so `n` does not change it."""
    if choice == 0:
        return seed % 2**64
    digest = hashlib.blake2b(f"{seed % 2**64}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _most_tokens(
    model: ServedModel, prompt_tokens: int, max_tokens: int | None, default: int | None, prompt_field: str
) -> int:
    context = model.context_length
    left = context - prompt_tokens
    if left < 1:
        raise ContextLengthError(
            f"This model's maximum context length is {context} tokens, but the prompt has {prompt_tokens} tokens. "
            f"It may have at most {context - 1}.",
            param=prompt_field,
        )
    if max_tokens is None:
        return left if default is None else min(default, left)
    if max_tokens > left:
        raise ContextLengthError(
            f"This model's maximum context length is {context} tokens, but {prompt_tokens + max_tokens} were asked "
            f"for: {prompt_tokens} in the prompt and {max_tokens} for the answer. Reduce one of them.",
            param=prompt_field,
        )
    return max_tokens


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
