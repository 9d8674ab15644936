from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.runtime.script import Script, scripted_tokens
from longspan.sampling.parameters import SamplingParameters

GREEDY = SamplingParameters()


@given(tokens=st.lists(st.integers(0, 255), min_size=1, max_size=20), data=st.data())
def test_any_other_history_is_another_state(tokens: list[int], data: st.DataObject) -> None:
    other = list(tokens)
    change = data.draw(st.sampled_from(["replace", "drop", "swap"]))
    place = data.draw(st.integers(0, len(tokens) - 1))
    if change == "replace":
        other[place] = (other[place] + data.draw(st.integers(1, 255))) % 256
    elif change == "drop":
        del other[place]
    else:
        other[place], other[-1] = other[-1], other[place]
    assert (fold(tokens) == fold(other)) == (tokens == other)


def fold(tokens: list[int]) -> int:
    state = 0
    for position, token in enumerate(tokens):
        state = Script().advance(state, token, position)
    return state


@pytest.mark.parametrize("repeat", [0.0, 0.5, 0.9])
def test_the_answer_repeats_the_text_as_often_as_asked(repeat: float) -> None:
    history = [*range(100, 120)]
    answer = scripted_tokens(Script(vocabulary=50_000, repeat=repeat), history, 1500, GREEDY)
    continued = known = 0
    for token in answer:
        earlier = [place for place in range(len(history) - 1) if history[place] == history[-1]]
        if earlier:
            known += 1
            continued += token == history[earlier[-1] + 1]
        history.append(token)
    if repeat == 0.0:
        assert known < 50
    else:
        assert known > 300
        assert abs(continued / known - repeat) < 4 * math.sqrt(0.25 / known)


def test_greedy_answers_depend_on_the_whole_prompt() -> None:
    answers = {tuple(scripted_tokens(Script(), [first, 7, 8, 9], 6, GREEDY)) for first in range(50)}
    assert len(answers) == 50


def test_the_end_token_comes_when_it_should_and_never_else() -> None:
    script = Script(vocabulary=20, repeat=0.5, end_token=3, end_after=17)
    for seed in range(20):
        for parameters in (GREEDY, SamplingParameters(temperature=0.2, seed=seed)):
            answer = scripted_tokens(script, [5, seed], 40, parameters)
            assert [place for place, token in enumerate(answer) if token == 3] == [17]
    held_back = SamplingParameters(min_tokens=30, suppress=(3,))
    assert 3 not in scripted_tokens(script, [5, 1], 40, held_back)


def test_sampled_answers_leave_the_script_now_and_then() -> None:
    script = Script()
    greedy = [scripted_tokens(script, [5, place], 1, GREEDY)[0] for place in range(300)]
    sampled = [
        scripted_tokens(script, [5, place], 1, SamplingParameters(temperature=1.0, seed=place))[0]
        for place in range(300)
    ]
    share = np.mean([left == right for left, right in zip(greedy, sampled, strict=True)])
    assert 0.6 < share < 0.98
