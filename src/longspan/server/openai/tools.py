"""The fields about tools: what may be called, and whether it must be."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.server.formats.call_format import ToolSignature

MAX_TOOLS = 128


class FunctionDefinition(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A function that may be called. parameters: a JSON schema of an object. strict: all arguments follow it."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A tool; functions are the only kind."""

    function: FunctionDefinition
    type: Literal["function"]


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The name in a `tool_choice`."""

    name: str


class NamedTool(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A `tool_choice` that names the function to call."""

    function: NamedFunction
    type: Literal["function"]


Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


class ToolUse(msgspec.Struct, frozen=True):
    """What a request wants of tools. offered: what the model is told of; empty for an answer without calls.

    allowed: what it may call. must_call: the answer is calls and nothing else. strict: arguments follow their
    schemas whatever the model says. parallel: more than one call may come.
    """

    offered: tuple[ToolSignature, ...] = ()
    allowed: tuple[ToolSignature, ...] = ()
    must_call: bool = False
    strict: bool = False
    parallel: bool = True


def tool_use(tools: list[Tool] | None, choice: ToolChoice | None, parallel: bool | None) -> ToolUse:
    """What the fields `tools`, `tool_choice` and `parallel_tool_calls` ask for. Raises RequestError."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError("`tool_choice` asks for a call, but there are no `tools`.", param="tool_choice")
        return ToolUse()
    offered = tuple(_signature(tool, f"tools[{index}].function") for index, tool in enumerate(tools))
    names = [tool.name for tool in offered]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise RequestError(f"`tools` holds the function `{twice}` twice.", param="tools")
    if choice == "none":
        return ToolUse()
    allowed = offered
    if isinstance(choice, NamedTool):
        allowed = tuple(tool for tool in offered if tool.name == choice.function.name)
        if not allowed:
            raise RequestError(
                f"`tool_choice` names the function `{choice.function.name}`, which is not among the `tools`.",
                param="tool_choice",
            )
    named = isinstance(choice, NamedTool)
    return ToolUse(
        offered,
        allowed,
        must_call=named or choice == "required",
        strict=any(tool.function.strict for tool in tools),
        parallel=parallel is not False and not named,
    )


def _signature(tool: Tool, where: str) -> ToolSignature:
    function = tool.function
    parameters = function.parameters if function.parameters is not None else {"type": "object", "properties": {}}
    if parameters.get("type", "object") != "object":
        raise RequestError(f"`{where}.parameters` must be the schema of an object.", param=f"{where}.parameters")
    return ToolSignature(function.name, parameters, function.description)
