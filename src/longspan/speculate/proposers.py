"""The proposers by name, but for `draft` (see `speculate.ahead`), which has to be given its model."""

from __future__ import annotations

from longspan.errors import UsageError
from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.composite import Chained, ProposerMaker, Ranked
from longspan.speculate.mtp import Mtp
from longspan.speculate.ngram_cache import NgramCache
from longspan.speculate.ngram_edit import NgramEdit
from longspan.speculate.ngram_suffix import NgramSuffix
from longspan.speculate.proposer import NoProposer, Proposer


def _auto(books: SequenceBooks) -> Proposer:
    return Ranked("auto", (Mtp(), NgramEdit()), books)


DRAFT = "draft"
PROPOSERS: dict[str, ProposerMaker] = {
    "none": lambda books: NoProposer(),
    "ngram-cache": lambda books: NgramCache(),
    "ngram-suffix": lambda books: NgramSuffix(),
    "ngram-edit": lambda books: NgramEdit(),
    "mtp": lambda books: Mtp(),
    "mtp+ngram": lambda books: Chained("mtp+ngram", (Mtp(), NgramSuffix())),
    "auto": _auto,
}


def proposer_maker(name: str) -> ProposerMaker:
    """What makes the proposers of this name. Raises UsageError for an unknown name."""
    if name not in PROPOSERS:
        raise UsageError(f"there is no proposer {name!r}; known are {', '.join(PROPOSERS)}")
    return PROPOSERS[name]
