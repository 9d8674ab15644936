"""What schemathesis is told about bodies: that there is a model to ask for, and that a test has an end."""

from __future__ import annotations

from typing import Any

import schemathesis

MOST_TOKENS = 8
MOST_CHOICES = 3


@schemathesis.hook
def map_body(_context: schemathesis.HookContext, body: Any) -> Any:
    """A body that asks for the model that is served, for few choices and for few tokens.

    Values of another type stay as they are: refusing them is what is tested.
    """
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str):
        body["model"] = "default"
    for name, most in (
        ("n", MOST_CHOICES),
        ("max_tokens", MOST_TOKENS),
        ("max_completion_tokens", MOST_TOKENS),
        ("max_output_tokens", MOST_TOKENS),
    ):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > most:
            body[name] = most
    return body
