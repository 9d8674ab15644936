"""How the answer to a chat is to be read: calls of tools and reasoning, told from other text."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal

import msgspec

from longspan.model.grammar import grammar_within, lark_grammar
from longspan.server.contract import ServedModel
from longspan.server.formats.call_format import MOST_CALLS, CallFormat, control_token
from longspan.server.formats.call_reader import CallReader
from longspan.server.formats.deltas import Content, Delta
from longspan.server.formats.thinking import BEGIN, END, Thinking, ThinkingReader, thinking_of
from longspan.server.openai.tools import ToolUse

_TAIL_TOKENS = 16
"""Tokens at the end of a prompt in which a mark of reasoning is looked for."""

_THINKING_RULES = "SPACE: /[ \\n]{1,4}/\nthinking[lazy]: "


class ChatFormat(msgspec.Struct, frozen=True):
    """calls: the form of calls; None when none can come. names: of the tools that may be called."""

    thinking: Thinking = Thinking.NONE
    calls: CallFormat | None = None
    names: frozenset[str] = frozenset()
    most_calls: int = MOST_CALLS

    def reader(self) -> AnswerReader:
        """What reads one answer."""
        return AnswerReader(
            None if self.thinking is Thinking.NONE else ThinkingReader(self.thinking),
            None if self.calls is None else self.calls.reader(self.names, self.most_calls),
        )

    def marks_are_control_tokens(self, model: ServedModel) -> bool:
        """Whether control tokens must be written out for the answer to be read."""
        marks = (() if self.calls is None else self.calls.marks) + (
            () if self.thinking is Thinking.NONE else (BEGIN, END)
        )
        return any(control_token(mark, model.tokenizer) is not None for mark in marks)

    def call_id(self) -> str:
        """A new id for a call."""
        length = 24 if self.calls is None else self.calls.id_length
        # The templates that want short ids want letters and digits only.
        return secrets.token_hex(12)[:length] if length < 24 else f"call_{secrets.token_hex(12)}"


class AnswerReader:
    """Reads one answer, piece by piece."""

    def __init__(self, thinking: ThinkingReader | None, calls: CallReader | None) -> None:
        self._thinking = thinking
        self._calls = calls

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._calls is not None and self._calls.calls > 0

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """What a piece of text turns out to be; with the last piece, all that was held back."""
        if self._thinking is None and self._calls is None:
            return [Content(text)] if text else []
        if self._thinking is None:
            deltas: list[Delta] = [Content(text)]
        else:
            deltas = self._thinking.push(text)
            if last:
                deltas += self._thinking.flush()
        if self._calls is None:
            return deltas
        found: list[Delta] = []
        for delta in deltas:
            found += self._calls.push(delta.text) if isinstance(delta, Content) else [delta]
        return found + self._calls.flush() if last else found


def chat_format(use: ToolUse, calls: CallFormat, model: ServedModel, prompt: Sequence[int]) -> ChatFormat:
    """How to read the answer to a prompt, whose end says whether the answer begins with reasoning."""
    template = model.chat_template
    tail = model.tokenizer.decode(prompt[-_TAIL_TOKENS:], special=True)
    thinking = Thinking.NONE if template is None else thinking_of(template.source, tail)
    if not use.allowed:
        return ChatFormat(thinking)
    names = frozenset(tool.name for tool in use.allowed)
    return ChatFormat(thinking, calls, names, MOST_CALLS if use.parallel else 1)


def chat_grammar(answer: str, use: ToolUse, form: ChatFormat, model: ServedModel) -> str:
    """The grammar of the whole answer, empty for none.

    answer: the grammar that the form of the answer asks for, empty for none; it is for answers that are no calls.
    Raises RequestError when the schema of a tool cannot be honoured.
    """
    if form.calls is not None and (answer or use.must_call or use.strict):

        def calls(otherwise: Literal["nothing", "text", "@form"]) -> str:
            assert form.calls is not None
            return form.calls.grammar(use.allowed, model.tokenizer, most=form.most_calls, otherwise=otherwise)

        if use.must_call:
            answer = lark_grammar(calls("nothing"))
        elif answer:
            answer = grammar_within(calls("@form"), "form", answer)
        else:
            answer = lark_grammar(calls("text"))
        model.grammars.check(answer, "tools")
    if not answer or form.thinking is Thinking.NONE:
        return answer
    begin = _pattern(BEGIN) if form.thinking is Thinking.MAY else ""
    start = "start: (thinking SPACE?)? @answer" if begin else "start: thinking SPACE? @answer"
    rules = f"{start}\n{_THINKING_RULES}/{begin}(?s:.*){_pattern(END)}/"
    return grammar_within(rules, "answer", answer)


def _pattern(mark: str) -> str:
    return mark.replace("/", "\\/")
