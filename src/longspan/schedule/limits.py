"""What the ring can hold, and how large an iteration may be."""

from __future__ import annotations

from functools import cached_property

import msgspec

from longspan.errors import UsageError


class Limits(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Hard limits of planning. Over several stages, each is the smallest of what the stages offer.

    slots: KV streams on every stage. cells_per_slot: positions of one slot; prompt and answer together.
    cells_total: positions over all slots, when the slots share a pool; None: every slot owns its cells.
    exact_rows: an iteration with a decode or verify row has FEWER rows than this (see `runtime.base.Capacity`).
    max_rows: most rows that the runtime takes in one iteration.
    token_budget: most rows that the planner puts into one iteration.
    chunk: most prefill rows of one sequence in one iteration. From `exact_rows` on, chunks are cut at fixed
        multiples of `chunk` and run alone (see `schedule.borders`).
    max_running: most sequences with a slot. max_waiting: most sequences in the queue.
    max_prefill_sequences: most sequences that prefill in one iteration.
    max_samples: most rows whose logits an iteration looks at.
    max_prefill_only_in_a_row: most iterations without a decode row, one after the other, while a decode row could
        have run.
    """

    slots: int
    cells_per_slot: int
    exact_rows: int
    max_rows: int
    cells_total: int | None = None
    token_budget: int = 2048
    chunk: int = 256
    max_running: int = 1024
    max_waiting: int = 256
    max_prefill_sequences: int = 4
    max_prefill_only_in_a_row: int = 1
    max_samples: int = 128

    def __post_init__(self) -> None:
        smallest = {"cells_per_slot": 2, "exact_rows": 2}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < smallest.get(name, 1):
                raise UsageError(f"limit {name} is {value}; it must be at least {smallest.get(name, 1)}")
        if self.fixed_borders and self.chunk > self.rows:
            raise UsageError(
                f"chunk is {self.chunk} rows, but an iteration takes {self.rows} "
                f"(token_budget {self.token_budget}, max_rows {self.max_rows}); "
                "make the chunk smaller or the iteration larger"
            )

    @cached_property
    def fixed_borders(self) -> bool:
        """True when chunks are so large that their rows depend on where the prompt was cut."""
        return self.chunk >= self.exact_rows

    @cached_property
    def rows(self) -> int:
        """Most rows of any iteration."""
        return min(self.token_budget, self.max_rows)

    @cached_property
    def free_rows(self) -> int:
        """Most rows of an iteration whose rows must not depend on each other."""
        return min(self.rows, self.exact_rows - 1)

    @cached_property
    def scored_rows(self) -> int:
        """Most rows of one prompt in an iteration when each of them says how likely the token behind it was."""
        if self.free_rows <= self.max_samples:
            return self.chunk
        spare = max(1, self.max_samples - self.concurrency)
        return min(self.chunk, max(1, spare // self.max_prefill_sequences))

    @cached_property
    def concurrency(self) -> int:
        """Most sequences that hold a slot."""
        return min(self.slots, self.max_running)

    @cached_property
    def cells(self) -> int:
        """Positions over all slots."""
        own = self.slots * self.cells_per_slot
        return own if self.cells_total is None else min(own, self.cells_total)

    @cached_property
    def pooled(self) -> bool:
        """True when the slots together can ask for more cells than there are."""
        return self.cells < self.slots * self.cells_per_slot

    @cached_property
    def longest(self) -> int:
        """Most tokens, prompt and answer, of one sequence."""
        return min(self.cells_per_slot, self.cells)
