from __future__ import annotations

import time

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ProtocolError
from longspan.runtime.base import Capacity, StageOutput
from longspan.runtime.script import Script, scripted_tokens
from longspan.runtime.scripted import FailSpan, RaiseError, ScriptedEmbedding, ScriptedRuntime
from longspan.runtime.slots import stem_length
from longspan.sampling.parameters import SamplingParameters
from longspan.sampling.sampler import log_probability, sample
from longspan.schedule.span import CommitBranch, CopyPrefix, Drop, Iteration, Phase, Sample, Span, Trim
from tests.runtime.pipeline import Pipeline, span

SCRIPT = Script(vocabulary=64, repeat=0.4)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
GREEDY = SamplingParameters()
SEEDED = SamplingParameters(temperature=1.0, top_p=0.95, seed=11, frequency_penalty=0.5, repetition_penalty=1.2)


def pipeline(stages: int = 2, script: Script = SCRIPT) -> Pipeline:
    runtimes = [ScriptedRuntime(script, last=stage == stages - 1) for stage in range(stages)]
    return Pipeline(runtimes, ScriptedEmbedding(script.vocabulary))


@pytest.mark.parametrize("parameters", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_any_number_of_stages_gives_the_sequential_truth(stages: int, parameters: SamplingParameters) -> None:
    truth = scripted_tokens(SCRIPT, PROMPT, 60, parameters)
    assert pipeline(stages).generate(PROMPT, 60, parameters, slot=3) == truth


def continuation(tokens: list[int], prompt_length: int) -> int:
    """The truth after any tokens, of which the first `prompt_length` are the prompt."""
    parameters = msgspec.structs.replace(SEEDED, prompt_length=prompt_length)
    state = 0
    for position, token in enumerate(tokens):
        state = SCRIPT.advance(state, token, position)
    return sample(SCRIPT.logits(state, tokens, prompt_length), parameters, len(tokens), tokens)[0]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_random_plans_sample_the_truth(data: st.DataObject) -> None:
    """Windows, trees, rewinds, copies, drops and several slots at once, on three stages."""
    slots = 3
    runtime = pipeline(3)
    held: list[list[int]] = [[] for _ in range(slots)]
    lengths = [data.draw(st.integers(0, 6)) for _ in range(slots)]
    samplings = [
        (slot, msgspec.structs.replace(SEEDED, prompt_length=length)) for slot, length in enumerate(lengths)
    ]
    runtime.run([], samplings=samplings)
    for _ in range(data.draw(st.integers(1, 6))):
        operations: list[Trim | CopyPrefix] = []
        slot = data.draw(st.integers(0, slots - 1))
        if data.draw(st.booleans()):
            operations.append(Trim(slot, data.draw(st.integers(0, 10))))
            del held[slot][operations[-1].keep :]  # type: ignore[union-attr]
        elif data.draw(st.booleans()):
            operations.append(CopyPrefix(slot, (slot + 1) % slots, data.draw(st.integers(0, 10))))
            held[(slot + 1) % slots] = held[slot][: operations[-1].length]  # type: ignore[union-attr]
        spans: list[Span] = []
        expected: list[int] = []
        for slot in sorted(data.draw(st.sets(st.integers(0, slots - 1), min_size=1))):
            start = data.draw(st.integers(0, len(held[slot])))
            tokens = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
            parents = None
            if data.draw(st.booleans()):
                parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(len(tokens)))
            spans.append(span(slot, start, tokens, parents=parents, sample_rows=tuple(range(len(tokens)))))
            del held[slot][start:]
            for row in range(len(tokens)):
                path: list[int] = []
                node = row
                while node >= 0:
                    path.insert(0, tokens[node])
                    node = node - 1 if parents is None else parents[node]
                expected.append(continuation(held[slot] + path, lengths[slot]))
            held[slot] += tokens if parents is None else tokens[: stem_length(parents)]
        result = runtime.run(spans, operations)
        assert not result.failures
        assert [sample.token for sample in result.samples] == expected


def test_an_accepted_branch_goes_on_like_a_chain() -> None:
    truth = scripted_tokens(SCRIPT, PROMPT, 6, GREEDY)
    runtime = pipeline(2)
    runtime.run([span(0, 0, PROMPT)], samplings=[(0, msgspec.structs.replace(GREEDY, prompt_length=8))])
    runtime.run([span(0, 8, [truth[0], 7, truth[1]], parents=(-1, 0, 0))])
    result = runtime.run([span(0, 8, truth[:4])], [CommitBranch(0, 8, (0, 2))])
    assert [sample.token for sample in result.samples] == truth[4:5]


