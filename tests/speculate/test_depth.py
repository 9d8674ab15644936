from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.sampling.draw import uniform
from longspan.speculate.depth import PLAIN, Conditions, Shape, ShapeTable, best_shape

FIXED, BY_ROW = 0.003, 0.0012
TABLE = [FIXED + BY_ROW * rows for rows in range(65)]
NEAR = Conditions(TABLE, 1.0, 0.0, 63)
FAR = Conditions(TABLE, 2.0, 0.2, 63)


def survival(chance: float, drafts: int) -> list[float]:
    return [chance**count for count in range(drafts + 1)]


def endless(chance: float, conditions: Conditions = FAR) -> Shape:
    """The shape for a stream that never runs dry."""
    return best_shape(survival(chance, 250), conditions, 64, open_ended=True)


def chain(chance: float, drafts: int, conditions: Conditions) -> Shape:
    """The shape for a chain that is drafted anew whenever a window is back."""
    return best_shape(survival(chance, drafts + 192), conditions, drafts, open_ended=False)


def simulated_rate(chance: float, width: int, depth: int, conditions: Conditions, runs: int = 3000) -> float:
    """Tokens a second of one sequence with endless drafts, run by run with random divergences."""
    interval = conditions.cost(width)
    trip = conditions.trip(width)
    tokens = seconds = 0.0
    for run in range(runs):
        right = int(math.log(max(1e-12, uniform(3, run))) / math.log(chance))  # drafts before the first wrong one
        sent: list[float] = []
        for window in range(right // width + 1):
            leaves = sent[-1] + interval if sent else 0.0
            if window >= depth:
                leaves = max(leaves, sent[window - depth] + trip)
            sent.append(leaves)
        tokens += right + 1
        seconds += sent[-1] + trip + (interval / 2 if depth > 1 else 0.0)
    return tokens / seconds


@pytest.mark.parametrize("chance", [0.8, 0.95, 0.99])
def test_the_shape_is_as_good_as_any_that_a_simulation_finds(chance: float) -> None:
    shape = endless(chance)
    depths = {width: math.ceil(FAR.trip(width) / FAR.cost(width)) for width in (2, 4, 8, 16, 32, 60)}
    best = max(
        simulated_rate(chance, width, depth, FAR)
        for width, full in depths.items()
        for depth in (1, 2, full // 2, full, 2 * full)
        if 1 <= depth <= 16
    )
    assert simulated_rate(chance, shape.width, shape.depth, FAR) > 0.93 * best
    assert shape.rate == pytest.approx(simulated_rate(chance, shape.width, shape.depth, FAR), rel=0.12)


def test_the_best_width_is_inside_and_grows_with_the_length_of_a_run() -> None:
    widths = [endless(chance).width for chance in (0.5, 0.8, 0.95, 0.99, 0.998)]
    assert widths == sorted(widths)
    assert 1 < widths[0] < widths[-1] < 63


def test_depth_keeps_the_slowest_stage_busy_for_a_trip() -> None:
    shape = endless(0.99)
    assert shape.depth == math.ceil(FAR.trip(shape.width) / FAR.cost(shape.width))


def test_on_one_stage_beside_the_coordinator_nothing_is_piped() -> None:
    shape = endless(0.99, NEAR)
    assert shape.depth == 1 and shape.width > 8


def test_drafts_that_cannot_pay_are_not_sent() -> None:
    assert chain(0.05, 4, NEAR) is PLAIN
    assert best_shape([1.0], FAR, 0, open_ended=True) is PLAIN


def test_far_away_even_poor_drafts_pay() -> None:
    assert chain(0.3, 4, FAR).width > 1


def test_many_sequences_on_a_busy_stage_send_fewer_drafts() -> None:
    widths = []
    for sequences in (1, 2, 4, 8, 16, 32):
        crowd = NEAR._replace(sequences=sequences, group=sequences)
        widths.append(chain(0.7, 4, crowd).width)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1 and widths[-1] == 1


def test_together_they_stay_within_the_rows_of_an_iteration() -> None:
    crowd = FAR._replace(sequences=32, group=16)
    assert endless(0.99, crowd).width * 16 <= 63


def test_a_short_chain_is_sent_whole_or_in_pieces_but_never_beyond_itself() -> None:
    for drafts in (1, 2, 3, 4, 6):
        shape = chain(0.8, drafts, FAR)
        assert 1 < shape.width <= drafts + 1


@given(
    chances=st.lists(st.floats(0.01, 0.999), max_size=60),
    open_ended=st.booleans(),
    flowing=st.booleans(),
    remaining=st.integers(1, 400),
    others=st.floats(1, 60),
    sequences=st.integers(1, 20),
    link=st.sampled_from([0.0, 0.02, 0.2]),
)
def test_any_stream_gets_a_shape_that_can_be_sent(
    chances: list[float],
    open_ended: bool,
    flowing: bool,
    remaining: int,
    others: float,
    sequences: int,
    link: float,
) -> None:
    group = math.ceil(sequences / 2)
    conditions = Conditions(TABLE, 2.0, link, 63, sequences, group)
    table = ShapeTable(conditions)
    shape = table.shape(chances, others=others, open_ended=open_ended, flowing=flowing, remaining=remaining)
    assert shape == table.shape(chances, others=others, open_ended=open_ended, flowing=flowing, remaining=remaining)
    assert shape == PLAIN or (
        2 <= shape.width <= min(len(chances), remaining - 1) + 1
        and shape.width * group <= 63
        and 1 <= shape.depth <= 16
        and shape.gain >= 1.05
    )


@given(chance=st.floats(0.02, 0.98), drafts=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_a_class_stands_for_its_streams(chance: float, drafts: int) -> None:
    table = ShapeTable(FAR)
    found = table.shape([chance] * drafts, others=1.0, open_ended=False, flowing=False, remaining=300)
    exact = chain(chance, drafts, FAR)
    assert found.gain == pytest.approx(exact.gain, rel=0.1)
    assert 1 in (found.width, exact.width) or 0.6 <= found.width / exact.width <= 1.7


def test_while_windows_are_on_their_way_wider_ones_cost_less_time() -> None:
    """The stage before the slowest one has time to spare; of the stages behind it the last window waits for all."""
    ring = FAR._replace(spread=1.8)
    shapes = [
        best_shape(survival(0.999, 250), ring._replace(behind=behind), 64, open_ended=True, flowing=flowing)
        for behind, flowing in ((0.0, True), (0.8, True), (0.0, False))
    ]
    assert shapes[0].width > shapes[1].width == shapes[2].width


def test_conditions_that_hardly_differ_resemble_each_other() -> None:
    assert FAR.resembles(FAR._replace(link=0.202))
    assert not FAR.resembles(FAR._replace(link=0.25))
    assert not FAR.resembles(FAR._replace(sequences=2))
    assert not FAR.resembles(FAR._replace(seconds=[1.1 * seconds for seconds in TABLE]))


def test_costs_beyond_the_table_go_on_like_its_end() -> None:
    assert FAR.cost(100) == pytest.approx(FIXED + BY_ROW * 100)
    assert FAR.cost(2.5) == pytest.approx(FIXED + BY_ROW * 2.5)


def test_every_pass_costs_what_an_iteration_of_one_row_does() -> None:
    assert FAR.cost_of_passes(1, 9) == FAR.cost(9)
    assert FAR.cost_of_passes(3, 9) == pytest.approx(3 * FAR.cost(1) + 6 * BY_ROW)
