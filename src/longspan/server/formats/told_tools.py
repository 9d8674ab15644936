"""Tools for models whose chat template knows none: told in the system message, in the form of Hermes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from longspan.server.formats.call_format import ToolSignature

_BEFORE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_AFTER = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML \
tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


def with_tools(messages: Sequence[dict[str, Any]], tools: Sequence[ToolSignature]) -> list[dict[str, Any]]:
    """The messages, their system message, which may be new, with the tools at its end."""
    described = "\n".join(json.dumps(tool.described(), ensure_ascii=False) for tool in tools)
    told = _BEFORE + described + _AFTER
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{told}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def without_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its calls as text, and a tool's answer as the user's word."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    texts = [message["content"]] if message["content"] else []
    for call in message["tool_calls"]:
        function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        texts.append(f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>")
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(texts)}
