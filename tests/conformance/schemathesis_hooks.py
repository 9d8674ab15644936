"""What schemathesis is told about bodies: that there is a model to ask for, and that a test has an end."""

from __future__ import annotations

from typing import Any

import schemathesis

MOST_TOKENS = 8
MOST_CHOICES = 3
LIMITS = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens"}
"""Of endpoints whose answers fill the context unless told otherwise: the field that tells."""


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
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
    limit = LIMITS.get(context.operation.path) if context.operation is not None else None
    if limit is not None and body.get(limit) is None and body.get("max_completion_tokens") is None:
        body[limit] = MOST_TOKENS
    return body
