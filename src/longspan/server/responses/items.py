"""Input items of the Responses API, and what they are as chat messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.server.openai.messages import MAX_MESSAGES, MAX_PARTS
from longspan.server.text_parts import missing, read_text

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


class ItemPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of an item's content; only texts are understood.

    annotations and logprobs of earlier answers may stay.
    """

    type: str
    text: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    refusal: str | None = None
    image_url: Any = None
    detail: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    input_audio: Any = None


Parts = str | Annotated[list[ItemPart], Meta(max_length=MAX_PARTS)]


class Item(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A message, a call of a function, what a function gave back, or what the model thought.

    id and status of earlier answers may stay; they change nothing.
    """

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Parts | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Parts | None = None
    summary: Annotated[list[ItemPart], Meta(max_length=MAX_PARTS)] | None = None
    encrypted_content: str | None = None


Items = Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)]


def chat_messages(items: list[Item]) -> list[dict[str, Any]]:
    """The items as messages of /v1/chat/completions.

    Thoughts and calls join the assistant's message that they belong to. Raises RequestError that names an item
    which the model cannot read.
    """
    messages: list[dict[str, Any]] = []
    thoughts = ""
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if item.type == "reasoning":
            thoughts = _text(item.content or item.summary or "", f"{where}.content")
        elif item.type == "function_call_output":
            output = _text(_required(item, "output", where), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": _required(item, "call_id", where), "content": output})
        elif item.type == "function_call":
            call = {
                "id": _required(item, "call_id", where),
                "type": "function",
                "function": {
                    "name": _required(item, "name", where),
                    "arguments": _required(item, "arguments", where),
                },
            }
            if not messages or messages[-1]["role"] != "assistant" or thoughts:
                messages.append(_with_thoughts({"role": "assistant", "content": None}, thoughts))
                thoughts = ""
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "message":
            text = _text(_required(item, "content", where), f"{where}.content")
            message = {"role": _required(item, "role", where), "content": text}
            if message["role"] == "assistant":
                message, thoughts = _with_thoughts(message, thoughts), ""
            messages.append(message)
        else:
            raise RequestError(
                f"Items of type `{item.type}` are not supported.",
                param=f"{where}.type",
                code="unsupported_content",
            )
    if not messages:
        raise RequestError("`input` holds no message.", param="input")
    return messages


def _with_thoughts(message: dict[str, Any], thoughts: str) -> dict[str, Any]:
    return {**message, "reasoning_content": thoughts} if thoughts else message


def _required(item: Item, name: str, where: str) -> Any:
    value = getattr(item, name)
    if value is None:
        raise missing(f"{where}.{name}")
    return value


def _text(parts: Parts | list[ItemPart], where: str) -> str:
    if isinstance(parts, str):
        return parts
    texts: list[str] = []
    for index, part in enumerate(parts):
        place = f"{where}[{index}]"
        if part.type == "refusal" and part.refusal is not None:
            texts.append(part.refusal)
        else:
            texts.append(read_text(part, place, _TEXT_PARTS))
    return "\n".join(texts)
