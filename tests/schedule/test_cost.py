"""Cost models: what they learn, and what they must never do."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import UsageError
from longspan.schedule.cost import COST_MODELS, AnalyticCost, BucketedCost, EmaCost, StageCosts, cost_model
from longspan.schedule.geometry import Geometry
from longspan.schedule.span import StageTiming

geometries = st.builds(
    Geometry,
    exact_rows=st.integers(0, 100),
    prefill_rows=st.integers(0, 4000),
    sequences=st.integers(0, 100),
    kv_read=st.integers(0, 1 << 30),
    history_rows=st.integers(0, 1 << 40),
    square_rows=st.integers(0, 1 << 30),
    widest=st.integers(0, 4000),
    sub_batches=st.integers(0, 100),
    sampled_rows=st.integers(0, 100),
)
anything = st.floats(allow_nan=True, allow_infinity=True)


def random_geometry(generator: random.Random) -> Geometry:
    decodes = [generator.randrange(6000) for _ in range(generator.randrange(9))]
    rows = generator.choice([0, generator.randrange(1, 56)]) if decodes else generator.randrange(1, 64)
    start = generator.randrange(6000)
    return Geometry(
        exact_rows=len(decodes),
        prefill_rows=rows,
        sequences=len(decodes) + (rows > 0),
        kv_read=sum(decodes) + (start if rows else 0),
        history_rows=sum(decodes) + start * rows,
        square_rows=len(decodes) + rows * rows,
        widest=max(rows, 1),
        sub_batches=(len(decodes) > 0) + (rows > 0),
        sampled_rows=len(decodes),
    )


def true_seconds(geometry: Geometry) -> float:
    return (
        4e-3
        + 2e-3 * (geometry.sub_batches - 1)
        + 2.4e-3 * geometry.rows
        + 4e-4 * geometry.sampled_rows
        + 2e-7 * geometry.kv_read
        + 4e-7 * geometry.pairs
    )


@pytest.mark.parametrize("name", COST_MODELS)
@given(observations=st.lists(st.tuples(geometries, anything), max_size=12), asked=geometries)
def test_a_prediction_is_always_a_time(
    name: str, observations: list[tuple[Geometry, float]], asked: Geometry
) -> None:
    model = cost_model(name)
    for geometry, seconds in observations:
        model.observe(geometry, seconds)
        predicted = model.predict(asked)
        assert math.isfinite(predicted)
        assert predicted >= 0


@pytest.mark.parametrize("name", COST_MODELS)
@pytest.mark.parametrize("seconds", [0.0, -1.0, 5e-324, 1e300, math.nan, math.inf])
def test_times_that_are_none_do_not_teach(name: str, seconds: float) -> None:
    model = cost_model(name)
    model.observe(Geometry(exact_rows=1, sequences=1), seconds)
    model.observe(Geometry(), 1.0)
    assert not model.trained
    assert model.predict(Geometry(exact_rows=1, sequences=1)) == 0


def test_the_analytic_form_finds_the_weights() -> None:
    generator = random.Random(5)
    model = AnalyticCost()
    for _ in range(600):
        geometry = random_geometry(generator)
        model.observe(geometry, true_seconds(geometry) * generator.gauss(1.0, 0.02))
    errors = []
    for _ in range(100):
        geometry = random_geometry(generator)
        errors.append(abs(model.predict(geometry) / true_seconds(geometry) - 1.0))
    assert sum(errors) / len(errors) < 0.01
    assert min(model.weights.values()) >= 0


def test_the_analytic_form_forgets() -> None:
    """A machine that becomes twice as slow is believed after some hundred iterations."""
    generator = random.Random(6)
    model = AnalyticCost()
    for step in range(1500):
        geometry = random_geometry(generator)
        model.observe(geometry, true_seconds(geometry) * (2.0 if step >= 600 else 1.0))
    geometry = random_geometry(generator)
    assert model.predict(geometry) == pytest.approx(2 * true_seconds(geometry), rel=0.03)


def test_the_analytic_form_learns_from_one_shape_alone() -> None:
    model = AnalyticCost()
    geometry = Geometry(exact_rows=1, sequences=1, kv_read=50, history_rows=50, square_rows=1, sub_batches=1)
    for _ in range(30):
        model.observe(geometry, 0.01)
    assert model.predict(geometry) == pytest.approx(0.01, rel=0.01)


def test_ema_weighs_three_to_one_and_needs_large_iterations() -> None:
    model = EmaCost()
    model.observe(Geometry(prefill_rows=8, sequences=1), 8.0)
    assert model.predict(Geometry(prefill_rows=2, sequences=1)) == pytest.approx(2.0)
    model.observe(Geometry(prefill_rows=64, sequences=1), 64 * 0.1)
    assert model.predict(Geometry(prefill_rows=10, sequences=1)) == pytest.approx(1.0)
    model.observe(Geometry(prefill_rows=100, sequences=1), 100 * 0.2)
    model.observe(Geometry(prefill_rows=1, sequences=1), 9.0)
    assert model.predict(Geometry(prefill_rows=10, sequences=1)) == pytest.approx(1.25)


def test_bucketed_is_exactly_ema_until_a_cell_has_three_samples() -> None:
    ema, bucketed = EmaCost(), BucketedCost()
    small = Geometry(exact_rows=4, sequences=4, widest=1)
    large = Geometry(prefill_rows=512, sequences=1, widest=512)
    for seconds in (1.0, 1.2):
        for geometry in (small, large):
            ema.observe(geometry, seconds)
            bucketed.observe(geometry, seconds)
            assert bucketed.predict(small) == ema.predict(small)
    ema.observe(small, 1.0)
    bucketed.observe(small, 1.0)
    assert bucketed.predict(small) != ema.predict(small)
    assert bucketed.predict(small) == pytest.approx(1.0375)
    assert bucketed.predict(large) == ema.predict(large)


def test_the_paths_with_and_without_decode_rows_are_apart() -> None:
    model = BucketedCost()
    for _ in range(3):
        model.observe(Geometry(exact_rows=1, prefill_rows=29, sequences=2, widest=29), 3.0)
        model.observe(Geometry(prefill_rows=30, sequences=2, widest=30), 1.0)
    assert model.predict(Geometry(exact_rows=1, prefill_rows=29, sequences=2, widest=29)) == pytest.approx(3.0)
    assert model.predict(Geometry(prefill_rows=30, sequences=2, widest=30)) == pytest.approx(1.0)


@pytest.mark.parametrize("name", COST_MODELS)
def test_predicting_is_cheap(name: str) -> None:
    generator = random.Random(1)
    model = cost_model(name)
    asked = [random_geometry(generator) for _ in range(200)]
    for geometry in asked:
        model.observe(geometry, true_seconds(geometry))
    best = math.inf
    for _ in range(20):
        start = time.perf_counter()
        for geometry in asked:
            model.predict(geometry)
        best = min(best, (time.perf_counter() - start) / len(asked))
    assert best < 20e-6


def test_the_slowest_stage_governs() -> None:
    costs = StageCosts("ema")
    geometry = Geometry(prefill_rows=64, sequences=1)
    assert not costs.trained
    timings = (StageTiming(0, 0.0, 1.0, 1.5), StageTiming(1, 0.0, 1.0, 3.0), StageTiming(2, 0.0, 2.0, 2.1))
    assert costs.observe(geometry, timings) == 2.0
    assert costs.predict(geometry) == pytest.approx(2.0)
    assert costs.by_stage(geometry) == pytest.approx({0: 0.5, 1: 2.0, 2: 0.1})
    costs.forget()
    assert not costs.trained


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"'best'; known are analytic, bucketed, ema"):
        StageCosts("best")
