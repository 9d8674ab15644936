"""How long compute threads wait before they sleep."""

from __future__ import annotations

import os

import pytest

from longspan.openmp import SPINS_ALONE, SPINS_BESIDE_OTHERS, VARIABLES, set_waiting


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set here goes with the test
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("stages", "spins"), [(1, SPINS_ALONE), (2, SPINS_BESIDE_OTHERS)])
def test_stages_that_share_a_machine_leave_each_other_the_cores(stages: int, spins: int) -> None:
    set_waiting(stages_here=stages)
    assert [os.environ[name] for name in VARIABLES] == ["passive", str(spins)]


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    set_waiting()
    assert (os.environ.get("OMP_WAIT_POLICY"), os.environ["GOMP_SPINCOUNT"]) == (None, "7")
