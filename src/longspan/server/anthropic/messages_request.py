"""The bodies of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.request import GenerationRequest
from longspan.server.anthropic.blocks import AnthropicMessages, Block, chat_messages, joined_text
from longspan.server.body import field_error
from longspan.server.contract import ServedModel
from longspan.server.openai.chat_format import ChatFormat
from longspan.server.openai.chat_request import ChatRequest, chat_generation
from longspan.server.openai.fields import MAX_STOPS, Count, StopString, check_model, refuse_unsupported
from longspan.server.openai.messages import MAX_PARTS

MAX_TOOLS = 512


class Metadata(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The caller's own note; recorded nowhere."""

    user_id: str | None = None


class AnthropicTool(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A tool of the client's own. input_schema: JSON schema of its arguments."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class AnthropicToolChoice(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """name: of the tool, for type "tool"."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the answer must be."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """effort: handed to a template that knows it. format: see `OutputFormat`."""

    effort: str | None = None
    format: OutputFormat | None = None


class PromptFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What the prompt is made of. system: goes before the messages."""

    model: str
    messages: AnthropicMessages
    system: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None

    # Refused unless they ask for nothing.
    thinking: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    context_management: dict[str, Any] | None = None
    speed: str | None = None


class MessagesRequest(PromptFields, frozen=True, kw_only=True):
    """One answer to a conversation. A last message of the assistant is continued.

    seed, min_p and priority are ours, with the meaning that they have in /v1/chat/completions.
    """

    max_tokens: Count
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    metadata: Metadata | None = None

    # Refused unless they ask for nothing.
    service_tier: str | None = None
    container: Any = None
    inference_geo: str | None = None


NEUTRAL_PROMPT_VALUES: Mapping[str, tuple[Any, ...]] = {
    "thinking": (None, {"type": "disabled"}),
    "mcp_servers": (None, []),
    "context_management": (None, {}),
    "speed": (None, "standard"),
}
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "service_tier": (None, "auto", "standard_only"),
    "container": (None,),
    "inference_geo": (None,),
}
"""Fields that are known but not supported, with the values that ask for nothing."""
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

decoder = msgspec.json.Decoder(MessagesRequest)
count_decoder = msgspec.json.Decoder(PromptFields)


def message_request(request: MessagesRequest, model: ServedModel) -> tuple[GenerationRequest, ChatFormat]:
    """What the engine is asked for, and how its answer is to be read.

    Renders, tokenizes and compiles: call it on a worker thread.

    Raises RequestError, its `param` the field that cannot be honoured.
    """
    refuse_unsupported(request, NEUTRAL_VALUES)
    fields = {
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences,
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "seed": request.seed,
        "priority": request.priority,
    }
    (generation,), form = chat_generation(_as_chat(request, model, fields), model)
    return generation, form


def prompt_length(request: PromptFields, model: ServedModel) -> int:
    """Tokens of the prompt. For a worker thread. Raises RequestError as `message_request` does."""
    (generation,), _ = chat_generation(_as_chat(request, model, {}), model)
    return len(generation.prompt)


def _as_chat(request: PromptFields, model: ServedModel, fields: dict[str, Any]) -> ChatRequest:
    check_model(request.model, model)
    refuse_unsupported(request, NEUTRAL_PROMPT_VALUES)
    messages = chat_messages(request.messages)
    system = joined_text(request.system or "", "system")
    if system:
        messages.insert(0, {"role": "system", "content": system})
    fields |= {"model": request.model, "messages": messages}
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        fields["continue_final_message"] = True
    if request.tools:
        fields["tools"] = [_chat_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        fields |= _chat_tool_choice(request.tool_choice)
    if request.output_config is not None:
        fields |= _chat_output(request.output_config)
    try:
        return msgspec.convert(fields, ChatRequest)
    except msgspec.ValidationError as error:
        raise field_error(str(error)) from error


def _chat_tool(tool: AnthropicTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _chat_tool_choice(choice: AnthropicToolChoice) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if choice.disable_parallel_tool_use is not None:
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if (choice.name is not None) != (choice.type == "tool"):
        raise RequestError(
            "`tool_choice.name` belongs to the type `tool`, and only to it.", param="tool_choice.name"
        )
    if choice.type == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        fields["tool_choice"] = _TOOL_CHOICES[choice.type]
    return fields


def _chat_output(output: OutputConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if output.effort is not None:
        fields["reasoning_effort"] = output.effort
    if output.format is not None:
        schema = {"name": "answer", "schema": output.format.schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields
