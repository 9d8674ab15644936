"""How a model writes calls of tools: what it is told, what it may say, and how that is read."""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from longspan.model.grammar import lark_text
from longspan.model.tokenizer import Tokenizer
from longspan.server.formats.call_reader import BareCalls, CallReader, ListedCalls, MarkedCalls

MOST_CALLS = 16
"""Calls of one answer that a grammar allows: a weak model would go on with the same call for ever."""


class ToolSignature(msgspec.Struct, frozen=True):
    """A tool that may be called. parameters: the JSON schema of its arguments, an object."""

    name: str
    parameters: dict[str, Any]
    description: str | None = None

    def described(self) -> dict[str, Any]:
        """What a chat template gets."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": self.parameters}}


class CallFormat(abc.ABC):
    """One family of templates.

    id_length: characters of a call's id; some templates insist on theirs. arguments_key: what comes after the name.
    marks: what must be in the text for a call to be found.
    """

    id_length = 24

    arguments_key = "arguments"
    marks: tuple[str, ...] = ()

    @abc.abstractmethod
    def reader(self, names: frozenset[str], most: int) -> CallReader:
        """What reads one answer."""

    @abc.abstractmethod
    def calls(self, tokenizer: Tokenizer, most: int) -> str:
        """Lark's right-hand side for one call to `most` of them; `call` stands for an object."""

    @abc.abstractmethod
    def free(self, tokenizer: Tokenizer, most: int) -> str:
        """Lark's rules for `start`: text without a call, or text and then calls; `call` stands for an object."""

    def grammar(
        self,
        tools: Sequence[ToolSignature],
        tokenizer: Tokenizer,
        *,
        most: int,
        otherwise: Literal["nothing", "text", "@form"],
    ) -> str:
        """The Lark grammar of answers whose calls have valid arguments.

        most: calls. otherwise: what the answer may be instead of calls; before calls there may be text only if text
        may also come instead of them.
        """
        calls = self.calls(tokenizer, most)
        start = {"nothing": f"start: {calls}", "@form": f"start: {calls} | @form"}.get(otherwise)
        start = start or self.free(tokenizer, most)
        rules = [start, "call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
        for index, tool in enumerate(tools):
            head = f'{{"name": {json.dumps(tool.name)}, "{self.arguments_key}": '
            rules.append(f'call_{index}: {lark_text(head)} arguments_{index} "}}"')
            rules.append(f"arguments_{index}: %json {json.dumps(_object_schema(tool.parameters))}")
        return "\n".join(rules) + "\n"


class HermesCalls(CallFormat):
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen, and models that know no tools at all."""

    marks = ("<tool_call>", "</tool_call>")

    def reader(self, names: frozenset[str], most: int) -> CallReader:
        return MarkedCalls(names, most, "<tool_call>", "</tool_call>")

    def calls(self, tokenizer: Tokenizer, most: int) -> str:
        begin = mark("<tool_call>", tokenizer)
        one = f'{begin} "\\n" call "\\n" {mark("</tool_call>", tokenizer)}'
        return one + (f' ("\\n" {one}){{0,{most - 1}}}' if most > 1 else "")

    def free(self, tokenizer: Tokenizer, most: int) -> str:
        end = mark("</tool_call>", tokenizer)
        first = f'before "\\n" call "\\n" {end}'
        more = (
            f' ("\\n" {mark("<tool_call>", tokenizer)} "\\n" call "\\n" {end}){{0,{most - 1}}}' if most > 1 else ""
        )
        return f"start: PLAIN | {first}{more}\n{_parted('<tool_call>')}"


class MistralCalls(CallFormat):
    """`[TOOL_CALLS] [{"name": …, "arguments": …}, …]`."""

    id_length = 9
    marks = ("[TOOL_CALLS]",)

    def reader(self, names: frozenset[str], most: int) -> CallReader:
        return ListedCalls(names, most, "[TOOL_CALLS]")

    def calls(self, tokenizer: Tokenizer, most: int) -> str:
        return f"{mark('[TOOL_CALLS]', tokenizer)} {self._list(most)}"

    def free(self, tokenizer: Tokenizer, most: int) -> str:
        begin = mark("[TOOL_CALLS]", tokenizer)
        if begin.startswith("<["):
            # A control token is no text, so text of any kind cannot hold it.
            return f"start: TEXT? | TEXT? {begin} {self._list(most)}\nTEXT: /(?s:.+)/"
        return f"start: PLAIN | before {self._list(most)}\n{_parted('[TOOL_CALLS]')}"

    def _list(self, most: int) -> str:
        return '" "? "[" call ' + (f'(", " call){{0,{most - 1}}} ' if most > 1 else "") + '"]"'


class LlamaCalls(CallFormat):
    """`{"name": …, "parameters": …}`, and nothing else in the answer: Llama 3."""

    arguments_key = "parameters"

    def reader(self, names: frozenset[str], most: int) -> CallReader:
        return BareCalls(names, most, "<|python_tag|>")

    def calls(self, tokenizer: Tokenizer, most: int) -> str:
        return "call" + (f' ("; " call){{0,{most - 1}}}' if most > 1 else "")

    def free(self, tokenizer: Tokenizer, most: int) -> str:
        return f"start: TEXT | {self.calls(tokenizer, most)}\nTEXT: /([^{{](?s:.*))?/"


def call_format(template: str) -> tuple[CallFormat, bool]:
    """How a model with this chat template writes calls, and whether the template tells it of tools by itself.

    Of a template whose form is not known here the part about tools is left unused; such a model, as one without
    such a part, is told of its tools in the form of Hermes.
    """
    if "tools" in template:
        if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
            return MistralCalls(), True
        if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
            return HermesCalls(), True
        if "<|start_header_id|>" in template and '"parameters"' in template:
            return LlamaCalls(), True
    return HermesCalls(), False


def mark(text: str, tokenizer: Tokenizer) -> str:
    """A mark as a Lark symbol: its token where it is a control token, which no text can stand for."""
    token = control_token(text, tokenizer)
    return lark_text(text) if token is None else f"<[{token}]>"


def control_token(text: str, tokenizer: Tokenizer) -> int | None:
    """The control token of this name, which is no part of an answer's text unless it is asked for."""
    tokens = tokenizer.encode(text, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 and not tokenizer.visible_piece(tokens[0]) else None


def _parted(begin: str) -> str:
    """Text that ends with the mark, and text without it."""
    escaped = "".join(f"\\{character}" if character in "[]/|" else character for character in begin)
    return f"before[lazy]: /(?s:.*){escaped}/\nPLAIN: /(?s:.*)/ & ~/(?s:.*){escaped}(?s:.*)/"


def _object_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        **parameters,
        "type": "object",
        "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    }
