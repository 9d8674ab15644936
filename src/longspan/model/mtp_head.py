"""An MTP head on disk: what drafts the next tokens from the hidden state of the base model.

A head is a fusion of hidden state and token, one transformer block, an output norm, and the rows of the base
model's output matrix that it may draft. With h_t the base model's hidden state after its output norm at position t:

    u_(t+1) = eh_proj · [ RMSNorm(embed(x_(t+1))) · embedding_norm ; RMSNorm(h_t) · hidden_norm ]
    g_(t+1) = RMSNorm(block(u_(t+1))) · output_norm            (attends over the earlier u of the sequence)
    logits for x_(t+2) = output matrix · g_(t+1)

Deeper drafts put g in the place of h. The block is of llama.cpp's architecture `llama` (rope pairs interleaved).

The file is in the safetensors format. Metadata, all text: `base` and `base_sha256` (the model it was made for),
`head_count`, `head_count_kv`, `rms_epsilon`, `rope_base`. Tensors, row-major [out, in]: `eh_proj.weight`,
`embedding_norm.weight`, `hidden_norm.weight`, `layer.*` (named as in a GGUF block), `output_norm.weight`; optional
`draft_vocabulary` (token ids, int32), `prefix_tokens` (n + 1, int32) and `prefix_hidden` (n, width).

The prefix is the beginning of some conversation: row i is the hidden state at position i, token i the one there.
The head attends strongly to the first positions of a sequence; with a prefix before every sequence it drafts as
well without the prompt as with it (measured for the demo's head, see its README), so no prompt row has to pass the
output matrix for its sake.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from longspan.errors import ModelError
from longspan.model.source import ModelSource
from longspan.model.storage import atomic_file

Array = npt.NDArray[np.float32]

_LARGEST_FILE = 1 << 32
_LARGEST_PREFIX = 1024


@dataclasses.dataclass(frozen=True)
class MtpHead:
    """A head, checked; all numbers as float32.

    digest: sha256 of the file. eh_proj: (width, 2 · width), the first half of the columns for the token.
    block: the block's tensors, named as in a GGUF after `blk.0.`; matrices are (out, in).
    draft_vocabulary: ids that it may draft, None for all. prefix_tokens: (n + 1,). prefix_hidden: (n, width).
    """

    path: Path
    digest: str
    base: str
    base_digest: str
    head_count: int
    head_count_kv: int
    rms_epsilon: float
    rope_base: float
    eh_proj: Array
    embedding_norm: Array
    hidden_norm: Array
    block: Mapping[str, Array]
    output_norm: Array
    draft_vocabulary: npt.NDArray[np.int32] | None
    prefix_tokens: npt.NDArray[np.int32]
    prefix_hidden: Array

    @property
    def width(self) -> int:
        """Elements of a hidden state."""
        return len(self.eh_proj)


def _block_shapes(width: int, feed_forward: int, key_value: int) -> dict[str, tuple[int, ...]]:
    return {
        "attn_norm.weight": (width,),
        "attn_q.weight": (width, width),
        "attn_k.weight": (key_value, width),
        "attn_v.weight": (key_value, width),
        "attn_output.weight": (width, width),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (feed_forward, width),
        "ffn_up.weight": (feed_forward, width),
        "ffn_down.weight": (width, feed_forward),
    }


class _File:
    """The contents of a safetensors file, with errors that name it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.stat().st_size > _LARGEST_FILE:
                raise self.damaged(f"it has {path.stat().st_size} bytes, at most {_LARGEST_FILE} are expected")
            self.digest = hashlib.sha256(path.read_bytes()).hexdigest()
            with safe_open(path, framework="np") as file:
                self.metadata: dict[str, str] = file.metadata() or {}
                self._tensors: dict[str, npt.NDArray[np.generic]] = {
                    name: file.get_tensor(name)
                    for name in file.keys()  # noqa: SIM118 (not a mapping)
                }
        except OSError as error:
            raise ModelError(f"the MTP head {path} cannot be read: {error.strerror or error}.") from error
        except (SafetensorError, TypeError, ValueError, KeyError) as error:
            raise self.damaged(f"it is no safetensors file of numbers ({error})") from error

    def damaged(self, reason: str) -> ModelError:
        return ModelError(f"{self.path} cannot be used as an MTP head: {reason}. Get the file again.")

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._tensors if name.startswith(prefix)]

    def has(self, name: str) -> bool:
        return name in self._tensors

    def floats(self, name: str, shape: tuple[int, ...] | None = None) -> Array:
        found = self._tensors.get(name)
        if found is None:
            raise self.damaged(f"the tensor {name} is missing")
        if not np.issubdtype(found.dtype, np.floating) or (shape is not None and found.shape != shape):
            raise self.damaged(f"{name} is {found.dtype} of shape {found.shape}, expected floats of {shape}")
        values = np.ascontiguousarray(found, np.float32)
        if not np.isfinite(values).all():
            raise self.damaged(f"{name} holds numbers that are not finite")
        return values

    def tokens(self, name: str, most: int) -> npt.NDArray[np.int32]:
        found = self._tensors[name]
        if not np.issubdtype(found.dtype, np.integer) or found.ndim != 1 or not 1 <= len(found) <= most:
            raise self.damaged(f"{name} is {found.dtype} of shape {found.shape}, expected 1 to {most} token ids")
        if int(found.min()) < 0 or int(found.max()) >= 1 << 31:
            raise self.damaged(f"{name} holds something that is no token id")
        return np.ascontiguousarray(found, np.int32)

    def number(self, key: str) -> float:
        try:
            value = float(self.metadata[key])
        except (KeyError, ValueError) as error:
            raise self.damaged(f"its metadata has no number under {key!r}") from error
        if not 0 < value < 1e12:
            raise self.damaged(f"{key!r} is {value}")
        return value

    def count(self, key: str) -> int:
        value = self.number(key)
        if value != int(value):
            raise self.damaged(f"{key!r} is {value}, expected a whole number")
        return int(value)


