"""A model's own chat template, rendered as Hugging Face renders it, in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.runtime
import jinja2.sandbox

from longspan.errors import ModelError, RequestError

MAX_RENDERED_CHARACTERS = 1 << 25
"""Longest text that a template may render to."""

_LARGEST_POWER = 1_000
"""Largest base and exponent of a power."""


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox whose products and powers stay small: a template comes with the model and may mean harm."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left * right` or `left ** right`. Raises SecurityError when the result would be huge."""
        numbers = [value for value in (left, right) if isinstance(value, int)]
        texts = [value for value in (left, right) if isinstance(value, str | bytes | list | tuple)]
        largest = max(map(abs, numbers), default=0)
        if operator == "**" and (largest > _LARGEST_POWER or texts):
            raise jinja2.exceptions.SecurityError("the template computes a power that is too large")
        if operator == "*" and texts and len(texts[0]) * largest > MAX_RENDERED_CHARACTERS:
            raise jinja2.exceptions.SecurityError("the template repeats a text too often")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """Turns messages into the text that the model was trained on.

    source: the Jinja text. Raises ModelError when it is not valid Jinja.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template is not valid: {error}") from None
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt's text, special tokens written out.

        variables: whatever else the template reads. Raises RequestError, naming `messages`, with the template's own
        words when it refuses them.
        """
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **{**self._tokens, **variables},
            ):
                length += len(part)
                if length > MAX_RENDERED_CHARACTERS:
                    raise RequestError(
                        f"the messages render to more than {MAX_RENDERED_CHARACTERS} characters; send fewer.",
                        param="messages",
                    )
                parts.append(part)
        except (jinja2.TemplateError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}. Check the roles and their order.",
                param="messages",
            ) from None
        return "".join(parts)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
