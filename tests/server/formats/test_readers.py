"""Calls and reasoning in an answer's text: the same however the text is cut into pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.server.formats.call_format import HermesCalls, LlamaCalls, MistralCalls, call_format
from longspan.server.formats.call_reader import CallReader
from longspan.server.formats.deltas import CallArguments, CallBegins, Content, Delta, Reasoning
from longspan.server.formats.thinking import Thinking, ThinkingReader, thinking_of

NAMES = frozenset({"weather", "add"})
Call = tuple[str, str]


def joined(deltas: list[Delta]) -> tuple[str, str, list[Call]]:
    """Content, reasoning and calls of an answer."""
    calls: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, CallBegins):
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        elif isinstance(delta, CallArguments):
            assert delta.index == len(calls) - 1
            calls[-1][1] += delta.text
    content = "".join(delta.text for delta in deltas if isinstance(delta, Content))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, Reasoning))
    return content, reasoning, [(name, arguments) for name, arguments in calls]


def read(reader: CallReader | ThinkingReader, pieces: list[str]) -> tuple[str, str, list[Call]]:
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += reader.push(piece)
    return joined(deltas + reader.flush())


FORMATS = {"hermes": HermesCalls(), "mistral": MistralCalls(), "llama": LlamaCalls()}
WEATHER = '{"city": "Paris }{", "days": [1, {"x": "\\"}"}]}'
ANSWERS: list[tuple[str, str, str, list[Call]]] = [
    ("hermes", "Just text, 2 < 3 and <tool> too.\n", "Just text, 2 < 3 and <tool> too.\n", []),
    (
        "hermes",
        f'Let me see.\n\n<tool_call>\n{{"name": "weather", "arguments": {WEATHER}}}\n</tool_call>\n',
        "Let me see.",
        [("weather", WEATHER)],
    ),
    (
        "hermes",
        '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>\n<tool_call>\n'
        '{"arguments": {"a": 2}, "name": "add"}\n</tool_call>',
        "",
        [("add", '{"a":1}'), ("add", '{"a": 2}')],
    ),
    (
        "hermes",
        '<tool_call>\n{"name": "add", "arguments": "{\\"a\\": 1}"}\n</tool_call>',
        "",
        [("add", '{"a": 1}')],
    ),
    ("hermes", '<tool_call>\n{"name": "add"}\n</tool_call>', "", [("add", "{}")]),
    (
        "hermes",
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        [],
    ),
    ("hermes", "<tool_call>\nadd(1)\n</tool_call>", "<tool_call>\nadd(1)\n</tool_call>", []),
    ("hermes", '<tool_call>\n{"name": "add", "arguments": {"a": ', "", [("add", '{"a": ')]),
    ("hermes", '<tool_call>\n{"name": "ad', '<tool_call>\n{"name": "ad', []),
    ("hermes", "text and <tool_ca", "text and <tool_ca", []),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {WEATHER}}}, {{"name": "add", "arguments": {{}}}}]',
        "",
        [("weather", WEATHER), ("add", "{}")],
    ),
    ("mistral", "a list [1, 2] and [TOOL", "a list [1, 2] and [TOOL", []),
    ("llama", f'{{"name": "weather", "parameters": {WEATHER}}}', "", [("weather", WEATHER)]),
    (
        "llama",
        '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 2}}',
        "",
        [("add", '{"a": 1}'), ("add", '{"a": 2}')],
    ),
    (
        "llama",
        '{"type": "function", "name": "add", "parameters": {"a": 1}}',
        "",
        [("add", '{"a": 1}')],
    ),
    ("llama", '{"answer": 42} is JSON', '{"answer": 42} is JSON', []),
    ("llama", '\nText with {"name": "add"} inside', '\nText with {"name": "add"} inside', []),
]


def same_call(found: Call, expected: Call) -> bool:
    name, arguments = found
    if arguments == expected[1]:
        return name == expected[0]
    # Arguments that came in another order were written anew.
    return name == expected[0] and bool(json.loads(arguments) == json.loads(expected[1]))


@pytest.mark.parametrize(("name", "text", "content", "calls"), ANSWERS)
def test_calls(name: str, text: str, content: str, calls: list[Call]) -> None:
    for pieces in ([text], list(text)):
        found, _, called = read(FORMATS[name].reader(NAMES, 16), pieces)
        assert found == content
        assert len(called) == len(calls)
        assert all(map(same_call, called, calls)), called


PARTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "\n", " ", "{", "}", "[", "]", '"', "\\", ",", ";", "text", "<think>"),
        *("</think>", "[TOOL_CALLS]", "<|python_tag|>", '{"name": "add", "arguments": {"a": 1}}', "<tool", "é"),
        '{"name": "weather", "parameters": ',
    ]
)


@settings(deadline=None, max_examples=150)
@given(parts=st.lists(PARTS, max_size=12), data=st.data(), name=st.sampled_from(sorted(FORMATS)))
def test_cuts_change_nothing(parts: list[str], data: st.DataObject, name: str) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    form = FORMATS[name]
    assert read(form.reader(NAMES, 16), pieces) == read(form.reader(NAMES, 16), [text])
    for thinking in Thinking:
        assert read(ThinkingReader(thinking), pieces) == read(ThinkingReader(thinking), [text])


@pytest.mark.parametrize("name", FORMATS)
def test_no_more_calls_than_asked_for(name: str) -> None:
    texts = {
        "hermes": '<tool_call>{"name": "add", "arguments": {}}</tool_call>' * 3,
        "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {}}, {"name": "add", "arguments": {"b": 1}}]',
        "llama": '{"name": "add", "parameters": {}}; {"name": "weather", "parameters": {"c": 1}}',
    }
    content, _, calls = read(FORMATS[name].reader(NAMES, 1), list(texts[name]))
    assert (content, calls) == ("", [("add", "{}")])


@pytest.mark.parametrize(
    ("thinking", "text", "reasoning", "content"),
    [
        (Thinking.OPEN, "\nHm { </thin\n</think>\n\nYes.", "Hm { </thin", "Yes."),
        (Thinking.OPEN, "never ends", "never ends", ""),
        (Thinking.MAY, "<think>\nHm\n</think>\n\nYes.", "Hm", "Yes."),
        (Thinking.MAY, "\n<think></think>Yes.", "", "Yes."),
        (Thinking.MAY, " plain <think>text</think>", "", " plain <think>text</think>"),
        (Thinking.MAY, "<thi", "", "<thi"),
        (Thinking.NONE, "<think>x</think>", "", "<think>x</think>"),
    ],
)
def test_reasoning(thinking: Thinking, text: str, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text)):
        assert read(ThinkingReader(thinking), pieces) == (content, reasoning, [])


def test_how_a_prompt_ends_says_how_the_answer_begins() -> None:
    template = "{{ messages }}<think>"
    assert thinking_of(template, "…assistant\n<think>\n") is Thinking.OPEN
    assert thinking_of(template, "…assistant\n<think>\n\n</think>\n\n") is Thinking.NONE
    assert thinking_of(template, "…assistant\n") is Thinking.MAY
    assert thinking_of("{{ messages }}", "…assistant\n") is Thinking.NONE


@pytest.mark.parametrize(
    ("template", "kind", "told"),
    [
        ("{{ messages }}", HermesCalls, False),
        ("{% if tools %}<tool_call>{% endif %}", HermesCalls, True),
        ("{% if tools %}<tool_call><function=x>{% endif %}", HermesCalls, False),
        ("{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS]{% endif %}", MistralCalls, True),
        ("{% if tools %}[TOOL_CALLS]x[ARGS]{% endif %}", HermesCalls, False),
        ('<|start_header_id|>{% if tools %}{"name": f, "parameters": {}}{% endif %}', LlamaCalls, True),
        ("{% if tools %}something else{% endif %}", HermesCalls, False),
    ],
)
def test_families(template: str, kind: type, told: bool) -> None:
    found, by_template = call_format(template)
    assert type(found) is kind
    assert by_template is told
