"""The llama.cpp stage against itself, against bare llama.cpp and against the numpy reference, on tiny models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import LongspanError, ModelError, ProtocolError
from longspan.llamacpp.library import load_library
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.messages import Assignment
from longspan.runtime.llama.exactness import ExactnessProbe
from longspan.runtime.llama.runtime import MAX_SAMPLES, LlamaRuntime
from longspan.runtime.reference import ReferenceRuntime
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import CopyPrefix, Drop, Iteration, Operation, Phase, Span, TokenLogprob, Trim
from tests.runtime.pipeline import Pipeline, span
from tests.tiny_models import write_tiny_model
from tests.whole_model import WholeModel

Logits = npt.NDArray[np.float32]

PROMPT = [40, 41, 42, 80, 90, 7, 200, 3]
SLOTS = 6
CELLS = 256
SPLITS = {1: [(0, 4)], 2: [(0, 2), (2, 4)], 3: [(0, 1), (1, 3), (3, 4)]}
WEIGHTS = ["Q8_0", "F32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(made / "cache"))
        yield made


@pytest.fixture(scope="module")
def sources(folder: Path) -> dict[str, GgufSource]:
    return {
        weights: GgufSource(write_tiny_model(folder / f"{weights}.gguf", "llama", weight_type=weights))
        for weights in WEIGHTS
    }


class Recorder:
    """A greedy sampler that keeps the logits of every sampled row, in order."""

    def __init__(self) -> None:
        self.rows: list[Logits] = []

    def __call__(
        self, logits: Logits, _parameters: SamplingParameters, _position: int, _history: Sequence[int]
    ) -> tuple[int, TokenLogprob | None]:
        self.rows.append(logits.copy())
        return int(logits.argmax()), None


class Stages(Pipeline):
    """llama.cpp stages one after the other. logits: of every sampled row of the last `run`."""

    def __init__(self, source: GgufSource, stages: int, *, slots: int = SLOTS, cells: int = CELLS) -> None:
        self._recorder = Recorder()
        loader = LlamaLoader(source, threads=1, sampler=self._recorder)
        splits = SPLITS[stages]
        runtimes = [
            loader.load(
                Assignment(index, len(splits), start, end, 4, None, slots, cells, "float32"), lambda text: None
            )
            for index, (start, end) in enumerate(splits)
        ]
        super().__init__(runtimes, source.token_embedding())
        self.exact_rows = min(runtime.capacity().exact_rows for runtime in runtimes)

    def logits(self, spans: Sequence[Span], operations: Sequence[Operation] = ()) -> list[Logits]:
        """Logits after every row of the spans, in the order of slots and rows."""
        self._recorder.rows = []
        asked = [
            span(entry.slot, entry.start, entry.tokens, sample_rows=tuple(range(len(entry.tokens))))
            for entry in spans
        ]
        result = self.run(asked, operations)
        assert not result.failures, result.failures
        return self._recorder.rows

    def first(self) -> LlamaRuntime:
        runtime = self.stages[0]
        assert isinstance(runtime, LlamaRuntime)
        return runtime

    def close(self) -> None:
        for runtime in self.stages:
            runtime.close()


@pytest.fixture
def stages(sources: dict[str, GgufSource]) -> Iterator[Callable[..., Stages]]:
    made: list[Stages] = []

    def make(weights: str, count: int, **fields: int) -> Stages:
        made.append(Stages(sources[weights], count, **fields))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Truth:
    """Logits after a context by the whole model, one row at a time in one slot, remembered."""

    def __init__(self, source: GgufSource) -> None:
        self._whole = Stages(source, 1, slots=1)
        self._held: list[int] = []
        self._rows: dict[tuple[int, ...], Logits] = {}

    def after(self, context: Sequence[int]) -> Logits:
        tokens = tuple(context)
        if tokens not in self._rows:
            common = 0
            while common < min(len(tokens), len(self._held)) and tokens[common] == self._held[common]:
                common += 1
            for position in range(min(common, len(tokens) - 1), len(tokens)):
                (row,) = self._whole.logits([span(0, position, tokens[position : position + 1])])
                self._rows[tokens[: position + 1]] = row
            self._held = list(tokens)
        return self._rows[tokens]


@pytest.fixture(scope="module")
def truths(sources: dict[str, GgufSource]) -> dict[str, Truth]:
    return {weights: Truth(source) for weights, source in sources.items()}


# ------------------------------------------------------------------------------------------------ the same numbers


def test_a_stage_of_everything_is_llama_cpp_to_the_bit(
    sources: dict[str, GgufSource], stages: Callable[..., Stages]
) -> None:
    whole = stages("Q8_0", 1)
    with WholeModel(sources["Q8_0"].path) as model:
        expected = model.run(PROMPT)
        found = whole.logits([span(0, 0, PROMPT)])
        assert all(np.array_equal(row, right) for row, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    "parameters",
    [SamplingParameters(), SamplingParameters(temperature=0.8, top_p=0.95, seed=7, repetition_penalty=1.2)],
    ids=["greedy", "drawn"],
)
def test_the_tokens_are_those_of_the_reference(
    sources: dict[str, GgufSource], count: int, parameters: SamplingParameters
) -> None:
    source = sources["F32"]
    reference = Pipeline([ReferenceRuntime(source.path, slots=1, cells_per_slot=CELLS)], source.token_embedding())
    loader = LlamaLoader(source, threads=1)
    splits = SPLITS[count]
    runtimes = [
        loader.load(Assignment(index, count, *limits, 4, None, 2, CELLS, "float32"), lambda text: None)
        for index, limits in enumerate(splits)
    ]
    found = Pipeline(runtimes, source.token_embedding()).generate(PROMPT, 30, parameters)
    assert found == reference.generate(PROMPT, 30, parameters)
    for runtime in runtimes:
        runtime.close()


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("slots", [(0,), (0, 1, 3, 4), (1, 2, 3, 5), (0, 2, 4), (5,)])
def test_rows_on_slots_with_holes_come_back_in_their_order(
    stages: Callable[..., Stages], truths: dict[str, Truth], slots: tuple[int, ...], weights: str
) -> None:
    """1, 3, 7 and 12 rows on neighbouring and lonely slots: the library cuts them up and mixes them."""
    split = stages(weights, 2)
    sizes = (1, 3, 7, 12)
    spans = [span(slot, 0, [slot + 5, *range(30, 29 + size)]) for slot, size in zip(slots, sizes, strict=False)]
    found = iter(split.logits(spans))
    for entry in spans:
        for row in range(len(entry.tokens)):
            assert np.array_equal(next(found), truths[weights].after(entry.tokens[: row + 1]))


_wanted = st.dictionaries(
    st.integers(0, SLOTS - 1),
    st.tuples(st.sampled_from([1.0, 1.0, 1.0, 0.7, 0.3, 0.0]), st.lists(st.integers(3, 8), min_size=1, max_size=9)),
    min_size=1,
    max_size=SLOTS,
)
_operation = st.one_of(
    st.builds(Trim, st.integers(0, SLOTS - 1), st.integers(0, 20)),
    st.builds(Drop, st.integers(0, SLOTS - 1)),
    st.builds(CopyPrefix, st.integers(0, 2), st.integers(3, SLOTS - 1), st.integers(0, 20)),
    st.builds(CopyPrefix, st.integers(3, SLOTS - 1), st.integers(0, 2), st.integers(0, 20)),
)
_step = st.tuples(st.lists(_operation, max_size=2), _wanted)
Step = tuple[list[Operation], dict[int, tuple[float, list[int]]]]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_batch_trim_or_copy_leaves_a_trace(
    sources: dict[str, GgufSource], truths: dict[str, Truth], weights: str
) -> None:
    """Every row is equal, to the bit, to the row that the whole model computes alone."""
    split = Stages(sources[weights], 2)
    longest = 40

    @settings(deadline=None, max_examples=15)
    @given(steps=st.lists(_step, min_size=1, max_size=6))
    def check(steps: list[Step]) -> None:
        held: list[list[int]] = [[] for _ in range(SLOTS)]
        split.run([], [Drop(slot) for slot in range(SLOTS)])
        for operations, wanted in steps:
            for entry in operations:
                _apply(entry, held)
            spans = []
            contexts: list[list[int]] = []
            for slot, (share, tokens) in sorted(wanted.items()):
                start = int(share * len(held[slot]))
                if start + len(tokens) > longest or sum(map(len, contexts)) > 300:
                    continue
                held[slot][start:] = tokens
                contexts += [held[slot][: start + row + 1] for row in range(len(tokens))]
                spans.append(span(slot, start, tokens))
            found = split.logits(spans, operations)
            for row, context in zip(found, contexts, strict=True):
                assert np.array_equal(row, truths[weights].after(context))

    check()
    split.close()


def _apply(entry: Operation, held: list[list[int]]) -> None:
    if isinstance(entry, Trim):
        del held[entry.slot][entry.keep :]
    elif isinstance(entry, Drop):
        held[entry.slot] = []
    elif isinstance(entry, CopyPrefix):
        held[entry.target] = held[entry.source][: entry.length]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_going_on_from_a_copied_prefix_is_as_if_from_the_beginning(
    stages: Callable[..., Stages], truths: dict[str, Truth], weights: str
) -> None:
    split = stages(weights, 2)
    split.logits([span(0, 0, PROMPT), span(2, 0, [9, 9, 9])])
    for length in range(1, len(PROMPT) + 1):
        found = split.logits([span(2, length, [77, 78])], [CopyPrefix(0, 2, length)])
        assert np.array_equal(found[0], truths[weights].after([*PROMPT[:length], 77]))
        assert np.array_equal(found[1], truths[weights].after([*PROMPT[:length], 77, 78]))
    assert np.array_equal(split.logits([span(0, len(PROMPT), [5])])[0], truths[weights].after([*PROMPT, 5])), (
        "the source is as it was"
    )


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_slot_can_be_filled_to_the_last_cell(
    stages: Callable[..., Stages], truths: dict[str, Truth], weights: str, count: int
) -> None:
    split = stages(weights, count)
    cells = min(runtime.capacity().cells_per_slot for runtime in split.stages)
    assert CELLS - 1 <= cells <= CELLS
    tokens = [3 + position % 50 for position in range(cells)]
    for start in range(0, cells - 1, 50):
        split.logits([span(3, start, tokens[start : min(start + 50, cells - 1)])])
    (row,) = split.logits([span(3, cells - 1, tokens[-1:])])
    assert np.array_equal(row, truths[weights].after(tokens))
    assert "a slot holds" in split.run([span(3, cells, [5])]).failures[0].reason


# ------------------------------------------------------------------------------------------------- the exact limit


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("count", [1, 2])
def test_below_the_limit_rows_are_exact_and_from_it_on_they_are_not(
    stages: Callable[..., Stages], truths: dict[str, Truth], weights: str, count: int
) -> None:
    split = stages(weights, count)
    limit = split.exact_rows
    assert 8 < limit <= 512
    tokens = [3 + (7 * position) % 90 for position in range(limit)]
    exact = []
    for rows in (limit - 1, limit):
        found = split.logits([span(0, 0, tokens[:rows])]) if rows <= MAX_SAMPLES else []
        exact.append(
            all(np.array_equal(row, truths[weights].after(tokens[: i + 1])) for i, row in enumerate(found))
        )
    assert exact == [True, False]


def test_the_limit_is_measured_once(
    sources: dict[str, GgufSource], stages: Callable[..., Stages], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = stages("Q8_0", 2).exact_rows

    def measured_again(_probe: ExactnessProbe) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(ExactnessProbe, "find", measured_again)
    assert stages("Q8_0", 2).exact_rows == limit


@pytest.mark.parametrize("damage", ["{", "[]", '{"exact_rows": 0}', '{"exact_rows": 100000}', None])
def test_a_damaged_note_is_measured_again(folder: Path, stages: Callable[..., Stages], damage: str | None) -> None:
    limit = stages("Q8_0", 1).exact_rows
    for note in (folder / "cache" / "exactness").iterdir():
        if damage is None:
            note.unlink()
        else:
            note.write_text(damage)
    assert stages("Q8_0", 1).exact_rows == limit


def test_a_cache_that_cannot_be_written_costs_only_time(
    folder: Path, sources: dict[str, GgufSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sources["Q8_0"].stage_file(0, 4)
    (folder / "file").write_text("not a directory")
    monkeypatch.setenv(CACHE_VARIABLE, str(folder / "file"))
    runtime = _runtime(sources["Q8_0"], path)
    assert runtime.capacity().exact_rows > 8
    runtime.close()


@pytest.mark.parametrize("cells", [2, 5, 9, 12])
def test_a_context_too_short_to_measure_is_exact_one_row_at_a_time(
    stages: Callable[..., Stages], truths: dict[str, Truth], cells: int
) -> None:
    short = stages("Q8_0", 1, slots=1, cells=cells)
    capacity = short.stages[0].capacity()
    assert capacity.cells_per_slot == cells
    assert capacity.exact_rows >= 2
    assert np.array_equal(short.logits([span(0, 0, [40])])[0], truths["Q8_0"].after([40]))


# -------------------------------------------------------------------------------------------------- the residual


def test_the_tap_counts_once_it_has_learned(stages: Callable[..., Stages]) -> None:
    split = stages("Q8_0", 2)
    tap = split.first()._tap
    assert tap is not None
    split.logits([span(0, 0, PROMPT)])
    split.logits([span(0, len(PROMPT), [5])])
    assert tap._counting


@pytest.mark.parametrize("learned", [((1,), 1), ((3,), 50), ((40,), 1000), ((10**6,), 10**6)])
def test_a_surprise_in_the_graph_costs_a_repeat_and_nothing_else(
    stages: Callable[..., Stages], truths: dict[str, Truth], learned: tuple[tuple[int, ...], int]
) -> None:
    split = stages("Q8_0", 2)
    tap = split.first()._tap
    assert tap is not None
    split.logits([span(0, 0, PROMPT), span(3, 0, [5, 6])])
    tokens = list(PROMPT)
    for _ in range(3):
        tap._learned, tap._named_runs = learned, 0
        calls = _count_calls(split.first())
        found = split.logits([span(0, len(tokens), [50, 51, 52]), span(3, 2, [7])])
        assert len(calls) == 2, "the surprise was not noticed"
        for row in range(3):
            assert np.array_equal(found[row], truths["Q8_0"].after([*tokens, 50, 51, 52][: len(tokens) + row + 1]))
        assert np.array_equal(found[3], truths["Q8_0"].after([5, 6, 7]))
        tokens += [50, 51, 52]
    assert tap._penalty == 8, "each surprise makes it look at names for longer"
    for _ in range(12):
        split.logits([span(0, len(tokens), [9])])
        tokens.append(9)
    assert tap._counting, "and then it counts again"


def _count_calls(runtime: LlamaRuntime) -> list[int]:
    calls: list[int] = []
    decode = type(runtime._context).decode.__get__(runtime._context)

    def counted(*arguments: object) -> str:
        calls.append(1)
        return str(decode(*arguments))

    runtime._context.decode = counted  # type: ignore[method-assign,assignment]
    return calls


def test_a_tensor_that_never_comes_fails_the_spans(
    sources: dict[str, GgufSource], stages: Callable[..., Stages]
) -> None:
    source = sources["Q8_0"]
    stages("Q8_0", 2)  # leaves a note of the exact rows, so that the check of them does not fail first
    lost: dict[str, object] = {"layers": 2, "last": False, "residual": "no_such_tensor"}
    runtime = _runtime(source, source.stage_file(0, 2), slots=SLOTS, cells_per_slot=CELLS, **lost)
    rows = source.token_embedding().rows(np.array([5], np.int32))
    output = runtime.run(Iteration(1, (), (), (span(0, 0, [5]),)), rows)
    assert [failure.reason for failure in output.failures] == [
        "llama.cpp did not compute the input or residual tensor of this stage"
    ]
    runtime.close()


def test_a_tensor_that_never_comes_fails_the_self_check(
    sources: dict[str, GgufSource], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = sources["Q8_0"].stage_file(0, 2)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(LongspanError, match=r"the self-check could not reach .*residual tensor"):
        _runtime(sources["Q8_0"], path, layers=2, last=False, residual="no_such_tensor")


# ------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("at", [0, 1])
def test_a_decode_that_fails_leaves_the_slots_as_they_were(
    stages: Callable[..., Stages], truths: dict[str, Truth], at: int
) -> None:
    split = stages("Q8_0", 2)
    split.logits([span(0, 0, PROMPT), span(2, 0, [5, 6])])
    runtime = split.stages[at]
    assert isinstance(runtime, LlamaRuntime)
    decode = runtime._context.decode
    runtime._context.decode = lambda *_: "llama_decode: out of memory"  # type: ignore[method-assign]
    result = split.run([span(0, 6, [1, 2, 3]), span(2, 2, [7])])
    assert [(failure.span, failure.reason) for failure in result.failures] == [
        (0, "llama_decode: out of memory"),
        (1, "llama_decode: out of memory"),
    ]
    assert not result.samples
    runtime._context.decode = decode  # type: ignore[method-assign]
    found = split.logits([span(0, 6, [4]), span(2, 2, [8])])
    assert np.array_equal(found[0], truths["Q8_0"].after([*PROMPT[:6], 4]))
    assert np.array_equal(found[1], truths["Q8_0"].after([5, 6, 8]))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("slots", [1, 3])
def test_numbers_that_are_none_fail_their_sequence_only(
    sources: dict[str, GgufSource], truths: dict[str, Truth], count: int, weights: str, slots: int
) -> None:
    """And the slot serves the next sequence: no NaN stays in cells behind the positions that are in use."""
    source = sources[weights]
    loader = LlamaLoader(source, threads=1)
    runtimes = [
        loader.load(Assignment(index, count, *limits, 4, None, slots, CELLS, "float32"), lambda text: None)
        for index, limits in enumerate(SPLITS[count])
    ]
    split = Pipeline(runtimes, source.token_embedding())
    rows = split.embedding.rows(np.array([*[5] * 100, *PROMPT * (slots - 1)], np.int32))
    rows[40:90] = np.nan
    split.embedding = _Fixed(rows)
    others = [span(slot, 0, PROMPT) for slot in range(1, slots)]
    result = split.run([span(0, 0, [5] * 100), *others])
    assert [failure.span for failure in result.failures] == [0]
    expected = "no usable logits" if count == 1 else "are not finite numbers"
    assert expected in result.failures[0].reason
    right = int(truths[weights].after(PROMPT).argmax())
    assert [(sample.span, sample.token) for sample in result.samples] == [
        (index, right) for index in range(1, slots)
    ]
    split.embedding = source.token_embedding()
    # Large batches read cells that small ones leave out.
    assert not split.run([span(0, 0, [3 + (7 * position) % 90 for position in range(80)])]).failures
    for slot in range(slots):
        tokens = list(PROMPT)
        split.run([span(slot, 0, tokens[:-1], sample_rows=())])
        for _ in range(4):
            tokens.append(split.run([span(slot, len(tokens) - 1, tokens[-1:])]).samples[0].token)
            assert tokens[-1] == int(truths[weights].after(tokens[:-1]).argmax())
    for runtime in runtimes:
        runtime.close()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_that_overflowed_on_the_wire_are_stopped_by_the_next_stage(
    stages: Callable[..., Stages], truths: dict[str, Truth], bad: float
) -> None:
    middle = stages("Q8_0", 3).stages[1]
    rows = np.ones((3, 64), np.float32)
    rows[1, 5] = bad
    output = middle.run(Iteration(1, (), (), (span(0, 0, [5, 6]), span(1, 0, [7]))), rows)
    assert output.activations is not None
    assert [failure.span for failure in output.failures] == [0]
    assert "position 1 are not finite" in output.failures[0].reason
    assert not output.activations[:2].any()
    assert output.activations[2].any()


class _Fixed:
    def __init__(self, rows: npt.NDArray[np.float32]) -> None:
        self._rows = rows

    def rows(self, _tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        return self._rows


def test_failed_spans_are_zeros_and_are_not_run_further_on(
    stages: Callable[..., Stages], truths: dict[str, Truth]
) -> None:
    split = stages("Q8_0", 3)
    result = split.run([span(0, 0, [40]), span(1, 5, [5, 6]), span(3, 0, PROMPT)])
    assert [failure.span for failure in result.failures] == [1]
    for rows in split.activations:
        assert rows[0].any()
        assert not rows[1:3].any()
        assert rows[3:].any(axis=1).all()
    assert [sample.span for sample in result.samples] == [0, 2]
    assert result.samples[1].token == int(truths["Q8_0"].after(PROMPT).argmax())


def test_when_every_span_failed_nothing_is_run(stages: Callable[..., Stages]) -> None:
    split = stages("Q8_0", 2)
    result = split.run([span(0, 5, [40]), span(1, 5, [5, 6])])
    assert [failure.span for failure in result.failures] == [0, 1]
    assert split.activations[0].shape == (3, 64)
    assert not result.samples


@pytest.mark.parametrize(
    ("spans", "shape", "message"),
    [
        ((span(0, 0, [5]),), (2, 64), r"activations of shape \(2, 64\), expected \(1, 64\)"),
        ((span(0, 0, [5]),), (1, 63), r"activations of shape \(1, 63\), expected \(1, 64\)"),
        ((span(1, 0, [5]), span(0, 0, [5])), (2, 64), "slots must ascend"),
        ((span(SLOTS, 0, [5]),), (1, 64), f"slot {SLOTS} does not exist"),
        ((span(0, 0, [5] * 513),), (513, 64), "513 rows in one iteration, this stage takes at most 512"),
        (
            (span(0, 0, [5] * 200, sample_rows=tuple(range(MAX_SAMPLES + 1))),),
            (200, 64),
            f"{MAX_SAMPLES + 1} rows to sample in one iteration, at most {MAX_SAMPLES}",
        ),
        ((span(0, 0, [5, 6], parents=(-1, 0)),), (2, 64), "token tree"),
        ((span(0, 0, [5, 6], given=(6,)),), (2, 64), "given 1 tokens for 1 asked rows"),
        ((span(0, 0, [5], given=(6, 7), phase=Phase.PREFILL),), (1, 64), "given 2 tokens for 1 asked rows"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_malformed_is_refused_before_anything_changes(
    stages: Callable[..., Stages],
    truths: dict[str, Truth],
    count: int,
    spans: tuple[Span, ...],
    shape: tuple[int, int],
    message: str,
) -> None:
    split = stages("Q8_0", count)
    split.logits([span(0, 0, PROMPT)])
    runtime = split.stages[-1] if "sample" in message else split.stages[0]
    with pytest.raises(ProtocolError, match=message):
        runtime.run(Iteration(7, (Drop(0),), (), spans), np.ones(shape, np.float32))
    (row,) = split.logits([span(0, len(PROMPT), [5])])
    assert np.array_equal(row, truths["Q8_0"].after([*PROMPT, 5]))


def _runtime(source: GgufSource, path: Path, **changes: object) -> LlamaRuntime:
    fields: dict[str, object] = {
        "layers": 4,
        "last": True,
        "slots": 2,
        "cells_per_slot": 64,
        "threads": 1,
        "width": source.description.width,
    }
    return LlamaRuntime(load_library(), path, **(fields | changes))  # type: ignore[arg-type]


def test_a_file_that_is_no_model_is_named(sources: dict[str, GgufSource], tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(sources["Q8_0"].stage_file(0, 4).read_bytes()[:2000])
    with pytest.raises(ModelError, match=r"broken.gguf is truncated or damaged"):
        _runtime(sources["Q8_0"], path)


def test_a_context_that_does_not_fit_is_refused_before_it_is_allocated(sources: dict[str, GgufSource]) -> None:
    # 4 layers, 2 key-value heads of 16 numbers each, keys and values, 2 bytes: 512 bytes a position.
    with pytest.raises(
        LongspanError, match=r"64 slots with 33554431 positions each need 1099.5 GB .*has \d+.\d GB free.*--context"
    ):
        _runtime(sources["Q8_0"], sources["Q8_0"].stage_file(0, 4), slots=64, cells_per_slot=(1 << 25) - 1)


def test_more_slots_than_llama_cpp_has_are_refused_in_its_words(sources: dict[str, GgufSource]) -> None:
    with pytest.raises(
        LongspanError, match=r"cannot make a context of 300 slots .*n_seq_max must be <= 256.*--slots"
    ):
        _runtime(sources["Q8_0"], sources["Q8_0"].stage_file(0, 4), slots=300)


def test_closing_twice_is_allowed(sources: dict[str, GgufSource]) -> None:
    runtime = _runtime(sources["Q8_0"], sources["Q8_0"].stage_file(0, 4))
    runtime.close()
    runtime.close()
