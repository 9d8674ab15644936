"""A model that runs ahead of a real ring: preempted, cancelled and rejected texts, and the tokens are the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from longspan.runtime.base import Capacity
from longspan.runtime.script import scripted_tokens
from longspan.runtime.scripted import ScriptedEmbedding, ScriptedRuntime
from longspan.sampling.draw import uniform
from longspan.schedule.policy import Policy
from longspan.schedule.span import IterationResult
from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.ahead import Ahead, Told
from longspan.speculate.run_ahead import RunAhead
from longspan.speculate.speculation import Speculation, SpeculationPolicy
from tests.ring.scripted_ring import (
    CELLS,
    GREEDY,
    SCRIPT,
    WIDTH,
    Coordinator,
    ScriptedLoader,
    ring_plan,
    stage_servers,
)

SLOTS = 2
"""Of the draft model: fewer than sequences run."""
WRONG = 0.2


class Thinker:
    """The scripted model as its own draft model, on the test's loop; now and then it is wrong."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.on_drafts: Callable[[], None] = lambda: None
        self._runtime = ScriptedRuntime(SCRIPT, last=True, capacity=Capacity(SLOTS, CELLS, 64, 32), width=WIDTH)
        self._embedding = ScriptedEmbedding(SCRIPT.vocabulary, WIDTH)
        self._ahead = RunAhead(SLOTS, CELLS, 64, SCRIPT.vocabulary)
        self._proposers: list[Ahead] = []
        self._timer: asyncio.TimerHandle | None = None

    def proposer(self, books: SequenceBooks) -> Ahead:
        self._proposers.append(Ahead(len(self._proposers), self._hear))
        return self._proposers[-1]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _hear(self, told: Told) -> None:
        if told.ended:
            self.ended.append(told.key)
        self._ahead.take(told)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(0.001, self._step)

    def _step(self) -> None:
        self._timer = None
        iteration = self._ahead.plan()
        if iteration is None:
            return
        tokens = np.array(iteration.tokens, np.int32)
        output = self._runtime.run(iteration, self._embedding.rows(tokens))
        samples = tuple(
            msgspec.structs.replace(sample, token=(sample.token + (uniform(iteration.id, index) < WRONG)) % 256)
            for index, sample in enumerate(output.samples)
        )
        result = IterationResult(iteration.id, samples, output.failures)
        for thought in self._ahead.complete(iteration, result):
            self._proposers[thought.key].think(thought)
        self._timer = asyncio.get_running_loop().call_later(0.001, self._step)
        self.on_drafts()


@pytest.mark.parametrize("cells_total", [None, 100], ids=["roomy", "pooled"])
async def test_tokens_stay_the_same_whatever_becomes_of_a_text(cells_total: int | None) -> None:
    loaders = [ScriptedLoader() for _ in range(2)]
    thinker = Thinker()
    speculation = Speculation(
        SpeculationPolicy(proposer="draft", width=4, depth=3),
        thinker.proposer,
        cost=lambda rows, history: 0.0,
        rows=31,
        vocabulary=SCRIPT.vocabulary,
    )
    prompts = [[index, *range(100, 100 + 3 * index)] for index in range(1, 8)]
    async with (
        stage_servers(*loaders) as servers,
        Coordinator(
            ring_plan([server.port for server in servers], delay_ms=2.0),
            loaders[0],
            policy=Policy(lanes=2, prefix_reuse=False),
            backlog=4,
            limits={} if cells_total is None else {"cells_total": cells_total},
            speculation=speculation,
        ) as coordinator,
    ):
        thinker.on_drafts = coordinator.pump
        answers = [coordinator.submit(prompt, 40) for prompt in prompts]
        results = itertools.count()

        def cancel(_result: IterationResult) -> None:
            if next(results) == 12:
                coordinator.planner.cancel(2, 0.0)
                answers[2].ended = "cancelled"

        coordinator.after_result = cancel
        await coordinator.finish(20)
        thinker.close()
        assert not coordinator.failures
        preempted = sum(coordinator.preempted.values())
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        expected = scripted_tokens(SCRIPT, prompt, 40, GREEDY)
        assert answer.tokens == expected[: len(answer.tokens)]
        assert index == 2 or len(answer.tokens) == 40
    assert (preempted > 0) == (cells_total is not None)
    statistics = speculation.statistics(0.0)
    assert 0 < statistics.accepted_by_proposer["draft"] < statistics.judged_by_proposer["draft"]
    assert sorted(thinker.ended) == list(range(len(prompts))), "every text was said to be over, once"
