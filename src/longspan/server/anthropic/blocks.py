"""Content blocks of the Anthropic API, and what they are as chat messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.server.openai.messages import MAX_MESSAGES, MAX_PARTS
from longspan.server.text_parts import missing, unreadable

_FIELDS = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}
"""Of each kind of block that is understood: the fields it may have besides type, cache_control and citations."""
_REQUIRED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}


class ResultBlock(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of what a tool gave back; only text is understood."""

    type: str
    text: str | None = None
    cache_control: dict[str, Any] | None = None
    citations: None = None
    source: Any = None
    title: Any = None
    content: Any = None


class Block(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One block. cache_control is a hint: prompts that begin alike share their KV here without being told.

    is_error: changes nothing, for templates have no place for it; the result's text says what went wrong.
    """

    type: str
    text: str | None = None
    citations: None = None
    cache_control: dict[str, Any] | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    caller: Any = None
    toolset_name: str | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[ResultBlock], Meta(max_length=MAX_PARTS)] | None = None
    is_error: bool | None = None
    source: Any = None
    title: str | None = None
    context: str | None = None


class AnthropicMessage(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)]


AnthropicMessages = Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


def chat_messages(messages: list[AnthropicMessage]) -> list[dict[str, Any]]:
    """The turns as messages of /v1/chat/completions; results of tools become messages of their own.

    Raises RequestError that names a block which the model cannot read.
    """
    return [
        chat
        for index, message in enumerate(messages)
        for chat in _chat_messages(message, f"messages[{index}].content")
    ]


def joined_text(blocks: str | list[Block], where: str) -> str:
    """The text of blocks that may be nothing else. Raises RequestError."""
    if isinstance(blocks, str):
        return blocks
    for index, block in enumerate(blocks):
        if block.type != "text":
            raise unreadable(block.type, f"{where}[{index}].type")
        _check(block, f"{where}[{index}]")
    return "\n".join(block.text or "" for block in blocks)


def _chat_messages(message: AnthropicMessage, where: str) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        place = f"{where}[{index}]"
        _check(block, place)
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "tool_result":
            _check_role(message, "user", place)
            results.append(_result(block, place))
        elif block.type == "tool_use":
            _check_role(message, "assistant", place)
            arguments = msgspec.json.encode(block.input).decode()
            calls.append(
                {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
            )
        elif block.type == "thinking":
            _check_role(message, "assistant", place)
            thoughts.append(block.thinking or "")
    rest: dict[str, Any] = {"role": message.role, "content": "\n".join(texts)}
    if thoughts:
        rest["reasoning_content"] = "\n".join(thoughts)
    if calls:
        rest["tool_calls"] = calls
        rest["content"] = rest["content"] or None
    return [*results, rest] if texts or calls or not results else results


def _result(block: Block, where: str) -> dict[str, Any]:
    parts = block.content or ""
    if not isinstance(parts, str):
        for index, part in enumerate(parts):
            if part.type != "text":
                raise unreadable(part.type, f"{where}.content[{index}].type")
        parts = "\n".join(part.text or "" for part in parts)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": parts}


def _check(block: Block, where: str) -> None:
    if block.type not in _FIELDS:
        raise unreadable(block.type, f"{where}.type")
    for name in _REQUIRED[block.type]:
        if getattr(block, name) is None:
            raise missing(f"{where}.{name}")
    allowed = {*_FIELDS[block.type], "type", "cache_control", "citations", "caller", "toolset_name"}
    for name in block.__struct_fields__:
        if name not in allowed and getattr(block, name) is not None:
            field = f"{where}.{name}"
            raise RequestError(f"`{field}` does not belong to a block of type `{block.type}`.", param=field)


def _check_role(message: AnthropicMessage, role: str, where: str) -> None:
    if message.role != role:
        raise RequestError(f"`{where}`: a block of this type belongs to the role `{role}`.", param=where)