def tokens_after(first: list[int], second: list[int], last: int) -> int:
    """What two stages sample when they hold different tokens before the same last one."""
    stages = [ScriptedRuntime(SCRIPT, last=False), ScriptedRuntime(SCRIPT, last=True)]
    embedding = ScriptedEmbedding(SCRIPT.vocabulary)
    rows = embedding.rows(np.array(first, np.int32))
    between = stages[0].run(Iteration(1, (), (), (span(0, 0, first),)), rows).activations
    assert between is not None
    other = embedding.rows(np.array(second, np.int32))
    stages[1].run(Iteration(1, (), (), (span(0, 0, second),)), other)
    iteration = Iteration(2, (), (), (span(0, len(first), [last]),))
    between = stages[0].run(iteration, embedding.rows(np.array([last], np.int32))).activations
    assert between is not None
    return stages[1].run(iteration, between).samples[0].token


def test_stages_that_hold_different_tokens_give_another_token() -> None:
    wrong = sum(tokens_after([1, 2, case], [1, 2, case + 1], 9) == truth(case, 9) for case in range(30))
    right = sum(tokens_after([1, 2, case], [1, 2, case], 9) == truth(case, 9) for case in range(30))
    assert right == 30
    # One in 64 by chance, somewhat more where the text repeats.
    assert wrong < 15


def truth(case: int, last: int) -> int:
    return scripted_tokens(SCRIPT, [1, 2, case, last], 1, GREEDY)[0]


class Untrimmed(ScriptedRuntime):
    """A stage that forgets to trim: what the truth must not survive."""

    def _apply(self, action: object) -> None:
        return None


class Swapped(ScriptedRuntime):
    """A stage that takes the rows of an iteration in another order."""

    def run(
        self,
        iteration: Iteration,
        activations: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
        failed: frozenset[int] = frozenset(),
    ) -> StageOutput:
        return super().run(iteration, np.ascontiguousarray(activations[::-1]), failed)


@pytest.mark.parametrize("broken", [Untrimmed, Swapped])
@pytest.mark.parametrize("place", [0, 1])
def test_a_broken_stage_shows(broken: type[ScriptedRuntime], place: int) -> None:
    """Rejected drafts and two sequences in a batch, with one stage that does it wrong."""

    def answers(stages: list[ScriptedRuntime]) -> list[list[int]]:
        runtime = Pipeline(stages, ScriptedEmbedding(SCRIPT.vocabulary))
        tokens = [[*PROMPT], [*PROMPT[::-1]]]
        result = runtime.run([span(slot, 0, tokens[slot]) for slot in (0, 1)])
        for _ in range(12):
            for found in result.samples:
                tokens[found.span].append(found.token)
            # Two drafts that are wrong; the next span's start takes them back.
            spans = [span(slot, len(tokens[slot]) - 1, [tokens[slot][-1], 60, 61]) for slot in (0, 1)]
            result = runtime.run([msgspec.structs.replace(entry, sample_rows=(0,)) for entry in spans])
        return [row[8:] for row in tokens]

    good = [ScriptedRuntime(SCRIPT, last=False), ScriptedRuntime(SCRIPT, last=True)]
    expected = [scripted_tokens(SCRIPT, prompt, 12, GREEDY) for prompt in (PROMPT, PROMPT[::-1])]
    assert answers(good) == expected
    bad = [ScriptedRuntime(SCRIPT, last=False), ScriptedRuntime(SCRIPT, last=True)]
    bad[place] = broken(SCRIPT, last=place == 1)
    assert answers(bad) != expected


def test_activations_survive_float16() -> None:
    stages = [ScriptedRuntime(SCRIPT, last=False), ScriptedRuntime(SCRIPT, last=True)]
    iteration = Iteration(1, (), (), (span(0, 0, PROMPT),))
    rows = ScriptedEmbedding(SCRIPT.vocabulary).rows(np.array(PROMPT, np.int32)).astype(np.float16)
    between = stages[0].run(iteration, rows.astype(np.float32)).activations
    assert between is not None
    found = stages[1].run(iteration, between.astype(np.float16).astype(np.float32)).samples
    assert [sample.token for sample in found] == scripted_tokens(SCRIPT, PROMPT, 1, GREEDY)


