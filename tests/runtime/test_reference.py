from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ModelError, ProtocolError
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from longspan.runtime.reference import ReferenceRuntime
from longspan.runtime.slots import stem_length
from longspan.sampling import limits
from longspan.sampling.parameters import SamplingParameters
from longspan.sampling.sampler import log_probability
from longspan.schedule.span import CommitBranch, CopyPrefix, Drop, Iteration, Operation, Phase, Span, Trim
from tests.runtime.pipeline import Pipeline, span
from tests.tiny_models import write_tiny_model
from tests.whole_model import WholeModel

PROMPT = [40, 41, 42, 80, 90, 7, 200, 3]
SLOTS = 3
CELLS = 64
SPLITS = {1: [(0, 4)], 2: [(0, 2), (2, 4)], 3: [(0, 1), (1, 3), (3, 4)]}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GgufSource]:
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder / "cache"))
        yield GgufSource(write_tiny_model(folder / "tiny.gguf", "llama"))


@pytest.fixture(scope="module", autouse=True)
def every_logprob() -> Iterator[None]:
    """A whole distribution is compared here; clients get the best few tokens only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_LOGPROBS", 1000)
        yield


def pipeline(source: GgufSource, stages: int = 1, *, poison: bool = True) -> Pipeline:
    runtimes = [
        ReferenceRuntime(source.stage_file(*layers), slots=SLOTS, cells_per_slot=CELLS, poison=poison)
        for layers in SPLITS[stages]
    ]
    return Pipeline(runtimes, source.token_embedding())


def all_log_probabilities(runtime: Pipeline, vocabulary: int, tokens: list[int]) -> npt.NDArray[np.float64]:
    """(len(tokens), vocabulary): the whole distribution after every token, out of the samples of one prefill."""
    everything = SamplingParameters(logprobs=vocabulary)
    result = runtime.run([span(0, 0, tokens, sample_rows=tuple(range(len(tokens))))], samplings=[(0, everything)])
    rows = np.empty((len(tokens), vocabulary))
    for sample in result.samples:
        assert sample.logprob is not None
        for token, value in sample.logprob.top:
            rows[sample.row, token] = value
    return rows


@pytest.mark.parametrize(
    ("fields", "tolerance"),
    [
        ({}, 2e-4),
        ({"tied": True}, 2e-4),
        ({"rotary_factors": True}, 2e-4),
        ({"heads": 8, "key_value_heads": 8, "head_width": 16}, 2e-4),
        ({"extra": {"rope.freq_base": 500.0, "attention.layer_norm_rms_epsilon": 0.1}}, 2e-4),
        # With other weights llama.cpp rounds the activations too, to the type of the weights.
        ({"weight_type": "F16"}, 0.05),
        ({"weight_type": "Q8_0"}, 1.5),
    ],
)
def test_agrees_with_llama_cpp(fields: dict[str, object], tolerance: float, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", **fields)  # type: ignore[arg-type]
    source = GgufSource(path)
    runtime = ReferenceRuntime(path, slots=1, cells_per_slot=CELLS)
    whole = Pipeline([runtime], source.token_embedding())
    with WholeModel(path, precise=True) as model:
        answer = model.greedy(PROMPT, 40)
        tokens = PROMPT + answer
        model.trim(0)
        logits = model.run(tokens).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = all_log_probabilities(whole, source.description.vocabulary, tokens)
    assert np.abs(found - expected).max() < tolerance
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.995
    if tolerance < 0.1:
        assert whole.generate(PROMPT, 40, SamplingParameters()) == answer


def test_the_greedy_answer_is_llama_cpps_with_its_default_cache(source: GgufSource) -> None:
    with WholeModel(source.path) as model:
        answer = model.greedy(PROMPT, 40)
    assert pipeline(source).generate(PROMPT, 40, SamplingParameters()) == answer


@pytest.mark.parametrize("stages", [2, 3])
def test_a_split_is_the_whole_to_the_bit(source: GgufSource, stages: int) -> None:
    vocabulary = source.description.vocabulary
    whole = all_log_probabilities(pipeline(source), vocabulary, PROMPT * 4)
    split = all_log_probabilities(pipeline(source, stages), vocabulary, PROMPT * 4)
    assert np.array_equal(whole, split)


@pytest.mark.parametrize("stages", [1, 2])
def test_seeded_answers_are_the_same_however_they_are_batched(source: GgufSource, stages: int) -> None:
    parameters = SamplingParameters(temperature=1.0, top_p=0.9, seed=5, repetition_penalty=1.1)
    alone = [pipeline(source).generate([*PROMPT, slot], 20, parameters, slot=0) for slot in range(SLOTS)]
    together = pipeline(source, stages)
    tokens = [[*PROMPT, slot] for slot in range(SLOTS)]
    spans = [span(slot, 0, tokens[slot]) for slot in range(SLOTS)]
    parameters = msgspec.structs.replace(parameters, prompt_length=9)
    states = [(slot, parameters) for slot in range(SLOTS)]
    for _ in range(20):
        result = together.run(spans, samplings=states)
        states = []
        for sample in result.samples:
            tokens[sample.span].append(sample.token)
        spans = [span(slot, len(tokens[slot]) - 1, tokens[slot][-1:]) for slot in range(SLOTS)]
    assert [row[9:] for row in tokens] == alone


class Truth:
    """Activations after a context, computed in one slot, one row at a time, and remembered."""

    def __init__(self, source: GgufSource) -> None:
        self._pipeline = first_half(source)
        self._held: list[int] = []
        self._rows: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

    def after(self, tokens: tuple[int, ...]) -> npt.NDArray[np.float32]:
        if tokens not in self._rows:
            common = 0
            while common < min(len(tokens), len(self._held)) and tokens[common] == self._held[common]:
                common += 1
            for position in range(min(common, len(tokens) - 1), len(tokens)):
                self._pipeline.run([span(0, position, tokens[position : position + 1])])
                self._rows[tokens[: position + 1]] = self._pipeline.activations[0][0]
            self._held = list(tokens)
        return self._rows[tokens]


def first_half(source: GgufSource) -> Pipeline:
    runtime = ReferenceRuntime(source.stage_file(0, 2), slots=SLOTS, cells_per_slot=CELLS, poison=True)
    return Pipeline([runtime], source.token_embedding())


@pytest.fixture(scope="module")
def truth(source: GgufSource) -> Truth:
    return Truth(source)


@st.composite
def operation(draw: st.DrawFn) -> Operation:
    slot = draw(st.integers(0, SLOTS - 1))
    kind = draw(st.sampled_from(["trim", "drop", "copy"]))
    if kind == "trim":
        return Trim(slot, draw(st.integers(0, 12)))
    if kind == "drop":
        return Drop(slot)
    return CopyPrefix(slot, (slot + draw(st.integers(1, SLOTS - 1))) % SLOTS, draw(st.integers(0, 12)))


@st.composite
def wanted_span(draw: st.DrawFn) -> tuple[float, list[int], list[int] | None]:
    """Where to start (as a share of the slot's length), tokens, and parents for a tree."""
    tokens = draw(st.lists(st.integers(3, 9), min_size=1, max_size=6))
    parents = None
    if draw(st.integers(0, 2)) == 0:
        parents = [draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
    return draw(st.sampled_from([1.0, 1.0, 0.8, 0.5, 0.0])), tokens, parents


Step = tuple[list[Operation], dict[int, tuple[float, list[int], list[int] | None]]]
STEP: st.SearchStrategy[Step] = st.tuples(
    st.lists(operation(), max_size=2), st.dictionaries(st.integers(0, SLOTS - 1), wanted_span(), max_size=SLOTS)
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, min_size=1, max_size=8))
def test_no_batch_trim_copy_or_branch_leaves_a_trace(source: GgufSource, truth: Truth, steps: list[Step]) -> None:
    """Every row is equal, to the bit, to the row computed alone over its own context; unheld cells are NaN."""
    runtime = first_half(source)
    held: list[list[int]] = [[] for _ in range(SLOTS)]
    for operations, wanted in steps:
        for entry in operations:
            apply_to_model(entry, held)
        spans, contexts = [], []
        for slot, (share, tokens, parents) in sorted(wanted.items()):
            start = int(share * len(held[slot]))
            if start + len(tokens) > CELLS:
                continue
            del held[slot][start:]
            contexts += [tuple(held[slot] + branch(tokens, parents, row)) for row in range(len(tokens))]
            held[slot] += tokens if parents is None else tokens[: stem_length(parents)]
            spans.append(span(slot, start, tokens, parents=None if parents is None else tuple(parents)))
        result = runtime.run(spans, operations)
        assert not result.failures
        for row, context in zip(runtime.activations[0], contexts, strict=True):
            assert np.array_equal(row, truth.after(context))


def branch(tokens: list[int], parents: list[int] | None, row: int) -> list[int]:
    if parents is None:
        return tokens[: row + 1]
    path: list[int] = []
    while row >= 0:
        path.insert(0, tokens[row])
        row = parents[row]
    return path


def apply_to_model(entry: Operation, held: list[list[int]]) -> None:
    if isinstance(entry, Trim):
        del held[entry.slot][entry.keep :]
    elif isinstance(entry, Drop):
        held[entry.slot].clear()
    elif isinstance(entry, CopyPrefix):
        held[entry.target] = held[entry.source][: entry.length]


def test_an_accepted_branch_goes_on_like_a_chain(source: GgufSource) -> None:
    alone = pipeline(source).generate(PROMPT, 6, SamplingParameters())
    runtime = pipeline(source, 2)
    runtime.run([span(0, 0, PROMPT)], samplings=[(0, SamplingParameters())])
    # A root that is right, two branches below it, one of them right for two more tokens.
    tree = [alone[0], 5, alone[1], 6, alone[2]]
    result = runtime.run([span(0, 8, tree, parents=(-1, 0, 0, 2, 2), sample_rows=(0, 1, 2, 3, 4))])
    assert [result.samples[row].token for row in (0, 2, 4)] == alone[1:4]
    # The accepted rows run again as the head of the next window.
    result = runtime.run([span(0, 8, alone[:4], sample_rows=(0, 1, 2, 3))], [CommitBranch(0, 8, (0, 2, 4))])
    assert [sample.token for sample in result.samples] == alone[1:5]


def test_reading_a_cell_that_is_not_held_would_show(source: GgufSource) -> None:
    """Guards the poison itself: with the trim in the books but its cells read, the result is NaN."""
    runtime = first_half(source)
    runtime.run([span(0, 0, PROMPT)])
    stage = runtime.stages[0]
    assert isinstance(stage, ReferenceRuntime)
    cells = np.arange(8)
    row = np.ones(64, np.float32)
    assert np.isfinite(stage._model.run_row(row, 7, cells, stage._keys[0], stage._values[0])).all()
    runtime.run([], [Trim(0, 5)])
    assert np.isnan(stage._model.run_row(row, 7, cells, stage._keys[0], stage._values[0])).all()


def test_failures_stay_with_their_span(source: GgufSource) -> None:
    runtime = pipeline(source, 2)
    alone = runtime.generate(PROMPT, 4, SamplingParameters())
    long = [*PROMPT] * 8
    result = runtime.run([span(0, 11, alone[3:4]), span(1, 3, [5, 6]), span(2, 0, [*long, 1])])
    assert [failure.span for failure in result.failures] == [1, 2]
    assert "starts at position 3" in result.failures[0].reason
    assert "holds 64 positions" in result.failures[1].reason
    assert [(sample.span, sample.row) for sample in result.samples] == [(0, 0)]
    assert not runtime.activations[0][1:].any()


def test_a_span_that_failed_before_is_not_run(source: GgufSource) -> None:
    runtime = ReferenceRuntime(source.stage_file(0, 2), slots=SLOTS, cells_per_slot=CELLS)
    rows = source.token_embedding().rows(np.array([5, 6], np.int32))
    iteration = Iteration(1, (), (), (span(0, 0, [5]), span(1, 0, [6])))
    output = runtime.run(iteration, rows, frozenset({0}))
    assert output.activations is not None
    assert not output.activations[0].any()
    assert output.activations[1].any()
    # Slot 0 still holds nothing.
    output = runtime.run(Iteration(2, (), (), (span(0, 1, [5]),)), rows[:1])
    assert len(output.failures) == 1


def test_logits_that_are_not_numbers_fail_their_span_only(source: GgufSource) -> None:
    runtime = ReferenceRuntime(source.stage_file(2, 4), slots=SLOTS, cells_per_slot=CELLS)
    rows = np.ones((2, 64), np.float32)
    rows[0, 3] = np.nan
    output = runtime.run(Iteration(1, (), (), (span(0, 0, [5]), span(1, 0, [6]))), rows)
    assert [failure.span for failure in output.failures] == [0]
    assert "no usable logits" in output.failures[0].reason
    assert [sample.span for sample in output.samples] == [1]


@pytest.mark.parametrize(
    ("spans", "shape"),
    [
        ((span(0, 0, [5]),), (2, 64)),
        ((span(0, 0, [5]),), (1, 63)),
        ((span(1, 0, [5]), span(0, 0, [5])), (2, 64)),
        ((span(SLOTS, 0, [5]),), (1, 64)),
        ((span(0, 0, [5] * 20, sample_rows=(20,)),), (20, 64)),
    ],
)
def test_a_malformed_iteration_changes_nothing(
    source: GgufSource, spans: tuple[Span, ...], shape: tuple[int, int]
) -> None:
    runtime = ReferenceRuntime(source.stage_file(0, 2), slots=SLOTS, cells_per_slot=CELLS)
    rows = np.ones((1, 64), np.float32)
    runtime.run(Iteration(1, (), (), (span(0, 0, [5]),)), rows)
    with pytest.raises(ProtocolError):
        runtime.run(Iteration(2, (Drop(0),), (), spans), np.ones(shape, np.float32))
    assert not runtime.run(Iteration(3, (), (), (span(0, 1, [5]),)), rows).failures


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("qwen2", {}, "not 'qwen2'"),
        ("llama", {"extra": {"rope.scaling.type": "yarn"}}, "yarn"),
    ],
)
def test_refuses_what_it_does_not_know(
    architecture: str, fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture, **fields)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=message):
        ReferenceRuntime(path, slots=1, cells_per_slot=8)


