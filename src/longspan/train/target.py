"""What the base model says comes next, and how far a head is from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from longspan.errors import ModelError
from longspan.model.compose import EMBEDDING, OUTPUT
from longspan.model.embedding import TokenEmbedding
from longspan.model.gguf_file import read_gguf
from longspan.model.source import ModelSource
from longspan.train.network import as_tensor

_CHUNK_BYTES = 1 << 30
"""Of logits that are in memory at a time, on a GPU."""
_CHUNK_BYTES_CPU = 1 << 26
_MOST_DEVIATION = 0.05


@dataclasses.dataclass(frozen=True)
class OutputRule:
    """How a model makes logits of its hidden state h: cap · tanh(scale · M h / cap), with M its output matrix."""

    scale: float = 1.0
    cap: float | None = None

    def logits(self, raw: torch.Tensor) -> torch.Tensor:
        """raw: M h."""
        scaled = raw * self.scale if self.scale != 1.0 else raw
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)


def output_matrix(source: ModelSource, library: str | None = None) -> TokenEmbedding:
    """The rows of the model's output matrix, unscaled."""
    tensors = read_gguf(source.stage_file(0, source.description.layers)).tensors
    return TokenEmbedding(tensors.get(OUTPUT) or tensors[EMBEDDING], 1.0, library)


def output_rule(
    source: ModelSource, hidden: torch.Tensor, logits: torch.Tensor, matrix: TokenEmbedding
) -> OutputRule:
    """Find a model's rule from some of its hidden states (n, width) and their logits (n, vocabulary).

    Architectures scale and cap their logits in many ways, so the scale is measured, not looked up. Raises
    ModelError when no scale explains the logits: then nothing that a head says could be read with that matrix.
    """
    file = read_gguf(source.stage_file(0, source.description.layers))
    cap = file.number(f"{file.architecture}.final_logit_softcapping") or None
    chosen = np.unique(np.linspace(0, matrix.vocabulary - 1, 512).astype(np.int32))
    raw = hidden.double() @ torch.from_numpy(matrix.rows(chosen)).double().T
    seen = logits.double()[:, torch.from_numpy(chosen).long()]
    if cap is not None:
        seen = cap * torch.atanh((seen / cap).clamp(-0.999999, 0.999999))
    scale = float((raw * seen).sum() / raw.square().sum())
    deviation = float((raw * scale - seen).norm() / seen.norm())
    if not deviation <= _MOST_DEVIATION or scale <= 0:
        raise ModelError(
            f"{source.path}: logits of the architecture {file.architecture!r} are not its output matrix times the "
            f"hidden state (they differ by {deviation:.0%}), so no head can be trained for it."
        )
    # Quantised products differ from exact ones by a little; a scale that is meant is further from 1.
    return OutputRule(1.0 if abs(scale - 1.0) < 0.02 else scale, cap)


@dataclasses.dataclass(frozen=True)
class Target:
    """The output matrix over the tokens that are trained, on the device, and the model's rule.

    tokens: (n,) ascending ids, None for the whole vocabulary. matrix: (n, width).
    """

    matrix: torch.Tensor
    rule: OutputRule
    tokens: npt.NDArray[np.int32] | None

    @classmethod
    def of(
        cls,
        matrix: TokenEmbedding,
        rule: OutputRule,
        tokens: npt.NDArray[np.int32] | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Target:
        """Read the rows of the output matrix; all of them when `tokens` is None."""
        rows = matrix.rows(np.arange(matrix.vocabulary, dtype=np.int32) if tokens is None else tokens)
        return cls(as_tensor(rows, device).to(dtype), rule, tokens)

    def distillation(self, states: torch.Tensor, hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Cross entropy of a head's logits against the model's own distribution, a scalar.

        states: (depth, n, rows, width) from `HeadNetwork.unroll`. hidden: (n, length, width) of the model.
        weights: (depth, n, rows); they are brought to a sum of 1.

        The logits of all positions would not fit into memory. So each piece's gradient is taken at once, as
        (softmax of the head's - the model's probabilities) · matrix, and only that is kept for the way back.
        """
        depth, count, rows, _ = states.shape
        weights = weights / weights.sum().clamp(min=1e-9)
        gradient = torch.empty_like(states, requires_grad=False)
        loss = torch.zeros((), device=states.device)
        with torch.no_grad():
            for first, last in self._pieces(count, hidden.shape[1]):
                model = self.rule.logits(self._raw(hidden[first:last, 1 : depth + rows])).softmax(dim=-1)
                for step in range(depth):
                    wanted = model[:, step : step + rows]
                    said = self._raw(states[step, first:last]).log_softmax(dim=-1)
                    share = weights[step, first:last, :, None]
                    loss -= (wanted * said * share).sum()
                    slope = (said.exp_().sub_(wanted).mul_(share)).to(self.matrix.dtype)
                    gradient[step, first:last] = (slope @ self.matrix).to(gradient.dtype)
        # Its value is the loss, its gradient with respect to `states` is `gradient`.
        carried = (states * gradient).sum()
        return loss + carried - carried.detach()

    def cross_entropy(self, states: torch.Tensor, hidden: torch.Tensor) -> float:
        """Sum over the rows of a head's states (n, width) and of the model's (n, width), in nats."""
        total = 0.0
        with torch.no_grad():
            for first, last in self._pieces(len(states), 1):
                wanted = self.rule.logits(self._raw(hidden[first:last])).softmax(dim=-1)
                total -= float((wanted * self._raw(states[first:last]).log_softmax(dim=-1)).sum())
        return total

    def likeliest(self, states: torch.Tensor) -> torch.Tensor:
        """Token ids (n,) that the head drafts where its states are (n, width); on the CPU."""
        places = torch.zeros(len(states), dtype=torch.long)
        with torch.no_grad():
            for first, last in self._pieces(len(states), 1):
                places[first:last] = self._raw(states[first:last]).argmax(dim=-1)
        return places if self.tokens is None else torch.from_numpy(self.tokens)[places].long()

    def _raw(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows.to(self.matrix.dtype) @ self.matrix.T).float()

    def _pieces(self, count: int, length: int) -> list[tuple[int, int]]:
        room = _CHUNK_BYTES if self.matrix.device.type == "cuda" else _CHUNK_BYTES_CPU
        size = max(1, room // (4 * len(self.matrix) * length))
        return [(first, min(first + size, count)) for first in range(0, count, size)]
