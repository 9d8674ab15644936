"""The MTP head beside the last stage: against its formulas in numpy, and against a stage that has none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from longspan.llamacpp.library import load_library
from longspan.model.draft_model import compose_draft_model
from longspan.model.mtp_head import MtpHead, read_head
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.messages import Assignment
from longspan.runtime.llama import mtp
from longspan.runtime.llama.head_tree import TREE_NODES
from longspan.runtime.llama.mtp import Draft, MtpDrafter
from longspan.runtime.llama.runtime import LlamaRuntime
from longspan.runtime.slots import KvCopy, KvTrim, SlotPlan
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import DraftRequest, Phase, Sample, Span, TokenLogprob
from tests.runtime.mtp_reference import ReferenceHead
from tests.runtime.pipeline import Pipeline, span
from tests.tiny_heads import write_tiny_head
from tests.tiny_models import write_tiny_model

Rows = npt.NDArray[np.float32]

COMMON = 100
"""Tokens that the tiny head drafts out of itself; the others only where the text had them."""
LENGTH = 4
SLOTS = 4
MARGIN = 0.01
"""Probabilities may differ by this: llama.cpp keeps keys and values as float16."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("mtp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(made / "cache"))
        yield made


@pytest.fixture(scope="module")
def source(folder: Path) -> GgufSource:
    return GgufSource(write_tiny_model(folder / "tiny.gguf", "llama", weight_type="Q8_0", layers=2))


@pytest.fixture(scope="module")
def head(folder: Path, source: GgufSource) -> MtpHead:
    return read_head(write_tiny_head(folder / "head.safetensors", source, vocabulary=COMMON))


