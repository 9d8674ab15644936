"""What the last stage runs to draft: a head composed into the files and arrays that llama.cpp and numpy take.

The block, the output norm and the draft vocabulary become a `llama` GGUF of one layer that takes embeddings: the
fused rows. The fusion itself, one small matrix, is done in numpy. Where the head comes from does not matter:
whatever has a fusion, one `llama` block, a norm and a vocabulary matrix fits.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longspan.errors import ModelError
from longspan.model import metadata as values
from longspan.model.compose import EMBEDDING, OUTPUT, is_composed
from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import read_gguf
from longspan.model.gguf_writer import NewTensor, gguf_chunks, gguf_size
from longspan.model.metadata import MetadataValue, ValueType
from longspan.model.mtp_head import Array, MtpHead
from longspan.model.quantisation import pack, row_type
from longspan.model.storage import atomic_file, cache_directory, check_space, exclusive, explained
from longspan.model.tensor_types import F16, F32, TensorType

_VERSION = 1
"""Part of the file's name in the cache; raised when the same head would be composed differently."""

BLOCK_TYPE = "Q8_0"
VOCABULARY_TYPE = "Q4_0"
"""A step of the chain is bound by the bytes of its matrices; measured on the demo's head, see its README."""

_PLAIN = {F32.name: F32, F16.name: F16}
_CHUNK_ROWS = 2048


class Fusion:
    """Puts a hidden state and the token that follows it together: the head's input is the sum of two halves."""

    def __init__(self, eh_proj: Array, embedding_norm: Array, hidden_norm: Array, epsilon: float) -> None:
        """eh_proj: (width, 2 · width), the token's half first. The norms' weights go into the matrix."""
        width = len(eh_proj)
        self._token = np.ascontiguousarray((eh_proj[:, :width] * embedding_norm).T)
        self._hidden = np.ascontiguousarray((eh_proj[:, width:] * hidden_norm).T)
        self._epsilon = np.float32(epsilon)

    def token_half(self, embeddings: Array) -> Array:
        """(n, width) token embeddings; gives (n, width), float32, C order."""
        return self._half(embeddings, self._token)

    def hidden_half(self, hidden: Array) -> Array:
        """(n, width) hidden states; gives (n, width), float32, C order."""
        return self._half(hidden, self._hidden)

    def _half(self, rows: Array, matrix: Array) -> Array:
        squares = np.einsum("ij,ij->i", rows, rows) / rows.shape[1]
        half: Array = (rows / np.sqrt(squares + self._epsilon)[:, None]) @ matrix
        return half


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """A head, ready to run.

    file: GGUF of one layer with `len(vocabulary)` rows of logits. vocabulary: (n,) the token of each row.
    embedding, output: rows of the model's token embedding and of its output matrix.
    prefix_tokens: (p + 1,), prefix_hidden: (p, width): see `mtp_head`; p may be 0.
    input_tensor: see `model.architecture.Architecture`.
    """

    file: Path
    fusion: Fusion
    embedding: TokenEmbedding
    output: TokenEmbedding
    vocabulary: npt.NDArray[np.int32]
    prefix_tokens: npt.NDArray[np.int32]
    prefix_hidden: Array
    input_tensor: str | None = None

    @property
    def width(self) -> int:
        """Elements of a hidden state."""
        return self.embedding.width


