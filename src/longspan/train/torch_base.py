"""The model in PyTorch, for architectures that are plain `llama` blocks: on a GPU thousands of rows are written at
once. The weights are those of the GGUF, unpacked."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import torch
from torch.nn import functional

from longspan.model.compose import EMBEDDING, OUTPUT
from longspan.model.gguf_file import GgufFile, read_gguf
from longspan.model.source import ModelSource
from longspan.train.conversations import Tokens
from longspan.train.starting_head import stored_array

_NEIGHBOURS = {"llama": True, "qwen2": False, "qwen3": False}
"""Architectures that this arithmetic knows, and whether neighbouring elements of a head are turned as a pair."""
_PARTS = frozenset(
    ("attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_q.bias",
     "attn_k.bias", "attn_v.bias", "attn_q_norm.weight", "attn_k_norm.weight", "ffn_norm.weight", "ffn_gate.weight",
     "ffn_up.weight", "ffn_down.weight")
)  # fmt: skip
_WHOLE = frozenset((EMBEDDING, OUTPUT, "output_norm.weight", "rope_freqs.weight"))
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_MOST_ROWS = 2048
_MOST_ROWS_CPU = 24
_SHARE_OF_MEMORY = 0.5


def is_plain(source: ModelSource) -> bool:
    """Whether `TorchBase` computes what this model computes."""
    file = read_gguf(source.stage_file(0, source.description.layers))
    name = file.architecture
    parts = {match[2] for match in map(_BLOCK.fullmatch, file.tensors) if match}
    others = {tensor for tensor in file.tensors if not _BLOCK.fullmatch(tensor)}
    scaled = file.value(f"{name}.rope.scaling.type") not in (None, "none")
    return name in _NEIGHBOURS and parts <= _PARTS and others <= _WHOLE and not scaled


def unpacked_bytes(source: ModelSource, dtype: torch.dtype) -> int:
    """What the weights take in memory."""
    file = read_gguf(source.stage_file(0, source.description.layers))
    return sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values()) * int(dtype.itemsize)


@dataclasses.dataclass
class TorchBase:
    """A `BaseModel`. dtype: of weights and cache."""

    source: ModelSource
    device: torch.device
    dtype: torch.dtype
    library: str | None = None

    def __post_init__(self) -> None:
        file = read_gguf(self.source.stage_file(0, self.source.description.layers))
        self._file = file
        self.width = self.source.description.width
        self._layers = self.source.description.layers
        self._heads = self._integer("attention.head_count")
        self._key_heads = self._integer("attention.head_count_kv", self._heads)
        self._size = self._integer("attention.key_length", self.width // self._heads)
        self._epsilon = file.number(f"{file.architecture}.attention.layer_norm_rms_epsilon") or 1e-5
        self._scale = file.number(f"{file.architecture}.attention.scale") or self._size**-0.5
        self._weights = {
            name: torch.from_numpy(stored_array(tensor, self.library)).to(self.device, self.dtype)
            for name, tensor in file.tensors.items()
            if name not in ("rope_freqs.weight", EMBEDDING, OUTPUT)
        }
        # What a stage file has under the name of the embedding is its output matrix.
        embedding = self.source.token_embedding(self.library)
        everything = np.arange(embedding.vocabulary, dtype=np.int32)
        self._embedding = torch.from_numpy(embedding.rows(everything)).to(self.device, self.dtype)
        self._output = self._embedding
        if not self.source.description.tied_embeddings:
            output = stored_array(file.tensors.get(OUTPUT) or file.tensors[EMBEDDING], self.library)
            self._output = torch.from_numpy(output).to(self.device, self.dtype)
        self._frequencies = self._turns(file)
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def most_rows(self, length: int) -> int:
        if self.device.type != "cuda":
            return _MOST_ROWS_CPU
        item = self.dtype.itemsize
        cache = 2 * self._layers * self._key_heads * self._size * length * item
        # A row's hidden states twice, its logits in two types, and what sampling needs.
        row = cache + 2 * 2 * self.width * length + 12 * len(self._output)
        free, _ = torch.cuda.mem_get_info(self.device)
        return max(1, min(_MOST_ROWS, int(_SHARE_OF_MEMORY * free) // int(row)))

    def begin(self, rows: int, length: int) -> None:
        self.close()
        shape = (rows, self._key_heads, length, self._size)
        for _ in range(self._layers):
            self._keys.append(torch.empty(shape, dtype=self.dtype, device=self.device))
            self._values.append(torch.empty(shape, dtype=self.dtype, device=self.device))

    def step(self, tokens: Tokens, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            chosen = torch.from_numpy(tokens).long().to(self.device)
            state = self._embedding[chosen]
            angles = position * self._frequencies
            turn = torch.cos(angles).to(self.device), torch.sin(angles).to(self.device)
            for layer in range(self._layers):
                state = self._layer(layer, state, position, turn)
            hidden = self._norm(state, "output_norm.weight")
            return hidden @ self._output.T, hidden

    def close(self) -> None:
        self._keys, self._values = [], []

    def _layer(
        self, layer: int, state: torch.Tensor, position: int, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        prefix = f"blk.{layer}."
        normed = self._norm(state, f"{prefix}attn_norm.weight")
        query = self._headed(normed, f"{prefix}attn_q", self._heads)
        key = self._headed(normed, f"{prefix}attn_k", self._key_heads)
        value = self._linear(normed, f"{prefix}attn_v").unflatten(-1, (self._key_heads, -1))
        keys, values = self._keys[layer], self._values[layer]
        keys[:, :, position] = self._turned(key, turn)
        values[:, :, position] = value
        # Heads that share keys stand where several queries of one head would: no mask, all see the whole past.
        grouped = self._turned(query, turn).unflatten(1, (self._key_heads, -1))
        past = slice(None, position + 1)
        mixed = functional.scaled_dot_product_attention(
            grouped, keys[:, :, past], values[:, :, past], scale=self._scale
        )
        state = state + self._linear(mixed.flatten(1), f"{prefix}attn_output")
        normed = self._norm(state, f"{prefix}ffn_norm.weight")
        gate = functional.silu(self._linear(normed, f"{prefix}ffn_gate"))
        return state + self._linear(gate * self._linear(normed, f"{prefix}ffn_up"), f"{prefix}ffn_down")

    def _headed(self, normed: torch.Tensor, name: str, heads: int) -> torch.Tensor:
        projected = self._linear(normed, name).unflatten(-1, (heads, -1))
        norm = f"{name}_norm.weight"
        return self._norm(projected, norm) if norm in self._weights else projected

    def _turned(self, heads: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """(rows, heads, head width) turned by RoPE."""
        cosine, sine = turn
        pairs = len(cosine)
        turning, rest = heads[..., : 2 * pairs].float(), heads[..., 2 * pairs :]
        if _NEIGHBOURS[self._file.architecture]:
            one, two = turning[..., 0::2], turning[..., 1::2]
            turned = torch.stack([one * cosine - two * sine, one * sine + two * cosine], dim=-1).flatten(-2)
        else:
            one, two = turning[..., :pairs], turning[..., pairs:]
            turned = torch.cat([one * cosine - two * sine, one * sine + two * cosine], dim=-1)
        return torch.cat([turned.to(heads.dtype), rest], dim=-1)

    def _linear(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(rows, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        wide = rows.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self._epsilon)
        return (wide * scale).to(rows.dtype) * self._weights[name]

    def _turns(self, file: GgufFile) -> torch.Tensor:
        """Angle by position of each pair, (pairs,)."""
        pairs = self._integer("rope.dimension_count", self._size) // 2
        base = file.number(f"{file.architecture}.rope.freq_base") or 10_000.0
        frequencies = base ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        factors = file.tensors.get("rope_freqs.weight")
        if factors is not None:
            frequencies = frequencies / torch.from_numpy(stored_array(factors, self.library))
        return frequencies.float()

    def _integer(self, key: str, default: int | None = None) -> int:
        return self._file.integer(f"{self._file.architecture}.{key}", default)
