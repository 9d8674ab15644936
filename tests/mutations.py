"""Documents that were damaged, or were made by somebody who wishes us no good."""

from __future__ import annotations

import json
import random
from typing import Any

_STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 63, (1 << 64) - 1, 1 << 64, 1e308, -0.5),
    *("", "a", "..", "../../x", "/etc/passwd", "layers/../../x", "\x00", "ab" * 32, "x" * 5000, "\ud800", "0-1"),
    *([], {}, [[]], [None], {"": {}}, [0] * 300),
)


def mutated(draw: random.Random, document: bytes) -> bytes:
    """A document made from a good one: fields changed, moved, doubled, or bytes changed."""
    if draw.random() < 0.35:
        return _changed_bytes(draw, bytearray(document))
    value = json.loads(document)
    for _ in range(draw.randint(1, 3)):
        value = _changed(draw, value)
    return json.dumps(value).encode()


def _changed_bytes(draw: random.Random, data: bytearray) -> bytes:
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(data) + 1)
        kind = draw.randrange(5)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[place : place + draw.randint(1, 40)] = b""
        elif kind == 2:
            data[place:place] = draw.randbytes(draw.randint(1, 8))
        elif kind == 3:
            data[place:place] = draw.choice((b"[" * 3000, b'{"a":' * 3000, b"9" * 400, b'"', b"\\u0000", b"\xff"))
        else:
            data = data[:place]
    return bytes(data)


def _changed(draw: random.Random, value: Any) -> Any:
    """One change somewhere inside the value."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        kind = draw.randrange(8)
        if kind == 0:
            return {name: inner for name, inner in value.items() if name != key}
        if kind == 1:
            return {**value, draw.choice(("extra", key + "x", "")): draw.choice(_STRANGE)}
        return {**value, key: _changed(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        kind = draw.randrange(6)
        if kind == 0:
            return value[:place] + value[place + 1 :]
        if kind == 1:
            return [*value, value[place]]
        if kind == 2:
            return [value[place], *value[:place], *value[place + 1 :]]
        return [*value[:place], _changed(draw, value[place]), *value[place + 1 :]]
    if isinstance(value, int) and draw.random() < 0.5:
        return value + draw.choice((-1, 1, 10))
    return draw.choice(_STRANGE)
