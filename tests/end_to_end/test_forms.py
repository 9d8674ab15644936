"""Answers in a form that was asked for: the demo model, real processes, with speculation and without."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import jsonschema
import openai
import pytest

from longspan.engine import Engine, EngineOptions
from longspan.model.grammar import schema_grammar
from longspan.request import GenerationRequest, Piece
from longspan.sampling.parameters import SamplingParameters
from tests.end_to_end.test_openai_client import MODEL, QUESTIONS, messages

TOKENS = 400
WORDS = ("name", "age", "city", "tags", "size", "count", "kind", "open", "score", "note")


def random_schema(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema that every answer can finish soon: everything is bounded."""
    kinds = ["boolean", "integer", "enum", "const", "string", "pattern", "null", "anyOf"]
    kind = dice.choice(kinds if depth >= 2 else [*kinds, *["object", "array"] * 4])
    if depth == 0:
        kind = "object"
    if kind == "object":
        names = dice.sample(WORDS, dice.randint(1, 3))
        required = [name for name in names if dice.random() < 0.8]
        properties = {name: random_schema(dice, depth + 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        least = dice.randint(0, 2)
        items = random_schema(dice, depth + 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + dice.randint(0, 2)}
    if kind == "integer":
        low = dice.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 500)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(dice, depth + 1) for _ in range(2)]}
    plain: dict[str, dict[str, Any]] = {
        "boolean": {"type": "boolean"},
        "null": {"type": "null"},
        "enum": {"enum": dice.sample(["red", 7, None, "green apple", True, 2.5], 3)},
        "const": {"const": dice.choice(["fixed", 42])},
        "string": {"type": "string", "minLength": dice.randint(0, 2), "maxLength": dice.randint(2, 12)},
        "pattern": {
            "type": "string",
            "pattern": dice.choice(["^[a-z]{2,6}$", "^\\d{3}-\\d{2}$", "^(yes|no) [A-F]$"]),
        },
    }
    return plain[kind]


async def _answers(options: EngineOptions, schemas: list[dict[str, Any]]) -> tuple[list[tuple[int, ...]], int]:
    """Tokens of one answer to each schema, every other one drawn; and how many drafts came true."""
    engine = Engine(options)
    await engine.start()
    try:
        tokenizer = engine.model.tokenizer

        async def ask(seed: int, schema: dict[str, Any]) -> tuple[int, ...]:
            prompt = f"Give me JSON for this schema: {json.dumps(schema)}\nJSON: "
            sampling = SamplingParameters(
                temperature=0.9 if seed % 2 else 0.0, top_p=0.95, grammar=schema_grammar(schema)
            )
            tokens = tuple(tokenizer.encode(prompt, add_special=True, parse_special=True))
            stream = engine.submit(GenerationRequest(tokens, TOKENS, sampling, seed=seed))
            pieces: list[Piece] = [piece async for piece in stream]
            assert pieces[-1].finish_reason == "stop"
            jsonschema.validate(json.loads("".join(piece.text for piece in pieces)), schema)
            return tuple(token for piece in pieces for token in piece.tokens)

        answers = await asyncio.gather(*(ask(seed, schema) for seed, schema in enumerate(schemas)))
        statistics = engine.statistics().speculation
        return answers, statistics.accepted_tokens if statistics is not None else 0
    finally:
        await engine.stop()


def _options(stages: int, **speculation: Any) -> EngineOptions:
    return EngineOptions(
        "demo", stages=stages, hold_first_stage=stages > 1, link_delay_ms=2.0, threads=1, slots=4, context=1024,
        **speculation,
    )  # fmt: skip


@pytest.mark.parametrize("count", [3, pytest.param(200, marks=pytest.mark.soak)])
async def test_random_schemas_are_followed_and_speculation_changes_no_token(count: int) -> None:
    dice = random.Random(5)
    schemas = [random_schema(dice) for _ in range(count)]
    plain, drafted = await _answers(_options(1, proposer="none"), schemas)
    assert drafted == 0
    speculated, accepted = await _answers(_options(2, width=4, depth=2), schemas)
    assert speculated == plain
    assert accepted > 0


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "degrees": {"type": "integer", "minimum": -40, "maximum": 50},
    },
    "required": ["city", "degrees"],
    "additionalProperties": False,
}  # fmt: skip


def test_a_schema_by_the_official_client(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=messages(QUESTIONS[1]),
        temperature=0,
        max_tokens=64,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA},
        },
    )
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), SCHEMA)
    assert answer.choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL,
            messages=messages(QUESTIONS[1]),
            response_format={"type": "json_schema", "json_schema": {"name": "no", "schema": {"uniqueItems": True}}},
        )
    assert refused.value.param == "response_format.json_schema.schema"


def test_required_calls_whole_and_streamed(client: openai.OpenAI) -> None:
    function: Any = {"name": "weather", "description": "Weather of a city", "parameters": SCHEMA}
    request: Any = {
        "model": MODEL,
        "messages": messages("What is the weather in Oslo?"),
        "temperature": 0,
        "max_tokens": 96,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    choice = client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    parts = [
        part
        for chunk in client.chat.completions.create(**request, stream=True)
        for part in chunk.choices[0].delta.tool_calls or ()
    ]
    assert parts[0].function.name == "weather"
    assert "".join(part.function.arguments for part in parts) == call.function.arguments


def test_a_regular_expression_and_a_choice(client: openai.OpenAI) -> None:
    def text(**fields: Any) -> str:
        answer = client.completions.create(
            model=MODEL, prompt="The colour is", temperature=0, max_tokens=12, extra_body=fields
        )
        return answer.choices[0].text

    assert text(guided_choice=["ultramarine", "vermilion"]) in ("ultramarine", "vermilion")
    found = text(structured_outputs={"regex": "[A-Z]{3}-[0-9]{2}"})
    assert len(found) == 6
    assert found[3] == "-"
