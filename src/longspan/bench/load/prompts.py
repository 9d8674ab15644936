"""What a load asks, and texts of a given length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

_VOCABULARY = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education
"""
_WORDS = tuple(_VOCABULARY.split())
"""Frequent words, each of which is one token in common vocabularies: a text of N of them has about N tokens."""

_LAP = 48
"""Words of the passage that a repeating text repeats."""

Entropy = Literal["low", "medium", "high"]
"""low: a passage again and again, which a copying model goes on with. medium: the same with one word in eight
changed. high: words at random, which nobody can guess."""


class LoadPrompt(msgspec.Struct, frozen=True):
    """One conversation to have.

    history: (role, text) of what was said before. turns: what the user says, one after the other; each is a
    request that carries the answers before it. max_tokens: of each answer; None: what the run says. category:
    figures are also given for each of these. at: seconds after the start at which it is asked; None: when the
    run's arrivals say.
    """

    turns: tuple[str, ...]
    max_tokens: int | None = None
    category: str = ""
    at: float | None = None
    history: tuple[tuple[str, str], ...] = ()


def words(count: int, seed: object) -> list[str]:
    """`count` words drawn with `seed`; the same seed gives the same beginning at every length."""
    return random.Random(str(seed)).choices(_WORDS, k=count)


def text_of(count: int, entropy: Entropy, seed: object) -> str:
    """A text of `count` words, about as many tokens. Two seeds share no beginning longer than chance gives."""
    if entropy == "high":
        return " ".join(words(count, seed))
    passage = words(min(_LAP, count), seed)
    generator = random.Random(f"{seed} changes")
    found: list[str] = []
    while len(found) < count:
        found += [
            generator.choice(_WORDS) if entropy == "medium" and generator.random() < 1 / 8 else word
            for word in passage
        ]
    return " ".join(found[:count])


def blocks_text(identities: Sequence[int], block: int, count: int, own: object) -> str:
    """A text of `count` words: a block of words for each identity, then words of its own.

    Requests of a trace whose first identities are equal share that part of their prompts.
    """
    found: list[str] = []
    for identity in identities[: count // block + 1]:
        found += words(block, f"block {identity}")
    if len(found) < count:
        found += words(count - len(found), f"own {own}")
    return " ".join(found[:count])
