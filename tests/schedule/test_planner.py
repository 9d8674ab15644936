"""The planner, rule by rule."""

from __future__ import annotations

import pytest

from longspan.errors import ContextLengthError, ProtocolError, QueueFullError, RequestError
from longspan.lab.oracle import serial_answer
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.events import Failed, FailureKind, Finished, FinishReason, TokensCommitted
from longspan.schedule.limits import Limits
from longspan.schedule.planner import Planner
from longspan.schedule.policy import Policy
from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import (
    Iteration,
    IterationResult,
    Phase,
    Sample,
    SlotSampling,
    SpanFailure,
    TokenLogprob,
)
from tests.schedule.driving import Driver, limits_with

PROMPT = tuple(range(1, 41))


def rows_by_phase(iteration: Iteration) -> dict[Phase, int]:
    rows: dict[Phase, int] = {}
    for span in iteration.spans:
        rows[span.phase] = rows.get(span.phase, 0) + len(span.tokens)
    return rows


def test_one_request_from_prompt_to_end() -> None:
    driver = Driver()
    sequence = driver.submit(PROMPT, 3)
    driver.run()
    assert driver.answers[sequence] == serial_answer(PROMPT, 3)
    assert driver.ends == {sequence: "length"}
    prefill, *decodes = driver.iterations
    assert [span.phase for span in prefill.spans] == [Phase.PREFILL]
    assert prefill.spans[0].sample_rows == (39,)
    assert [iteration.spans[0].start for iteration in decodes] == [40, 41]
    assert [iteration.id for iteration in driver.iterations] == [0, 1, 2]


def test_sampling_rides_with_the_first_iteration_only() -> None:
    planner = Planner(limits_with())
    sampling = SamplingParameters(temperature=0.7, seed=3)
    planner.submit(SequenceRequest(prompt=PROMPT, max_tokens=4, sampling=sampling), 0.0)
    first = planner.plan(0.0)
    assert first is not None
    assert first.samplings == (SlotSampling(0, sampling),)
    planner.complete(IterationResult(0, (Sample(0, 39, 7),)), 0.1)
    second = planner.plan(0.1)
    assert second is not None
    assert second.samplings == ()


def test_an_end_token_stops_and_is_committed() -> None:
    planner = Planner(limits_with())
    request = SequenceRequest(prompt=PROMPT, max_tokens=9, end_tokens=frozenset({7}))
    sequence = planner.submit(request, 0.0)
    planner.plan(0.0)
    events = planner.complete(IterationResult(0, (Sample(0, 39, 7),)), 0.1)
    assert events[-2:] == [TokensCommitted(sequence, (7,)), Finished(sequence, FinishReason.STOP)]
    assert planner.plan(0.1) is None


def test_logprobs_come_with_the_tokens() -> None:
    planner = Planner(limits_with())
    sequence = planner.submit(SequenceRequest(prompt=PROMPT, max_tokens=9), 0.0)
    planner.plan(0.0)
    logprob = TokenLogprob(-0.5, ((7, -0.5),))
    events = planner.complete(IterationResult(0, (Sample(0, 39, 7, logprob),)), 0.1)
    assert TokensCommitted(sequence, (7,), (logprob,)) in events


def test_the_answer_ends_when_the_cells_are_used_up() -> None:
    driver = Driver(limits_with(cells=50))
    sequence = driver.submit(PROMPT, 100)
    driver.run()
    assert driver.answers[sequence] == serial_answer(PROMPT, 10)
    assert driver.ends == {sequence: "length"}


def test_what_can_never_run_is_refused() -> None:
    planner = Planner(limits_with(cells=40))
    with pytest.raises(ContextLengthError, match="40 tokens"):
        planner.submit(SequenceRequest(prompt=PROMPT, max_tokens=1), 0.0)
    with pytest.raises(RequestError, match="no tokens"):
        planner.submit(SequenceRequest(prompt=(), max_tokens=1), 0.0)
    with pytest.raises(RequestError, match="max_tokens is 0"):
        planner.submit(SequenceRequest(prompt=(1,), max_tokens=0), 0.0)
    with pytest.raises(RequestError, match="within -100 and 100") as caught:
        planner.submit(SequenceRequest(prompt=(1,), max_tokens=1, priority=101), 0.0)
    assert caught.value.param == "priority"


