"""Layers of the architecture `llama` in plain numpy float32, one row at a time.

Every row is computed by the same calls on the same shapes whatever else is in its batch: a matrix times one vector,
and attention over the row's own context, gathered in order into a fresh array. So a result cannot depend on the
batch, on where a sequence's cells lie, or on branches beside the row's own: it is equal to the bit by construction.
The price is speed; this is for tiny models and for checking others.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from longspan.errors import ModelError
from longspan.model.gguf_file import GgufFile, Tensor, read_gguf

Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]
Cache = npt.NDArray[np.float32]
"""Keys or values of one slot, shape (layers, key-value heads, cells, head width)."""

ARCHITECTURE = "llama"
_LAYER_TENSORS = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)


class ReferenceModel:
    """The layers of a stage file, or of a whole GGUF.

    layers, width, heads, key_value_heads, head_width: the geometry. vocabulary: rows of the output matrix; 0 when
    the file is of a stage that is not the last.
    """

    def __init__(self, path: Path, positions: int) -> None:
        """Load and dequantise. positions: how many positions the rotary tables must cover.

        Raises ModelError when the file is damaged, of another architecture, or has tensors or a RoPE scaling that
        this arithmetic does not know.
        """
        file = read_gguf(path)
        if file.architecture != ARCHITECTURE:
            raise ModelError(f"{path}: the reference runtime runs {ARCHITECTURE!r}, not {file.architecture!r}.")
        self.layers = file.integer("llama.block_count")
        self.width = file.integer("llama.embedding_length")
        self.heads = file.integer("llama.attention.head_count")
        self.key_value_heads = file.integer("llama.attention.head_count_kv", self.heads)
        self.head_width = file.integer("llama.attention.key_length", self.width // self.heads)
        self._epsilon = np.float32(file.number("llama.attention.layer_norm_rms_epsilon") or 1e-5)
        self._scale = np.float32(file.number("llama.attention.scale") or self.head_width**-0.5)
        self._weights = _load(file, self.layers)
        self._rotary = _rotary_tables(file, self.head_width, positions, self._weights.pop("rope_freqs", None))
        self._output = self._weights.get("output", self._weights["token_embd"])
        # A stage that is not the last carries a one-row dummy in place of the vocabulary.
        self.vocabulary = len(self._output) if len(self._output) > 1 else 0

    def run_row(
        self, activations: Vector, position: int, cells: npt.NDArray[np.intp], keys: Cache, values: Cache
    ) -> Vector:
        """One row through all layers, shape (width,).

        cells: where the row's context lies, in the order of its positions; the last is the row's own cell, which is
        written here. position: for the rotation; len(cells) - 1.
        """
        residual = activations
        for layer in range(self.layers):
            weights = {name: self._weights[f"blk.{layer}.{name}"] for name in _LAYER_TENSORS}
            hidden = self._normed(residual, weights["attn_norm"])
            query = self._rotated(weights["attn_q"] @ hidden, position)
            keys[layer, :, cells[-1]] = self._rotated(weights["attn_k"] @ hidden, position)
            values[layer, :, cells[-1]] = (weights["attn_v"] @ hidden).reshape(self.key_value_heads, -1)
            mixed = self._attended(query, keys[layer].take(cells, axis=1), values[layer].take(cells, axis=1))
            residual = residual + weights["attn_output"] @ mixed
            hidden = self._normed(residual, weights["ffn_norm"])
            gate = weights["ffn_gate"] @ hidden
            with np.errstate(over="ignore"):
                gate /= 1 + np.exp(-gate)
            residual = residual + weights["ffn_down"] @ (gate * (weights["ffn_up"] @ hidden))
        return residual

    def logits(self, activations: Vector) -> Vector:
        """Logits (vocabulary,) of a row that went through the last layer."""
        result: Vector = self._output @ self._normed(activations, self._weights["output_norm"])
        return result

    def _normed(self, row: Vector, weight: Vector) -> Vector:
        normed: Vector = row / np.sqrt(np.mean(row * row) + self._epsilon) * weight
        return normed

    def _rotated(self, flat: Vector, position: int) -> Matrix:
        """Heads (n, head width) turned by RoPE over interleaved pairs, ggml's mode "normal"."""
        heads = flat.reshape(-1, self.head_width)
        cosine, sine = self._rotary[:, position]
        even, odd = heads[:, 0::2], heads[:, 1::2]
        turned = np.empty_like(heads)
        turned[:, 0::2] = even * cosine - odd * sine
        turned[:, 1::2] = even * sine + odd * cosine
        return turned

    def _attended(self, query: Matrix, keys: Matrix, values: Matrix) -> Vector:
        """Attention of one row. keys, values: (key-value heads, context, head width); groups of heads share one."""
        grouped = query.reshape(self.key_value_heads, -1, self.head_width)
        scores = (grouped @ keys.transpose(0, 2, 1)) * self._scale
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = scores / scores.sum(axis=-1, keepdims=True)
        result: Vector = (shares @ values).reshape(-1)
        return result


def _load(file: GgufFile, layers: int) -> dict[str, Matrix]:
    """All tensors by their names without ".weight"."""
    needed = {f"blk.{layer}.{name}.weight" for layer in range(layers) for name in _LAYER_TENSORS}
    needed |= {"token_embd.weight", "output_norm.weight"}
    missing = sorted(needed - set(file.tensors))
    unknown = sorted(set(file.tensors) - needed - {"output.weight", "rope_freqs.weight"})
    if missing or unknown:
        raise ModelError(
            f"{file.path} cannot be run by the reference runtime: "
            f"tensors missing: {missing[:3] or 'none'}, not known here: {unknown[:3] or 'none'}."
        )
    return {name.removesuffix(".weight"): _dequantised(tensor) for name, tensor in file.tensors.items()}


def _dequantised(tensor: Tensor) -> Matrix:
    raw = np.fromfile(tensor.path, dtype=np.uint8, count=tensor.size, offset=tensor.offset)
    kind = gguf.GGMLQuantizationType(tensor.type.number)
    rows = raw.reshape(-1, tensor.type.row_bytes(tensor.shape[0]))
    values = gguf.quants.dequantize(rows.view(np.float32) if kind.name == "F32" else rows, kind)
    return np.ascontiguousarray(values.reshape(tensor.shape[::-1]), np.float32)


def _rotary_tables(file: GgufFile, head_width: int, positions: int, factors: Vector | None) -> Matrix:
    """Cosines and sines, shape (2, positions, pairs of a head). factors: divisors of the frequencies (Llama 3)."""
    scaling = file.value("llama.rope.scaling.type")
    if scaling not in (None, "none"):
        raise ModelError(f"{file.path}: the reference runtime does not know the RoPE scaling {scaling!r}.")
    base = file.number("llama.rope.freq_base") or 10000.0
    frequencies = base ** (-np.arange(0, head_width, 2, dtype=np.float64) / head_width)
    if factors is not None:
        frequencies /= factors
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
