"""Which layers each stage holds."""

from __future__ import annotations

import re

from longspan.errors import UsageError

Split = tuple[int, int]
"""Half-open layer range [start, end)."""

_RANGE = re.compile(r"^\s*(\d{1,6})\s*-\s*(\d{1,6})\s*$")


def even_splits(layers: int, stages: int, multiple: int = 1) -> list[Split]:
    """`layers` shared out over `stages`, sizes at most one `multiple` apart, the larger ones first.

    multiple: stages start at multiples of it (`ModelDescription.cut_multiple`). The last stage also carries the
    output matrix, so it is never one of the larger ones unless all are equal.
    Raises UsageError when there are fewer layers (or groups of `multiple` layers) than stages.
    """
    if stages < 1:
        raise UsageError(f"{stages} stages were asked for; at least 1 is needed.")
    groups = -(-layers // multiple)
    if stages > groups:
        groups_of = f" that can be cut at every {multiple}th only" if multiple > 1 else ""
        raise UsageError(
            f"{stages} stages were asked for, but the model has {layers} layers{groups_of}: "
            f"at most {groups} stages."
        )
    size, larger = divmod(groups, stages)
    splits = []
    start = 0
    for index in range(stages):
        end = start + size + (1 if index < larger else 0)
        splits.append((start * multiple, min(end * multiple, layers)))
        start = end
    return splits


def parse_splits(text: str, layers: int) -> list[Split]:
    """The ranges of a text like "0-15,15-30": half-open, in order, covering every layer once.

    Raises UsageError naming the range that is malformed, empty or out of range, or the layers that are missing or
    given twice.
    """
    splits: list[Split] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise UsageError(f"{part.strip()!r} is not a layer range. Write START-END,… such as 0-{layers}.")
        start, end = int(match[1]), int(match[2])
        if not start < end <= layers:
            reason = "is empty" if start >= end else f"goes past the model's {layers} layers"
            raise UsageError(f"the layer range {start}-{end} {reason}. END is the first layer it does not hold.")
        expected = splits[-1][1] if splits else 0
        if start > expected:
            raise UsageError(f"no stage holds the layers {expected}-{start}. Ranges must follow on each other.")
        if start < expected:
            raise UsageError(f"the layer range {start}-{end} overlaps the one before, which ends at {expected}.")
        splits.append((start, end))
    if splits[-1][1] != layers:
        raise UsageError(f"no stage holds the layers {splits[-1][1]}-{layers}. The ranges must cover all {layers}.")
    return splits