def test_a_full_queue_says_when_to_come_again() -> None:
    planner = Planner(Limits(slots=1, cells_per_slot=64, exact_rows=64, max_rows=64, chunk=63, max_waiting=1))
    planner.submit(SequenceRequest(prompt=PROMPT, max_tokens=4), 0.0)
    with pytest.raises(QueueFullError) as caught:
        planner.submit(SequenceRequest(prompt=PROMPT, max_tokens=4), 0.0)
    assert 1.0 <= caught.value.retry_after <= 60.0


def test_a_prompt_goes_on_while_its_chunk_is_in_flight() -> None:
    driver = Driver(limits_with(chunk=16), Policy(whole_rows=0))
    driver.submit(PROMPT, 2)
    planned = [driver.plan() for _ in range(4)]
    assert planned[3] is None, "the sampled row is on its way: nothing more can run"
    spans = [entry[0].spans[0] for entry in planned if entry is not None]
    assert [(span.start, len(span.tokens), span.sample_rows) for span in spans] == [
        (0, 16, ()),
        (16, 16, ()),
        (32, 8, (7,)),
    ]
    assert driver.planner.in_flight == 3


def test_every_ready_decode_row_runs_beside_prefill() -> None:
    driver = Driver()
    streams = [driver.submit(PROMPT[: 20 + i], 30) for i in range(3)]
    driver.run_until(lambda: all(len(driver.answers[stream]) >= 2 for stream in streams))
    driver.submit(tuple(range(100, 400)), 2)
    mixed = [driver.step() for _ in range(4)]
    rows = [rows_by_phase(iteration) for iteration in mixed if iteration is not None]
    joined = [entry for entry in rows if Phase.PREFILL in entry]
    assert joined
    assert all(entry.get(Phase.DECODE, 3) == 3 for entry in joined)


def test_decodes_are_spread_over_the_lanes() -> None:
    driver = Driver(limits_with(slots=6), Policy(lanes=3))
    for i in range(6):
        driver.submit(PROMPT[: 10 + i], 30)
    driver.run_until(lambda: all(len(answer) >= 2 for answer in driver.answers.values()))
    planned = [driver.plan() for _ in range(4)]
    spans = [[span.slot for span in entry[0].spans] for entry in planned if entry is not None]
    assert sorted(map(len, spans)) == [2, 2, 2]
    assert sorted(slot for lane in spans for slot in lane) == list(range(6))


def test_a_small_budget_is_fair_to_decode_rows() -> None:
    limits = Limits(slots=5, cells_per_slot=256, exact_rows=64, max_rows=64, token_budget=2, chunk=2)
    driver = Driver(limits)
    for i in range(5):
        driver.submit(PROMPT[: 2 + i], 40)
    driver.run_until(lambda: all(len(answer) >= 1 for answer in driver.answers.values()))
    before = {sequence: len(answer) for sequence, answer in driver.answers.items()}
    for _ in range(20):
        driver.step()
    gained = [len(answer) - before[sequence] for sequence, answer in driver.answers.items()]
    assert max(gained) - min(gained) <= 1


def test_results_come_back_in_order_or_not_at_all() -> None:
    driver = Driver(limits_with(chunk=16), Policy(whole_rows=0))
    driver.submit(PROMPT, 2)
    planned = [entry for entry in (driver.plan(), driver.plan()) if entry is not None]
    with pytest.raises(ProtocolError, match="iteration 1 came back, expected was 0"):
        driver.planner.complete(planned[1][1], 0.1)
    with pytest.raises(ProtocolError, match="expected was none"):
        Planner(limits_with()).complete(IterationResult(0), 0.0)


