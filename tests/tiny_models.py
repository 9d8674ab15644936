"""Tiny random-weight models of many architectures, written as GGUF files that llama.cpp loads.

In llama.cpp, models of weight type Q8_0 give a row the same logits in any batch, to the bit. Those of F32 and F16
do not: a batch of one row takes another kernel than a batch of several (the several agree among each other).

The weights are scaled so that greedy output depends on the context: block outputs outweigh the embedding in the
residual stream, and attention scores spread over a few units. Sliding windows are short, so that a few dozen tokens
reach past them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BEGIN_TOKEN = 1
END_TOKEN = 2
"""<|im_end|>; <|endoftext|>, token 0, pads."""
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MERGES = (
    "h e", "Ġ t", "i n", "e r", "a n", "o n", "o r", "Ġ a", "r e", "Ġt he", "a t", "e n",
    "o u", "i s", "Ġ s", "i t", "e s", "Ġ w", "Ġ o", "n d", "Ġ b", "Ġ f", "in g", "e d",
    "a l", "Ġ m", "Ġ p", "Ġ c", "l e", "o m", "Ġ in", "an d", "Ġo f", "Ġ and", "Ġt o", "a r",
    "i c", "s t", "o t", "l l", "Ġ he",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the tensors of one architecture look like.

    fused_attention: one `attn_qkv` matrix. attention_bias: of q, k and v; output_bias: of every matrix after them.
    head_norm: "head" (one weight a head dimension), "full" (over all heads) or "" for q and k norms.
    post_norms: norms after attention and feed-forward; pre_norms: those before.
    feed_forward: "gated", "fused" (gate and up in one matrix), "plain" or "experts".
    shared_expert: one more expert that always runs.
    layer_norm: norms carry a bias and centre their input. shared_norm: attention and feed-forward read one norm.
    sinks: one learned attention sink a head. expert_bias: biases of the experts and their router.
    untied: whether the architecture may have an output matrix of its own.
    grouped: several query heads may share a key-value head.
    wide_heads: heads times head width may differ from the model's width.
    rotated: share of each head that RoPE turns. layers: default layer count.
    extra: further metadata; the keys stand without their `{architecture}.` prefix.
    """

    fused_attention: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    head_norm: str = ""
    pre_norms: bool = True
    post_norms: bool = False
    post_norm_is_pre_feed_forward: bool = False
    feed_forward: str = "gated"
    shared_expert: bool = False
    layer_norm: bool = False
    norm_bias: bool = True
    shared_norm: bool = False
    sinks: bool = False
    expert_bias: bool = False
    untied: bool = True
    grouped: bool = True
    wide_heads: bool = False
    rotated: float = 1.0
    layers: int = 4
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


_RECIPES: dict[str, Recipe] = {
    "llama": Recipe(),
    "qwen2": Recipe(attention_bias=True),
    "qwen3": Recipe(head_norm="head", wide_heads=True),
    "gemma": Recipe(untied=False, wide_heads=True),
    "gemma2": Recipe(
        untied=False,
        post_norms=True,
        wide_heads=True,
        extra={
            "attention.sliding_window": 12,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3": Recipe(
        head_norm="head",
        post_norms=True,
        wide_heads=True,
        layers=8,
        extra={"attention.sliding_window": 12, "rope.freq_base": 1000000.0},
    ),
    "phi3": Recipe(fused_attention=True, feed_forward="fused"),
    "glm4": Recipe(attention_bias=True, post_norms=True, feed_forward="fused", rotated=0.5),
    "qwen3moe": Recipe(head_norm="head", wide_heads=True, feed_forward="experts"),
    "qwen2moe": Recipe(attention_bias=True, feed_forward="experts", shared_expert=True),
    "olmoe": Recipe(head_norm="full", grouped=False, feed_forward="experts", extra={"feed_forward_length": 64}),
    "olmo2": Recipe(head_norm="full", pre_norms=False, post_norms=True),
    "granite": Recipe(
        extra={
            "logit_scale": 2.0,
            "residual_scale": 0.6,
            "embedding_scale": 3.0,
            "attention.scale": 0.2,
        }
    ),
    "starcoder2": Recipe(attention_bias=True, output_bias=True, layer_norm=True, feed_forward="plain"),
    "stablelm": Recipe(layer_norm=True, rotated=0.5, extra={"use_parallel_residual": True}),
    "internlm2": Recipe(),
    "smollm3": Recipe(),
    "cohere2": Recipe(
        untied=False,
        layer_norm=True,
        norm_bias=False,
        shared_norm=True,
        extra={"attention.sliding_window": 12, "logit_scale": 0.5},
    ),
    "exaone4": Recipe(head_norm="head", pre_norms=False, post_norms=True),
    "seed_oss": Recipe(attention_bias=True, post_norm_is_pre_feed_forward=True),
    "gpt-oss": Recipe(
        attention_bias=True,
        output_bias=True,
        post_norm_is_pre_feed_forward=True,
        feed_forward="experts",
        sinks=True,
        wide_heads=True,
        expert_bias=True,
        extra={"attention.sliding_window": 12},
    ),
}

TINY_ARCHITECTURES: tuple[str, ...] = tuple(_RECIPES)
REQUIRED_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "glm4", "qwen3moe")
"""The ones that every split must get right to the bit."""


