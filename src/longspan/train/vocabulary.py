"""Which tokens a head shall draft out of itself, and the rows that every sequence of it begins with."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from longspan.model.embedding import TokenEmbedding
from longspan.model.mtp_head import MtpHead
from longspan.train.target import OutputRule
from longspan.train.texts import Texts

SIZE = 8192
"""Tokens of a draft vocabulary: on the demo model 6 of 7 rows of the output matrix are hardly ever meant."""
PREFIX_ROWS = 32

_POSITIONS = 1024
_CHUNK_ROWS = 4096


def fitted(head: MtpHead, texts: Texts, matrix: TokenEmbedding, rule: OutputRule) -> MtpHead:
    """A head with draft vocabulary and prefix from some texts; what it has of them already stays."""
    vocabulary = head.draft_vocabulary
    if vocabulary is None and matrix.vocabulary > SIZE:
        vocabulary = common_tokens(texts, matrix, rule)
    tokens, hidden = head.prefix_tokens, head.prefix_hidden
    if not len(tokens):
        rows = min(PREFIX_ROWS, texts.tokens.shape[1] - 1)
        tokens, hidden = texts.tokens[0, : rows + 1].copy(), texts.hidden[0, :rows].astype(np.float32)
    return dataclasses.replace(head, draft_vocabulary=vocabulary, prefix_tokens=tokens, prefix_hidden=hidden)


def common_tokens(texts: Texts, matrix: TokenEmbedding, rule: OutputRule) -> npt.NDArray[np.int32]:
    """The SIZE tokens that the model says or would have said most often, ascending.

    A short text has few different tokens; the model's probabilities over a sample of its positions rank the rest.
    """
    seen = np.concatenate([texts.tokens.ravel(), texts.best.ravel()])
    weights = np.bincount(seen, minlength=matrix.vocabulary).astype(np.float64)[: matrix.vocabulary]
    width = texts.hidden.shape[2]
    places = np.unique(np.linspace(0, texts.count - 1, _POSITIONS).astype(np.intp))
    sample = torch.from_numpy(texts.hidden.reshape(-1, width)[places].astype(np.float32))
    pieces = []
    for first in range(0, matrix.vocabulary, _CHUNK_ROWS):
        tokens = np.arange(first, min(first + _CHUNK_ROWS, matrix.vocabulary), dtype=np.int32)
        pieces.append(rule.logits(sample @ torch.from_numpy(matrix.rows(tokens)).T))
    weights += torch.cat(pieces, dim=1).softmax(dim=1).sum(dim=0).double().numpy() * (texts.count / len(places))
    return np.sort(np.argpartition(-weights, SIZE)[:SIZE]).astype(np.int32)
