"""Synthetic texts: copies, copies with edits, and novel ones."""

from __future__ import annotations

from longspan.sampling.draw import mix, uniform
from tests.speculate.virtual_ring import VOCABULARY, Text

PASSAGE = 60
REPEATS = 4


def _tokens(seed: int, count: int) -> list[int]:
    return [mix(seed * 1_000_003 + index) % VOCABULARY for index in range(count)]


def copy_text(seed: int, count: int = 256) -> Text:
    """A passage that is repeated to the end, with a break now and then."""
    passage = _tokens(seed, PASSAGE)
    answer = [passage[index % PASSAGE] for index in range(count)]
    for index in range(count):
        if uniform(seed, index) < 0.004:
            answer[index] = mix(index) % VOCABULARY
    return Text(tuple(passage * REPEATS), tuple(answer))


def edit_text(seed: int, count: int = 256) -> Text:
    """A passage with three names that are others in every repeat; a name has one to three tokens."""
    passage = _tokens(seed, PASSAGE)
    stream: list[int] = []
    prompt_length = 0
    for repeat in range(REPEATS + count // (PASSAGE - 5) + 2):
        if repeat == REPEATS:
            prompt_length = len(stream)
        name = _tokens(seed + 7919 * (repeat + 1), 1 + mix(seed + repeat) % 3)
        for index, token in enumerate(passage):
            if index in (7, 25, 44):
                stream += name
            stream.append(token)
    return Text(tuple(stream[:prompt_length]), tuple(stream[prompt_length : prompt_length + count]))


def novel_text(seed: int, count: int = 256) -> Text:
    """Tokens that nothing before gives away."""
    return Text(tuple(_tokens(seed, 200)), tuple(_tokens(seed + 1, count)))
