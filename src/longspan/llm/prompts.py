"""Texts and messages to tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longspan.engine import ServedModel
from longspan.errors import UsageError
from longspan.model.prompt import with_bos

Messages = str | Sequence[Mapping[str, Any]]
"""A conversation: messages with `role` and `content`, or the text of a user's only message."""
Prompt = str | Sequence[int]
"""A text, or its token ids."""


def chat_tokens(model: ServedModel, messages: Messages) -> list[int]:
    """A conversation, through the model's chat template.

    Raises UsageError when the model has none, RequestError when it refuses the messages.
    """
    if model.chat_template is None:
        raise UsageError(f"{model.id} has no chat template; continue plain text instead.")
    given = (
        [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(one) for one in messages]
    )
    text = model.chat_template.render(given)
    return with_bos(model.tokenizer, model.tokenizer.encode(text, add_special=False, parse_special=True))


def prompt_tokens(model: ServedModel, prompt: Prompt) -> list[int]:
    """A prompt as it stands; a text begins with the model's begin token, where the model expects one."""
    if isinstance(prompt, str):
        return model.tokenizer.encode(prompt, add_special=True, parse_special=True)
    return list(prompt)