def test_names_missing_and_unknown_tensors(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", layers=2)
    data = path.read_bytes().replace(b"blk.1.ffn_norm.weight", b"blk.1.ffn_nose.weight")
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"missing: \['blk.1.ffn_norm.weight'\].*\['blk.1.ffn_nose.weight'\]"):
        ReferenceRuntime(path, slots=1, cells_per_slot=8)


def test_close_twice(source: GgufSource) -> None:
    runtime = ReferenceRuntime(source.path, slots=1, cells_per_slot=8)
    assert runtime.capacity().exact_rows > runtime.capacity().max_rows
    runtime.close()
    runtime.close()


def test_given_tokens_are_as_likely_as_llama_cpp_says(source: GgufSource) -> None:
    stages = pipeline(source, 2)
    entire = span(0, 0, PROMPT, phase=Phase.PREFILL, sample_rows=tuple(range(len(PROMPT))), given=tuple(PROMPT[1:]))
    result = stages.run([entire], samplings=[(0, SamplingParameters(prompt_logprobs=2))])
    *scored, last = result.samples
    assert [sample.token for sample in scored] == PROMPT[1:]
    with WholeModel(source.path, precise=True) as whole:
        truth = whole.run(PROMPT)
    for token, sample, logits in zip(PROMPT[1:], scored, truth[:-1], strict=True):
        wanted = log_probability(logits, token, 2)
        assert sample.logprob is not None
        assert sample.logprob.logprob == pytest.approx(wanted.logprob, abs=1e-3)
        assert [other for other, _ in sample.logprob.top] == [other for other, _ in wanted.top]
    assert (last.token, last.logprob) == (int(truth[-1].argmax()), None)
