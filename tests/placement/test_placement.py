"""Placements are the best there are, fit, honour what was fixed, or are refused with what is missing."""

from __future__ import annotations

import re
import time

import msgspec
import pytest

from longspan.errors import PlacementError, UsageError
from longspan.placement.demand import Demand
from longspan.placement.memory import stage_memory
from longspan.placement.model_shape import ModelShape
from longspan.placement.node import COORDINATOR, Link, Network, Node
from longspan.placement.placement import Placement, describe, place
from longspan.placement.prediction import crowd, predict
from tests.placement.random_cases import all_placements, best_rate, random_case

MIB = 1 << 20
NEAR = Network(Link(0.0))
DEMAND = Demand(slots=1, cells=2, depth=0, max_rows=1)


def shape(layers: int = 8, *, refused: frozenset[tuple[int, int]] = frozenset()) -> ModelShape:
    return ModelShape("small", "ab" * 32, (10 * MIB,) * layers, MIB, 20 * MIB, (1024,) * layers, 64, 512, refused)


def node(name: str, layer_ms: float = 1.0, memory: int = 4096, **fields: object) -> Node:
    return Node(name, memory * MIB, layer_ms / 1000, **fields)  # type: ignore[arg-type]


def spans(placement: Placement) -> list[tuple[str, int, int]]:
    return [(stage.node, stage.start, stage.end) for stage in placement.stages]


def test_equal_to_brute_force_on_a_thousand_random_cases() -> None:
    solved = refused = several = 0
    for seed in range(1000):
        case = random_case(seed)
        best = best_rate(case)
        try:
            found = place(case.model, case.nodes, case.network, case.demand, keep_order=case.keep_order)
        except PlacementError:
            assert best is None, f"case {seed} can be placed"
            refused += 1
            continue
        assert best is not None, f"case {seed} cannot be placed"
        assert found.prediction.plain == pytest.approx(best, rel=1e-9), f"case {seed}"
        held = [
            (next(node for node in case.nodes if node.name == stage.node), stage.start, stage.end)
            for stage in found.stages
        ]
        assert held in list(all_placements(case)), f"case {seed}"
        solved += 1
        several += len(held) > 1
    assert min(solved, refused, several) > 150, (solved, refused, several)


def test_one_stream_goes_to_the_fastest_and_many_spread_out() -> None:
    nodes = [node("slow", 2.0), node("fast", 1.0)]
    assert spans(place(shape(), nodes, NEAR, DEMAND)) == [("fast", 0, 8)]
    many = place(shape(), nodes, NEAR, msgspec.structs.replace(DEMAND, streams=8))
    assert {stage.node for stage in many.stages} == {"slow", "fast"}
    assert "always busy" in many.limit
    assert many.prediction.plain > 8 / 8 / 0.008


def test_the_order_follows_the_links() -> None:
    far = {(COORDINATOR, "b"): Link(0.05), ("b", "c"): Link(0.05), ("a", "b"): Link(0.001)}
    nodes = [node(name, memory=240) for name in "abc"]
    found = place(shape(12), nodes, Network(Link(0.01), far), DEMAND)
    assert "b" not in (found.stages[0].node, found.stages[-1].node) or len(found.stages) < 3
    assert found.any_order


def test_what_is_fixed_stays_and_what_is_reserved_stays_free() -> None:
    nodes = [node("a", 0.1), node("b", 9.0, layers=(2, 5)), node("c", 1.0)]
    found = place(shape(), nodes, NEAR, DEMAND)
    assert ("b", 2, 5) in spans(found)
    tight = [node("a", 0.1, memory=260, reserve_bytes=60 * MIB), node("b", 1.0)]
    stage = next(stage for stage in place(shape(), tight, NEAR, DEMAND).stages if stage.node == "a")
    assert stage.memory.total <= 200 * MIB == stage.usable_bytes


def test_ranges_that_cannot_be_cut_are_avoided() -> None:
    refused = frozenset((0, end) for end in range(1, 8)) - {(0, 3)}
    many = msgspec.structs.replace(DEMAND, streams=2)
    found = place(shape(refused=refused), [node("a"), node("b")], NEAR, many)
    assert [(start, end) for _, start, end in spans(found)] == [(0, 3), (3, 8)]


