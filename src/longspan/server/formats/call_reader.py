"""Calls of tools in an answer's text, read while it comes."""

from __future__ import annotations

import abc

from longspan.server.formats.call_object import CallObject
from longspan.server.formats.deltas import CallArguments, CallBegins, Content, Delta


class CallReader(abc.ABC):
    """Tells calls from other text.

    What looked like a call and is none is content; only blanks around calls and their marks are left out.
    names: of the tools that may be called. most: calls of one answer; further ones are dropped.
    calls: how many have begun.
    """

    def __init__(self, names: frozenset[str], most: int) -> None:
        self._names = names
        self._most = most
        self._held = ""
        self._object: CallObject | None = None
        self._opening = ""
        self._after = False
        self.calls = 0

    def push(self, text: str) -> list[Delta]:
        """More text; what is sure by now."""
        self._held += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def flush(self) -> list[Delta]:
        """The end of the answer; what was held back."""
        held, self._held = self._held, ""
        if self._object is not None:
            held = "" if self._object.name is not None else self._opening + self._object.raw
        elif self._after or (self.calls and not held.strip()):
            held = ""
        return [Content(held)] if held else []

    def _step(self, deltas: list[Delta]) -> bool:
        """Take what is sure from the front of `_held`; whether there may be more."""
        if self._object is not None:
            return self._read_call(deltas)
        return self._between() if self._after else self._text(deltas)

    @abc.abstractmethod
    def _text(self, deltas: list[Delta]) -> bool:
        """A step outside of calls."""

    @abc.abstractmethod
    def _between(self) -> bool:
        """A step behind a call's object, which clears `_after` when it knows how things go on."""

    def _begin_call(self, opening: str) -> bool:
        """A call's object is expected now. opening: the text that announced it."""
        self._object = CallObject(self._names)
        self._opening = opening
        self._after = False
        return True

    def _read_call(self, deltas: list[Delta]) -> bool:
        """Feed the call's object."""
        call = self._object
        assert call is not None
        sure = call.name is not None
        arguments, self._held = call.push(self._held)
        if call.broken:
            deltas.append(Content(self._opening + call.raw))
            self._object = None
            return True
        if call.name is not None and not sure:
            self.calls += 1
            if self.calls <= self._most:
                deltas.append(CallBegins(self.calls - 1, call.name))
        if arguments and self.calls <= self._most:
            deltas.append(CallArguments(self.calls - 1, arguments))
        if call.complete:
            self._object = None
            self._after = True
        return call.complete


class MarkedCalls(CallReader):
    """Calls between a mark and its end: `<tool_call>{…}</tool_call>`, again for each call."""

    def __init__(self, names: frozenset[str], most: int, begin: str, end: str) -> None:
        super().__init__(names, most)
        self._begin = begin
        self._end = end

    def _text(self, deltas: list[Delta]) -> bool:
        before, mark, after = self._held.partition(self._begin)
        if mark:
            _add(deltas, before.rstrip())
            self._held = after
            return self._begin_call(self._begin)
        sure = self._held[: len(self._held) - held_back(self._held, self._begin)].rstrip()
        self._held = self._held[len(sure) :]
        _add(deltas, sure)
        return False

    def _between(self) -> bool:
        held = self._held.lstrip()
        if held.startswith(self._end):
            self._held = held[len(self._end) :]
        elif self._end.startswith(held):
            return False
        self._after = False
        return True


class ListedCalls(MarkedCalls):
    """Calls in a list behind a mark: `[TOOL_CALLS] [{…}, {…}]`."""

    def __init__(self, names: frozenset[str], most: int, begin: str) -> None:
        super().__init__(names, most, begin, "]")
        self._opened = False

    def _begin_call(self, opening: str) -> bool:
        self._opened = opening != self._begin
        return super()._begin_call(opening)

    def _read_call(self, deltas: list[Delta]) -> bool:
        if not self._opened:
            # The bracket belongs to the list, not to the call.
            held = self._held.lstrip()
            if not held:
                return False
            self._opened = True
            if held[0] == "[":
                self._held = held[1:]
                self._opening += "["
        return super()._read_call(deltas)

    def _between(self) -> bool:
        held = self._held.lstrip()
        if not held.startswith(","):
            return super()._between()
        self._held = held[1:]
        return self._begin_call(",")


class BareCalls(CallReader):
    """An answer that is nothing but calls: `{…}; {…}`, behind a mark that may be missing."""

    def __init__(self, names: frozenset[str], most: int, mark: str) -> None:
        super().__init__(names, most)
        self._mark = mark
        self._plain = False

    def _text(self, deltas: list[Delta]) -> bool:
        if not self._plain:
            held = self._held.lstrip()
            if held.startswith(self._mark):
                self._held = held[len(self._mark) :]
                return self._begin_call(self._mark)
            if held.startswith("{"):
                self._plain = True
                return self._begin_call("")
            if self._mark.startswith(held):
                return False
            self._plain = True
        _add(deltas, self._held)
        self._held = ""
        return False

    def _between(self) -> bool:
        held = self._held.lstrip()
        if not held:
            return False
        if held[0] == ";":
            self._held = held[1:]
            return self._begin_call(";")
        self._after, self._plain = False, True
        return True


def _add(deltas: list[Delta], text: str) -> None:
    if text:
        deltas.append(Content(text))


def held_back(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of the mark."""
    return next(
        (length for length in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:length])), 0
    )
