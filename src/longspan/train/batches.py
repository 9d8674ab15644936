"""Texts on their way to the device."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from longspan.model.embedding import TokenEmbedding
from longspan.train.network import as_tensor
from longspan.train.texts import TextFolder, Texts

_OTHERS = 0.1
"""Weight of tokens that the assistant did not say: drafts are made for answers."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some texts on the device.

    embeddings, hidden: (n, length, width) float32. weights: (n, length), of every token.
    """

    embeddings: torch.Tensor
    hidden: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, texts: Texts, embedding: TokenEmbedding, device: torch.device) -> Batch:
        """Look tokens up, each once, and copy everything over."""
        tokens, places = np.unique(texts.tokens, return_inverse=True)
        rows = as_tensor(embedding.rows(tokens.astype(np.int32)), device)
        chosen = as_tensor(places.reshape(texts.tokens.shape), device)
        weights = as_tensor(np.where(texts.said, np.float32(1.0), np.float32(_OTHERS)), device)
        return cls(rows[chosen], as_tensor(texts.hidden, device).float(), weights)

    def depth_weights(self, by_depth: tuple[float, ...]) -> torch.Tensor:
        """(depth, n, rows) for `Target.distillation`: of the token that each draft is compared with."""
        depth, length = len(by_depth), self.weights.shape[1]
        rows = length - depth - 1
        return torch.stack(
            [weight * self.weights[:, step + 2 : step + 2 + rows] for step, weight in enumerate(by_depth)]
        )


class Batches:
    """Batches of random texts out of a folder. The next one is read while the device is busy with the last."""

    def __init__(
        self, folder: TextFolder, embedding: TokenEmbedding, device: torch.device, texts: int, seed: int
    ) -> None:
        """texts: of a batch, at most."""
        self._folder = folder
        self._embedding = embedding
        self._device = device
        self._texts = texts
        self._generator = np.random.default_rng(seed)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="longspan-texts")
        self._next: Future[Batch] | None = None

    def take(self) -> Batch:
        """The next batch."""
        ready = self._next or self._reader.submit(self._read)
        batch = ready.result()
        self._next = self._reader.submit(self._read)
        return batch

    def pause(self) -> None:
        """Nothing is read any more until the next `take`: the folder may change."""
        if self._next is not None:
            self._next.result()

    def close(self) -> None:
        """End the reading thread."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _read(self) -> Batch:
        rounds = self._folder.rounds
        sizes = np.array([texts.count for texts in rounds], np.float64)
        chosen = rounds[int(self._generator.choice(len(rounds), p=sizes / sizes.sum()))]
        count = len(chosen.tokens)
        rows = np.sort(self._generator.choice(count, min(self._texts, count), replace=False))
        return Batch.of(chosen.rows(rows), self._embedding, self._device)
