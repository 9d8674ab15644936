"""Tools, reasoning and the form of answers: what the engine is asked, and what the client gets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from longspan.model.chat_template import ChatTemplate
from longspan.model.grammar import GrammarVocabulary, Matcher
from longspan.request import Piece
from tests.server.scripted_engine import ScriptedEngine
from tests.server.test_chat import HELLO, asked, chat, prompt_text, stream

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'

HERMES = (
    "{% for t in tools or [] %}<tool>{{ t | tojson }}</tool>{% endfor %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %};"
    "{% endfor %}"
)
MISTRAL = "{% if tools %}[AVAILABLE_TOOLS]{% endif %}{{ messages[0].content }}{# [TOOL_CALLS] tool_calls #}"
LLAMA = (
    '{% if tools %}{{ tools | length }} {"name": f, "parameters": p}{% endif %}<|start_header_id|>'
    "{{ messages[0].content }}{# tool_calls #}"
)
THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"


@pytest.fixture(autouse=True)
def _room(engine: ScriptedEngine) -> None:
    engine.served.context_length = 4000


def says(engine: ScriptedEngine, *texts: str, reason: str = "stop") -> None:
    """The engine answers in these pieces, one token each."""
    pieces = [Piece(text, (5,)) for text in texts]
    engine.script = lambda request: [*pieces, Piece("", (), finish_reason=reason)]


def matcher(engine: ScriptedEngine) -> Matcher:
    return GrammarVocabulary(engine.served.tokenizer).matcher(asked(engine).sampling.grammar)


def follows(engine: ScriptedEngine, text: str, *, complete: bool = True) -> bool:
    """Whether a text follows the grammar that the engine was asked for, to its end."""
    tokenizer = engine.served.tokenizer
    allowed = matcher(engine).allowed(tokenizer.encode(text, add_special=False, parse_special=True))
    ends = min(tokenizer.end_tokens)
    return allowed is not None and (bool(allowed[ends]) or not complete)


def test_tools_are_told_to_a_template_that_knows_none(client: httpx.Client, engine: ScriptedEngine) -> None:
    says(engine, CALL)
    chat(client, tools=[WEATHER], messages=[{"role": "system", "content": "Be brief."}, *HELLO])
    text = prompt_text(engine)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert json.dumps(WEATHER) in text
    assert asked(engine).sampling.grammar == ""


def test_a_template_that_knows_tools_gets_them(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.chat_template = ChatTemplate(HERMES)
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    chat(client, tools=[WEATHER], messages=messages)
    assert prompt_text(engine) == (
        f"<tool>{json.dumps(WEATHER)}</tool>user: hi;assistant: <tool_call>weather</tool_call>;tool: rain;"
    )


def test_a_call(client: httpx.Client, engine: ScriptedEngine) -> None:
    says(engine, "Let me look.\n", CALL[:30], CALL[30:])
    (choice,) = chat(client, tools=[WEATHER, TIME])["choices"]
    (call,) = choice["message"].pop("tool_calls")
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    assert choice["message"] == {"role": "assistant", "content": "Let me look.", "refusal": None, "annotations": []}
    assert choice["finish_reason"] == "tool_calls"


def test_a_streamed_call(client: httpx.Client, engine: ScriptedEngine) -> None:
    says(engine, "Look. ", *CALL, "\n", *CALL.replace("Rome", "Oslo"))
    choices = [event["choices"][0] for event in stream(client, tools=[WEATHER])]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "Look."
    parts = [call for delta in deltas for call in delta.get("tool_calls", ())]
    begins = [part for part in parts if "id" in part]
    assert [(part["index"], part["type"], part["function"]["name"]) for part in begins] == [
        (0, "function", "weather"),
        (1, "function", "weather"),
    ]
    assert len({part["id"] for part in begins}) == 2
    for index, city in enumerate(("Rome", "Oslo")):
        arguments = [part["function"]["arguments"] for part in parts if part["index"] == index]
        assert json.loads("".join(arguments)) == {"city": city}
        assert len(arguments) > 5, "arguments are passed on as they come"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


def test_what_is_cut_off_keeps_its_reason(client: httpx.Client, engine: ScriptedEngine) -> None:
    says(engine, CALL[:55], reason="length")
    (choice,) = chat(client, tools=[WEATHER])["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"


def test_tool_choice_none_tells_of_no_tools(client: httpx.Client, engine: ScriptedEngine) -> None:
    says(engine, CALL)
    (choice,) = chat(client, tools=[WEATHER], tool_choice="none")["choices"]
    assert choice["message"]["content"] == CALL
    assert "tool_calls" not in choice["message"]
    assert "weather" not in prompt_text(engine)


def test_required_calls(client: httpx.Client, engine: ScriptedEngine) -> None:
    chat(client, tools=[WEATHER, TIME], tool_choice="required")
    assert follows(engine, CALL)
    assert follows(engine, CALL + "\n" + CALL)
    assert follows(engine, '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>')
    assert not follows(engine, "text", complete=False)
    assert not follows(engine, CALL.replace("Rome", "Paris"))
    assert not follows(engine, CALL.replace("weather", "other"))


def test_one_call_at_a_time(client: httpx.Client, engine: ScriptedEngine) -> None:
    says(engine, CALL + CALL)
    (choice,) = chat(client, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert follows(engine, CALL)
    assert not follows(engine, CALL + "\n" + CALL)


def test_a_named_function(client: httpx.Client, engine: ScriptedEngine) -> None:
    chat(client, tools=[WEATHER, TIME], tool_choice={"type": "function", "function": {"name": "time"}})
    assert follows(engine, '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>')
    assert not follows(engine, CALL)


def test_strict_tools_may_be_called_after_text(client: httpx.Client, engine: ScriptedEngine) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    chat(client, tools=[strict])
    assert follows(engine, "Any text, < or <tool too.")
    assert follows(engine, "Let me look. " + CALL)
    assert not follows(engine, "Let me look. " + CALL.replace("Rome", "Paris"))


def test_a_form_for_answers_that_are_no_calls(client: httpx.Client, engine: ScriptedEngine) -> None:
    chat(client, tools=[WEATHER], response_format={"type": "json_object"})
    assert follows(engine, CALL)
    assert follows(engine, '{"a": 1}')
    assert not follows(engine, "text", complete=False)


@pytest.mark.parametrize(
    ("template", "answer", "wrong"),
    [
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "time", "arguments": {}}]',
            '[TOOL_CALLS] [{"name": "weather", "arguments": {}}]',
        ),
        (
            LLAMA,
            '{"name": "weather", "parameters": {"city": "Rome"}}; {"name": "time", "parameters": {}}',
            '{"name": "weather", "arguments": {"city": "Rome"}}',
        ),
    ],
    ids=["mistral", "llama"],
)
def test_other_families(
    client: httpx.Client, engine: ScriptedEngine, template: str, answer: str, wrong: str
) -> None:
    engine.served.chat_template = ChatTemplate(template)
    says(engine, *answer)
    (choice,) = chat(client, tools=[WEATHER, TIME], tool_choice="required")["choices"]
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather", "time"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Rome"}
    assert choice["message"]["content"] is None
    assert len(calls[0]["id"]) == (9 if template is MISTRAL else 29)
    assert follows(engine, answer)
    assert not follows(engine, wrong, complete=False)
    engine.requests.clear()
    chat(client, tools=[{"type": "function", "function": {**WEATHER["function"], "strict": True}}])
    assert follows(engine, "Only text [TOOL and so on.")
    assert not follows(engine, wrong, complete=False)


def test_reasoning_is_told_from_the_answer(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.chat_template = ChatTemplate(THINKING)
    says(engine, "Hm, ", "two.</th", "ink>\n\nIt is 2.")
    (choice,) = chat(client)["choices"]
    assert choice["message"]["reasoning_content"] == "Hm, two."
    assert choice["message"]["content"] == "It is 2."
    deltas = [event["choices"][0]["delta"] for event in stream(client)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, two."
    assert "".join(delta.get("content", "") for delta in deltas) == "It is 2."


def test_a_form_begins_after_the_reasoning(client: httpx.Client, engine: ScriptedEngine) -> None:
    engine.served.chat_template = ChatTemplate(THINKING)
    chat(client, response_format={"type": "json_object"})
    assert follows(engine, 'I think { so</think>\n\n{"a": 1}')
    assert not follows(engine, "I think</think>text", complete=False)
    assert not follows(engine, '{"a": 1}')
    engine.requests.clear()
    engine.served.chat_template = ChatTemplate(THINKING.replace("<think>\n", "{# <think> #}"))
    chat(client, response_format={"type": "json_object"})
    assert follows(engine, '{"a": 1}')
    assert follows(engine, '<think>I think</think>\n{"a": 1}')


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": [1, 2]}', "[1]"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "integer"}},
                }
            },
            "17",
            "seventeen",
        ),
        ({"structured_outputs": {"json": '{"type": "integer"}'}}, "17", "seventeen"),
        ({"structured_outputs": {"json_object": True}}, "{}", "7"),
        ({"structured_outputs": {"regex": "a+b"}}, "aab", "b"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", "maybe"),
        ({"structured_outputs": {"grammar": 'start: "a" | "b"'}}, "b", "c"),
        ({"structured_outputs": {"json": {"type": "array"}}}, "[\n  1, 2\n]", "[\n\n1]"),
        ({"structured_outputs": {"json": {"type": "array"}, "disable_any_whitespace": True}}, "[1,2]", "[1, 2]"),
        ({"structured_outputs": {"json": {"type": "array"}, "whitespace_pattern": "  "}}, "[  1  ]", "[ 1 ]"),
        ({"guided_json": {"type": "boolean"}}, "true", "yes"),
        ({"guided_json": {"type": "array"}, "guided_whitespace_pattern": ""}, "[]", "[ ]"),
        ({"guided_regex": "[0-9]{3}"}, "123", "abc"),
        ({"guided_choice": ["red", "blue"]}, "red", "green"),
        ({"guided_grammar": 'root ::= "x" | "y"'}, "x", "z"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_forms(
    client: httpx.Client, engine: ScriptedEngine, path: str, fields: dict[str, Any], right: str, wrong: str
) -> None:
    body = {"model": "default", **({"messages": HELLO} if "chat" in path else {"prompt": "hi"})}
    response = client.post(path, json={**body, **fields})
    assert response.status_code == 200, response.text
    assert follows(engine, right)
    assert not follows(engine, wrong)


def test_text_is_any_text(client: httpx.Client, engine: ScriptedEngine) -> None:
    chat(client, response_format={"type": "text"})
    assert asked(engine).sampling.grammar == ""


def test_control_tokens_are_written_out_on_demand(client: httpx.Client, engine: ScriptedEngine) -> None:
    chat(client)
    chat(client, skip_special_tokens=False)
    assert [request.write_special for request in engine.requests] == [False, True]
