"""What keeps the tokens right when slots are used again, and the proof that these tests would see it missing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from longspan.ring.messages import Assignment
from longspan.runtime.base import StageRuntime
from longspan.runtime.script import scripted_tokens
from longspan.runtime.slots import KvCopy, KvTrim, SlotBook
from longspan.schedule.policy import Policy
from longspan.schedule.span import Iteration, Phase
from tests.ring.scripted_ring import GREEDY, SCRIPT, Coordinator, ScriptedLoader, ring_plan, stage_servers

PREFIX = list(range(40, 72))
"""Two blocks of the prefix index, so that a prompt that begins like this goes on in the slot of another."""


async def shared_prefixes(stages: int) -> tuple[list[list[int]], list[list[int]], list[Iteration]]:
    """Prompts one after the other that begin alike; what came, what should have, and the iterations."""
    loaders = [ScriptedLoader() for _ in range(stages)]
    prompts = [[*PREFIX, 1, 2, 3], [*PREFIX, 9], [*PREFIX, 1, 2, 3, 4, 5], [*PREFIX]]
    found = []
    async with (
        stage_servers(*loaders) as servers,
        Coordinator(ring_plan([server.port for server in servers], slots=1), loaders[0]) as coordinator,
    ):
        for prompt in prompts:
            answer = coordinator.submit(prompt, 12)
            await coordinator.finish()
            found.append(answer.tokens)
    return found, [scripted_tokens(SCRIPT, prompt, 12, GREEDY) for prompt in prompts], coordinator.iterations


@pytest.mark.parametrize("stages", [1, 2])
async def test_a_slot_that_holds_too_much_is_trimmed_by_the_start_of_the_span(stages: int) -> None:
    found, expected, iterations = await shared_prefixes(stages)
    assert found == expected
    starts = [span.start for entry in iterations for span in entry.spans if span.phase is Phase.PREFILL]
    assert 16 in starts or 32 in starts, "slots were gone on with"
    assert not any(entry.operations for entry in iterations), "nothing but the start says that the rest must go"


@pytest.mark.parametrize("stages", [1, 2])
async def test_without_the_trim_the_tokens_are_wrong(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_trim(self: SlotBook, slot: int, keep: int, actions: list[KvTrim | KvCopy]) -> None:
        return

    monkeypatch.setattr(SlotBook, "_trim", no_trim)
    found, expected, _ = await shared_prefixes(stages)
    assert found[0] == expected[0]
    assert all(tokens != right for tokens, right in zip(found[1:], expected[1:], strict=True))


async def test_without_the_trim_on_one_stage_the_tokens_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted stages check each other: one that forgets to trim is enough."""
    original = ScriptedLoader.load

    def load(self: ScriptedLoader, assignment: Assignment, report: object) -> StageRuntime:
        runtime = original(self, assignment, report)  # type: ignore[arg-type]
        if assignment.stage == 0:
            runtime._book._trim = lambda slot, keep, actions: None  # type: ignore[attr-defined]
        return runtime

    monkeypatch.setattr(ScriptedLoader, "load", load)
    found, expected, _ = await shared_prefixes(2)
    assert found[1] != expected[1]


OLDER, NEWER = [7, *range(100, 109)], [9, *range(120, 129)]


async def preempted_and_back() -> tuple[list[int], int]:
    """Two sequences in a pool of cells that is too small for both.

    The newer one is preempted while a row of it is in flight; the older one is cancelled in that moment, so that
    the newer one runs again before the old row comes back. Its answer, and how many spans came back after their
    sequence had lost its slot.
    """
    loaders = [ScriptedLoader() for _ in range(2)]
    async with (
        stage_servers(*loaders) as servers,
        Coordinator(
            ring_plan([server.port for server in servers], delay_ms=5.0),
            loaders[0],
            policy=Policy(lanes=2, prefix_reuse=False),
            backlog=4,
            chunk=16,
            limits={"cells_total": 36},
        ) as coordinator,
    ):

        def cancel_older(_sequence: int) -> None:
            coordinator.planner.cancel(0, 0.0)
            answers[0].ended = "cancelled"
            asyncio.get_running_loop().call_soon(coordinator.pump)

        coordinator.after_preemption = cancel_older
        answers = [coordinator.submit(prompt, 24) for prompt in (OLDER, NEWER)]
        with contextlib.suppress(TimeoutError):  # without the fence the sequence may also get stuck
            await coordinator.finish(1.5)
        assert not coordinator.failures
    return answers[1].tokens, coordinator.stale_spans


async def test_rows_of_an_older_epoch_are_dropped() -> None:
    found, stale = await preempted_and_back()
    assert stale > 0, "no row was in flight when its sequence was preempted; the test shows nothing"
    assert found == scripted_tokens(SCRIPT, NEWER, 24, GREEDY)