@pytest.mark.parametrize("fault", ["missing", "duplicate", "row", "stage"])
def test_a_fault_fails_its_sequence_alone(fault: str) -> None:
    driver = Driver()
    victim = driver.submit(PROMPT, 9)
    other = driver.submit(PROMPT[:20], 9)
    driver.run_until(lambda: all(len(answer) >= 2 for answer in driver.answers.values()))
    planned = driver.plan()
    assert planned is not None
    iteration, result = planned
    index = next(i for i, span in enumerate(iteration.spans) if span.sequence == victim)
    samples, failures = list(result.samples), []
    if fault == "missing":
        samples = [sample for sample in samples if sample.span != index]
    elif fault == "duplicate":
        samples.append(Sample(index, 0, 5))
    elif fault == "row":
        samples = [Sample(s.span, 1, s.token) if s.span == index else s for s in samples]
    else:
        failures.append(SpanFailure(index, "out of memory"))
    driver.complete(IterationResult(result.iteration, tuple(samples), tuple(failures), result.timings))
    driver.run()
    assert driver.ends == {victim: "stage" if fault == "stage" else "protocol", other: "length"}
    assert driver.answers[other] == serial_answer(PROMPT[:20], 9)


def test_a_failed_sequence_leaves_an_empty_slot_and_says_why() -> None:
    planner = Planner(limits_with())
    sequence = planner.submit(SequenceRequest(prompt=PROMPT, max_tokens=9), 0.0)
    planner.plan(0.0)
    events = planner.complete(IterationResult(0, (), (SpanFailure(0, "no memory on stage 1"),)), 0.1)
    assert Failed(sequence, FailureKind.STAGE, "no memory on stage 1") in events
    assert planner.statistics(0.1).cached_slots == 0


def test_samples_of_unknown_spans_are_counted_and_ignored() -> None:
    driver = Driver()
    sequence = driver.submit(PROMPT, 3)
    planned = driver.plan()
    assert planned is not None
    result = planned[1]
    stray = (Sample(9, 0, 1), Sample(-1, 0, 1))
    driver.complete(
        IterationResult(result.iteration, result.samples + stray, (SpanFailure(5, "?"),), result.timings)
    )
    driver.run()
    assert driver.answers[sequence] == serial_answer(PROMPT, 3)
    assert driver.planner.statistics(driver.now).stray_results == 3


def test_late_results_of_a_cancelled_sequence_are_dropped_although_its_slot_is_used_again() -> None:
    driver = Driver(limits_with(slots=1))
    first = driver.submit(PROMPT, 9)
    planned = driver.plan()
    driver.planner.cancel(first, driver.now)
    second = driver.submit(PROMPT[:25], 4)
    follower = driver.plan()
    assert planned is not None
    assert follower is not None
    assert follower[0].spans[0].slot == planned[0].spans[0].slot == 0
    driver.complete(planned[1])
    driver.complete(follower[1])
    driver.run()
    assert driver.answers[first] == []
    assert driver.answers[second] == serial_answer(PROMPT[:25], 4)


def test_finishing_from_outside_makes_no_event_and_unknown_sequences_are_fine() -> None:
    driver = Driver()
    sequence = driver.submit(PROMPT, 9)
    driver.run_until(lambda: len(driver.answers[sequence]) == 3)
    driver.planner.finish(sequence, FinishReason.STOP, driver.now)
    driver.planner.finish(sequence, FinishReason.STOP, driver.now)
    driver.planner.cancel(99, driver.now)
    driver.run()
    assert driver.ends == {}
    assert driver.planner.statistics(driver.now).finished == {"stop": 1, "length": 0, "cancelled": 0}


def test_a_lost_ring_replays_from_the_committed_tokens() -> None:
    driver = Driver()
    sequence = driver.submit(PROMPT, 12)
    driver.run_until(lambda: len(driver.answers[sequence]) == 5)
    assert driver.plan() is not None
    driver.take(driver.planner.abandon(driver.now))
    assert driver.planner.in_flight == 0
    assert driver.preempted == [sequence]
    replay = driver.step()
    assert replay is not None
    assert [(span.phase, span.start, len(span.tokens), span.sample_rows) for span in replay.spans] == [
        (Phase.RECOMPUTE, 0, 44, ())
    ]
    driver.run()
    assert driver.answers[sequence] == serial_answer(PROMPT, 12)


