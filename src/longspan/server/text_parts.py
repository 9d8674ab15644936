"""Parts of a message's content, of which the model reads texts only: what all APIs refuse in the same words."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from longspan.errors import RequestError


class TextPart(Protocol):
    """A part as a client sends it."""

    @property
    def type(self) -> str: ...

    @property
    def text(self) -> str | None: ...


def read_text(part: TextPart, where: str, kinds: Container[str]) -> str:
    """The text of a part. kinds: types of parts that are texts. where: what errors call the part.

    Raises RequestError for a part of another type, or one without its text.
    """
    if part.type not in kinds:
        raise unreadable(part.type, f"{where}.type")
    if part.text is None:
        raise missing(f"{where}.text")
    return part.text


def unreadable(kind: str, field: str) -> RequestError:
    """The error for content that the model cannot read. field: the one that names its type."""
    return RequestError(
        f"`{field}`: content of type `{kind}` is not supported: the model reads text only.",
        param=field,
        code="unsupported_content",
    )


def missing(field: str) -> RequestError:
    """The error for a field that must be there."""
    return RequestError(f"`{field}` is required.", param=field, code="missing_required_parameter")
