"""A ring in virtual time: how automatic width and depth compare with every fixed choice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import pytest

from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.composite import Ranked
from longspan.speculate.ngram_edit import NgramEdit
from longspan.speculate.proposer import Proposer
from longspan.speculate.speculation import SpeculationPolicy
from tests.speculate.proposers import Foreseeing
from tests.speculate.texts import copy_text, edit_text, novel_text
from tests.speculate.virtual_ring import VOCABULARY, RingShape, Text, VirtualRing

HEAD = (0.63, 0.70, 0.77, 0.76)
"""Acceptance of a chain of four, by place: that of the demo model's MTP head on novel answers."""

TEXTS: dict[str, Callable[[int, int], Text]] = {"copy": copy_text, "edit": edit_text, "novel": novel_text}

WIDTHS = (2, 4, 8, 16, 32)
DEPTHS = (1, 3, 8, 14)

ONE_STAGE = RingShape(stages=1)
NEAR = RingShape(stages=2, delay=0.01)
FAR = RingShape(stages=2, delay=0.1)
RINGS = {"one stage, 0 ms": ONE_STAGE, "two stages, 10 ms": NEAR, "two stages, 100 ms": FAR}


class Head(Foreseeing):
    """Stands for the MTP head: four drafts at a time, of the given acceptance."""

    name = "mtp"


def proposer(text: Text, books: SequenceBooks) -> Proposer:
    """What `auto` proposes with."""
    stream = text.prompt + text.answer
    head = Head(stream, HEAD, seed=text.prompt[0], most=4, vocabulary=VOCABULARY, continues=False)
    return Ranked("auto", (head, NgramEdit()), books)


@cache
def rate(ring: RingShape, kind: str, requests: int, width: int | None, depth: int | None) -> float:
    """Tokens a second, after a run to warm up."""
    simulated = VirtualRing(ring, SpeculationPolicy(width=width, depth=depth), proposer)
    kinds = list(TEXTS) if kind == "mixed" else [kind]
    tokens = 256 if requests == 1 else 96

    def texts(seed: int) -> list[Text]:
        return [TEXTS[kinds[index % len(kinds)]](seed + index, tokens) for index in range(requests)]

    simulated.run(texts(9000))
    runs = [simulated.run(texts(seed)) for seed in ((101, 1101) if requests == 1 else (101,))]
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


def auto(ring: RingShape, kind: str, requests: int) -> float:
    return rate(ring, kind, requests, None, None)


def plain(ring: RingShape, kind: str, requests: int) -> float:
    return rate(ring, kind, requests, 1, 1)


def frontier(ring: RingShape, kind: str) -> dict[tuple[int, int], float]:
    """Tokens a second of one request for every width and depth."""
    depths = DEPTHS if ring.stages > 1 else (1,)
    cells = [(1, 1), *((width, depth) for width in WIDTHS for depth in depths)]
    return {(width, depth): rate(ring, kind, 1, width, depth) for width, depth in cells}


def show(line: str) -> None:
    """A line of the table; `pytest -s` prints it."""
    sys.stdout.write(f"{line}\n")


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", RINGS)
def test_auto_is_close_to_the_best_fixed_width_and_depth(name: str, kind: str) -> None:
    cells = frontier(RINGS[name], kind)
    best = max(cells, key=lambda cell: cells[cell])
    found, none = auto(RINGS[name], kind, 1), cells[1, 1]
    show(
        f"{name:18} {kind:6} none {none:6.1f}  best {best[0]:2d} x {best[1]:2d} {cells[best]:6.1f}  "
        f"auto {found:6.1f} tokens/s  {found / cells[best]:.2f} of best {found / none:5.2f} of none"
    )
    assert found >= 0.9 * cells[best]
    assert found >= 0.98 * none


def test_the_best_width_and_depth_lie_inside() -> None:
    cells = frontier(NEAR, "edit")
    width, depth = max(cells, key=lambda cell: cells[cell])
    assert 1 < width < max(WIDTHS)
    assert 1 < depth < max(DEPTHS)


@pytest.mark.parametrize("kind", [*TEXTS, "mixed"])
@pytest.mark.parametrize("name", RINGS)
def test_eight_requests_never_lose_by_it(name: str, kind: str) -> None:
    found, none = auto(RINGS[name], kind, 8), plain(RINGS[name], kind, 8)
    show(
        f"{name:18} {kind:6} 8 requests: none {none:6.1f}  auto {found:6.1f} tokens/s  {found / none:5.2f} of none"
    )
    assert found >= 0.98 * none


@pytest.mark.parametrize("kind", TEXTS)
def test_over_a_long_ring_every_text_gains_with_four_requests(kind: str) -> None:
    assert auto(FAR, kind, 4) > 1.5 * plain(FAR, kind, 4)
