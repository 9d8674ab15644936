"""What a coordinator may ask of a stage."""

from __future__ import annotations

from longspan.ring.loader import StageLoader
from longspan.ring.messages import DTYPES, Assignment

MAX_SLOTS = 256
"""As many sequences as llama.cpp has."""

MAX_CELLS = 1 << 24
"""Positions of one slot."""

MAX_ALL_CELLS = (1 << 31) - 1
"""Positions of all slots together: what llama.cpp can count."""

MAX_DELAY_MS = 60_000
_LONGEST_HOST = 255


def assignment_refusal(assignment: Assignment, loader: StageLoader) -> str:
    """Why a stage that holds the loader's model cannot do what it is asked, or an empty string."""
    start, end = assignment.start, assignment.end
    if assignment.layers != loader.layers or not 0 <= start < end <= loader.layers:
        return (
            f"layers {start}-{end} of {assignment.layers} cannot be served, this model has layers 0-{loader.layers}"
        )
    if not 0 <= assignment.stage < assignment.stages <= loader.layers:
        return (
            f"stage {assignment.stage} of {assignment.stages} does not exist: this model has {loader.layers} layers"
        )
    if (assignment.stage == 0) != (start == 0):
        return f"stage {assignment.stage} cannot start at layer {start}: the first stage starts at 0, no other does"
    last = end == loader.layers
    if (assignment.stage == assignment.stages - 1) != last or (assignment.next_address is None) != last:
        return "only the stage with the last layer may be the last of the ring"
    if assignment.next_address is not None:
        host, port = assignment.next_address
        if not 1 <= len(host) <= _LONGEST_HOST or not 1 <= port <= 65535:
            return f"{host[:_LONGEST_HOST]}:{port} is not the address of a next stage"
    slots, cells = assignment.slots, assignment.cells_per_slot
    if not 1 <= slots <= MAX_SLOTS or not 1 <= cells <= MAX_CELLS or slots * cells > MAX_ALL_CELLS:
        return (
            f"{slots} slots of {cells} positions are out of range: at most {MAX_SLOTS} slots, {MAX_CELLS} "
            f"positions a slot and {MAX_ALL_CELLS} positions together"
        )
    if assignment.dtype not in DTYPES:
        return f"unknown activation type {assignment.dtype!r}, expected one of {', '.join(DTYPES)}"
    if assignment.dtype not in loader.dtypes:
        return (
            f"activations in {assignment.dtype} would change this model's results (mixture-of-experts routing); "
            f"use {' or '.join(loader.dtypes)}"
        )
    # Written so that NaN, which compares false with everything, is refused.
    for delay in (assignment.next_delay_ms, assignment.return_delay_ms):
        if not 0 <= delay <= MAX_DELAY_MS:
            return f"an emulated delay of {delay} ms is asked for, expected 0 to {MAX_DELAY_MS}"
    return ""
