"""A prompt whose tokens say how likely they were: each of them once, whatever happens on the way."""

from __future__ import annotations

import pytest

from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.events import Event, PromptScored
from longspan.schedule.limits import Limits
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import Phase
from tests.schedule.border_oracle import BorderOracle, border_answer
from tests.schedule.driving import Driver, limits_with

PROMPT = tuple(range(3, 153))
ALL = [-float(position) for position in range(1, len(PROMPT))]
"""What the oracle says of every token but the first."""


class ScoringDriver(Driver):
    """Keeps what is told of prompts."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.scores: dict[int, list[float]] = {}

    def submit_scored(self, prompt: tuple[int, ...] = PROMPT, answer: int = 4) -> int:
        request = SequenceRequest(prompt=prompt, max_tokens=answer, sampling=SamplingParameters(prompt_logprobs=2))
        sequence = self.planner.submit(request, self.now)
        self.answers[sequence] = []
        self.scores[sequence] = []
        return sequence

    def take(self, events: list[Event]) -> None:
        for event in events:
            super().take([event])
            if isinstance(event, PromptScored):
                assert not self.answers[event.sequence], "the prompt comes before the answer"
                self.scores[event.sequence] += [entry.logprob for entry in event.logprobs]


@pytest.mark.parametrize("limits", [limits_with(), limits_with(chunk=64, exact_rows=64)], ids=["any", "fixed"])
def test_every_token_but_the_first_once(limits: Limits) -> None:
    driver = ScoringDriver(limits)
    plain = driver.submit(PROMPT, 4)
    scored = driver.submit_scored()
    driver.run()
    assert driver.scores == {scored: ALL}
    assert driver.answers[scored] == driver.answers[plain] == border_answer(PROMPT, 4, limits, frozenset())


def test_what_is_cached_is_run_again_for_it_and_reused_after_it() -> None:
    driver = ScoringDriver()
    driver.submit(PROMPT)
    driver.run()
    scored = driver.submit_scored()
    driver.run()
    later = driver.submit(PROMPT)
    driver.run()
    assert driver.scores == {scored: ALL}
    assert driver.cached[scored] == 0
    assert driver.cached[later] > 100


def test_chunks_that_are_on_their_way_together() -> None:
    driver = ScoringDriver()
    scored = driver.submit_scored()
    first, second = driver.plan(), driver.plan()
    assert first is not None and second is not None
    assert {entry.phase for entry in (*first[0].spans, *second[0].spans)} == {Phase.PREFILL}
    driver.complete(first[1])
    driver.complete(second[1])
    driver.run()
    assert driver.scores == {scored: ALL}


@pytest.mark.parametrize("done", [0, 1, 2, 3, 5])
def test_a_lost_ring_tells_nothing_twice(done: int) -> None:
    driver = ScoringDriver()
    scored = driver.submit_scored()
    for _ in range(done):
        driver.step()
    driver.plan()
    driver.oracle = BorderOracle(driver.limits)
    driver.take(driver.planner.abandon(driver.now))
    driver.run()
    assert driver.scores == {scored: ALL}
    assert driver.answers[scored] == border_answer(PROMPT, 4, driver.limits, frozenset())


def test_a_prompt_of_one_token_has_nothing_to_tell() -> None:
    driver = ScoringDriver()
    scored = driver.submit_scored((7,))
    driver.run()
    assert driver.scores == {scored: []}
    assert len(driver.answers[scored]) == 4


def test_an_iteration_looks_at_no_more_rows_than_it_may() -> None:
    limits = Limits(slots=8, cells_per_slot=512, exact_rows=513, max_rows=512, chunk=512, max_samples=40)
    driver = ScoringDriver(limits)
    sequences = [driver.submit_scored() for _ in range(8)]
    driver.run()
    assert driver.scores == dict.fromkeys(sequences, ALL)
    assert max(sum(len(entry.sample_rows) for entry in made.spans) for made in driver.iterations) <= 40