def compose_draft_model(
    head: MtpHead,
    stage_file: Path,
    embedding: TokenEmbedding,
    digest: str,
    *,
    block_type: str = BLOCK_TYPE,
    vocabulary_type: str = VOCABULARY_TYPE,
    vocabulary: npt.NDArray[np.int32] | None = None,
) -> DraftModel:
    """Compose the head's GGUF into the cache, unless it is there.

    stage_file: the last stage's, whose output matrix the head uses. embedding: the model's. digest: the model's.
    block_type, vocabulary_type: "F32", "F16", or one that a model can be requantised to. vocabulary: token ids to
    draft, instead of those that the head names.
    Raises ModelError when the head does not fit the model or the cache cannot be written.
    """
    matrix = _output_matrix(stage_file)
    if not head.width == embedding.width == matrix.width:
        raise ModelError(
            f"the MTP head {head.path} is made for a width of {head.width}, the model has {embedding.width}. "
            f"It belongs to {head.base or 'another model'}."
        )
    chosen = vocabulary if vocabulary is not None else head.draft_vocabulary
    if chosen is None:
        chosen = np.arange(matrix.vocabulary, dtype=np.int32)
    used = np.concatenate([chosen, head.prefix_tokens])
    if int(used.max()) >= min(matrix.vocabulary, embedding.vocabulary):
        raise ModelError(
            f"the MTP head {head.path} names token {int(used.max())}, the model's vocabulary ends at "
            f"{matrix.vocabulary - 1}. It belongs to {head.base or 'another model'}."
        )
    rows = f"{len(chosen)}-{hashlib.sha256(chosen.tobytes()).hexdigest()[:8]}"
    name = f"{head.digest[:16]}-{block_type}-{vocabulary_type}-{rows}-v{_VERSION}.gguf"
    target = cache_directory() / "heads" / digest / name.lower()
    if not is_composed(target):
        tensors = [
            _tensor(EMBEDDING, (head.width, len(chosen)), _type(vocabulary_type, head.width), matrix, chosen),
            _packed("output_norm.weight", head.output_norm, F32),
            *(
                _packed(f"blk.0.{name}", array, F32 if array.ndim == 1 else _type(block_type, array.shape[1]))
                for name, array in head.block.items()
            ),
        ]
        _write(target, _metadata(head, len(chosen)), tensors)
    fusion = Fusion(head.eh_proj, head.embedding_norm, head.hidden_norm, head.rms_epsilon)
    return DraftModel(target, fusion, embedding, matrix, chosen, head.prefix_tokens, head.prefix_hidden)


def _output_matrix(stage_file: Path) -> TokenEmbedding:
    tensors = read_gguf(stage_file).tensors
    found = tensors.get(OUTPUT) or tensors.get(EMBEDDING)
    if found is None:
        raise ModelError(f"{stage_file} has no output matrix, so it is not the file of a last stage.")
    return TokenEmbedding(found, 1.0)


def _metadata(head: MtpHead, vocabulary: int) -> dict[str, MetadataValue]:
    feed_forward = len(head.block["ffn_gate.weight"])
    numbers = {
        "block_count": 1,
        "context_length": 1 << 20,
        "embedding_length": head.width,
        "feed_forward_length": feed_forward,
        "attention.head_count": head.head_count,
        "attention.head_count_kv": head.head_count_kv,
        "rope.dimension_count": head.width // head.head_count,
        "vocab_size": vocabulary,
    }
    return {
        "general.architecture": values.text("llama"),
        **{f"llama.{key}": values.uint32(value) for key, value in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": values.scalar(ValueType.FLOAT32, head.rms_epsilon),
        "llama.rope.freq_base": values.scalar(ValueType.FLOAT32, head.rope_base),
        "tokenizer.ggml.model": values.text("no_vocab"),
    }


def _type(name: str, columns: int) -> TensorType:
    return _PLAIN.get(name) or row_type(name, columns)


def _packed(name: str, array: Array, kind: TensorType) -> NewTensor:
    data = pack(array.reshape(-1, array.shape[-1]), kind)
    return NewTensor(name, kind, tuple(reversed(array.shape)), len(data), lambda: iter((data,)))


def _tensor(
    name: str, shape: tuple[int, int], kind: TensorType, matrix: TokenEmbedding, rows: npt.NDArray[np.int32]
) -> NewTensor:
    size = kind.row_bytes(shape[0]) * shape[1]
    return NewTensor(name, kind, shape, size, functools.partial(_chosen_rows, kind, matrix, rows))


def _chosen_rows(kind: TensorType, matrix: TokenEmbedding, rows: npt.NDArray[np.int32]) -> Iterator[bytes]:
    for first in range(0, len(rows), _CHUNK_ROWS):
        yield pack(matrix.rows(rows[first : first + _CHUNK_ROWS]), kind)


def _write(target: Path, metadata: dict[str, MetadataValue], tensors: list[NewTensor]) -> None:
    with explained(target), exclusive(target):
        if is_composed(target):
            return
        check_space(target.parent, gguf_size(metadata, tensors))
        with atomic_file(target) as file:
            for chunk in gguf_chunks(metadata, tensors):
                file.write(chunk)
