"""Tokens a second of one request for fixed widths and depths of windows, and what `auto` makes of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from longspan.bench.wan import WARM_UP_TOKENS, Arm, Wan, running

TEXT = "copy"
PROPOSER = "auto"
LEAST_RUNS, MOST_RUNS = 2, 6
SECONDS = 8.0
"""A cell is measured again until so many seconds have passed: runs of fast ones are short, and differ more."""


class Cell(msgspec.Struct, frozen=True):
    """width: rows of a window. depth: windows in flight."""

    width: int
    depth: int
    tokens_per_second: float


class Frontier(msgspec.Struct, frozen=True):
    """best: the fastest cell. interior: neither the narrowest nor the widest, the shallowest nor the deepest.

    auto_tokens_per_second: chosen by itself, median of runs between those of the cells. auto_to_best: over the
    best's.
    """

    text: str
    delay_ms: float
    cells: tuple[Cell, ...]
    best: Cell
    interior: bool
    auto_tokens_per_second: float
    auto_to_best: float


async def measure_frontier(
    wan: Wan,
    delay_ms: float,
    widths: Sequence[int],
    depths: Sequence[int],
    tokens: int,
    report: Callable[[str], None],
) -> Frontier:
    """Every cell with an engine of its own; `auto` runs before each row of cells and at the end."""

    async def rates(arm: Arm) -> list[float]:
        found: list[float] = []
        enough = time.perf_counter() + SECONDS
        while len(found) < LEAST_RUNS or (len(found) < MOST_RUNS and time.perf_counter() < enough):
            found.append((await wan.run(arm, TEXT, 1, tokens)).tokens_per_second)
        return found

    cells: list[Cell] = []
    automatic: list[float] = []
    async with running(wan.options(delay_ms, PROPOSER)) as auto:
        await wan.run(auto, TEXT, 1, tokens)
        for width in widths:
            automatic += await rates(auto)
            for depth in depths:
                report(f"{TEXT}, {delay_ms:g} ms: width {width}, depth {depth}")
                async with running(wan.options(delay_ms, PROPOSER, (width, depth))) as arm:
                    await wan.run(arm, TEXT, 1, WARM_UP_TOKENS)
                    cells.append(Cell(width, depth, statistics.median(await rates(arm))))
        automatic += await rates(auto)
    best = max(cells, key=lambda cell: cell.tokens_per_second)
    found = statistics.median(automatic)
    inside = min(widths) < best.width < max(widths) and min(depths) < best.depth < max(depths)
    return Frontier(TEXT, delay_ms, tuple(cells), best, inside, found, found / best.tokens_per_second)
