"""Verdicts of `longspan bench compare` on real servers, where the truth is known because it is planted."""

from __future__ import annotations

import collections
import json

import pytest

from longspan.bench.compare.verdict import MOST_NOISE
from tests.bench.compare import planted

RUNS = 3


@pytest.mark.soak
@pytest.mark.parametrize("kind", planted.KINDS)
def test_a_planted_difference_is_judged_as_what_it_is(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert planted.main([kind, "--runs", str(RUNS), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    verdicts = collections.Counter(found["verdicts"])
    assert verdicts.total() == RUNS
    for line in found["lines"]:
        assert line["contended"] and line["identical_answers"]
        assert (line["verdict"] == "inconclusive") == (line["noise"] > MOST_NOISE)
    wrong = {"identical": ("improvement", "regression"), "slower": ("improvement",), "noisy": ()}[kind]
    assert not any(verdicts[word] for word in wrong)
    if kind == "slower":
        assert found["verdicts_where_noise_is_below_2_percent"].keys() <= {"regression"}
    if kind == "noisy":
        assert verdicts["inconclusive"] > 0
