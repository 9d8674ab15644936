"""An MTP head in numpy, as the formulas of `model.mtp_head` say it: float32, no cache, no batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longspan.model.embedding import TokenEmbedding
from longspan.model.mtp_head import MtpHead

Rows = npt.NDArray[np.float32]


class ReferenceHead:
    """embedding, output: the model's token embedding and output matrix."""

    def __init__(self, head: MtpHead, embedding: TokenEmbedding, output: TokenEmbedding) -> None:
        self._head = head
        self._embedding = embedding
        self._output = output.rows(np.arange(output.vocabulary, dtype=np.int32))

    def chain(
        self, tokens: Sequence[int], hidden: Rows, length: int, allowed: Sequence[int], path: Sequence[int] = ()
    ) -> list[tuple[int, npt.NDArray[np.float64]]]:
        """Draft behind tokens[-1]: each step's token and the probabilities of all `allowed` ones (ascending).

        tokens: (n,) those at the positions after the hidden states (n, width). path: the first drafts, whatever
        is likelier.
        """
        head = self._head
        known = [*head.prefix_tokens[1:].tolist(), *tokens]
        states = np.concatenate([head.prefix_hidden, hidden])
        steps = []
        for step in range(length):
            state = self._last(known, states)
            logits = (self._output[list(allowed)] @ state).astype(np.float64)
            chances = np.exp(logits - logits.max())
            token = path[step] if step < len(path) else int(allowed[int(logits.argmax())])
            steps.append((token, chances / chances.sum()))
            known, states = [*known, token], np.concatenate([states, state[None]])
        return steps

    def _last(self, tokens: Sequence[int], hidden: Rows) -> Rows:
        """The head's own hidden state behind the last token."""
        head, block = self._head, self._head.block
        embedded = self._embedding.rows(np.array(tokens, np.int32))
        halves = [self._norm(embedded, head.embedding_norm), self._norm(hidden, head.hidden_norm)]
        fused = np.concatenate(halves, axis=1) @ head.eh_proj.T
        rows = self._norm(fused, block["attn_norm.weight"])
        query = self._rotated(rows @ block["attn_q.weight"].T, head.head_count)[-1]
        key = self._rotated(rows @ block["attn_k.weight"].T, head.head_count_kv)
        value = (rows @ block["attn_v.weight"].T).reshape(len(rows), head.head_count_kv, -1)
        shared = head.head_count // head.head_count_kv
        key, value = np.repeat(key, shared, axis=1), np.repeat(value, shared, axis=1)
        scores = np.einsum("hd,nhd->hn", query, key) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        attended = np.einsum("hn,nhd->hd", weights, value).reshape(-1)
        state = fused[-1] + block["attn_output.weight"] @ attended
        inner = self._norm(state, block["ffn_norm.weight"])
        gate = block["ffn_gate.weight"] @ inner
        state = state + block["ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (block["ffn_up.weight"] @ inner))
        return self._norm(state, head.output_norm)

    def _norm(self, rows: Rows, weight: Rows) -> Rows:
        scale = np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + self._head.rms_epsilon)
        normed: Rows = (rows / scale * weight).astype(np.float32)
        return normed

    def _rotated(self, rows: Rows, heads: int) -> Rows:
        """Interleaved rope pairs; row i stands at position i."""
        split = rows.reshape(len(rows), heads, -1)
        width = split.shape[-1]
        angles = np.arange(len(rows))[:, None] * self._head.rope_base ** (-np.arange(0, width, 2) / width)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        result = np.empty_like(split)
        result[..., 0::2] = split[..., 0::2] * cos - split[..., 1::2] * sin
        result[..., 1::2] = split[..., 0::2] * sin + split[..., 1::2] * cos
        return result
