"""What was known when an iteration was planned."""

from __future__ import annotations

import msgspec

from longspan.schedule.geometry import Geometry
from longspan.schedule.guard import GuardState
from longspan.schedule.span import Iteration


class PlanRecord(msgspec.Struct, frozen=True):
    """An iteration with the circumstances of its planning. Times are seconds.

    geometry: captured here, so that what the iteration teaches belongs to what was sent.
    predicted: of each stage, before anything of this iteration was measured.
    decode_seconds: predicted for the decode rows alone, on the slowest stage. allowance: what joined prefill could
        add to it. prefill_seconds: of its prefill rows as a part of a large iteration of their own. prefill_cut:
        more prefill was wanted than there was room for. streams: sequences that were past their
        prefill before. prompts: sequences that had a slot or could have had one, and were not.
    """

    iteration: Iteration
    geometry: Geometry
    planned_at: float
    predicted: dict[int, float]
    decode_seconds: float
    allowance: float
    prefill_seconds: float
    prefill_cut: bool
    guard: GuardState
    streams: int
    prompts: int
    running: int
    waiting: int