def test_after_a_lost_ring_all_streams_are_back_soon_though_the_first_go_on() -> None:
    driver = Driver()
    sequences = [driver.submit(tuple(range(start, start + 80)), 40) for start in range(4)]
    driver.run_until(lambda: all(len(driver.answers[sequence]) >= 5 for sequence in sequences))
    driver.take(driver.planner.abandon(driver.now))
    before = len(driver.iterations)
    driver.run_until(lambda: not any(sequence.standing for sequence in driver.planner._roster.sequences.values()))
    replay = driver.iterations[before:]
    needed = sum(80 + len(driver.answers[sequence]) - 1 for sequence in sequences)
    assert len(replay) <= needed // driver.limits.free_rows + 2
    assert any(Phase.DECODE in rows_by_phase(iteration) for iteration in replay)
    driver.run()
    assert all(
        driver.answers[sequence] == serial_answer(tuple(range(start, start + 80)), 40)
        for start, sequence in enumerate(sequences)
    )


def test_what_the_ring_is_lost_by_again_and_again_fails_and_what_makes_progress_does_not() -> None:
    driver = Driver(limits_with(slots=2), Policy(loss_limit=3))
    poison = driver.submit(PROMPT, 12)
    for count in range(1, 4):
        assert driver.plan() is not None
        driver.take(driver.planner.abandon(driver.now))
        assert (driver.ends.get(poison) == "stage") == (count == 3)
    steady = driver.submit(PROMPT, 12)
    for tokens in range(1, 9):
        driver.run_until(lambda: len(driver.answers[steady]) == tokens)  # noqa: B023 - runs at once
        assert driver.plan() is not None
        driver.take(driver.planner.abandon(driver.now))
    driver.run()
    assert driver.answers[steady] == serial_answer(PROMPT, 12)


def test_a_smaller_ring_ends_what_no_longer_fits() -> None:
    driver = Driver(limits_with(cells=512))
    long_prompt = driver.submit(tuple(range(200)), 4)
    long_answer = driver.submit(PROMPT, 60)
    fits = driver.submit(PROMPT[:20], 5)
    driver.run_until(lambda: len(driver.answers[long_answer]) == 20)
    smaller = limits_with(cells=60)
    driver.take(driver.planner.abandon(driver.now, smaller))
    driver.run()
    assert driver.ends[long_prompt] in ("context", "length")
    assert driver.ends[long_answer] == "length"
    assert driver.answers[long_answer] == serial_answer(PROMPT, 20)
    assert driver.answers[fits] == serial_answer(PROMPT[:20], 5)


def test_waiting_too_long_fails_only_what_never_ran() -> None:
    driver = Driver(limits_with(slots=1), Policy(queue_timeout=1.0))
    running = driver.submit(PROMPT, 400)
    driver.step()
    waiting = driver.submit(PROMPT, 4)
    hurried = driver.submit(PROMPT, 4, deadline=driver.now + 0.25)
    assert driver.planner.next_deadline() == pytest.approx(driver.now + 0.25)
    driver.now += 0.3
    driver.take(driver.planner.expire(driver.now))
    assert driver.ends == {hurried: "timeout"}
    driver.now += 0.8
    driver.take(driver.planner.expire(driver.now))
    assert driver.ends == {hurried: "timeout", waiting: "timeout"}
    assert driver.planner.next_deadline() is None
    driver.run()
    assert driver.ends[running] == "length"


def test_statistics_add_up() -> None:
    driver = Driver()
    for i in range(6):
        driver.submit(tuple(range(10 * i, 10 * i + 30 + i)), 5)
    driver.run()
    statistics = driver.planner.statistics(driver.now)
    rows = sum(iteration.rows for iteration in driver.iterations)
    assert statistics.decode_rows + statistics.prefill_rows + statistics.recompute_rows == rows
    assert statistics.iterations == len(driver.iterations) == sum(statistics.rows_histogram)
    assert statistics.mixed_iterations == sum(len(rows_by_phase(entry)) > 1 for entry in driver.iterations)
    assert statistics.occupancy == pytest.approx(rows / (512 * len(driver.iterations)))
    assert statistics.finished["length"] == 6
    assert (statistics.running, statistics.waiting) == (0, 0)


def test_predictions_become_good() -> None:
    driver = Driver()
    driver.seconds = lambda iteration: 0.004 + 0.001 * iteration.rows
    for i in range(8):
        driver.submit(tuple(range(10 * i, 10 * i + 30 + 9 * i)), 20 + i)
    driver.run()
    error = driver.planner.statistics(driver.now).prediction_error
    assert error is not None
    assert error < 0.05
