"""The part of an answer that a model thinks in."""

from __future__ import annotations

import enum

from longspan.server.formats.call_reader import held_back
from longspan.server.formats.deltas import Content, Delta, Reasoning

BEGIN, END = "<think>", "</think>"


class Thinking(enum.Enum):
    """What a prompt says of the answer's beginning.

    NONE: the model does not think, or not here. MAY: the answer may begin with the mark. OPEN: the prompt ended
    with the mark, so the answer begins inside.
    """

    NONE = "none"
    MAY = "may"
    OPEN = "open"


def thinking_of(template: str, prompt: str) -> Thinking:
    """How an answer begins. template: source of the chat template. prompt: what it rendered."""
    if END not in template and BEGIN not in template:
        return Thinking.NONE
    end = prompt.rstrip()
    if end.endswith(BEGIN):
        return Thinking.OPEN
    return Thinking.NONE if end.endswith(END) else Thinking.MAY


class ThinkingReader:
    """Parts an answer into reasoning and what comes after it, while it comes."""

    def __init__(self, thinking: Thinking) -> None:
        self._inside = thinking is Thinking.OPEN
        self._before = thinking is Thinking.MAY
        self._trim = self._inside
        self._held = ""

    def push(self, text: str) -> list[Delta]:
        """More text; what is sure by now."""
        self._held += text
        if self._before and not self._look_for_begin():
            return []
        if self._inside:
            return self._think()
        return self._say()

    def flush(self) -> list[Delta]:
        """The end of the answer; what was held back."""
        held, self._held = self._held, ""
        if self._inside:
            held = held.rstrip()
            return [Reasoning(held)] if held else []
        return [Content(held)] if held else []

    def _look_for_begin(self) -> bool:
        """Whether it is known if the answer begins with the mark."""
        held = self._held.lstrip()
        if held.startswith(BEGIN):
            self._held = held[len(BEGIN) :]
            self._inside = self._trim = True
        elif BEGIN.startswith(held):
            return False
        self._before = False
        return True

    def _think(self) -> list[Delta]:
        deltas: list[Delta] = []
        self._drop_blanks()
        thought, mark, after = self._held.partition(END)
        if mark:
            if thought.strip():
                deltas.append(Reasoning(thought.rstrip()))
            self._held = after
            self._inside, self._trim = False, True
            return deltas + self._say()
        sure = self._held[: len(self._held) - held_back(self._held, END)].rstrip()
        self._held = self._held[len(sure) :]
        return [Reasoning(sure)] if sure else []

    def _say(self) -> list[Delta]:
        self._drop_blanks()
        held, self._held = self._held, ""
        return [Content(held)] if held else []

    def _drop_blanks(self) -> None:
        """Blanks at the beginning of a part belong to the marks."""
        if self._trim:
            self._held = self._held.lstrip()
            self._trim = not self._held
