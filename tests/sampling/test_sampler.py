from __future__ import annotations

import collections
import math

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longspan.sampling.adjustment import needs_history
from longspan.sampling.parameters import SamplingParameters
from longspan.sampling.sampler import SamplingError, sample, score
from longspan.schedule.span import TokenLogprob
from tests.sampling.slow_sampler import slow_allowed, slow_token

Logits = npt.NDArray[np.float32]


@st.composite
def logits(draw: st.DrawFn) -> Logits:
    size = draw(st.one_of(st.integers(1, 60), st.integers(2040, 3000)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = generator.standard_normal(size) * draw(st.sampled_from([0.1, 2.0, 8.0]))
    if draw(st.booleans()):
        found = np.round(found)
    if draw(st.booleans()):
        found[generator.random(size) < 0.3] = -np.inf
        found[draw(st.integers(0, size - 1))] = 1.5
    return found.astype(np.float32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Logits, SamplingParameters, int, list[int]]:
    """Logits, parameters, position and history that fit together."""
    row = draw(logits())
    tokens = st.integers(0, len(row) - 1)
    history = draw(st.lists(tokens, max_size=12))
    penalties = draw(st.booleans())
    parameters = SamplingParameters(
        temperature=draw(st.sampled_from([0.0, 1e-30, 0.3, 1.0, 2.0])),
        top_k=draw(st.one_of(st.just(0), st.integers(1, len(row)), st.integers(1, min(5, len(row))))),
        top_p=draw(st.one_of(st.just(1.0), st.floats(0.01, 1.0))),
        min_p=draw(st.one_of(st.just(0.0), st.floats(0.0, 1.0))),
        seed=draw(st.integers(0, 2**64 - 1)),
        repetition_penalty=draw(st.sampled_from([1.0, 0.7, 1.3])) if penalties else 1.0,
        presence_penalty=draw(st.sampled_from([0.0, -0.5, 1.5])) if penalties else 0.0,
        frequency_penalty=draw(st.sampled_from([0.0, -0.5, 0.4])) if penalties else 0.0,
        prompt_length=draw(st.integers(0, len(history))),
        logit_bias=tuple(draw(st.dictionaries(tokens, st.floats(-5, 5), max_size=3)).items()),
        min_tokens=draw(st.integers(0, 12)),
        suppress=tuple(draw(st.lists(tokens, max_size=2))),
    )
    return row, parameters, len(history), history


@given(case=cases())
def test_equals_the_plain_python_sampler(case: tuple[Logits, SamplingParameters, int, list[int]]) -> None:
    row, parameters, position, history = case
    before = row.copy()
    try:
        token, _ = sample(row, parameters, position, history)
    except SamplingError:
        # Only when what is suppressed is all that there was.
        assert parameters.suppress and position - parameters.prompt_length < parameters.min_tokens
        return
    expected, margin = slow_token(row.tolist(), parameters, position, history)
    assert np.array_equal(row, before)
    assume(margin > 1e-6)
    assert token == expected


@given(row=logits(), seed=st.integers(0, 2**64 - 1), position=st.integers(0, 10**6))
def test_greedy_is_the_first_of_the_highest_and_top_k_1_the_same(row: Logits, seed: int, position: int) -> None:
    first = row.tolist().index(max(row.tolist()))
    assert sample(row, SamplingParameters(seed=seed), position, ())[0] == first
    only = SamplingParameters(temperature=1.7, top_k=1, seed=seed)
    assert sample(row, only, position, ())[0] == first


@given(row=logits(), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_filters_never_admit_a_token_outside(row: Logits, seed: int, data: st.DataObject) -> None:
    parameters = SamplingParameters(
        temperature=1.5,
        seed=seed,
        top_k=data.draw(st.sampled_from([0, 1, 3, 20])),
        top_p=data.draw(st.sampled_from([1.0, 0.3, 0.9])),
        min_p=data.draw(st.sampled_from([0.0, 0.05, 0.5])),
    )
    parameters = msgspec.structs.replace(parameters, top_k=min(parameters.top_k, len(row)))
    allowed, margin = slow_allowed(row.tolist(), parameters)
    assume(margin > 1e-6)
    for position in range(30):
        token, _ = sample(row, parameters, position, ())
        assert allowed[token] > 0
        assert row[token] > -np.inf


@pytest.mark.parametrize("size", [8, 3000])
@pytest.mark.parametrize(
    "parameters",
    [
        SamplingParameters(temperature=1.0),
        SamplingParameters(temperature=0.6, top_k=6),
        SamplingParameters(temperature=1.4, top_p=0.8),
        SamplingParameters(temperature=1.0, min_p=0.1, top_k=7, top_p=0.95),
    ],
)
def test_tokens_come_as_often_as_they_should(parameters: SamplingParameters, size: int) -> None:
    """Chi-square over 6,000 positions of one seed against the exact distribution."""
    row = (np.random.default_rng(size).standard_normal(size) * (1.0 if size < 100 else 3.0)).astype(np.float32)
    weights, _ = slow_allowed(row.tolist(), parameters)
    total = math.fsum(weights.values())
    counts = collections.Counter(sample(row, parameters, position, ())[0] for position in range(6000))
    # Cells of at least 20 expected draws; what is rarer is one cell together.
    expected: dict[int, float] = collections.defaultdict(float)
    found: dict[int, float] = collections.defaultdict(float)
    for token, weight in weights.items():
        share = 6000 * weight / total
        cell = token if share >= 20 else -1
        expected[cell] += share
        found[cell] += counts.pop(token, 0)
    assert not counts
    statistic = sum((found[cell] - expected[cell]) ** 2 / expected[cell] for cell in expected)
    freedom = len(expected) - 1
    assert freedom >= 4
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


@given(row=logits(), seed=st.integers(0, 2**64 - 1))
def test_a_draw_depends_on_seed_and_position_alone(row: Logits, seed: int) -> None:
    parameters = SamplingParameters(temperature=1.0, seed=seed)
    forward = [sample(row, parameters, position, ())[0] for position in range(8)]
    backward = [sample(row.copy(), parameters, position, range(5))[0] for position in reversed(range(8))]
    assert forward == backward[::-1]


def test_another_seed_or_position_is_another_draw() -> None:
    row = np.zeros(1000, np.float32)
    tokens = {
        sample(row, SamplingParameters(temperature=1.0, seed=seed), position, ())[0]
        for seed in range(20)
        for position in range(20)
    }
    assert len(tokens) > 250


def test_presence_and_frequency_look_at_the_answer_only_and_repetition_at_everything() -> None:
    row = np.array([3.0, 2.9, 2.8, 0.0], np.float32)
    history = [0, 1, 1]
    for change, expected in (
        ({"repetition_penalty": 2.0}, 2),
        ({"presence_penalty": 1.0}, 0),
        ({"frequency_penalty": 1.0}, 0),
        ({"presence_penalty": 1.0, "prompt_length": 0}, 2),
        ({"frequency_penalty": 0.06, "prompt_length": 0}, 0),
        ({"frequency_penalty": 0.15, "prompt_length": 0}, 0),
        ({"frequency_penalty": 0.25, "prompt_length": 0}, 2),
    ):
        parameters = msgspec.structs.replace(SamplingParameters(prompt_length=1), **change)
        assert needs_history(parameters)
        assert sample(row, parameters, 3, history)[0] == expected, change


def test_suppressed_tokens_wait_for_min_tokens() -> None:
    row = np.array([1.0, 5.0], np.float32)
    parameters = SamplingParameters(prompt_length=10, min_tokens=2, suppress=(1,))
    # Positions 10 and 11 are the first two tokens of the answer.
    assert [sample(row, parameters, position, ())[0] for position in (10, 11, 12)] == [0, 0, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(value: float, temperature: float) -> None:
    row = np.ones(300, np.float32)
    row[170] = value
    parameters = SamplingParameters(temperature=temperature, suppress=(170,), min_tokens=9)
    with pytest.raises(SamplingError, match="position 7: token 170"):
        sample(row, parameters, 7, ())


def test_nothing_left_is_an_error() -> None:
    row = np.array([1.0, 2.0], np.float32)
    with pytest.raises(SamplingError, match="no token is left"):
        sample(row, SamplingParameters(suppress=(0, 1), min_tokens=1), 0, ())
    with pytest.raises(SamplingError, match="no usable logits"):
        sample(np.full(4, -np.inf, np.float32), SamplingParameters(), 0, ())


@given(row=logits(), alternatives=st.integers(0, 20), temperature=st.sampled_from([0.0, 1.0]))
def test_log_probabilities_are_of_the_raw_logits(row: Logits, alternatives: int, temperature: float) -> None:
    parameters = SamplingParameters(
        temperature=temperature, top_p=0.5, logprobs=alternatives, logit_bias=((0, 2.0),), presence_penalty=1.0
    )
    token, found = sample(row, parameters, 3, [0] * 3)
    assert found is not None
    peak = max(row.tolist())
    total = peak + math.log(math.fsum(math.exp(logit - peak) for logit in row.tolist()))
    assert found.logprob == pytest.approx(float(row[token]) - total, abs=1e-6)
    order = sorted(range(len(row)), key=lambda index: -row[index])[:alternatives]
    assert [index for index, _ in found.top] == order
    assert [value for _, value in found.top] == pytest.approx(
        [float(row[index]) - total for index in order], abs=1e-6
    )


@given(row=logits(), alternatives=st.integers(0, 20), data=st.data())
def test_a_given_token_is_as_likely_as_if_it_were_sampled(
    row: Logits, alternatives: int, data: st.DataObject
) -> None:
    token = data.draw(st.sampled_from(np.flatnonzero(np.isfinite(row)).tolist()))
    forced = SamplingParameters(logprobs=alternatives, suppress=tuple(set(range(len(row))) - {token}), min_tokens=9)
    sampled, found = sample(row, forced, 3, [0] * 3)
    assert (sampled, found) == (token, score(row, token, alternatives, 3))


def test_a_token_that_cannot_be_given() -> None:
    with pytest.raises(SamplingError, match="token 2 at position 7; the model has 2"):
        score(np.zeros(2, np.float32), 2, 0, 7)
    with pytest.raises(SamplingError, match="no usable logits at position 7"):
        score(np.array([0.0, np.nan], np.float32), 0, 0, 7)


def test_no_log_probabilities_unless_asked() -> None:
    row = np.array([1.0, 2.0], np.float32)
    assert sample(row, SamplingParameters(), 0, ())[1] is None
    found = sample(row, SamplingParameters(logprobs=0), 0, ())[1]
    assert found is not None
    assert found.top == ()


def test_what_is_sampled_can_travel() -> None:
    """Numbers of numpy do not encode, so none may be left in what a stage answers."""
    row = np.array([0.5, 2.0, 1.0], np.float32)
    token, logprob = sample(row, SamplingParameters(logprobs=2), 5, [])
    assert type(token) is int
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(logprob), type=TokenLogprob) == logprob
