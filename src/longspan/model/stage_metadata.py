"""The metadata of a stage: what llama.cpp reads from a layer's number, written down for the layers [start, end)."""

from __future__ import annotations

from collections.abc import Mapping

from longspan.errors import ArchitectureError
from longspan.model import metadata as values
from longspan.model.architecture import AllFull, Architecture, EmbeddingScale
from longspan.model.metadata import MetadataValue, ValueType

_DROPPED = ("tokenizer.", "split.", "general.languages", "general.tags", "general.description")
_WINDOW = "attention.sliding_window"
_PATTERN = "attention.sliding_window_pattern"
_PER_LAYER = (
    "attention.head_count",
    "attention.head_count_kv",
    "expert_feed_forward_length",
    "feed_forward_length",
    _PATTERN,
)
"""Arrays with one element a layer."""
_FIXED = ("rope.dimension_sections",)
"""Arrays whose length has nothing to do with the layers."""
_PAST_EVERY_CONTEXT = 1 << 30


class LayerMetadata:
    """The metadata of a model of a known architecture, as splitting needs it.

    layers: those that generate. mtp_layers: how many follow them that draft (`nextn_predict_layers`); no stage
    holds these, see `model.nextn`.
    """

    def __init__(self, architecture: Architecture, metadata: Mapping[str, MetadataValue], blocks: int) -> None:
        """blocks: `ARCH.block_count`, draft layers included.

        Raises ArchitectureError when the metadata holds something that splitting would change silently.
        """
        self._architecture = architecture
        self._metadata = metadata
        self.mtp_layers = self._integer("nextn_predict_layers") or 0
        self.layers = blocks - self.mtp_layers
        if self.layers < 1:
            raise ArchitectureError(
                f"the model has {self.mtp_layers} draft layers among {blocks}, so none that generates."
            )
        self._demand(architecture.required)
        for key, value in metadata.items():
            known = (*map(self._key, _PER_LAYER), *map(self._key, _FIXED))
            if value.is_array and key.startswith(f"{architecture.name}.") and key not in known:
                raise ArchitectureError(
                    f"the model has the array {key}, of which Longspan does not know whether it goes by layer."
                )
            if key in map(self._key, _PER_LAYER) and value.is_array and value.count not in (blocks, self.layers):
                raise ArchitectureError(f"the array {key} has {value.count} elements, the model {blocks} layers.")

    def _demand(self, keys: tuple[str, ...]) -> None:
        missing = [key for key in map(self._key, keys) if key not in self._metadata]
        if missing:
            raise ArchitectureError(
                f"the model lacks the metadata {', '.join(missing)}; llama.cpp would guess from the layer count, "
                "which a stage changes. Convert the model again with a current llama.cpp."
            )

    def _key(self, name: str) -> str:
        return f"{self._architecture.name}.{name}"

    def _integer(self, name: str) -> int | None:
        found = self._metadata.get(self._key(name))
        value = None if found is None or found.is_array else found.decode()
        return value if isinstance(value, int) else None

    @property
    def activation_dtypes(self) -> tuple[str, ...]:
        """What activations may travel as, the default first.

        Experts are chosen by comparing close numbers, so their models get no rounded activations.
        """
        return ("float32",) if self._integer("expert_count") else ("float32", "float16")

    def sliding_layers(self) -> list[bool] | None:
        """For each layer whether it sees a window only; None when the model has no windows."""
        window = self._architecture.window
        if window is None or (window.optional and not self._integer(_WINDOW)):
            return None
        pattern = self._metadata.get(self._key(_PATTERN))
        if pattern is not None and pattern.is_array:
            decoded = pattern.decode()
            assert isinstance(decoded, list)
            return [bool(value) for value in decoded[: self.layers]]
        period = self._integer(_PATTERN)
        period = window.period if period is None else period
        return [period == 0 or layer % period < period - 1 for layer in range(self.layers)]

    def check_range(self, start: int, end: int) -> None:
        """Raise ArchitectureError, saying where to cut instead, when [start, end) would not compute the same."""
        known = self._architecture
        if (start, end) == (0, self.layers):
            return
        if start % known.cut_multiple:
            raise ArchitectureError(
                f"{known.name} models can be cut at every {known.cut_multiple}th layer only, because llama.cpp "
                f"treats layers by their number. Start this stage at {start - start % known.cut_multiple} or "
                f"{start - start % known.cut_multiple + known.cut_multiple} instead of {start}."
            )
        if self.layers in known.telling_counts:
            raise ArchitectureError(
                f"{known.name} models of {self.layers} layers cannot be split: llama.cpp reads the variant of the "
                "model from that count, which a stage changes. Run it with one stage."
            )
        if end - start in known.telling_counts:
            raise ArchitectureError(
                f"a stage of {end - start} layers is not possible with {known.name}: llama.cpp would take it for "
                "another variant of the model. Give this stage one layer more or less."
            )
        sliding = self.sliding_layers()
        refused = known.window is not None and known.window.all_full is AllFull.REFUSED
        if refused and sliding is not None and not any(sliding[start:end]):
            raise ArchitectureError(
                f"the layers {start}-{end} all see the whole context; a stage of {known.name} needs at least one "
                "layer with a window. Move the cut by one layer."
            )

    def of_stage(self, start: int, end: int, vocabulary: int) -> dict[str, MetadataValue]:
        """The metadata of the stage [start, end) with a vocabulary of `vocabulary` unnamed tokens.

        Raises ArchitectureError as `check_range` does.
        """
        self.check_range(start, end)
        return self._of_blocks(start, end, vocabulary)

    def of_mtp_layer(self, vocabulary: int) -> dict[str, MetadataValue]:
        """The metadata of the first MTP layer as a model of its own, with `vocabulary` unnamed tokens.

        Raises ArchitectureError when something that it needs is not in the model's metadata.
        """
        self._demand(self._architecture.mtp_required)
        short = [key for key in map(self._key, _PER_LAYER) if self._ends_early(key)]
        if short:
            raise ArchitectureError(f"the array {short[0]} has no element for the MTP layer.")
        return self._of_blocks(self.layers, self.layers + 1, vocabulary)

    def _ends_early(self, key: str) -> bool:
        value = self._metadata.get(key)
        return value is not None and value.count is not None and value.count <= self.layers

    def _of_blocks(self, start: int, end: int, vocabulary: int) -> dict[str, MetadataValue]:
        kept = {key: value for key, value in self._metadata.items() if not key.startswith(_DROPPED)}
        for name in _PER_LAYER:
            value = kept.get(self._key(name))
            if value is not None and value.is_array:
                kept[self._key(name)] = value.slice(start, end)
        kept.update(self._window_metadata(start, end))
        if self._architecture.embedding_scale is EmbeddingScale.METADATA:
            # llama.cpp would scale activations too; the coordinator does it, once.
            kept[self._key("embedding_scale")] = values.scalar(ValueType.FLOAT32, 1.0)
        dense = self._integer("leading_dense_block_count")
        if dense is not None:
            kept[self._key("leading_dense_block_count")] = values.uint32(min(max(dense - start, 0), end - start))
        kept.pop(self._key("nextn_predict_layers"), None)
        kept[self._key("block_count")] = values.uint32(end - start)
        kept[self._key("vocab_size")] = values.uint32(vocabulary)
        kept["tokenizer.ggml.model"] = values.text("no_vocab")
        return kept

    def _window_metadata(self, start: int, end: int) -> dict[str, MetadataValue]:
        sliding = self.sliding_layers()
        window = self._architecture.window
        if sliding is None or window is None:
            return {}
        pattern = sliding[start:end]
        if any(pattern):
            return {self._key(_PATTERN): values.array(ValueType.BOOL, pattern)}
        width = _PAST_EVERY_CONTEXT if window.all_full is AllFull.WIDEN else 0
        return {
            self._key(_WINDOW): values.uint32(width),
            self._key(_PATTERN): values.array(ValueType.BOOL, [True] * len(pattern)),
        }