class Driver:
    """A drafter that is fed by hand. texts, states: by slot, what was committed, from the first row on."""

    def __init__(
        self, source: GgufSource, head: MtpHead, least_chance: float = 0.0, *, trees: bool = False
    ) -> None:
        stage = source.stage_file(0, source.description.layers)
        model = compose_draft_model(
            head, stage, source.token_embedding(), source.digest, block_type="F32", vocabulary_type="F32"
        )
        self.drafter = MtpDrafter(
            load_library(),
            model,
            slots=1 if trees else SLOTS,
            threads=1,
            length=LENGTH,
            top=8,
            least_chance=least_chance,
            trees=trees,
        )
        self._reference = ReferenceHead(head, model.embedding, model.output)
        self._random = np.random.default_rng(3)
        self._vocabulary, self._width = source.description.vocabulary, head.width
        self.tokens: list[list[int]] = [[] for _ in range(SLOTS)]
        self.states: list[list[Rows]] = [[] for _ in range(SLOTS)]
        self._ends = [0] * SLOTS
        self.drafts: list[Draft] = []
        original = self.drafter.draft

        def kept(slots: Sequence[int]) -> list[Draft]:
            self.drafts = original(slots)
            return self.drafts

        self.drafter.draft = kept  # type: ignore[method-assign]

    def state(self) -> Rows:
        return self._random.standard_normal(self._width).astype(np.float32)

    def token(self, least: int = 0) -> int:
        return int(self._random.integers(least, self._vocabulary))

    def window(self, slot: int, accepted: int, rejected: int, draft: DraftRequest = DraftRequest.ALWAYS) -> Span:
        """A window of `accepted` right drafts and `rejected` wrong ones behind the slot's last token."""
        start = self._ends[slot]
        first = self.tokens[slot][-1] if self.tokens[slot] else 0
        right = [self.token(200) for _ in range(accepted)]
        drafts = right + [self.token(200) for _ in range(rejected)]
        self._ends[slot] += 1 + accepted
        self._rows[slot] = [self.state() for _ in range(1 + len(drafts))]
        self._samples[slot] = [*right, *(self.token() for _ in range(1 + rejected))]
        if rejected and self._samples[slot][accepted] == drafts[accepted]:
            self._samples[slot][accepted] ^= 1
        self.tokens[slot] += self._samples[slot][: accepted + 1]
        self.states[slot] += self._rows[slot][: accepted + 1]
        rows = tuple(range(1 + len(drafts)))
        return Span(slot, slot, 0, start, (first, *drafts), Phase.VERIFY, rows, None, draft)

    _rows: dict[int, list[Rows]]
    _samples: dict[int, list[int]]

    def run(self, *windows: tuple[int, int, int], draft: DraftRequest = DraftRequest.ALWAYS) -> tuple[Sample, ...]:
        """One iteration of windows given as (slot, accepted, rejected)."""
        self._rows, self._samples, self.drafts = {}, {}, []
        spans = [self.window(*window, draft) for window in sorted(windows)]
        return self.follow(spans)

    def follow(self, spans: Sequence[Span]) -> tuple[Sample, ...]:
        """The spans of an iteration, as the runtime hands them on."""
        firsts = np.cumsum([0, *(len(entry.tokens) for entry in spans)]).tolist()
        for entry in spans:
            self.drafter.act(KvTrim(entry.slot, entry.start))
        rows = [row for entry in spans for row in self._rows[entry.slot]]
        samples = [
            Sample(index, row, token)
            for index, entry in enumerate(spans)
            for row, token in enumerate(self._samples[entry.slot])
        ]
        plan = SlotPlan((), tuple(zip(range(len(spans)), firsts, spans, strict=False)), ())
        return self.drafter.follow(plan, firsts[:-1], samples, lambda row: rows[row])

    def agrees(self, slot: int, draft: Draft, rows: int | None = None) -> int:
        """Compare a draft with the reference over the last `rows` rows; gives the steps that were compared."""
        tokens, states = self.tokens[slot], np.stack(self.states[slot])
        assert {token for token in tokens if token >= COMMON} <= self.words(slot)
        allowed = sorted(set(range(COMMON)) | self.words(slot))
        kept = slice(-rows if rows else 0, None)
        steps = self._reference.chain(tokens[kept], states[kept], LENGTH, allowed)
        assert len(draft.tokens) == len(draft.candidates) == LENGTH
        compared = 0
        for place, (token, candidates, (expected, chances)) in enumerate(
            zip(draft.tokens, draft.candidates, steps, strict=True)
        ):
            assert candidates[0][0] == token
            assert candidates[0][1] == pytest.approx(draft.chances[place])
            assert [chance for _, chance in candidates] == sorted((c for _, c in candidates), reverse=True)
            for candidate, chance in candidates:
                assert abs(chance - chances[allowed.index(candidate)]) < MARGIN
            compared += 1
            if token != expected:
                # Only where the two are about equally likely; from there on the chains are different ones.
                assert abs(chances[allowed.index(token)] - chances.max()) < MARGIN
                break
        return compared

    def tree_agrees(self, draft: Draft) -> int:
        """Compare every path of a tree on slot 0 with the reference; gives how many nodes were compared."""
        tokens, states = self.tokens[0], np.stack(self.states[0])
        allowed = sorted(set(range(COMMON)) | self.words(0))
        for node, chance in enumerate(draft.chances):
            path: list[int] = []
            place = node
            while place >= 0:
                path.insert(0, draft.tokens[place])
                place = draft.parents[place]
            steps = self._reference.chain(tokens, states, len(path), allowed, path)
            shares = [chances[allowed.index(token)] for token, (_, chances) in zip(path, steps, strict=True)]
            assert abs(chance - float(np.prod(shares))) < MARGIN
        return len(draft.tokens)

    def words(self, slot: int) -> set[int]:
        """Uncommon tokens that were seen in the slot's text, rejected drafts included."""
        return set(self.drafter._lexicons[slot].tokens.tolist())


@pytest.fixture
def driver(source: GgufSource, head: MtpHead) -> Iterator[Driver]:
    made = Driver(source, head)
    yield made
    made.drafter.close()


