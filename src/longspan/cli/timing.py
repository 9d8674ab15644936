"""The figures of a finished request, for programs and for people."""

from __future__ import annotations

from typing import Any

import msgspec

from longspan.request import Timings


def timings_object(timings: Timings | None) -> dict[str, Any] | None:
    """All figures as a JSON object, with the rate."""
    if timings is None:
        return None
    return {**msgspec.to_builtins(timings), "tokens_per_second": timings.tokens_per_second}


def timings_line(timings: Timings) -> str:
    """The figures in one line."""
    cached = f" ({timings.cached_tokens} cached)" if timings.cached_tokens else ""
    return (
        f"{timings.generated_tokens} tokens, {timings.tokens_per_second:.1f} tokens/s, "
        f"first after {timings.time_to_first_token_seconds:.2f} s, prompt {timings.prompt_tokens}{cached}"
    )
