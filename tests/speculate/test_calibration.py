from __future__ import annotations

import pytest

from longspan.speculate.calibration import Calibration


def test_a_prediction_counts_as_right_until_tokens_came() -> None:
    known = Calibration()
    assert known.factor == 1.0
    known.observe(1, 2.0)
    assert 0.9 < known.factor < 1.0


@pytest.mark.parametrize("share", [0.6, 1.3])
def test_it_follows_what_comes(share: float) -> None:
    known = Calibration()
    for _ in range(20):
        known.observe(10 * share, 10.0)
    assert known.factor == pytest.approx(share, abs=0.08)
    for _ in range(200):
        known.observe(10.0, 10.0)
    assert known.factor == pytest.approx(1.0, abs=0.02)


def test_one_observation_larger_than_its_memory_replaces_all() -> None:
    known = Calibration()
    known.observe(100, 10.0)
    known.observe(1000, 1000.0)
    assert known.factor == pytest.approx(1.0)