# ------------------------------------------------------------------------------------------ against the formulas


def test_drafts_are_those_of_the_formulas(driver: Driver) -> None:
    compared = 0
    for accepted, rejected in [(0, 0), (3, 0), (0, 2), (1, 3), (4, 1), (0, 0)]:
        samples = driver.run((1, accepted, rejected))
        compared += driver.agrees(1, driver.drafts[0])
        assert [sample.draft for sample in samples if sample.draft] == [driver.drafts[0].tokens]
        assert samples[accepted].draft == driver.drafts[0].tokens
    assert compared > 15


def test_every_path_of_a_tree_has_the_chance_of_the_formulas(source: GgufSource, head: MtpHead) -> None:
    driver = Driver(source, head, trees=True)
    try:
        compared = 0
        for accepted, rejected in [(0, 0), (3, 0), (1, 2)]:
            samples = driver.run((0, accepted, rejected))
            (draft,) = driver.drafts
            tip = samples[accepted]
            assert (tip.draft, tip.parents, tip.chances) == (draft.tokens, draft.parents, draft.chances)
            assert max(draft.parents) > 0, "nothing was expanded"
            compared += driver.tree_agrees(draft)
            likeliest = [chance for chance, parent in zip(draft.chances, draft.parents, strict=True) if parent < 0]
            assert likeliest == sorted(likeliest, reverse=True)
        assert compared == 3 * TREE_NODES
    finally:
        driver.drafter.close()


def test_slots_draft_together_as_they_do_alone(driver: Driver) -> None:
    compared = 0
    for windows in [((0, 2, 1), (2, 0, 0)), ((0, 0, 1), (1, 4, 0), (2, 1, 1), (3, 0, 3)), ((1, 0, 0), (3, 2, 2))]:
        driver.run(*windows)
        for (slot, _, _), draft in zip(windows, driver.drafts, strict=True):
            compared += driver.agrees(slot, draft)
    assert compared > 25


def test_rows_wait_until_a_draft_is_asked_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtp, "_MOST_WAITING", 9)
    for _ in range(3):
        assert not any(sample.draft for sample in driver.run((0, 2, 0), draft=DraftRequest.ON_DIVERGENCE))
    assert driver.drafter._streams[0].waiting == 9
    driver.run((0, 1, 0), draft=DraftRequest.ON_DIVERGENCE)
    assert driver.drafter._streams[0].waiting == 9, "more wait than may"
    driver.run((0, 0, 1), draft=DraftRequest.ON_DIVERGENCE)
    assert driver.agrees(0, driver.drafts[0], 10) > 1


def test_the_head_sees_the_latest_rows_when_a_text_grows_long(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mtp, "WINDOW", 24)
    monkeypatch.setattr(mtp, "_DROPPED", 8)
    compared = 0
    for _ in range(20):
        driver.run((0, 3, 1), (2, 2, 0))
        for slot, draft in zip((0, 2), driver.drafts, strict=True):
            held = len(driver.drafter._streams[slot])
            assert held <= 24
            compared += driver.agrees(slot, draft, held)
    assert len(driver.tokens[0]) == 80
    assert compared > 80


def test_a_head_without_a_prefix_drafts_too(source: GgufSource, folder: Path) -> None:
    path = write_tiny_head(folder / "bare.safetensors", source, vocabulary=COMMON, prefix=0)
    driver = Driver(source, read_head(path))
    driver.run((0, 0, 0))
    driver.run((0, 3, 1), (3, 0, 0))
    assert driver.agrees(0, driver.drafts[0]) + driver.agrees(3, driver.drafts[1]) > 2
    driver.drafter.close()


def test_words_of_the_text_can_be_drafted_and_others_cannot(driver: Driver) -> None:
    found: set[int] = set()
    for _ in range(12):
        driver.run((0, 2, 0), (1, 0, 0))
        for slot, draft in zip((0, 1), driver.drafts, strict=True):
            allowed = set(range(COMMON)) | driver.words(slot)
            assert set(draft.tokens) <= allowed
            found |= {token for token in draft.tokens if token >= COMMON}
    assert found


