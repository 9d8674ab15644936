"""Tokens a second of one request for fixed widths and depths of windows, and what `auto` makes of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from longspan.bench.wan import WARM_UP_TOKENS, Arm, Wan, running

TEXT = "copy"
RUNS = 2
PROPOSER = "auto"


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

    async def rate(arm: Arm) -> float:
        return (await wan.run(arm, TEXT, 1, tokens)).tokens_per_second

    cells: list[Cell] = []
    automatic: list[float] = []
    async with running(wan.options(delay_ms, PROPOSER)) as auto:
        await wan.run(auto, TEXT, 1, tokens)
        for width in widths:
            automatic.append(await rate(auto))
            for depth in depths:
                report(f"{TEXT}, {delay_ms:g} ms: width {width}, depth {depth}")
                async with running(wan.options(delay_ms, PROPOSER, (width, depth))) as arm:
                    await wan.run(arm, TEXT, 1, WARM_UP_TOKENS)
                    rates = [await rate(arm) for _ in range(RUNS)]
                cells.append(Cell(width, depth, statistics.median(rates)))
        automatic.append(await rate(auto))
    best = max(cells, key=lambda cell: cell.tokens_per_second)
    found = statistics.median(automatic)
    inside = min(widths) < best.width < max(widths) and min(depths) < best.depth < max(depths)
    return Frontier(TEXT, delay_ms, tuple(cells), best, inside, found, found / best.tokens_per_second)