def test_spares_are_named() -> None:
    found = place(shape(), [node("a", 1.0), node("b", 5.0)], Network(Link(0.1)), DEMAND)
    assert (spans(found), found.spares) == ([("a", 0, 8)], ("b",))
    assert found.limit == "links: 95% of a trip"


def test_memory_that_limits_is_named() -> None:
    nodes = [node("fast", 0.1, memory=150), node("slow", 10.0)]
    found = place(shape(), nodes, NEAR, DEMAND)
    assert found.limit == "memory of fast"


def test_a_model_that_does_not_fit_is_refused_with_what_is_missing() -> None:
    nodes = [node("a", memory=200), node("b", memory=180)]
    with pytest.raises(PlacementError, match=r"small does not fit") as caught:
        place(shape(40), nodes, NEAR, DEMAND)
    need = sum(stage_memory(shape(40), DEMAND, *span).total for span in ((0, 4), (4, 40)))
    lacking = sum(float(size) for size in re.findall(r" lacks (\d+) MiB", str(caught.value)))
    assert lacking == pytest.approx((need - 380 * MIB) / MIB, abs=2)
    assert "lacks" in str(caught.value)
    assert "it may use" in str(caught.value)


def test_fixed_ranges_that_contradict_are_refused() -> None:
    nodes = [node("a", layers=(0, 5)), node("b", layers=(4, 8))]
    with pytest.raises(PlacementError, match="no placement has the ranges"):
        place(shape(), nodes, NEAR, DEMAND)
    with pytest.raises(PlacementError, match="node a shall hold the layers 0-9"):
        place(shape(), [node("a", layers=(0, 9))], NEAR, DEMAND)


@pytest.mark.parametrize("names", [[], ["a", "a"], [""], [COORDINATOR]])
def test_names_must_tell_nodes_apart(names: list[str]) -> None:
    with pytest.raises(PlacementError, match=r"node"):
        place(shape(), [node(name) for name in names], NEAR, DEMAND)


def test_given_ranges_are_described() -> None:
    found = describe(shape(), [node("b", 3.0), node("a", 1.0)], NEAR, DEMAND, [(0, 2), (2, 8)])
    assert spans(found) == [("b", 0, 2), ("a", 2, 8)]
    seconds = 2 * 0.003 + 6 * 0.001 + 0.0004 + 2 * 0.001
    assert found.prediction.plain == pytest.approx(1 / seconds)


def test_more_nodes_than_can_be_permuted_keep_their_order() -> None:
    nodes = [node(f"n{index}", memory=190) for index in range(20)]
    found = place(shape(24), nodes, NEAR, DEMAND)
    names = [stage.node for stage in found.stages]
    assert not found.any_order
    assert names == sorted(names, key=lambda name: int(name[1:]))


@pytest.mark.parametrize("streams", [1, 16])
def test_a_large_case_takes_seconds(streams: int) -> None:
    nodes = [node(f"n{index}", 1 + index / 10, memory=700) for index in range(7)]
    started = time.process_time()
    found = place(shape(48), nodes, Network(Link(0.01)), msgspec.structs.replace(DEMAND, streams=streams))
    assert found.any_order
    assert time.process_time() - started < 20


def test_speculation_pays_over_distance_and_never_costs() -> None:
    stages = [(node("a"), 0, 4), (node("b"), 4, 8)]
    far = predict(shape(), Network(Link(0.05)), msgspec.structs.replace(DEMAND, acceptance=0.8), stages)
    assert far.speculated > 2 * far.plain
    assert far.width > 1
    hopeless = predict(shape(), NEAR, msgspec.structs.replace(DEMAND, acceptance=0.0), stages)
    assert hopeless.speculated == hopeless.plain


@pytest.mark.parametrize(
    ("streams", "stages", "rows", "groups"), [(1, 3, 1, 1), (2, 3, 1, 2), (3, 3, 1, 3), (7, 3, 3, 3), (4, 3, 2, 2)]
)
def test_streams_share_iterations_when_there_are_more_than_stages(
    streams: int, stages: int, rows: int, groups: int
) -> None:
    assert crowd(streams, stages) == (crowd(streams, stages).__class__(rows, groups))


@pytest.mark.parametrize(("field", "value"), [("slots", 0), ("cells", 1), ("streams", 300), ("acceptance", 1.0)])
def test_a_demand_is_checked(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{field} is"):
        Demand(**{field: value})  # type: ignore[arg-type]
