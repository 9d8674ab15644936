"""What splitting a model by layers needs to know about each architecture.

A stage is a GGUF whose blocks are renumbered from 0, so everything that llama.cpp derives from a layer's number
must be written into the stage's metadata, layer by layer, or the architecture is refused. Tests hold the facts
below by comparing split with whole, bit by bit, on tiny models.
"""

from __future__ import annotations

import dataclasses
import enum

from longspan.errors import ArchitectureError


class EmbeddingScale(enum.Enum):
    """How llama.cpp scales looked-up token rows. A stage gets activations, so Longspan applies the factor."""

    NONE = "none"
    SQRT_WIDTH = "square root of the width"
    METADATA = "ARCH.embedding_scale"


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One architecture that can be split.

    name: `general.architecture`. residual: the tensor that leaves a layer, read as `<residual>-<layer>`.
    mixture_of_experts: routing is a comparison of close numbers, so activations must not be rounded to float16.
    tied_fallback: llama.cpp takes `token_embd.weight` as output matrix when there is no `output.weight`.
    window_period: layers slide by their number modulo this period, all but the last of each period (0: none do,
        or the metadata says it layer by layer).
    """

    name: str
    residual: str = "l_out"
    embedding_scale: EmbeddingScale = EmbeddingScale.NONE
    mixture_of_experts: bool = False
    tied_fallback: bool = True
    window_period: int = 0

    @property
    def activation_dtypes(self) -> tuple[str, ...]:
        """What activations may travel as."""
        return ("float32",) if self.mixture_of_experts else ("float32", "float16")


_KNOWN: tuple[Architecture, ...] = (
    Architecture("llama"),
    Architecture("qwen2"),
    Architecture("qwen3"),
    Architecture("gemma3", embedding_scale=EmbeddingScale.SQRT_WIDTH, window_period=6),
)

ARCHITECTURES: dict[str, Architecture] = {known.name: known for known in _KNOWN}

_REFUSED: dict[str, str] = {}


def find_architecture(name: str) -> Architecture:
    """The entry of the table. Raises ArchitectureError: refused and why, or unknown with the list of known ones."""
    known = ARCHITECTURES.get(name)
    if known is not None:
        return known
    listed = ", ".join(sorted(ARCHITECTURES))
    reason = _REFUSED.get(name)
    if reason is not None:
        raise ArchitectureError(f"models of the architecture {name!r} cannot be split: {reason}. Known: {listed}.")
    raise ArchitectureError(f"the architecture {name!r} is not known. Known: {listed}.")
