"""The real engine is what the server needs; mypy checks the types, this checks the moment before the start."""

from __future__ import annotations

import pytest

from longspan.engine import Engine, EngineOptions
from longspan.errors import RingError
from longspan.server import create_app
from longspan.server.contract import ServingEngine


def test_an_engine_that_has_not_started_is_served_too() -> None:
    engine: ServingEngine = Engine(EngineOptions())
    create_app(engine)
    assert not engine.readiness().ready
    with pytest.raises(RingError):
        _ = engine.model
