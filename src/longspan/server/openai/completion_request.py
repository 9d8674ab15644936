"""The body of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.request import GenerationRequest
from longspan.sampling.limits import MAX_LOGPROBS
from longspan.server.contract import ServedModel
from longspan.server.openai.fields import (
    GenerationFields,
    check_fields,
    generation_requests,
    refuse_unsupported,
)
from longspan.server.openai.structured import answer_grammar
from longspan.server.prompts import text_prompt, token_prompt

MAX_PROMPTS = 256
MAX_ANSWERS = 256
"""Most prompts times `n` of one body."""
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """prompt: a text, a list of texts, a list of token ids, or a list of such lists.

    echo: the answer's text begins with the prompt, and its `logprobs` do. logprobs: alternatives for each token.
    """

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None

    # Refused unless it asks for nothing.
    suffix: str | None = None


NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {"suffix": (None, "")}
"""Fields that are known but not supported, with the values that ask for nothing."""

decoder = msgspec.json.Decoder(CompletionRequest)


def completion_requests(request: CompletionRequest, model: ServedModel) -> list[GenerationRequest]:
    """What the engine is asked for: `n` requests for the first prompt, then for the next. For a worker thread.

    Raises RequestError, its `param` the field that cannot be honoured.
    """
    check_fields(request, model)
    refuse_unsupported(request, NEUTRAL_VALUES)
    prompts = _prompts(request.prompt)
    answers = len(prompts) * (request.n or 1)
    if answers > MAX_ANSWERS:
        raise RequestError(
            f"{len(prompts)} prompts with {request.n or 1} answers each are {answers} answers; "
            f"at most {MAX_ANSWERS} at once.",
            param="n",
        )
    if request.return_metrics and answers > 1:
        raise RequestError("`return_metrics` is for one prompt and one choice.", param="return_metrics")
    grammar = answer_grammar(request, model)
    return [
        generation
        for prompt in prompts
        for generation in generation_requests(
            request,
            model,
            _tokens(prompt, model),
            max_tokens=request.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=-1 if request.logprobs is None else request.logprobs,
            prompt_field="prompt",
            prompt_logprobs=_prompt_logprobs(request),
            grammar=grammar,
        )
    ]


def echoes(
    request: CompletionRequest, head_prompts: tuple[tuple[int, ...], ...], model: ServedModel
) -> Sequence[str | None]:
    """The text of each prompt, when the answer begins with it; else None for each."""
    if not request.echo:
        return [None] * len(head_prompts)
    return [
        prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt) for prompt in _prompts(request.prompt)
    ]


def _prompt_logprobs(request: CompletionRequest) -> int:
    """Alternatives for each token of the prompt: as many as the larger of the two fields asks for, or -1."""
    echoed = request.logprobs if request.echo else None
    return max(-1 if wanted is None else wanted for wanted in (echoed, request.prompt_logprobs))


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    tokens = [item for item in prompt if isinstance(item, int)]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    if not prompt:
        raise RequestError("`prompt` is an empty list.", param="prompt")
    if len(prompt) not in (len(tokens), len(texts), len(lists)):
        raise RequestError("`prompt` mixes texts, token ids and lists of token ids; send one kind.", param="prompt")
    prompts: list[str | list[int]] = [tokens] if tokens else [*texts, *lists]
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"`prompt` holds {len(prompts)} prompts; at most {MAX_PROMPTS}.", param="prompt")
    return prompts


def _tokens(prompt: str | list[int], model: ServedModel) -> list[int]:
    if isinstance(prompt, list):
        tokens = token_prompt(model, prompt, param="prompt")
    else:
        tokens = text_prompt(model, prompt, param="prompt")
    if not tokens:
        raise RequestError("`prompt` is empty: there is nothing to go on from.", param="prompt")
    return tokens
