"""A model as placing sees it."""

from __future__ import annotations

from longspan.model.source import ModelSource
from longspan.model.weights import weigh
from longspan.placement.model_shape import ModelShape


def shape_of(source: ModelSource) -> ModelShape:
    """The sizes of a model and where it can be cut; reads headers only, and the whole file once for its digest."""
    weights, known = weigh(source), source.description
    return ModelShape(
        model_id=known.model_id,
        digest=source.digest,
        layer_bytes=weights.layers,
        shared_bytes=weights.shared,
        head_bytes=weights.head,
        position_bytes=weights.positions,
        width=known.width,
        vocabulary=known.vocabulary,
        refused=weights.refused,
    )
