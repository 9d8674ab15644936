"""The models of /v1/models."""

from __future__ import annotations

import msgspec

from longspan.server.contract import ServedModel


class Model(msgspec.Struct, frozen=True):
    """root: what the model was loaded from. max_model_len: most tokens of prompt and answer together."""

    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "longspan"
    parent: None = None


class ModelList(msgspec.Struct, frozen=True):
    """All models; there is one."""

    data: list[Model]
    object: str = "list"


def described(model: ServedModel) -> Model:
    """The API's view of the served model."""
    return Model(model.id, model.created, model.root, model.context_length)
