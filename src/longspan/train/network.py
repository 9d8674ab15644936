"""An MTP head in PyTorch: the formulas of `model.mtp_head` over whole texts at once, several drafts deep."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from longspan.model.mtp_head import MtpHead

_FUSION = "eh_proj"
_NORMS = ("embedding_norm", "hidden_norm", "output_norm")


class HeadNetwork:
    """The weights of a head as parameters, and what it computes.

    parameters: by name; float32. The head that it was made of lends everything that is not trained.
    """

    def __init__(self, head: MtpHead, device: torch.device) -> None:
        self._head = head
        self.device = device
        arrays = {
            _FUSION: head.eh_proj,
            **{name: getattr(head, name) for name in _NORMS},
            **dict(head.block),
        }
        self.parameters: dict[str, torch.Tensor] = {
            name: torch.tensor(values, dtype=torch.float32, device=device).requires_grad_()
            for name, values in arrays.items()
        }
        pairs = head.width // head.head_count // 2
        self._frequencies = head.rope_base ** -(torch.arange(pairs, dtype=torch.float64) / pairs)

    def head(self) -> MtpHead:
        """The head with the parameters as they are now."""
        arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.parameters.items()}
        return dataclasses.replace(
            self._head,
            path=Path(),
            digest="",
            eh_proj=arrays[_FUSION],
            embedding_norm=arrays["embedding_norm"],
            hidden_norm=arrays["hidden_norm"],
            output_norm=arrays["output_norm"],
            block={name: arrays[name] for name in self._head.block},
        )

    def unroll(self, embeddings: torch.Tensor, hidden: torch.Tensor, depth: int) -> torch.Tensor:
        """Hidden states of the drafts behind every row of some texts, (depth, n, rows, width).

        embeddings: (n, length, width) of the texts' tokens. hidden: (n, length, width) the base model's states.
        rows = length - depth - 1. Row r starts from the state at position r and the token at r + 1; entry
        [d - 1, :, r] is what draft d is read from: the token at position r + d + 1, given the text before it.
        A draft's query sees what rows up to r left in the cache from true states, and the drafts before it.
        """
        rows = embeddings.shape[1] - depth - 1
        state = hidden[:, :rows]
        outputs: list[torch.Tensor] = []
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step in range(depth):
            fused = self._fused(embeddings[:, 1 + step : 1 + step + rows], state)
            query, key, value = self._projected(fused, step)
            kept.append((key, value))
            state = self._norm(self._block(fused, self._attended(query, kept)), "output_norm")
            outputs.append(state)
        return torch.stack(outputs)

    def _fused(self, embeddings: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        halves = [self._norm(embeddings, "embedding_norm"), self._norm(state, "hidden_norm")]
        return self._times(torch.cat(halves, dim=-1), _FUSION)

    def _projected(self, fused: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query (n, rows, key heads, group, head width), key and value (n, rows, key heads, head width)."""
        normed = self._norm(fused, "attn_norm.weight")
        key_heads = self._head.head_count_kv
        group = self._head.head_count // key_heads
        query = self._times(normed, "attn_q.weight").unflatten(-1, (key_heads * group, -1))
        key = self._times(normed, "attn_k.weight").unflatten(-1, (key_heads, -1))
        value = self._times(normed, "attn_v.weight").unflatten(-1, (key_heads, -1))
        angles = torch.arange(step, step + fused.shape[1], dtype=torch.float64)[:, None, None] * self._frequencies
        turn = torch.cos(angles).float().to(self.device), torch.sin(angles).float().to(self.device)
        return _rotated(query, turn).unflatten(2, (key_heads, group)), _rotated(key, turn), value

    def _attended(self, query: torch.Tensor, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Attention over the rows of true states, causally, and over the same row's own earlier drafts."""
        (true_keys, true_values), *own = kept
        rows = query.shape[1]
        query = query * query.shape[-1] ** -0.5
        scores = torch.einsum("nrkgd,nskd->nkgrs", query, true_keys).float()
        hidden = torch.ones(rows, rows, dtype=torch.bool, device=self.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
        if own:
            more = [torch.einsum("nrkgd,nrkd->nkgr", query, key).float() for key, _ in own]
            scores = torch.cat([scores, torch.stack(more, dim=-1)], dim=-1)
        shares = scores.softmax(dim=-1).to(true_values.dtype)
        mixed = torch.einsum("nkgrs,nskd->nrkgd", shares[..., :rows], true_values)
        for place, (_, value) in enumerate(own):
            share = shares[..., rows + place].permute(0, 3, 1, 2)
            mixed = mixed + share[..., None] * value[:, :, :, None]
        return mixed.flatten(2)

    def _block(self, fused: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        state = fused + self._times(mixed, "attn_output.weight")
        normed = self._norm(state, "ffn_norm.weight")
        gate = functional.silu(self._times(normed, "ffn_gate.weight"))
        return state + self._times(gate * self._times(normed, "ffn_up.weight"), "ffn_down.weight")

    def _times(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(rows, self.parameters[name])

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        rows = rows.float()
        squares = rows.square().mean(dim=-1, keepdim=True)
        return rows * torch.rsqrt(squares + self._head.rms_epsilon) * self.parameters[name]


def _rotated(heads: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """(n, rows, heads, head width) turned by RoPE over interleaved pairs; turn: each (rows, 1, pairs)."""
    cosine, sine = turn
    even, odd = heads.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)
    return turned.flatten(-2).to(heads.dtype)


def as_tensor(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array on the device; with CUDA through pinned memory, so that copying does not hold anything up."""
    tensor = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
