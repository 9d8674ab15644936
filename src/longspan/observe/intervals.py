"""Intervals of time: what is covered, and by how many at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""Begin and end; an end before the begin counts as empty."""


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, as intervals that neither touch nor overlap, in order."""
    found: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    """How long the intervals are together, each for itself."""
    return sum(max(0.0, end - begin) for begin, end in intervals)


def seconds_by_count(tracks: Sequence[Iterable[Interval]], within: Sequence[Interval]) -> list[float]:
    """For each count from 0 to len(tracks): the time inside `within` at which exactly so many tracks are covered.

    A track is covered where any of its intervals lies. within: merged.
    """
    changes: list[tuple[float, int, int]] = []
    for track in tracks:
        for begin, end in merged(track):
            changes += ((begin, 1, 0), (end, -1, 0))
    for begin, end in within:
        changes += ((begin, 0, 1), (end, 0, -1))
    changes.sort()
    totals = [0.0] * (len(tracks) + 1)
    covered = inside = 0
    before = 0.0
    for at, track_step, inside_step in changes:
        if inside:
            totals[covered] += at - before
        before = at
        covered += track_step
        inside += inside_step
    return totals


def common(one: Iterable[Interval], other: Iterable[Interval]) -> float:
    """Time that both cover, each taken as a whole."""
    return seconds_by_count((list(one), list(other)), merged([*one, *other]))[2]