def test_garbage_activations_are_another_token_not_an_error() -> None:
    runtime = ScriptedRuntime(SCRIPT, last=True)
    rows = np.full((8, 16), np.nan, np.float32)
    rows[3:] = 1e30
    samples = runtime.run(Iteration(1, (), (), (span(0, 0, PROMPT),)), rows).samples
    assert [(sample.span, sample.row) for sample in samples] == [(0, 7)]


def test_faults() -> None:
    first = ScriptedRuntime(
        SCRIPT,
        last=False,
        faults=[FailSpan(at=1, sequence=1, reason="no memory"), FailSpan(at=5), RaiseError(at=3)],
    )
    runtime = Pipeline([first, ScriptedRuntime(SCRIPT, last=True)], ScriptedEmbedding(SCRIPT.vocabulary))

    def step(start: int) -> tuple[list[tuple[int, str]], list[int]]:
        result = runtime.run([span(slot, start, [5]) for slot in (0, 1)])
        failures = [(failure.span, failure.reason) for failure in result.failures]
        return failures, [sample.span for sample in result.samples]

    assert step(0) == ([], [0, 1])
    assert step(1) == ([(1, "no memory")], [0])
    # What failed was undone: the slot holds one position, on both stages.
    result = runtime.run([span(1, 1, [5]), span(2, 0, [5])])
    assert [failure.span for failure in result.failures] == [1]
    assert [sample.span for sample in result.samples] == [0]
    with pytest.raises(RuntimeError, match="scripted fault"):
        runtime.run([span(1, 2, [5])])
    assert not runtime.run([span(1, 2, [5])]).failures


def test_it_takes_the_time_it_is_told() -> None:
    runtime = ScriptedRuntime(SCRIPT, last=True, seconds_per_iteration=0.02, seconds_per_row=0.005)
    rows = ScriptedEmbedding(SCRIPT.vocabulary).rows(np.array(PROMPT, np.int32))
    before = time.perf_counter()
    runtime.run(Iteration(1, (), (), (span(0, 0, PROMPT),)), rows)
    assert time.perf_counter() - before >= 0.06


def test_malformed_iterations_are_refused_and_change_nothing() -> None:
    runtime = ScriptedRuntime(
        SCRIPT, last=True, capacity=Capacity(slots=2, cells_per_slot=8, max_rows=4, exact_rows=3)
    )
    rows = ScriptedEmbedding(SCRIPT.vocabulary).rows(np.array([1, 2, 3], np.int32))
    runtime.run(Iteration(1, (), (), (span(0, 0, [1, 2, 3]),)), rows)
    for spans, count in (((span(2, 0, [1]),), 1), ((span(0, 0, [1] * 5),), 5), ((span(0, 0, [1]),), 2)):
        with pytest.raises(ProtocolError):
            runtime.run(Iteration(2, (Drop(0),), (), spans), np.zeros((count, 16), np.float32))
    output = runtime.run(Iteration(3, (), (), (span(0, 3, [4]),)), rows[:1])
    assert not output.failures
    assert [type(sample) for sample in output.samples] == [Sample]


def test_a_row_must_be_wide_enough() -> None:
    with pytest.raises(ValueError, match="12 floats"):
        ScriptedRuntime(SCRIPT, last=True, width=11)


def test_given_tokens_are_scored_by_what_would_have_been_sampled_from() -> None:
    stages = pipeline(2)
    parameters = SamplingParameters(prompt_logprobs=3, prompt_length=len(PROMPT))
    first = span(0, 0, PROMPT[:5], phase=Phase.PREFILL, sample_rows=tuple(range(5)), given=tuple(PROMPT[1:6]))
    rest = span(0, 5, PROMPT[5:], phase=Phase.PREFILL, sample_rows=(0, 1, 2), given=tuple(PROMPT[6:]))
    samples = (*stages.run([first], samplings=[(0, parameters)]).samples, *stages.run([rest]).samples)
    assert [sample.token for sample in samples[:-1]] == PROMPT[1:]
    state = 0
    for position, (token, found) in enumerate(zip(PROMPT, samples, strict=True)):
        state = SCRIPT.advance(state, token, position)
        logits = SCRIPT.logits(state, PROMPT[: position + 1], len(PROMPT))
        if position + 1 < len(PROMPT):
            assert found.logprob == log_probability(logits, PROMPT[position + 1], 3)
        else:
            assert (found.token, found.logprob) == (int(logits.argmax()), None)
