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


class AllFull(enum.Enum):
    """How a stage without any sliding-window layer is written; llama.cpp ends the process on an empty pattern.

    WIDEN: its layers become sliding ones with a window past every context: only the mask depends on the kind of
    layer. SWITCH_OFF: a window of 0 makes llama.cpp treat all layers as full. REFUSED: neither computes the same.
    """

    WIDEN = "widen"
    SWITCH_OFF = "switch off"
    REFUSED = "refused"


class HiddenState(enum.Enum):
    """Which hidden state of the base model its own MTP layer (`nextn`) fuses with the token that follows.

    NORMED: the one after the output norm, which the output matrix takes too; for deeper drafts the layer's own,
    after its norm. llama.cpp's MTP graphs of every architecture below do so.
    """

    NORMED = "after the output norm"


@dataclasses.dataclass(frozen=True)
class SlidingWindow:
    """Which layers see a window only.

    period: of each `period` layers the last sees everything, unless the metadata says otherwise.
    optional: only models with `ARCH.attention.sliding_window` above 0 have such layers.
    """

    period: int
    all_full: AllFull
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One architecture that can be split.

    name: `general.architecture`. residual: the tensor that leaves a layer, read as `<residual>-<layer>`.
    input_tensor: None when activations go in as `llama_batch.embd`. Else llama.cpp scales or refuses embeddings
        there: run any tokens instead, and write the activations over this tensor when the evaluation callback has
        it computed.
    tied_fallback: llama.cpp takes `token_embd.weight` as output matrix when there is no `output.weight`.
    cut_multiple: llama.cpp treats layers differently by their number modulo this, and no metadata changes that.
    telling_counts: layer counts from which llama.cpp reads the variant of the model. A stage must not have one of
        these counts, and a model that has one must not be cut.
    required: metadata keys (without `ARCH.`) for which llama.cpp would else take a value from the layer count.
    mtp_hidden: what the model's own MTP layer takes, if it has one; None: not known, so such a layer is not used.
    mtp_required: as `required`, for the MTP layer alone.
    """

    name: str
    residual: str = "l_out"
    input_tensor: str | None = None
    embedding_scale: EmbeddingScale = EmbeddingScale.NONE
    tied_fallback: bool = True
    window: SlidingWindow | None = None
    cut_multiple: int = 1
    telling_counts: frozenset[int] = frozenset()
    required: tuple[str, ...] = ()
    mtp_hidden: HiddenState | None = None
    mtp_required: tuple[str, ...] = ()


_SCALED = EmbeddingScale.SQRT_WIDTH
_BY_METADATA = EmbeddingScale.METADATA
_KNOWN: tuple[Architecture, ...] = (
    Architecture("llama"),
    Architecture("arcee"),
    Architecture("chatglm"),
    Architecture("cohere2", window=SlidingWindow(4, AllFull.REFUSED)),
    Architecture("command-r", telling_counts=frozenset({64})),
    Architecture(
        "deepseek2",
        telling_counts=frozenset({26, 27, 47, 48}),
        mtp_hidden=HiddenState.NORMED,
        mtp_required=("expert_gating_func",),
    ),
    Architecture("dots1", tied_fallback=False),
    Architecture("ernie4_5"),
    Architecture("exaone"),
    Architecture("exaone4", telling_counts=frozenset({64})),
    Architecture("gemma", input_tensor="inp_scaled", embedding_scale=_SCALED),
    Architecture(
        "gemma2",
        input_tensor="inp_scaled",
        embedding_scale=_SCALED,
        window=SlidingWindow(2, AllFull.WIDEN),
        telling_counts=frozenset({46}),
    ),
    Architecture(
        "gemma3",
        embedding_scale=_SCALED,
        window=SlidingWindow(6, AllFull.SWITCH_OFF, optional=True),
        telling_counts=frozenset({62}),
    ),
    Architecture("glm4", input_tensor="embd"),
    Architecture("glm4moe", input_tensor="embd", mtp_hidden=HiddenState.NORMED),
    Architecture("gpt-oss", tied_fallback=False, window=SlidingWindow(2, AllFull.WIDEN)),
    Architecture("granite", embedding_scale=_BY_METADATA),
    Architecture("hunyuan-dense"),
    Architecture("internlm2", tied_fallback=False),
    Architecture("maincoder"),
    Architecture(
        "minicpm",
        embedding_scale=_BY_METADATA,
        required=("embedding_scale", "residual_scale", "logit_scale"),
    ),
    Architecture("mistral3"),
    Architecture("nanbeige"),
    Architecture("nemotron", tied_fallback=False),
    Architecture("olmo2", tied_fallback=False, window=SlidingWindow(4, AllFull.REFUSED, optional=True)),
    Architecture("olmoe", tied_fallback=False),
    Architecture("orion", tied_fallback=False),
    Architecture("phi3"),
    Architecture("qwen2"),
    Architecture("qwen2moe", tied_fallback=False),
    Architecture("qwen3"),
    Architecture("qwen3moe"),
    Architecture("seed_oss"),
    Architecture("smollm3", cut_multiple=4),
    Architecture("stablelm", tied_fallback=False),
    Architecture("starcoder2"),
    Architecture("xverse", tied_fallback=False),
)

ARCHITECTURES: dict[str, Architecture] = {known.name: known for known in _KNOWN}
"""The architectures that can be split, by `general.architecture`."""

_REASONS: dict[str, tuple[str, ...]] = {
    "its layers keep a recurrent state, which cannot be trimmed to a position": (
        "arwkv7", "falcon-h1", "granitehybrid", "jamba", "kimi-linear", "lfm2", "lfm2moe", "mamba", "mamba2",
        "minimax-01", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe", "qwen3next", "rwkv6",
        "rwkv6qwen2", "rwkv7",
    ),
    "its layers look tokens up again, and stages get no tokens": ("gemma3n", "gemma4", "gemma4-assistant"),
    "it is an encoder or an embedding model and does not write text token by token": (
        "bert", "eurobert", "gemma-embedding", "gemma-embedding2", "jina-bert-v2", "jina-bert-v3", "llama-embed",
        "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "t5", "t5encoder",
    ),
    "its positions have several parts (images), which activations do not carry": (
        "cogvlm", "hunyuan_vl", "qwen2vl", "qwen3vl", "qwen3vlmoe",
    ),
    "it is a diffusion model and does not write text token by token": ("dream", "llada", "llada-moe", "rnd1"),
    "llama.cpp adds position embeddings or a norm to whatever comes in, so on every stage again": (
        "bloom", "gpt2", "jais", "mpt", "starcoder",
    ),
    "llama.cpp reads its variant from the layer count, which a stage changes": ("baichuan",),
    "it is no language model": ("clip", "wavtokenizer-dec"),
}  # fmt: skip
_REFUSED = {name: reason for reason, names in _REASONS.items() for name in names}


def find_architecture(name: str) -> Architecture:
    """The entry of the table. Raises ArchitectureError: refused and why, or unknown with the list of known ones."""
    known = ARCHITECTURES.get(name)
    if known is not None:
        return known
    listed = ", ".join(sorted(ARCHITECTURES))
    reason = _REFUSED.get(name)
    if reason is not None:
        raise ArchitectureError(f"models of the architecture {name!r} cannot be split: {reason}. Known: {listed}.")
    raise ArchitectureError(f"the architecture {name!r} is not known, so it is not split. Known: {listed}.")
