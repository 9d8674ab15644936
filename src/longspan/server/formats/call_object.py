"""One call of a tool: a JSON object with a name and arguments, read while it comes."""

from __future__ import annotations

import json
import re
from typing import Any

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL
)
_LONGEST_HEAD = 1024


class CallObject:
    """Reads `{"name": …, "arguments": {…}}`, in the order of the keys as it comes.

    In the usual order the arguments are passed on as they arrive; else when the object is complete.
    name: known as soon as the call is sure. complete: the object has ended. broken: it is no call, see `raw`.
    raw: all the text so far. names: of the tools; a call of another one is broken.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self.raw = ""
        self.name: str | None = None
        self.complete = False
        self.broken = False
        self._whole = _Balance()
        self._arguments: _Balance | None = None

    def push(self, text: str) -> tuple[str, str]:
        """More of the object: what it adds to the arguments, and what comes after the object."""
        end = self._whole.end(text)
        inside, rest = (text, "") if end is None else (text[:end], text[end:])
        self.raw += inside
        self.complete = end is not None
        self.broken = self._whole.broken
        if self.broken:
            return "", rest
        return self._begin() if self.name is None else self._more(inside), rest

    def _begin(self) -> str:
        """Look whether the call is sure already; the first of its arguments."""
        head = _HEAD.match(self.raw) if len(self.raw) <= _LONGEST_HEAD or self.complete else None
        if head is not None:
            if self._known(_json_or_none(head["name"])):
                self._arguments = _Balance()
                return self._more(self.raw[head.end() :])
            return ""
        if not self.complete:
            return ""
        call = _json_or_none(self.raw)
        if not isinstance(call, dict):
            self.broken = True
            return ""
        arguments = call.get("arguments", call.get("parameters", {}))
        if not self._known(call.get("name")):
            return ""
        # Some models write the arguments as a text that holds JSON.
        return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)

    def _known(self, name: Any) -> bool:
        if isinstance(name, str) and name in self._names:
            self.name = name
            return True
        self.broken = True
        return False

    def _more(self, text: str) -> str:
        """What of the text belongs to the arguments."""
        if self._arguments is None:
            return ""
        end = self._arguments.end(text)
        if end is None:
            return text
        self._arguments = None
        return text[:end]


class _Balance:
    """Finds the end of a JSON object by its braces. broken: it does not begin with one."""

    def __init__(self) -> None:
        self.broken = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Place after the closing brace in the text, which goes on from the last one; None while it is open."""
        for place, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
            if not self._depth and not character.isspace():
                self.broken = True
                return place
        return None


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
