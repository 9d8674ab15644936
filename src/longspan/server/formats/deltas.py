"""What a piece of an answer's text turns out to be."""

from __future__ import annotations

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the person."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text that the model thinks in, between the template's marks."""

    text: str


class CallBegins(msgspec.Struct, frozen=True):
    """A call of a tool, number `index` of the answer; its arguments follow."""

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Delta = Content | Reasoning | CallBegins | CallArguments
CallDelta = CallBegins | CallArguments
