"""A model writes conversations: many rows in step, sampled together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from longspan.train.conversations import Conversations, Tokens
from longspan.train.texts import Texts

CHOICES = 40
"""Likeliest tokens among which one is drawn."""


class BaseModel(Protocol):
    """A model that runs rows in step. device: where its results are. width: of a hidden state."""

    device: torch.device
    width: int

    def begin(self, rows: int, length: int) -> None:
        """Forget everything, and make room for `rows` sequences of `length` positions."""

    def step(self, tokens: Tokens, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one token of every row, (rows,), all at one position.

        Gives logits (rows, vocabulary), and hidden states after the output norm (rows, width); valid until the next
        step. Raises LongspanError when the model cannot be run.
        """

    def most_rows(self, length: int) -> int:
        """How many rows are written fastest, and fit into memory."""

    def close(self) -> None:
        """Release what the model holds."""


def write_texts(
    base: BaseModel,
    conversations: Conversations,
    rows: int,
    length: int,
    *,
    seed: int,
    least: int = 32,
    enough: Callable[[], bool] = lambda: False,
) -> Texts:
    """Let the model write `rows` texts of `length` tokens, shorter ones when `enough` says so after `least`."""
    base.begin(rows, length)
    generator = torch.Generator(base.device).manual_seed(seed)
    hidden = torch.empty((length, rows, base.width), dtype=torch.float16, device=base.device)
    tokens = np.zeros((length, rows), np.int32)
    said = np.zeros((length, rows), np.bool_)
    best = np.zeros((length, rows), np.int32)
    following = np.zeros(rows, np.int32)
    position = 0
    while position < length and (position < least or not enough()):
        tokens[position], said[position] = conversations.advance(following)
        logits, states = base.step(tokens[position], position)
        # Hidden states stay far below the largest float16; a clipped one is better than an infinite one.
        hidden[position] = states.clamp(-65504.0, 65504.0)
        drawn = _draw(logits, torch.from_numpy(conversations.temperatures), generator).cpu().numpy()
        best[position], following = drawn
        position += 1
    kept = hidden[:position].transpose(0, 1).contiguous().cpu().numpy()
    first = slice(None, position)
    return Texts(tokens[first].T.copy(), said[first].T.copy(), best[first].T.copy(), kept)


def _draw(logits: torch.Tensor, temperatures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """(2, rows): the likeliest token, and one drawn at each row's temperature among the CHOICES likeliest."""
    values, choices = torch.topk(logits, min(CHOICES, logits.shape[1]), dim=1)
    heat = temperatures.to(logits.device)[:, None]
    uniform = torch.rand(values.shape, generator=generator, device=logits.device)
    # The largest of logit / temperature + Gumbel noise is a draw from the softmax; without heat there is no noise.
    noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1.0 - 1e-7)))
    place = (values.float() + heat * noise).argmax(dim=1, keepdim=True)
    return torch.stack([choices[:, 0], choices.gather(1, place)[:, 0]]).int()
