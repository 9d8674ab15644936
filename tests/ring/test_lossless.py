"""What keeps the tokens right when slots are used again, and the proof that these tests would see it missing."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import pytest

from longspan.ring.messages import Assignment
from longspan.runtime.base import StageRuntime
from longspan.runtime.script import Script, scripted_tokens
from longspan.runtime.slots import KvCopy, KvTrim, SlotBook
from longspan.schedule.events import Event
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.span import Iteration, IterationResult, Phase
from longspan.speculate.proposers import proposer_maker
from longspan.speculate.speculation import Speculation, SpeculationPolicy
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


COPYING = Script(vocabulary=24, repeat=0.8)
"""Goes on as it did before four times in five, so that drafts from the text are right often and wrong often."""


class Fenceless(Planner):
    """Takes every row that comes back for one of the running epoch."""

    def complete(self, result: IterationResult, now: float, *, learn: bool = True) -> list[Event]:
        held = {}
        for span in self.sent[result.iteration].spans:
            sequence = self._roster.sequences.get(span.sequence)
            if sequence is not None:
                held[sequence] = sequence.epoch
                sequence.epoch = span.epoch
        try:
            return super().complete(result, now, learn=learn)
        finally:
            for sequence, epoch in held.items():
                sequence.epoch = max(sequence.epoch, epoch)

    def plan(self, now: float) -> Iteration | None:
        iteration = super().plan(now)
        if iteration is not None:
            self.sent[iteration.id] = iteration
        return iteration

    @functools.cached_property
    def sent(self) -> dict[int, Iteration]:
        return {}


async def speculated(planner: type[Planner]) -> tuple[list[list[int]], int]:
    """Answers with windows of drafts in flight, and how many windows came back stale."""
    loaders = [ScriptedLoader(COPYING) for _ in range(2)]
    speculation = Speculation(
        SpeculationPolicy(proposer="ngram-cache", width=4, depth=3),
        proposer_maker("ngram-cache"),
        cost=lambda rows, history: 0.0,
        rows=31,
        vocabulary=COPYING.vocabulary,
    )
    async with (
        stage_servers(*loaders) as servers,
        Coordinator(
            ring_plan([server.port for server in servers], delay_ms=2.0),
            loaders[0],
            policy=Policy(lanes=2),
            backlog=4,
            script=COPYING,
            speculation=speculation,
            planner=planner,
        ) as coordinator,
    ):
        answers = [coordinator.submit(prompt, 60) for prompt in DRAFTED]
        with contextlib.suppress(TimeoutError):
            await coordinator.finish(10 if planner is Planner else 2)
        assert planner is not Planner or not coordinator.failures
    return [answer.tokens for answer in answers], speculation.statistics(0.0).stale_windows


DRAFTED = [[index, 4, 5, 6, 7, 4, 5, 6, 7, 4] for index in range(3)]


async def test_windows_of_drafts_change_no_token() -> None:
    found, stale = await speculated(Planner)
    assert stale > 0, "no window was in flight when its sequence went another way; the test shows nothing"
    assert found == [scripted_tokens(COPYING, prompt, 60, GREEDY) for prompt in DRAFTED]


async def test_without_the_fence_the_tokens_are_wrong() -> None:
    found, _ = await speculated(Fenceless)
    assert found != [scripted_tokens(COPYING, prompt, 60, GREEDY) for prompt in DRAFTED]