def write_tiny_model(
    path: Path,
    architecture: str,
    *,
    layers: int | None = None,
    seed: int = 0,
    context: int = 512,
    width: int = 64,
    heads: int = 4,
    key_value_heads: int | None = None,
    head_width: int | None = None,
    tied: bool | None = None,
    weight_type: str = "F32",
    rotary_factors: bool = False,
    extra: dict[str, Any] | None = None,
) -> Path:
    """Write a model of `architecture` with random weights and return `path`.

    layers: None takes the architecture's default (enough for its layer pattern to matter). key_value_heads and
    head_width: None takes half the heads, and twice `width / heads`, where the architecture allows it.
    tied: whether the output matrix is the embedding; None takes tied where the architecture knows no other.
    weight_type: "F32", "F16" or "Q8_0" for the matrices; norms and biases stay F32.
    rotary_factors: whether a `rope_freqs` tensor divides the rotary frequencies, as in Llama 3.
    extra: more metadata over the recipe's own, keys without their `{architecture}.` prefix.
    """
    recipe = _RECIPES[architecture]
    layers = recipe.layers if layers is None else layers
    key_value_heads = key_value_heads or (heads // 2 if recipe.grouped else heads)
    head_width = head_width or (2 if recipe.wide_heads else 1) * width // heads
    tied = not recipe.untied if tied is None else tied
    if not tied and not recipe.untied:
        raise ValueError(f"{architecture} has no output matrix of its own")
    writer = gguf.GGUFWriter(path, architecture)
    try:
        vocabulary = write_vocabulary(writer)
        metadata: dict[str, Any] = {
            "block_count": layers,
            "context_length": context,
            "embedding_length": width,
            "feed_forward_length": 2 * width,
            "attention.head_count": heads,
            "attention.head_count_kv": key_value_heads,
            "attention.key_length": head_width,
            "attention.value_length": head_width,
            "attention.layer_norm_epsilon" if recipe.layer_norm else "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": int(head_width * recipe.rotated),
            "rope.freq_base": 10000.0,
        }
        if recipe.feed_forward == "experts":
            metadata |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": width}
            if recipe.shared_expert:
                metadata["expert_shared_feed_forward_length"] = width
        for key, value in (metadata | recipe.extra | (extra or {})).items():
            _add_value(writer, f"{architecture}.{key}", value)
        tensors = _Tensors(writer, np.random.default_rng(seed), weight_type)
        # A tied output matrix finds its own rows in the residual: the smaller, the less a token predicts itself.
        tensors.matrix("token_embd", width, vocabulary, gain=(0.08 if tied else 0.5) * width**0.5)
        tensors.norm("output_norm", width, biased=recipe.layer_norm and recipe.norm_bias, mean=4.0 if tied else 1.0)
        if not tied:
            tensors.matrix("output", width, vocabulary, gain=3.0)
        if rotary_factors:
            tensors.norm("rope_freqs", int(head_width * recipe.rotated) // 2, mean=2.0)
        for layer in range(layers):
            tensors.prefix = f"blk.{layer}."
            _write_attention(tensors, recipe, width, heads, key_value_heads, head_width)
            _write_feed_forward(tensors, recipe, width)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return path


def write_vocabulary(writer: gguf.GGUFWriter) -> int:
    """A byte-level BPE vocabulary with three special tokens and a few merges; returns its size."""
    # The byte alphabet of GPT-2: printable bytes stand for themselves, the others for code points from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]
    tokens = [*_SPECIAL, *alphabet, *(merge.replace(" ", "") for merge in _MERGES)]
    types = [gguf.TokenType.CONTROL] * len(_SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(_SPECIAL))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(list(_MERGES))
    writer.add_bos_token_id(BEGIN_TOKEN)
    writer.add_eos_token_id(END_TOKEN)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: {type(value).__name__} is not a metadata type of these models")


class _Tensors:
    """Random tensors, named under `prefix`, in the order of the calls."""

    def __init__(self, writer: gguf.GGUFWriter, generator: np.random.Generator, weight_type: str) -> None:
        self._writer = writer
        self._generator = generator
        self._type = gguf.GGMLQuantizationType[weight_type]
        self.prefix = ""

    def matrix(self, name: str, inputs: int, outputs: int, *, gain: float = 1.0, experts: int = 0) -> None:
        """(outputs, inputs), or (experts, outputs, inputs); unit inputs give outputs of deviation `gain`."""
        shape = (experts, outputs, inputs) if experts else (outputs, inputs)
        values = self._normal(shape) * np.float32(gain / inputs**0.5)
        if self._type == gguf.GGMLQuantizationType.F32 or inputs % 32:
            self._writer.add_tensor(f"{self.prefix}{name}.weight", values)
        else:
            quantised = gguf.quants.quantize(values, self._type)
            self._writer.add_tensor(f"{self.prefix}{name}.weight", quantised, raw_dtype=self._type)

    def norm(self, name: str, width: int, *, biased: bool = False, mean: float = 1.0) -> None:
        self._writer.add_tensor(f"{self.prefix}{name}.weight", np.float32(mean) + 0.2 * self._normal((width,)))
        if biased:
            self.bias(name, width)

    def bias(self, name: str, *shape: int) -> None:
        self._writer.add_tensor(f"{self.prefix}{name}.bias", 0.1 * self._normal(shape))

    def vector(self, name: str, width: int) -> None:
        self._writer.add_tensor(f"{self.prefix}{name}.weight", self._normal((width,)))

    def _normal(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        return self._generator.standard_normal(shape, dtype=np.float32)


def _write_attention(
    tensors: _Tensors, recipe: Recipe, width: int, heads: int, key_value_heads: int, head_width: int
) -> None:
    query, key_value = heads * head_width, key_value_heads * head_width
    if recipe.pre_norms:
        tensors.norm("attn_norm", width, biased=recipe.layer_norm and recipe.norm_bias)
    if recipe.fused_attention:
        tensors.matrix("attn_qkv", width, query + 2 * key_value, gain=1.3)
    else:
        for name, size, gain in (("attn_q", query, 1.5), ("attn_k", key_value, 1.5), ("attn_v", key_value, 1.0)):
            tensors.matrix(name, width, size, gain=gain)
            if recipe.attention_bias:
                tensors.bias(name, size)
    tensors.matrix("attn_output", query, width, gain=1.5)
    if recipe.output_bias:
        tensors.bias("attn_output", width)
    if recipe.sinks:
        tensors.vector("attn_sinks", heads)
    if recipe.head_norm == "head":
        tensors.norm("attn_q_norm", head_width, mean=1.3)
        tensors.norm("attn_k_norm", head_width, mean=1.3)
    elif recipe.head_norm == "full":
        tensors.norm("attn_q_norm", query, mean=1.3)
        tensors.norm("attn_k_norm", key_value, mean=1.3)
    if recipe.post_norms or recipe.post_norm_is_pre_feed_forward:
        tensors.norm("post_attention_norm", width)


def _write_feed_forward(tensors: _Tensors, recipe: Recipe, width: int) -> None:
    hidden = 2 * width
    if recipe.pre_norms and not recipe.shared_norm and not recipe.post_norm_is_pre_feed_forward:
        tensors.norm("ffn_norm", width, biased=recipe.layer_norm and recipe.norm_bias)
    if recipe.feed_forward == "experts":
        tensors.matrix("ffn_gate_inp", width, 4, gain=2.0)
        for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
            tensors.matrix(name, width, width, gain=1.5, experts=4)
        if recipe.expert_bias:
            tensors.bias("ffn_gate_inp", 4)
            for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
                tensors.bias(name, 4, width)
        if recipe.shared_expert:
            tensors.vector("ffn_gate_inp_shexp", width)
            for name in ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"):
                tensors.matrix(name, width, width, gain=1.5)
    else:
        if recipe.feed_forward == "gated":
            tensors.matrix("ffn_gate", width, hidden, gain=1.5)
        tensors.matrix("ffn_up", width, 2 * hidden if recipe.feed_forward == "fused" else hidden, gain=1.5)
        tensors.matrix("ffn_down", hidden, width, gain=1.5)
        if recipe.output_bias:
            tensors.bias("ffn_up", hidden)
            tensors.bias("ffn_down", width)
    if recipe.post_norms:
        tensors.norm("post_ffw_norm", width)
