"""The rule of evidence, on measurements whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.bench.compare.gate import DEFAULT_GATE, Gate, Requirement, pass_gate, read_gate
from longspan.bench.compare.verdict import Verdict, judge, word
from longspan.errors import UsageError

ROUNDS = 5


def simulated(seed: int, noise: float, slower: float = 0.0, drift: float = 0.0) -> Verdict:
    """Throughput of two arms, ABBA: normal noise, a machine that gets slower, and B `slower`."""
    generator = random.Random(seed)
    arms: dict[str, list[float]] = {"A": [], "B": []}
    for place in range(4 * ROUNDS):
        arm = "ABBA"[place % 4]
        truth = 100 * (1 - drift) ** place * (1 - slower if arm == "B" else 1)
        arms[arm].append(truth * generator.gauss(1, noise))
    return judge("output_throughput", "higher", arms["A"], arms["B"])


def verdicts(make: Callable[[int], Verdict]) -> list[str]:
    return [make(seed).verdict for seed in range(20)]


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.02, 0.03])
def test_identical_arms_never_differ(noise: float) -> None:
    assert verdicts(lambda seed: simulated(seed, noise)).count("no difference") == 20


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.015])
def test_a_planted_slowdown_of_5_percent_is_found(noise: float) -> None:
    found = [simulated(seed, noise, slower=0.05) for seed in range(20)]
    judged = [verdict.verdict for verdict in found if verdict.noise < 0.02]
    assert len(judged) >= 15
    assert judged.count("regression") >= 0.9 * len(judged)
    assert "improvement" not in judged


def test_a_planted_speedup_is_found() -> None:
    assert verdicts(lambda seed: simulated(seed, 0.01, slower=-0.08)).count("improvement") >= 18


def test_planted_noise_is_inconclusive_whatever_the_difference() -> None:
    assert verdicts(lambda seed: simulated(seed, 0.15)).count("inconclusive") >= 19
    assert verdicts(lambda seed: simulated(seed, 0.15, slower=0.3)).count("inconclusive") >= 19


def test_a_machine_that_drifts_harms_both_arms_alike() -> None:
    assert verdicts(lambda seed: simulated(seed, 0.005, drift=0.005)).count("no difference") == 20


@given(st.floats(-0.9, 3.0), st.floats(0.0, 0.5))
def test_the_rule(change: float, noise: float) -> None:
    higher, lower = word(change, noise, "higher"), word(change, noise, "lower")
    if noise > 0.05:
        assert higher == lower == "inconclusive"
    elif abs(change) <= max(0.02, 2 * noise):
        assert higher == lower == "no difference"
    else:
        assert (higher, lower) == (("improvement", "regression") if change > 0 else ("regression", "improvement"))


def test_figures_of_a_verdict() -> None:
    found = judge("median_ttft_ms", "lower", [100.0, 102.0], [110.0, 110.0])
    assert found.change == pytest.approx(220 / 202 - 1)
    assert found.noise == pytest.approx(0.5 * 2 * 2 / 202)  # B does not vary
    assert found.verdict == "regression"


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0]), ([], []), ([1.0, 1.0], [1.0] * 4), ([1.0, 0.0], [1.0, 1.0])])
def test_what_cannot_be_compared_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(UsageError):
        judge("x", "higher", a, b)


WORSE = Verdict("output_throughput", "higher", 100.0, 90.0, -0.1, 0.01, 0.02, "regression")
SAME = Verdict("median_ttft_ms", "lower", 10.0, 10.0, 0.0, 0.01, 0.02, "no difference")
GAPS = Verdict("p95_itl_ms", "lower", 10.0, 10.0, 0.0, 0.08, 0.16, "inconclusive")


def test_a_gate_says_all_that_does_not_hold() -> None:
    found = pass_gate(DEFAULT_GATE, [WORSE, SAME, GAPS], transcripts=False, contention=False)
    assert not found.passed
    assert len(found.failures) == 4
    assert found.failures[0].startswith("output_throughput: regression")
    assert any("inconclusive" in failure for failure in found.failures)


def test_a_gate_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    path.write_text(
        'transcripts = false\n[[require]]\nmetric = "output_throughput"\n'
        'verdicts = ["regression"]\nmost_change = -0.05\n',
        encoding="utf-8",
    )
    gate = read_gate(path)
    assert gate == Gate((Requirement("output_throughput", ("regression",), most_change=-0.05),), False, True)
    assert pass_gate(gate, [WORSE], transcripts=False, contention=True).passed
    with pytest.raises(UsageError, match="not compared"):
        pass_gate(gate, [SAME], transcripts=True, contention=True)


@pytest.mark.parametrize("text", ["x", "[[require]]\nmetrc = 1\n", '[[require]]\nmetric = "x"\nverdicts = ["?"]\n'])
def test_a_damaged_gate_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gate.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"gate\.toml"):
        read_gate(path)
