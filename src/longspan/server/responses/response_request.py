"""The body of /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.request import GenerationRequest
from longspan.sampling.limits import MAX_LOGPROBS
from longspan.server.body import field_error
from longspan.server.contract import ServedModel
from longspan.server.openai.chat_format import ChatFormat
from longspan.server.openai.chat_request import ChatRequest, chat_generation
from longspan.server.openai.fields import Count, Penalty, StreamOptions, refuse_unsupported
from longspan.server.responses.items import Items, chat_messages

MAX_TOOLS = 512
_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"


class Reasoning(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """effort: handed to a template that knows it. summary: there is none, so only null."""

    effort: str | None = None
    summary: None = None


class TextFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """type: "text", "json_object" or "json_schema" with name and schema."""

    type: str = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the text must be."""

    format: TextFormat = TextFormat()
    verbosity: str | None = None


class ResponseRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One answer to `input`. Nothing is kept between requests: `store` is false and there is no previous response.

    instructions: a system message before the input. include: "message.output_text.logprobs" adds `logprobs`.
    seed, top_k, min_p, ignore_eos and priority are ours, with the meaning that they have in /v1/chat/completions.
    user, safety_identifier, prompt_cache_key and metadata are the caller's own notes; metadata is sent back.
    """

    model: str
    input: str | Items
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[str], Meta(max_length=16)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=64)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None

    # Refused unless they ask for nothing.
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    truncation: str | None = None
    max_tool_calls: int | None = None
    service_tier: str | None = None
    context_management: list[Any] | None = None
    prompt_cache_retention: str | None = None


NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "store": (None, False),
    "previous_response_id": (None,),
    "conversation": (None,),
    "background": (None, False),
    "prompt": (None,),
    "truncation": (None, "disabled"),
    "max_tool_calls": (None,),
    "service_tier": (None, "auto", "default"),
    "context_management": (None, []),
    "prompt_cache_retention": (None, "in_memory"),
}
"""Fields that are known but not supported, with the values that ask for nothing."""
_NAMES = {
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields of /v1/chat/completions that have another name here."""

decoder = msgspec.json.Decoder(ResponseRequest)


def response_request(request: ResponseRequest, model: ServedModel) -> tuple[GenerationRequest, ChatFormat]:
    """What the engine is asked for, and how its answer is to be read.

    Renders, tokenizes and compiles: call it on a worker thread.

    Raises RequestError, its `param` the field that cannot be honoured.
    """
    refuse_unsupported(request, NEUTRAL_VALUES)
    for name in request.include or ():
        if name not in (_LOGPROBS, _ENCRYPTED):
            raise RequestError(
                f"`include` holds `{name}`, which this server does not have.",
                param="include",
                code="unsupported_parameter",
            )
    options = request.stream_options
    if options is not None and options.include_obfuscation:
        raise RequestError(
            "`stream_options.include_obfuscation` is not supported by this server; leave it out.",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
    try:
        (generation,), form = chat_generation(_as_chat(request), model)
    except RequestError as error:
        error.param = _own_name(error.param)
        raise
    return generation, form


def wants_logprobs(request: ResponseRequest) -> bool:
    """Whether the answer says how likely its tokens were."""
    return bool(request.top_logprobs) or _LOGPROBS in (request.include or ())


def _as_chat(request: ResponseRequest) -> ChatRequest:
    items = request.input
    messages = [{"role": "user", "content": items}] if isinstance(items, str) else chat_messages(items)
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    fields: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "seed": request.seed,
        "ignore_eos": request.ignore_eos,
        "priority": request.priority,
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
    }
    if wants_logprobs(request):
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.tools:
        fields["tools"] = [_chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools)]
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    choice = request.tool_choice
    if isinstance(choice, dict) and "name" in choice:
        choice = {"type": choice.get("type", "function"), "function": {"name": choice["name"]}}
    fields["tool_choice"] = choice
    if request.text is not None:
        fields["verbosity"] = request.text.verbosity
        fields["response_format"] = _chat_format(request.text.format)
    try:
        return msgspec.convert(fields, ChatRequest)
    except msgspec.ValidationError as error:
        raise field_error(str(error)) from error


def _chat_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise RequestError(
            f"`{where}.type`: only tools of type `function` are supported.",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _chat_format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    given = {
        "name": wanted.name,
        "schema": wanted.schema,
        "strict": wanted.strict,
        "description": wanted.description,
    }
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in given.items() if value is not None},
    }


def _own_name(param: str | None) -> str | None:
    """What a field of /v1/chat/completions is called here."""
    if param is None:
        return None
    first, dot, rest = param.partition(".")
    if first.startswith("messages"):
        # The messages are not counted as the items are.
        return "input"
    return _NAMES.get(first, first) + dot + rest
