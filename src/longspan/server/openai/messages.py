"""Chat messages as clients send them, and as a chat template takes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.server.contract import Template
from longspan.server.formats.told_tools import without_calls
from longspan.server.text_parts import missing, read_text

MAX_MESSAGES = 4096
MAX_PARTS = 1024


class ContentPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One part of a message's content. Only parts of type "text" are understood; the others are refused by name."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    video_url: Any = None
    file: Any = None
    refusal: str | None = None


class ToolFunction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A call that the assistant made. arguments: JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A tool call of an earlier assistant message."""

    id: str
    function: ToolFunction
    type: Literal["function"] = "function"


class Message(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One message. `name`, `tool_call_id` and `reasoning_content` are handed to the chat template.

    refusal, annotations, audio and function_call may be null, as they are in answers of the API.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_PARTS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


_HANDED_ON = ("name", "tool_call_id", "reasoning_content")

Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


def template_messages(messages: list[Message], template: Template) -> list[dict[str, Any]]:
    """The messages for a template's `render`. Raises RequestError for what the model or template cannot take.

    For a template that has no place for calls, they and their results become text.
    """
    found = [_template_message(message, f"messages[{index}]", template) for index, message in enumerate(messages)]
    return found if "tool_calls" in template.source else list(map(without_calls, found))


def _template_message(message: Message, where: str, template: Template) -> dict[str, Any]:
    role = message.role
    # OpenAI's newer word for the same role; few templates know it.
    if role == "developer" and "developer" not in template.source:
        role = "system"
    calls = message.tool_calls or []
    if message.content is None and not (role == "assistant" and calls):
        raise missing(f"{where}.content")
    value: dict[str, Any] = {"role": role, "content": _text(message.content, where)}
    value |= {name: given for name in _HANDED_ON if (given := getattr(message, name)) is not None}
    if calls:
        if role != "assistant":
            raise RequestError(f"`{where}.tool_calls` belongs to the assistant.", param=f"{where}.tool_calls")
        value["tool_calls"] = [_template_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return value


def _text(content: str | list[ContentPart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for index, part in enumerate(content):
        place = f"{where}.content[{index}]"
        texts.append(read_text(part, place, ("text",)))
        for name in ("image_url", "input_audio", "video_url", "file", "refusal"):
            if getattr(part, name) is not None:
                raise RequestError(f"`{place}.{name}` does not belong to a text.", param=f"{place}.{name}")
    return "\n".join(texts)


def _template_call(call: ToolCall, where: str) -> dict[str, Any]:
    # Templates write the arguments out themselves, so they take them as values.
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        field = f"{where}.function.arguments"
        raise RequestError(f"`{field}` is not JSON: {error}.", param=field) from error
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
