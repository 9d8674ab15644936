from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longspan.sampling.adjustment import adjusted, needs_history
from longspan.sampling.parameters import SamplingParameters
from tests.sampling.slow_sampler import slow_adjusted

TOKENS = st.integers(0, 15)


@given(
    seed=st.integers(0, 2**32),
    history=st.lists(TOKENS, max_size=30),
    parameters=st.builds(
        SamplingParameters,
        repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2.0)),
        presence_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
        frequency_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
        prompt_length=st.integers(0, 30),
        logit_bias=st.dictionaries(TOKENS, st.floats(-100, 100), max_size=4).map(lambda bias: tuple(bias.items())),
        min_tokens=st.integers(0, 30),
        suppress=st.lists(TOKENS, max_size=3).map(tuple),
    ),
)
def test_every_logit_equals_the_plain_python_one(
    seed: int, history: list[int], parameters: SamplingParameters
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(16) * 2).astype(np.float32)
    before = logits.copy()
    found = adjusted(logits, parameters, len(history), history)
    assert found.dtype == np.float32
    assert found.tolist() == slow_adjusted(logits.tolist(), parameters, len(history), history)
    assert np.array_equal(logits, before)


def test_nothing_asked_nothing_copied() -> None:
    logits = np.ones(4, np.float32)
    parameters = SamplingParameters(suppress=(1,), min_tokens=0)
    assert not needs_history(parameters)
    assert adjusted(logits, parameters, 3, [0, 1, 2]) is logits
