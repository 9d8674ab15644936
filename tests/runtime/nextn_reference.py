"""The MTP layer that a model carries itself, in numpy: float32, no cache, no batch, from the model file's tensors.

Two architectures, as their papers and llama.cpp's graphs have them: `glm4moe` (grouped attention, rope over halves)
and `deepseek2` (latent attention, rope over interleaved pairs), each with routed experts and a shared one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]


class ReferenceLayer:
    """The first MTP layer of the model at `path`."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        values = {name: field.contents() for name, field in reader.fields.items()}
        self._architecture = values["general.architecture"]
        self._values = {name.removeprefix(f"{self._architecture}."): value for name, value in values.items()}
        layer = self._values["block_count"] - self._values["nextn_predict_layers"]
        self._model = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
        own = f"blk.{layer}."
        self._own = {name.removeprefix(own): data for name, data in self._model.items() if name.startswith(own)}
        self._attention: Callable[[Rows], Rows] = {
            "glm4moe": self._grouped_attention,
            "deepseek2": self._latent_attention,
        }[self._architecture]

    def step(self, tokens: Sequence[int], hidden: Rows) -> tuple[Rows, Rows]:
        """Logits (vocabulary,) and the layer's own hidden state (width,) behind the last of the tokens.

        tokens: (n,) those at the positions after the hidden states (n, width).
        """
        table = self._or_model("embed_tokens", "token_embd.weight")
        halves = [
            self._norm(table[list(tokens)], self._own["nextn.enorm.weight"]),
            self._norm(hidden, self._own["nextn.hnorm.weight"]),
        ]
        rows = np.concatenate(halves, axis=1) @ self._own["nextn.eh_proj.weight"].T
        state = rows[-1] + self._attention(self._norm(rows, self._own["attn_norm.weight"]))
        post = "post_attention_norm.weight" if self._architecture == "glm4moe" else "ffn_norm.weight"
        state = state + self._experts(self._norm(state, self._own[post]))
        state = self._norm(state, self._or_model("shared_head_norm", "output_norm.weight"))
        return self._or_model("shared_head_head", "output.weight") @ state, state

    def chain(self, tokens: Sequence[int], hidden: Rows, length: int) -> list[Rows]:
        """Logits of `length` steps, each behind the likeliest token of the one before."""
        known, states, steps = list(tokens), hidden, []
        for _ in range(length):
            logits, state = self.step(known, states)
            steps.append(logits)
            known, states = [*known, int(logits.argmax())], np.concatenate([states, state[None]])
        return steps

    def _or_model(self, own: str, otherwise: str) -> Rows:
        return self._own.get(f"nextn.{own}.weight", self._model[otherwise])

    def _norm(self, rows: Rows, weight: Rows) -> Rows:
        epsilon = self._values["attention.layer_norm_rms_epsilon"]
        normed: Rows = rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + epsilon) * weight
        return normed

    def _grouped_attention(self, rows: Rows) -> Rows:
        heads = self._values["attention.head_count"]
        shaped = [(rows @ self._own[f"attn_{name}.weight"].T).reshape(len(rows), heads, -1) for name in "qkv"]
        query, key = (_rotated(each, interleaved=False) for each in shaped[:2])
        scores = np.einsum("hd,nhd->hn", query[-1], key) / np.sqrt(query.shape[-1])
        mixed: Rows = np.einsum("hn,nhd->hd", _softmax(scores), shaped[2]).reshape(-1)
        return self._own["attn_output.weight"] @ mixed

    def _latent_attention(self, rows: Rows) -> Rows:
        heads, rotated = self._values["attention.head_count"], self._values["rope.dimension_count"]
        inner = self._norm(rows @ self._own["attn_q_a.weight"].T, self._own["attn_q_a_norm.weight"])
        query = (inner @ self._own["attn_q_b.weight"].T).reshape(len(rows), heads, -1)
        plain, turned = query[-1, :, :-rotated], _rotated(query[..., -rotated:], interleaved=True)[-1]
        both = rows @ self._own["attn_kv_a_mqa.weight"].T
        latent = self._norm(both[:, :-rotated], self._own["attn_kv_a_norm.weight"])
        key = _rotated(both[:, None, -rotated:], interleaved=True)[:, 0]
        # Keys and values of each head, out of the latent rows: attn_k_b is stored transposed.
        keys = np.einsum("hld,nl->nhd", self._own["attn_k_b.weight"], latent)
        values = np.einsum("hdl,nl->nhd", self._own["attn_v_b.weight"], latent)
        scores = np.einsum("hd,nhd->hn", plain, keys) + turned @ key.T
        mixed = np.einsum("hn,nhd->hd", _softmax(scores / np.sqrt(query.shape[-1])), values).reshape(-1)
        found: Rows = self._own["attn_output.weight"] @ mixed
        return found

    def _experts(self, row: Rows) -> Rows:
        chances = 1 / (1 + np.exp(-(self._own["ffn_gate_inp.weight"] @ row)))
        used = self._values["expert_used_count"]
        chosen = np.argsort(-(chances + self._own["exp_probs_b.bias"]))[:used]
        weights = chances[chosen] / chances[chosen].sum() * self._values.get("expert_weights_scale", 1.0)
        found = self._feed_forward(row, "shexp")
        for expert, weight in zip(chosen, weights, strict=True):
            found = found + weight * self._feed_forward(row, "exps", expert)
        return found

    def _feed_forward(self, row: Rows, kind: str, expert: int | None = None) -> Rows:
        matrices = [self._own[f"ffn_{name}_{kind}.weight"] for name in ("gate", "up", "down")]
        gate, up, down = matrices if expert is None else [matrix[expert] for matrix in matrices]
        inner = gate @ row
        found: Rows = down @ (inner / (1 + np.exp(-inner)) * (up @ row))
        return found


def _softmax(scores: Rows) -> Rows:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Rows = weights / weights.sum(axis=-1, keepdims=True)
    return shares


def _rotated(rows: Rows, *, interleaved: bool) -> Rows:
    """(n, heads, width) turned by RoPE of base 10000; row i stands at position i."""
    width = rows.shape[-1]
    angles = np.arange(len(rows))[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first = (..., slice(0, None, 2)) if interleaved else (..., slice(0, width // 2))
    second = (..., slice(1, None, 2)) if interleaved else (..., slice(width // 2, None))
    result = np.empty_like(rows)
    result[first] = rows[first] * cosine - rows[second] * sine
    result[second] = rows[first] * sine + rows[second] * cosine
    return result
