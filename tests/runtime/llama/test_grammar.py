"""Answers that follow a grammar on the last stage: windows, wrong drafts and rollbacks change no token."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import msgspec
import pytest

from longspan.model.grammar import choice_grammar, regex_grammar, schema_grammar
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from longspan.model.tokenizer import Tokenizer
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.messages import Assignment
from longspan.runtime.base import StageRuntime
from longspan.runtime.llama.runtime import LlamaRuntime
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import DraftRequest, Drop
from tests.runtime.pipeline import Pipeline, span
from tests.tiny_models import write_tiny_model

PROMPT = [40, 41, 42, 80, 90, 7, 200, 3]
SPLITS = {1: [(0, 4)], 2: [(0, 2), (2, 4)]}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["here", "there", "the other"]}, "numbers": {"type": "array", "maxItems": 4}},
    "required": ["city", "numbers"],
    "additionalProperties": False,
}
GREEDY = SamplingParameters(grammar=schema_grammar(SCHEMA), prompt_length=len(PROMPT))
DRAWN = msgspec.structs.replace(GREEDY, temperature=1.3, seed=11)
COUNT = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GgufSource]:
    folder = tmp_path_factory.mktemp("grammar")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder / "cache"))
        yield GgufSource(write_tiny_model(folder / "tiny.gguf", "llama", weight_type="Q8_0"))


@pytest.fixture(scope="module")
def tokenizer(source: GgufSource) -> Tokenizer:
    return Tokenizer(source.vocabulary_file())


@pytest.fixture(scope="module")
def pipelines(source: GgufSource) -> dict[int, Pipeline]:
    return {stages: Pipeline(_stages(source, stages), source.token_embedding()) for stages in SPLITS}


def _stages(source: GgufSource, stages: int) -> list[StageRuntime]:
    loader = LlamaLoader(source, threads=1)
    return [
        loader.load(Assignment(index, stages, start, end, 4, None, 3, 256, "float32"), lambda text: None)
        for index, (start, end) in enumerate(SPLITS[stages])
    ]


def _text(tokens: list[int], tokenizer: Tokenizer) -> str:
    return b"".join(tokenizer.visible_piece(token) for token in tokens).decode("utf-8", "replace")


def test_an_answer_follows_its_grammar(pipelines: dict[int, Pipeline], tokenizer: Tokenizer) -> None:
    for grammar, expression in (
        (regex_grammar("[a-f]{3}-(the|and) [0-9]{2}"), "[a-f]{3}-(the|and) [0-9]{2}"),
        (choice_grammar(["the cat", "nothing"]), "the cat|nothing"),
    ):
        for parameters in (GREEDY, DRAWN):
            tokens = pipelines[1].generate(PROMPT, 20, msgspec.structs.replace(parameters, grammar=grammar))
            end = next(place for place, token in enumerate(tokens) if token in tokenizer.end_tokens)
            assert re.fullmatch(expression, _text(tokens[:end], tokenizer))
            assert set(tokens[end:]) <= tokenizer.end_tokens, "a complete answer can only end"


@pytest.mark.parametrize("parameters", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_every_split_gives_the_same_tokens(pipelines: dict[int, Pipeline], parameters: SamplingParameters) -> None:
    alone = pipelines[1].generate(PROMPT, COUNT, parameters)
    assert pipelines[2].generate(PROMPT, COUNT, parameters, slot=2) == alone
    free = pipelines[1].generate(PROMPT, COUNT, msgspec.structs.replace(parameters, grammar=""), slot=1)
    assert free != alone, "the grammar changes nothing here; the test shows nothing"


@pytest.mark.parametrize("parameters", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("seed", range(4))
def test_windows_of_right_and_wrong_drafts_change_no_token(
    pipelines: dict[int, Pipeline], parameters: SamplingParameters, seed: int
) -> None:
    expected = pipelines[1].generate(PROMPT, COUNT, parameters)
    ring, dice = pipelines[2], random.Random(seed)
    ring.run([span(0, 0, PROMPT[:3], sample_rows=())], [Drop(0)], [(0, parameters)])
    answer = [ring.run([span(0, 3, PROMPT[3:])]).samples[0].token]
    wrong = 0
    while len(answer) < COUNT:
        drafts = expected[len(answer) : len(answer) + dice.randint(0, 6)]
        if drafts and dice.random() < 0.6:
            drafts[dice.randrange(len(drafts))] = dice.randrange(250)
        start = len(PROMPT) + len(answer) - 1
        window = [answer[-1], *drafts]
        result = ring.run([span(0, start, window, sample_rows=tuple(range(len(window))))])
        assert not result.failures
        for sample in result.samples:
            answer.append(sample.token)
            if sample.row < len(drafts) and drafts[sample.row] != sample.token:
                wrong += 1
                break
    assert wrong, "no draft was rejected; the test shows nothing"
    assert answer[:COUNT] == expected


def test_a_slot_goes_from_one_grammar_to_the_next(pipelines: dict[int, Pipeline]) -> None:
    ring = pipelines[1]
    other = msgspec.structs.replace(GREEDY, grammar=regex_grammar("[a-z ]+"))
    free = SamplingParameters(prompt_length=len(PROMPT))
    first = [
        ring.generate(PROMPT, 12, parameters, slot=slot) for slot, parameters in enumerate((GREEDY, other, free))
    ]
    for shift in (1, 2):
        for slot in range(3):
            parameters = (GREEDY, other, free)[(slot + shift) % 3]
            assert ring.generate(PROMPT, 12, parameters, slot=slot) == first[(slot + shift) % 3]


def test_forced_tokens_ride_in_the_reply(pipelines: dict[int, Pipeline], tokenizer: Tokenizer) -> None:
    ring = pipelines[2]
    parameters = msgspec.structs.replace(GREEDY, grammar=regex_grammar("(north and south|east and west)[a-z]*"))
    result = ring.run([span(0, 0, PROMPT, draft=DraftRequest.ALWAYS)], [Drop(0)], [(0, parameters)])
    (sample,) = result.samples
    assert _text([sample.token, *sample.draft], tokenizer) in ("north and south", "east and west")
    window = [sample.token, *sample.draft]
    rows = tuple(range(len(window)))
    following = ring.run([span(0, len(PROMPT), window, sample_rows=rows, draft=DraftRequest.ALWAYS)])
    assert [entry.token for entry in following.samples[:-1]] == list(sample.draft)
    assert not any(entry.draft for entry in following.samples), "nothing is forced any more"
    unasked = ring.run([span(0, 0, PROMPT)], [Drop(0)], [(0, parameters)])
    assert unasked.samples[0].draft == ()


def test_a_grammar_that_cannot_be_used_fails_its_own_span(pipelines: dict[int, Pipeline]) -> None:
    ring = pipelines[1]
    broken = msgspec.structs.replace(GREEDY, grammar=regex_grammar("("))
    result = ring.run([span(0, 0, PROMPT), span(1, 0, PROMPT)], [Drop(0), Drop(1)], [(0, broken), (1, GREEDY)])
    assert [failure.span for failure in result.failures] == [0]
    assert [sample.span for sample in result.samples] == [1]


def test_a_stage_without_a_vocabulary_says_so(source: GgufSource) -> None:
    from longspan.llamacpp.library import load_library

    runtime = LlamaRuntime(
        load_library(),
        source.stage_file(0, 4),
        layers=4,
        last=True,
        slots=1,
        cells_per_slot=64,
        threads=1,
        width=64,
    )
    ring = Pipeline([runtime], source.token_embedding())
    (failure,) = ring.run([span(0, 0, PROMPT)], samplings=[(0, GREEDY)]).failures
    assert "without a vocabulary" in failure.reason
    runtime.close()


def test_min_tokens_do_not_keep_a_complete_answer_from_ending(
    pipelines: dict[int, Pipeline], tokenizer: Tokenizer
) -> None:
    ends = tuple(sorted(tokenizer.end_tokens))
    parameters = msgspec.structs.replace(
        GREEDY, grammar=regex_grammar("(abc)+"), min_tokens=8, suppress=ends, logprobs=0
    )
    tokens = pipelines[1].generate(PROMPT, 8, parameters)
    assert not set(tokens) & tokenizer.end_tokens, "where the answer may go on, it goes on"
    short = msgspec.structs.replace(parameters, grammar=regex_grammar("abc"))
    tokens = pipelines[1].generate(PROMPT, 8, short)
    assert _text(tokens, tokenizer) == "abc"
