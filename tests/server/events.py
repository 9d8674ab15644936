"""Server-sent events, taken apart."""

from __future__ import annotations

import json
from typing import Any


def named_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of every event; comments and `[DONE]` are left out."""
    found = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":") or block == "data: [DONE]":
            continue
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found