@pytest.mark.parametrize("least_chance", [0.02, 0.1, 0.5])
def test_a_chain_ends_where_it_is_hardly_right_any_more(
    source: GgufSource, head: MtpHead, least_chance: float
) -> None:
    whole, ended = Driver(source, head), Driver(source, head, least_chance)
    lengths: list[int] = []
    for windows in [((0, 2, 1), (1, 0, 0)), ((0, 0, 1), (1, 3, 0), (2, 1, 1), (3, 0, 3))] * 4:
        whole.run(*windows)
        ended.run(*windows)
        for full, draft in zip(whole.drafts, ended.drafts, strict=True):
            survival = np.cumprod(full.chances)
            # What other slots do moves the last bits; a chain at the border may end on either side of it.
            sure = int((survival > 1.05 * least_chance).sum())
            assert sure <= len(draft.tokens) <= int((survival > 0.95 * least_chance).sum())
            assert draft.tokens[:sure] == full.tokens[:sure]
            lengths.append(len(draft.tokens))
    assert len(set(lengths)) > 1
    whole.drafter.close()
    ended.drafter.close()


# ---------------------------------------------------------------------------------------------------- its troubles


def test_a_refusal_costs_the_drafts_and_nothing_else(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.run((0, 3, 0), (1, 3, 0))
    with monkeypatch.context() as patch:
        patch.setattr(driver.drafter._head._context, "decode", lambda *_: "no room")
        samples = driver.run((0, 1, 1))
    assert len(samples) == 3
    assert not any(sample.draft for sample in samples)
    assert driver.drafter.failures == 1
    driver.run((0, 2, 0), (1, 0, 1))
    assert driver.agrees(0, driver.drafts[0], 3) + driver.agrees(1, driver.drafts[1]) > 2


def test_a_surprise_in_the_graph_costs_a_repeat_and_nothing_else(driver: Driver) -> None:
    for _ in range(2):
        driver.run((0, 3, 0))
    assert driver.drafter._head._tap._learned is not None
    places, nodes = driver.drafter._head._tap._learned
    driver.drafter._head._tap._learned = (tuple(place - 1 for place in places), nodes)
    driver.run((0, 1, 1), (2, 0, 0))
    assert driver.drafter.failures == 0
    assert driver.agrees(0, driver.drafts[0]) + driver.agrees(2, driver.drafts[1]) > 2


def test_states_that_are_not_finite_stay_out_of_the_shared_cache(driver: Driver) -> None:
    driver.run((0, 2, 0), (1, 1, 0))
    driver._rows, driver._samples = {}, {}
    spoiled, good = driver.window(0, 0, 0), driver.window(1, 0, 0)
    driver._rows[0][0][3] = np.nan
    samples = driver.follow([spoiled, good])
    assert [bool(sample.draft) for sample in samples] == [False, True]
    assert driver.agrees(1, driver.drafts[0]) > 0


def test_a_slot_that_is_copied_over_begins_anew_with_the_words_of_its_source(driver: Driver) -> None:
    driver.run((0, 3, 0), (1, 3, 0))
    words = set(driver.drafter._lexicons[0].tokens.tolist())
    driver.drafter.act(KvTrim(1, 0))
    driver.drafter.act(KvCopy(0, 1, 4))
    assert len(driver.drafter._streams[1]) == 0
    assert set(driver.drafter._lexicons[1].tokens.tolist()) == words


# ---------------------------------------------------------------------------------------------- inside the runtime


class Recorder:
    """A greedy sampler that keeps the logits of every sampled row, in order."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []

    def __call__(
        self, logits: Rows, _parameters: SamplingParameters, _position: int, _history: Sequence[int]
    ) -> tuple[int, TokenLogprob | None]:
        self.rows.append(logits.copy())
        return int(logits.argmax()), None


Load = Callable[..., tuple[LlamaRuntime, Recorder]]


@pytest.fixture
def load(folder: Path) -> Iterator[Load]:
    made: list[LlamaRuntime] = []

    def make(source: GgufSource, mtp_head: Path | bool) -> tuple[LlamaRuntime, Recorder]:
        recorder = Recorder()
        loader = LlamaLoader(source, threads=1, sampler=recorder, mtp_head=mtp_head, least_chance=0.0)
        layers = source.description.layers
        assignment = Assignment(0, 1, 0, layers, 4, None, SLOTS, 400, "float32")
        runtime = loader.load(assignment, lambda _text: None)
        assert isinstance(runtime, LlamaRuntime)
        made.append(runtime)
        return runtime, recorder

    yield make
    for runtime in made:
        runtime.close()


def _random_spans(chance: random.Random, lengths: list[int], most: int) -> list[Span]:
    """Windows, decode rows and prompts on some slots, trimmed back at random, with every kind of request."""
    spans, rows = [], 0
    for slot in chance.sample(range(SLOTS), chance.randint(1, SLOTS)):
        start = chance.randint(0, lengths[slot])
        phase = Phase.PREFILL if start == 0 else chance.choice([Phase.DECODE, Phase.VERIFY, Phase.VERIFY])
        count = 1 if phase is Phase.DECODE else chance.randint(1, 20 if phase is Phase.PREFILL else 6)
        if rows + count >= most or start + count > 390:
            continue
        rows += count
        lengths[slot] = start + count
        tokens = [chance.randrange(300) for _ in range(count)]
        asked = (count - 1,) if phase is Phase.PREFILL else tuple(range(count))
        draft = chance.choice(list(DraftRequest))
        spans.append(span(slot, start, tokens, phase=phase, sample_rows=asked, draft=draft))
    return spans


@pytest.mark.parametrize("weights", ["Q8_0", "F32"])
def test_drafting_leaves_every_logit_as_it_is(folder: Path, load: Load, weights: str) -> None:
    model = GgufSource(write_tiny_model(folder / f"{weights}.gguf", "llama", weight_type=weights, layers=2))
    path = write_tiny_head(folder / f"{weights}.safetensors", model, vocabulary=COMMON)
    (drafting, drafted), (plain, expected) = load(model, path), load(model, False)
    assert drafting.drafter is not None and plain.drafter is None
    assert drafting.capacity() == plain.capacity()
    embedding = model.token_embedding()
    both = [Pipeline([runtime], embedding) for runtime in (drafting, plain)]
    chance, lengths, drafts = random.Random(5), [0] * SLOTS, 0
    for _ in range(60):
        spans = _random_spans(chance, lengths, min(plain.capacity().exact_rows, 64))
        if not spans:
            continue
        with_head, without = (pipeline.run(spans) for pipeline in both)
        assert [sample[:3] for sample in map(_plain, with_head.samples)] == [
            sample[:3] for sample in map(_plain, without.samples)
        ]
        drafts += sum(bool(sample.draft) for sample in with_head.samples)
        assert not any(sample.draft for sample in without.samples)
    assert len(drafted.rows) == len(expected.rows) > 200
    assert all(np.array_equal(a, b) for a, b in zip(drafted.rows, expected.rows, strict=True))
    assert drafts > 30


def _plain(sample: Sample) -> tuple[int, int, int]:
    return sample.span, sample.row, sample.token


def test_drafts_come_where_they_are_asked_for(folder: Path, source: GgufSource, load: Load) -> None:
    runtime, _ = load(source, folder / "head.safetensors")
    pipeline = Pipeline([runtime], source.token_embedding())
    truth = [40, 41, 42]
    first = pipeline.run([span(0, 0, truth, phase=Phase.PREFILL)]).samples[0]
    assert first.draft == ()
    truth.append(first.token)
    for _ in range(8):
        truth.append(pipeline.run([span(1, 0, truth, phase=Phase.PREFILL)]).samples[0].token)

    def drafts(request: DraftRequest, wrong: int | None) -> list[int]:
        tokens = truth[3:8]
        if wrong is not None:
            tokens[wrong] ^= 1
        rows = tuple(range(5))
        result = pipeline.run([span(0, 3, tokens, phase=Phase.VERIFY, sample_rows=rows, draft=request)])
        return [sample.row for sample in result.samples if sample.draft]

    assert drafts(DraftRequest.NEVER, 2) == []
    assert drafts(DraftRequest.ON_DIVERGENCE, None) == []
    assert drafts(DraftRequest.ON_DIVERGENCE, 2) == [1]
    assert drafts(DraftRequest.ALWAYS, 1) == [0]
    assert drafts(DraftRequest.ALWAYS, None) == [4]


def test_a_window_that_is_stale_gets_no_draft(folder: Path, source: GgufSource, load: Load) -> None:
    runtime, _ = load(source, folder / "head.safetensors")
    pipeline = Pipeline([runtime], source.token_embedding())
    token = pipeline.run([span(0, 0, [40, 41], phase=Phase.PREFILL)]).samples[0].token
    asked: dict[str, Any] = {"phase": Phase.VERIFY, "sample_rows": (0, 1), "draft": DraftRequest.ALWAYS}
    wrong = [token, 7 if token != 7 else 8]
    first = pipeline.run([span(0, 2, wrong, **asked)]).samples
    stale = pipeline.run([span(0, 4, [9, 9], **asked)]).samples
    again = pipeline.run([span(0, 3, [first[0].token, 9], **asked)]).samples
    assert first[0].token != wrong[1], "the draft has to be wrong for this test"
    assert any(sample.draft for sample in first)
    assert not any(sample.draft for sample in stale)
    assert any(sample.draft for sample in again)


def test_an_iteration_too_large_for_hidden_states_runs_without(
    folder: Path, source: GgufSource, load: Load
) -> None:
    runtime, _ = load(source, folder / "head.safetensors")
    pipeline = Pipeline([runtime], source.token_embedding())
    prompt = [40 + place % 50 for place in range(300)]
    sample = pipeline.run([span(0, 0, prompt, phase=Phase.PREFILL, draft=DraftRequest.ALWAYS)]).samples[0]
    assert sample.draft == ()
    following = pipeline.run([span(0, 300, [sample.token], phase=Phase.DECODE, draft=DraftRequest.ALWAYS)])
    assert len(following.samples[0].draft) == mtp.DRAFT_LENGTH


def test_an_answer_from_drafts_is_the_answer_without(folder: Path, source: GgufSource, load: Load) -> None:
    (drafting, _), (plain, _) = load(source, folder / "head.safetensors"), load(source, False)
    embedding = source.token_embedding()
    prompt = [40, 41, 42, 80, 90]
    expected = Pipeline([plain], embedding).generate(prompt, 60, SamplingParameters())
    pipeline = Pipeline([drafting], embedding)
    sample = pipeline.run([span(0, 0, prompt, phase=Phase.PREFILL, draft=DraftRequest.ALWAYS)]).samples[0]
    answer, draft = [sample.token], sample.draft
    while len(answer) < 60:
        tokens = [answer[-1], *draft]
        start = len(prompt) + len(answer) - 1
        rows = tuple(range(len(tokens)))
        samples = pipeline.run(
            [span(0, start, tokens, phase=Phase.VERIFY, sample_rows=rows, draft=DraftRequest.ALWAYS)]
        ).samples
        for place, sample in enumerate(samples):
            answer.append(sample.token)
            if place + 1 == len(tokens) or tokens[place + 1] != sample.token:
                draft = sample.draft
                break
        assert len(draft) == mtp.DRAFT_LENGTH
    assert answer[:60] == expected
