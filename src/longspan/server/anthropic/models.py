"""The model of /v1/models, for clients of the Anthropic API."""

from __future__ import annotations

import datetime

import msgspec

from longspan.server.contract import ServedModel


class AnthropicModel(msgspec.Struct, frozen=True):
    """created_at: RFC 3339."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    lifecycle: str = "active"
    type: str = "model"


class AnthropicModelList(msgspec.Struct, frozen=True):
    """All models on one page; there is one."""

    data: list[AnthropicModel]
    first_id: str
    last_id: str
    has_more: bool = False


def described(model: ServedModel) -> AnthropicModel:
    """The Anthropic API's view of the served model."""
    created = datetime.datetime.fromtimestamp(model.created, datetime.UTC)
    return AnthropicModel(model.id, model.id, created.isoformat().replace("+00:00", "Z"), model.context_length)
