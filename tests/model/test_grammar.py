"""Grammars over small vocabularies: what may come depends on the path alone, whatever was asked before."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.errors import RequestError
from longspan.model.grammar import (
    GrammarError,
    GrammarVocabulary,
    Matcher,
    choice_grammar,
    lark_grammar,
    regex_grammar,
    schema_grammar,
    written_grammar,
)
from longspan.model.tokenizer import Tokenizer
from tests.model.test_tokenizer import write_sentencepiece
from tests.tiny_models import write_tiny_model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "ages": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "ages"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["bpe", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("grammar") / "tiny.gguf"
    if request.param == "bpe":
        return Tokenizer(write_tiny_model(path, "llama", layers=1))
    return Tokenizer(write_sentencepiece(path))


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary(tokenizer)


def walk(matcher: Matcher, tokenizer: Tokenizer, seed: int, most: int = 400) -> tuple[str, bool]:
    """A random answer along the grammar, and whether it came to its end."""
    dice = random.Random(seed)
    answer: list[int] = []
    while len(answer) < most:
        allowed = matcher.allowed(answer)
        assert allowed is not None
        tokens = np.flatnonzero(allowed).tolist()
        ends = [token for token in tokens if token in tokenizer.end_tokens]
        # End where one can, and do not grow strings for ever.
        if ends and dice.random() < 0.5:
            return text_of(answer, tokenizer), True
        closing = [token for token in tokens if tokenizer.piece(token)[:1] in (b'"', b"}", b"]")]
        token = dice.choice(closing if closing and dice.random() < 0.3 else tokens)
        if token in tokenizer.end_tokens:
            return text_of(answer, tokenizer), True
        answer.append(token)
    return text_of(answer, tokenizer), False


def token_of(text: bytes, tokenizer: Tokenizer) -> int:
    """Of several tokens of this text the last: what the tokenizer makes of it, not the lone byte."""
    return max(token for token, piece in enumerate(tokenizer.pieces) if piece == text)


def text_of(answer: list[int], tokenizer: Tokenizer) -> str:
    return b"".join(tokenizer.visible_piece(token) for token in answer).decode()


@pytest.mark.parametrize("seed", range(8))
def test_random_answers_follow_a_schema(vocabulary: GrammarVocabulary, tokenizer: Tokenizer, seed: int) -> None:
    text, complete = walk(vocabulary.matcher(schema_grammar(SCHEMA)), tokenizer, seed)
    if complete:
        jsonschema.validate(json.loads(text), SCHEMA)
    else:
        assert text.startswith("{")


@pytest.mark.parametrize("seed", range(4))
def test_random_answers_match_a_regular_expression(
    vocabulary: GrammarVocabulary, tokenizer: Tokenizer, seed: int
) -> None:
    expression = r"(the|cat)( [a-e]{1,3}){2}\."
    text, complete = walk(vocabulary.matcher(regex_grammar(expression)), tokenizer, seed)
    assert complete
    assert re.fullmatch(expression, text)


@pytest.mark.parametrize("seed", range(4))
def test_choices(vocabulary: GrammarVocabulary, tokenizer: Tokenizer, seed: int) -> None:
    choices = ["yes", 'no "quoted"', "né\n"]
    text, complete = walk(vocabulary.matcher(choice_grammar(choices)), tokenizer, seed)
    assert complete
    assert text in choices


@pytest.mark.parametrize(
    "grammar", ['start: "a" "b"+\n', 'root ::= "a" tail\ntail ::= "b" | "b" tail\n'], ids=["lark", "gbnf"]
)
def test_written_grammars(vocabulary: GrammarVocabulary, tokenizer: Tokenizer, grammar: str) -> None:
    vocabulary.check(written_grammar(grammar), "grammar")
    text, complete = walk(vocabulary.matcher(written_grammar(grammar)), tokenizer, 1)
    assert complete
    assert re.fullmatch("ab+", text)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_what_is_allowed_depends_on_the_path_alone(
    vocabulary: GrammarVocabulary, tokenizer: Tokenizer, seed: int
) -> None:
    """A matcher that jumps from path to path, right and wrong ones, against one that sees a single path."""
    dice = random.Random(seed)
    grammar = schema_grammar(SCHEMA)
    jumping = vocabulary.matcher(grammar)
    paths: list[list[int]] = [[]]
    for _ in range(25):
        path = list(dice.choice(paths))
        if dice.random() < 0.2:
            path.insert(dice.randint(0, len(path)), dice.randrange(tokenizer.vocabulary_size))
        found, expected = jumping.allowed(path), vocabulary.matcher(grammar).allowed(path)
        if found is None or expected is None:
            assert found is expected
            continue
        assert np.array_equal(found, expected)
        paths.append([*path, dice.choice(np.flatnonzero(found).tolist())])


def test_a_complete_answer_can_only_end(vocabulary: GrammarVocabulary, tokenizer: Tokenizer) -> None:
    matcher = vocabulary.matcher(choice_grammar(["t"]))
    token = token_of(b"t", tokenizer)
    end = min(tokenizer.end_tokens)
    for answer in ([token], [token, end], [token, end, end]):
        allowed = matcher.allowed(answer)
        assert allowed is not None
        assert set(np.flatnonzero(allowed).tolist()) == tokenizer.end_tokens
    assert matcher.allowed([end]) is None, "an end where the grammar is not complete is a wrong draft"
    assert matcher.allowed([token, token]) is None
    again = matcher.allowed([])
    assert again is not None
    assert again[token]


def test_forced_tokens(vocabulary: GrammarVocabulary, tokenizer: Tokenizer) -> None:
    matcher = vocabulary.matcher(choice_grammar(["the cat", "nothing"]))
    start = token_of(b"t", tokenizer)
    forced = matcher.forced([start])
    assert forced
    assert "the cat".startswith(text_of([start, *forced], tokenizer))
    assert matcher.forced([start, start]) == []
    allowed = matcher.allowed([start])
    assert allowed is not None
    assert allowed[forced[0]]


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (schema_grammar({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema_grammar({"type": "nothing"}), "nothing"),
        (schema_grammar({"type": "string", "format": "zip-code"}), "zip-code"),
        (schema_grammar({"$ref": "https://example.invalid/schema"}), "example.invalid"),
        (schema_grammar({"$ref": "#/nowhere"}), "nowhere"),
        (schema_grammar(False), "Unsatisfiable"),
        (regex_grammar("("), "regex"),
        (regex_grammar("(?=a)a"), "look-around"),
        (lark_grammar("start: nothing"), "nothing"),
        (lark_grammar("start: " + "(a | b) " * 10 + "\na: b\nb: a"), "NoExtension"),
        ("{", ""),
        ("", ""),
    ],
)
def test_what_cannot_be_honoured_is_refused(vocabulary: GrammarVocabulary, grammar: str, reason: str) -> None:
    with pytest.raises(RequestError, match="response_format") as refused:
        vocabulary.check(grammar, "response_format")
    assert refused.value.param == "response_format"
    assert reason in str(refused.value)
    with pytest.raises(GrammarError):
        vocabulary.matcher(grammar).allowed([])


def test_a_text_that_is_no_grammar() -> None:
    with pytest.raises(RequestError, match="neither Lark nor GBNF"):
        written_grammar("garbage (((")


@pytest.mark.parametrize(
    "grammar",
    [
        lark_grammar("start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(4000)) + 'a4000: "x"'),
        schema_grammar(
            {
                "$defs": {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(1000)}
                | {"a1000": {"type": "string"}},
                "$ref": "#/$defs/a0",
            }
        ),
    ],
    ids=["rules", "references"],
)
def test_long_chains_do_not_end_the_process(vocabulary: GrammarVocabulary, grammar: str) -> None:
    vocabulary.check(grammar, "grammar")


def test_a_grammar_that_is_too_long(vocabulary: GrammarVocabulary) -> None:
    with pytest.raises(RequestError, match="65536"):
        vocabulary.check(choice_grammar(["x" * (1 << 16)]), "guided_choice")


def test_nesting_beyond_what_can_be_read(vocabulary: GrammarVocabulary) -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(RequestError):
        vocabulary.check(schema_grammar(schema), "guided_json")
    with pytest.raises(RequestError):
        written_grammar("root ::= " + "(" * 5000 + '"a"' + ")" * 5000)
