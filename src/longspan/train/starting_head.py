"""The head that training starts from: the base model's last block where it fits, small random numbers elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import GgufFile, Tensor, read_gguf
from longspan.model.mtp_head import MtpHead
from longspan.model.quantisation import PLAIN, widen
from longspan.model.source import ModelSource

Array = npt.NDArray[np.float32]

_IDENTITY = 0.7
"""Share of the hidden state that goes straight into the block at first, as in the recipe of the demo's head."""
_NOISE = 0.02
_INTERLEAVED = frozenset(
    ("llama", "arcee", "chatglm", "cohere2", "command-r", "deepseek2", "ernie4_5", "glm4", "granite", "internlm2",
     "maincoder", "minicpm", "mistral3", "nanbeige", "smollm3", "xverse")
)  # fmt: skip
"""Architectures that turn neighbouring elements of a head as a pair, as the head's own block does. The others pair
the halves of a head: their rows change places. A wrong guess costs a worse start, nothing else."""


def starting_head(source: ModelSource, seed: int, library: str | None = None) -> MtpHead:
    """A head for a model, without draft vocabulary and prefix."""
    file = read_gguf(source.stage_file(0, source.description.layers))
    return _Start(source, file, np.random.default_rng(seed), library).head()


class _Start:
    def __init__(
        self, source: ModelSource, file: GgufFile, generator: np.random.Generator, library: str | None
    ) -> None:
        self._source = source
        self._file = file
        self._generator = generator
        self._library = library
        self._width = source.description.width
        self._heads, self._key_heads = self._head_counts()

    def head(self) -> MtpHead:
        width, described = self._width, self._source.description
        eh_proj = self._random(width, 2 * width)
        eh_proj[:, width:] += _IDENTITY * np.eye(width, dtype=np.float32)
        ones = np.ones(width, np.float32)
        return MtpHead(
            path=Path(),
            digest="",
            base=described.model_id,
            base_digest=self._source.digest,
            head_count=self._heads,
            head_count_kv=self._key_heads,
            rms_epsilon=self._number("attention.layer_norm_rms_epsilon", 1e-5),
            rope_base=self._number("rope.freq_base", 10_000.0),
            eh_proj=eh_proj,
            embedding_norm=ones,
            hidden_norm=ones.copy(),
            block=self._block(),
            output_norm=self._norm("output_norm.weight"),
            draft_vocabulary=None,
            prefix_tokens=np.zeros(0, np.int32),
            prefix_hidden=np.zeros((0, width), np.float32),
        )

    def _head_counts(self) -> tuple[int, int]:
        """The model's own attention heads where a block of the head can have them, others else."""
        width = self._width
        heads = self._integer("attention.head_count", 1)
        key_heads = self._integer("attention.head_count_kv", heads)
        size = self._integer("attention.key_length", width // max(1, heads))
        if heads * size == width and size % 2 == 0 and key_heads > 0 and heads % key_heads == 0:
            return heads, key_heads
        size = next((size for size in (128, 96, 64, 32, 16, 8, 4, 2) if width % size == 0), width)
        heads = width // size
        return heads, heads // next(group for group in (4, 3, 2, 1) if heads % group == 0)

    def _block(self) -> dict[str, Array]:
        width, keys = self._width, self._width // self._heads * self._key_heads
        query, key, value = self._attention(width, keys)
        gate, up = self._gate_and_up()
        feed_forward = len(gate)
        return {
            "attn_norm.weight": self._norm(self._name("attn_norm")),
            "attn_q.weight": query,
            "attn_k.weight": key,
            "attn_v.weight": value,
            "attn_output.weight": self._matrix("attn_output", width, width),
            "ffn_norm.weight": self._norm(self._name("ffn_norm")),
            "ffn_gate.weight": gate,
            "ffn_up.weight": up,
            "ffn_down.weight": self._matrix("ffn_down", width, feed_forward),
        }

    def _attention(self, width: int, keys: int) -> tuple[Array, Array, Array]:
        fused = self._stored(self._name("attn_qkv"), (width + 2 * keys, width))
        if fused is not None:
            query, key, value = np.split(fused, [width, width + keys])
        else:
            query = self._matrix("attn_q", width, width)
            key = self._matrix("attn_k", keys, width)
            value = self._matrix("attn_v", keys, width)
        if self._file.architecture not in _INTERLEAVED:
            query, key = _paired(query, self._heads), _paired(key, self._key_heads)
        return query, key, np.ascontiguousarray(value)

    def _gate_and_up(self) -> tuple[Array, Array]:
        up = self._file.tensors.get(self._name("ffn_up"))
        gate = self._file.tensors.get(self._name("ffn_gate"))
        if up is None or up.shape[0] != self._width or len(up.shape) != 2:
            feed_forward = -(-8 * self._width // 3 // 32) * 32
            return self._random(feed_forward, self._width), self._random(feed_forward, self._width)
        rows = up.shape[1]
        if gate is not None:
            return self._matrix("ffn_gate", rows, self._width), self._matrix("ffn_up", rows, self._width)
        whole = self._matrix("ffn_up", rows, self._width)
        down = self._file.tensors.get(self._name("ffn_down"))
        if down is not None and rows == 2 * down.shape[0]:  # gate and up in one matrix
            first, second = np.split(whole, 2)
            return first, second
        return self._random(rows, self._width), whole

    def _name(self, part: str) -> str:
        return f"blk.{self._source.description.layers - 1}.{part}.weight"

    def _matrix(self, part: str, rows: int, columns: int) -> Array:
        found = self._stored(self._name(part), (rows, columns))
        return self._random(rows, columns) if found is None else found

    def _norm(self, name: str) -> Array:
        found = self._stored(name, (self._width,))
        return np.ones(self._width, np.float32) if found is None else found

    def _stored(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """A tensor of the model as float32, when it is there and has this shape."""
        tensor = self._file.tensors.get(name)
        if tensor is None or tensor.shape != shape[::-1]:
            return None
        return stored_array(tensor, self._library)

    def _random(self, rows: int, columns: int) -> Array:
        return np.asarray(_NOISE * self._generator.standard_normal((rows, columns)), np.float32)

    def _integer(self, key: str, default: int) -> int:
        return self._file.integer(f"{self._file.architecture}.{key}", default)

    def _number(self, key: str, default: float) -> float:
        return self._file.number(f"{self._file.architecture}.{key}") or default


def stored_array(tensor: Tensor, library: str | None = None) -> Array:
    """A matrix (rows, columns) or a vector of a file as float32."""
    if len(tensor.shape) == 2:
        return TokenEmbedding(tensor, 1.0, library).rows(np.arange(tensor.shape[1], dtype=np.int32))
    raw = np.fromfile(tensor.path, np.uint8, tensor.size, offset=tensor.offset)
    assert tensor.type in PLAIN and len(tensor.shape) == 1
    return np.ascontiguousarray(widen(raw[None], tensor.type)[0])


def _paired(matrix: Array, heads: int) -> Array:
    """Rows of each head from (first half, second half) to pairs that are neighbours."""
    halves = matrix.reshape(heads, 2, -1, matrix.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(matrix.shape)
