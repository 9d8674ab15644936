from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from longspan.errors import RequestError
from longspan.sampling.limits import MAX_LOGPROBS, MAX_SUPPRESS, check
from longspan.sampling.parameters import MAX_LOGIT_BIAS, SamplingParameters

VOCABULARY = 100


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_k", VOCABULARY + 1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("seed", -1),
        ("seed", 2**64),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("logprobs", MAX_LOGPROBS + 1),
        ("min_tokens", -1),
        ("logit_bias", ((VOCABULARY, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((3, math.nan),)),
        ("logit_bias", ((3, 101.0),)),
        ("logit_bias", ((3, 1.0), (3, 2.0))),
        ("logit_bias", tuple((token, 1.0) for token in range(MAX_LOGIT_BIAS + 1))),
    ],
)
def test_refused_by_name(field: str, value: Any) -> None:
    parameters = msgspec.structs.replace(SamplingParameters(), **{field: value})
    with pytest.raises(RequestError, match=field) as caught:
        check(parameters, VOCABULARY)
    assert caught.value.param == field


@pytest.mark.parametrize("suppress", [(VOCABULARY,), (-1,), tuple([1] * (MAX_SUPPRESS + 1))])
def test_suppressed_tokens_are_bounded(suppress: tuple[int, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        check(SamplingParameters(suppress=suppress), VOCABULARY)
    assert caught.value.param == "min_tokens"


def test_the_borders_are_allowed() -> None:
    check(SamplingParameters(), VOCABULARY)
    check(
        SamplingParameters(
            temperature=2.0,
            top_k=VOCABULARY,
            top_p=1e-9,
            min_p=1.0,
            seed=2**64 - 1,
            repetition_penalty=0.5,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            logit_bias=((0, -100.0), (VOCABULARY - 1, 100.0)),
            min_tokens=5,
            suppress=(0, VOCABULARY - 1),
            logprobs=MAX_LOGPROBS,
        ),
        VOCABULARY,
    )
