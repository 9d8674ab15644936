from __future__ import annotations

from longspan.speculate.probe import Probe


def test_a_probe_waits_longer_each_time_and_starts_anew_after_a_success() -> None:
    probe = Probe()
    assert [now for now in range(80) if probe.due(float(now))] == [1, 3, 7, 15, 31, 47, 63, 79]
    probe.reset()
    assert [now for now in range(100, 110) if probe.due(float(now))] == [101, 103, 107]


def test_what_costs_more_is_tried_less_often() -> None:
    probe = Probe()
    assert [now for now in range(100) if probe.due(float(now), least=5.0)] == [5, 15, 35, 75]