def read_head(path: Path) -> MtpHead:
    """Read and check a head. Raises ModelError when the file cannot be read or its parts do not fit together."""
    file = _File(path)
    eh_proj = file.floats("eh_proj.weight")
    if eh_proj.ndim != 2 or eh_proj.shape[1] != 2 * eh_proj.shape[0] or not len(eh_proj):
        raise file.damaged(f"eh_proj.weight has the shape {eh_proj.shape}, expected (width, 2 · width)")
    width = len(eh_proj)
    heads, heads_kv = file.count("head_count"), file.count("head_count_kv")
    if width % heads or (width // heads) % 2 or heads % heads_kv:
        raise file.damaged(f"{heads} heads and {heads_kv} key-value heads do not fit a width of {width}")
    feed_forward = len(file.floats("layer.ffn_gate.weight"))
    shapes = _block_shapes(width, feed_forward, width // heads * heads_kv)
    unknown = set(file.names("layer.")) - {f"layer.{name}" for name in shapes}
    if unknown:
        raise file.damaged(f"its block has tensors that are not known: {', '.join(sorted(unknown))}")
    prefix_tokens, prefix_hidden = np.zeros(0, np.int32), np.zeros((0, width), np.float32)
    if file.has("prefix_tokens"):
        prefix_tokens = file.tokens("prefix_tokens", _LARGEST_PREFIX + 1)
        prefix_hidden = file.floats("prefix_hidden", (len(prefix_tokens) - 1, width))
    draft_vocabulary = file.tokens("draft_vocabulary", 1 << 24) if file.has("draft_vocabulary") else None
    return MtpHead(
        path=path,
        digest=file.digest,
        base=file.metadata.get("base", ""),
        base_digest=file.metadata.get("base_sha256", ""),
        head_count=heads,
        head_count_kv=heads_kv,
        rms_epsilon=file.number("rms_epsilon"),
        rope_base=file.number("rope_base"),
        eh_proj=eh_proj,
        embedding_norm=file.floats("embedding_norm.weight", (width,)),
        hidden_norm=file.floats("hidden_norm.weight", (width,)),
        block={name: file.floats(f"layer.{name}", shape) for name, shape in shapes.items()},
        output_norm=file.floats("output_norm.weight", (width,)),
        draft_vocabulary=draft_vocabulary,
        prefix_tokens=prefix_tokens,
        prefix_hidden=prefix_hidden,
    )


def write_head(head: MtpHead, path: Path, notes: Mapping[str, str] | None = None) -> None:
    """Write a head to `path`, numbers as float16; `digest` and `path` of the given one are not looked at.

    notes: more metadata. Raises ModelError when the file cannot be written.
    """
    tensors: dict[str, npt.NDArray[np.generic]] = {
        "eh_proj.weight": head.eh_proj.astype(np.float16),
        "embedding_norm.weight": head.embedding_norm.astype(np.float16),
        "hidden_norm.weight": head.hidden_norm.astype(np.float16),
        "output_norm.weight": head.output_norm.astype(np.float16),
        **{f"layer.{name}": values.astype(np.float16) for name, values in head.block.items()},
    }
    if head.draft_vocabulary is not None:
        tensors["draft_vocabulary"] = head.draft_vocabulary
    if len(head.prefix_tokens):
        tensors["prefix_tokens"] = head.prefix_tokens
        tensors["prefix_hidden"] = head.prefix_hidden.astype(np.float16)
    metadata = {
        **(notes or {}),
        "base": head.base,
        "base_sha256": head.base_digest,
        "head_count": str(head.head_count),
        "head_count_kv": str(head.head_count_kv),
        "rms_epsilon": repr(head.rms_epsilon),
        "rope_base": repr(head.rope_base),
    }
    try:
        with atomic_file(path) as file:
            file.write(save(tensors, metadata))
    except OSError as error:
        raise ModelError(
            f"cannot write the MTP head {path}: {error.strerror or error}. Free some space, or name another place."
        ) from error


def check_belongs(head: MtpHead, source: ModelSource) -> None:
    """Raise ModelError when a head was made for another model than this one, or than a requantised form of it."""
    described = source.description
    if head.base_digest != source.digest and head.base not in (described.model_id, described.name):
        raise ModelError(
            f"the MTP head {head.path} belongs to {head.base or 'another model'} (sha256 "
            f"{head.base_digest[:12]}…), not to {described.model_id} (sha256 {source.digest[:12]}…). Train one for "
            "this model with longspan train-mtp, or name its own."
        )
    if head.width != described.width:
        raise ModelError(
            f"the MTP head {head.path} is made for a width of {head.width}, {described.model_id} has "
            f"{described.width}."
        )


def find_head(source: ModelSource) -> Path | None:
    """The head that Longspan carries for a model: made for the same file, or for the same model requantised."""
    described = source.description
    names = {described.model_id, described.name}
    for entry in sorted(
        resources.files("longspan").joinpath("data", "heads").iterdir(), key=lambda item: item.name
    ):
        if entry.name.endswith(".safetensors"):
            path = Path(str(entry))
            metadata = _metadata(path)
            if metadata.get("base_sha256") == source.digest or metadata.get("base") in names:
                return path
    return None


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="np") as file:
        return file.metadata() or {}
