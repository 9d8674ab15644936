"""Tiny random-weight mixture-of-experts models whose layers differ: dense ones lead, a draft layer may follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.tiny_models import write_vocabulary

WIDTH, HEADS, HEAD, HIDDEN, EXPERTS, VOCABULARY = 64, 4, 16, 128, 4, 96

Shapes = dict[str, tuple[int, ...]]
"""Tensor shapes as numpy has them: (rows, columns), experts first."""


def write_mixture_model(
    path: Path,
    architecture: str,
    *,
    layers: int = 5,
    dense: int = 2,
    draft: int = 0,
    seed: int = 0,
    own: tuple[str, ...] = (),
    spoken: bool = False,
    left_out: tuple[str, ...] = (),
) -> Path:
    """Write a model with `dense` leading dense layers and `draft` prediction layers after the `layers` ones.

    own: what a prediction layer has for itself, of `OWN`. spoken: with the vocabulary of `tests.tiny_models`, so
    that the model can be served. left_out: names of tensors, or keys of the metadata, that are not written.
    """
    metadata, layer_shapes = _RECIPES[architecture]
    writer = gguf.GGUFWriter(path, architecture)
    common: dict[str, Any] = {
        "block_count": layers + draft,
        "context_length": 256,
        "embedding_length": WIDTH,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
    }
    if dense:
        common["leading_dense_block_count"] = dense
    if draft:
        common["nextn_predict_layers"] = draft
    vocabulary = write_vocabulary(writer) if spoken else VOCABULARY
    common["vocab_size"] = vocabulary
    for key, value in (common | metadata).items():
        if key in left_out:
            continue
        add: Callable[[str, Any], None] = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        if isinstance(value, bool):
            add = writer.add_bool
        add(f"{architecture}.{key}", value)
    if not spoken:
        writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(seed)
    _add(writer, random, "", {"token_embd.weight": (vocabulary, WIDTH), "output_norm.weight": (WIDTH,)})
    _add(writer, random, "", {"output.weight": (vocabulary, WIDTH)})
    for layer in range(layers + draft):
        feed_forward = _DENSE if layer < dense else _MIXTURE
        _add(writer, random, f"blk.{layer}.", layer_shapes | feed_forward)
        if layer >= layers:
            extra = {f"nextn.{name}.weight": OWN[name](vocabulary) for name in own}
            drafting = {name: shape for name, shape in (_DRAFT | extra).items() if name not in left_out}
            _add(writer, random, f"blk.{layer}.", drafting)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, random: np.random.Generator, prefix: str, shapes: Shapes) -> None:
    for name, shape in shapes.items():
        values = random.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            values = 1 + 0.2 * values if name.endswith("norm.weight") else 0.1 * values
        else:
            values *= np.float32(2 / shape[-1] ** 0.5)
        writer.add_tensor(prefix + name, values.astype(np.float32))


_DENSE: Shapes = {
    "ffn_gate.weight": (HIDDEN, WIDTH),
    "ffn_up.weight": (HIDDEN, WIDTH),
    "ffn_down.weight": (WIDTH, HIDDEN),
}
_EXPERT: Shapes = {
    "ffn_gate_inp.weight": (EXPERTS, WIDTH),
    "ffn_gate_exps.weight": (EXPERTS, WIDTH, WIDTH),
    "ffn_up_exps.weight": (EXPERTS, WIDTH, WIDTH),
    "ffn_down_exps.weight": (EXPERTS, WIDTH, WIDTH),
}
_MIXTURE: Shapes = _EXPERT | {
    "exp_probs_b.bias": (EXPERTS,),
    "ffn_gate_shexp.weight": (WIDTH, WIDTH),
    "ffn_up_shexp.weight": (WIDTH, WIDTH),
    "ffn_down_shexp.weight": (WIDTH, WIDTH),
}
_DRAFT: Shapes = {
    "nextn.eh_proj.weight": (WIDTH, 2 * WIDTH),
    "nextn.enorm.weight": (WIDTH,),
    "nextn.hnorm.weight": (WIDTH,),
}
OWN: dict[str, Callable[[int], tuple[int, ...]]] = {
    "shared_head_norm": lambda vocabulary: (WIDTH,),
    "shared_head_head": lambda vocabulary: (vocabulary, WIDTH),
    "embed_tokens": lambda vocabulary: (vocabulary, WIDTH),
}
"""What a prediction layer may have of its own; without, it uses the model's."""
_ATTENTION: Shapes = {
    "attn_norm.weight": (WIDTH,),
    "attn_q.weight": (HEADS * HEAD, WIDTH),
    "attn_k.weight": (HEADS * HEAD, WIDTH),
    "attn_v.weight": (HEADS * HEAD, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * HEAD),
}
_LATENT, _ROTATED = 32, 8

_RECIPES: dict[str, tuple[dict[str, Any], Shapes]] = {
    "glm4moe": (
        {"expert_feed_forward_length": WIDTH, "expert_shared_count": 1, "expert_weights_norm": True},
        _ATTENTION | {"post_attention_norm.weight": (WIDTH,)},
    ),
    "dots1": (
        {
            "expert_feed_forward_length": WIDTH,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "expert_gating_func": 2,
        },
        _ATTENTION | {"ffn_norm.weight": (WIDTH,), "attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)},
    ),
    "deepseek2": (
        {
            "expert_feed_forward_length": WIDTH,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "expert_gating_func": 2,
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": 24,
            "attention.kv_lora_rank": _LATENT,
            "attention.key_length": _LATENT + _ROTATED,
            "attention.value_length": _LATENT,
            "attention.key_length_mla": HEAD,
            "attention.value_length_mla": HEAD,
            "rope.dimension_count": _ROTATED,
        },
        {
            "attn_norm.weight": (WIDTH,),
            "attn_q_a.weight": (24, WIDTH),
            "attn_q_a_norm.weight": (24,),
            "attn_q_b.weight": (HEADS * HEAD, 24),
            "attn_kv_a_mqa.weight": (_LATENT + _ROTATED, WIDTH),
            "attn_kv_a_norm.weight": (_LATENT,),
            "attn_k_b.weight": (HEADS, _LATENT, HEAD - _ROTATED),
            "attn_v_b.weight": (HEADS, HEAD, _LATENT),
            "attn_output.weight": (WIDTH, HEADS * HEAD),
            "ffn_norm.weight": (WIDTH,),
        },
    ),
}
MIXTURES_WITH_DENSE_LAYERS = tuple(_RECIPES)
