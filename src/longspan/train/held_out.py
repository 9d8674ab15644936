"""How often a head agrees with its model on texts that it was not trained on."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from longspan.errors import LongspanError
from longspan.model.embedding import TokenEmbedding
from longspan.train.batches import Batch
from longspan.train.network import HeadNetwork
from longspan.train.target import Target
from longspan.train.texts import Texts

DEPTH = 5
_TEXTS_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Of a head with the likeliest token of its model, on tokens that the assistant said.

    positions: compared at depth 1. by_depth: the first, the second, … draft, behind the text's own tokens.
    chains: all drafts up to this depth. vocabulary: tokens that the head chose among.
    loss: cross entropy with the model's own probabilities at depth 1, nats a token.
    covered: share of the model's likeliest tokens that the head may draft out of itself. tokens_per_traversal: what
    a traversal of the ring gives with chains of this depth, averaged over all positions.
    """

    positions: int
    by_depth: tuple[float, ...]
    chains: tuple[float, ...]
    loss: float
    vocabulary: int
    covered: float
    tokens_per_traversal: float

    def better_than(self, other: Agreement) -> bool:
        """Whether it gives more tokens a traversal; where both give none, whether it is nearer to the model."""
        return (self.tokens_per_traversal, -self.loss) > (other.tokens_per_traversal, -other.loss)


def agreement(
    network: HeadNetwork, target: Target, texts: Texts, embedding: TokenEmbedding, depth: int = DEPTH
) -> Agreement:
    """Measure a head on some texts. Raises LongspanError when the assistant says too little in them."""
    right, asked = (np.zeros(depth, np.int64) for _ in range(2))
    chains, chained = (np.zeros(depth, np.int64) for _ in range(2))
    said_by_model: list[npt.NDArray[np.int32]] = []
    loss = 0.0
    for first in range(0, len(texts.tokens), _TEXTS_AT_ONCE):
        some = texts.rows(slice(first, first + _TEXTS_AT_ONCE))
        batch = Batch.of(some, embedding, network.device)
        with torch.no_grad():
            states = network.unroll(batch.embeddings, batch.hidden, depth)
        rows = states.shape[2]
        whole, meant = np.ones(states.shape[1:3], np.bool_), np.ones(states.shape[1:3], np.bool_)
        for step in range(depth):
            said = some.said[:, step + 2 : step + 2 + rows]
            best = some.best[:, step + 1 : step + 1 + rows]
            # Only what the assistant said is multiplied with the output matrix, which takes most of the time.
            chosen = torch.from_numpy(said.copy()).to(network.device)
            equal = np.zeros(said.shape, np.bool_)
            equal[said] = target.likeliest(states[step][chosen]).numpy() == best[said]
            right[step] += equal.sum()
            asked[step] += said.sum()
            whole, meant = whole & equal, meant & said
            chains[step] += whole.sum()
            chained[step] += meant.sum()
            if step == 0:
                loss += target.cross_entropy(states[0][chosen], batch.hidden[:, 1 : 1 + rows][chosen])
                said_by_model.append(best[said])
    if not chained[-1]:
        raise LongspanError(
            "the assistant says nothing in the texts that a head is measured on. Give more time (--minutes)."
        )
    own = network.head().draft_vocabulary
    wanted = np.concatenate(said_by_model)
    return Agreement(
        positions=int(asked[0]),
        by_depth=tuple((right / asked).tolist()),
        chains=tuple((chains / chained).tolist()),
        tokens_per_traversal=1.0 + float((chains / chained).sum()),
        loss=loss / int(asked[0]),
        vocabulary=len(target.matrix),
        covered=1.0 if own is None else float(np.isin(wanted, own).mean()),
    )
