from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from longspan.errors import ModelError, RequestError
from longspan.model import chat_template
from longspan.model.chat_template import ChatTemplate
from longspan.model.source import GgufSource

USER = [{"role": "user", "content": "Hi"}]


def test_the_template_of_the_demo_model(demo: Path) -> None:
    template = ChatTemplate(GgufSource(demo).chat_template or "", "<|im_start|>", "<|im_end|>")
    assert template.render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    system = [{"role": "system", "content": "Be brief."}, *USER]
    assert template.render(system, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )


def test_blocks_leave_no_space_behind() -> None:
    source = (
        "{% for message in messages %}\n  {% if true %}\n{{ message.content }}\n  {% endif %}\n{% endfor %}\nend"
    )
    assert ChatTemplate(source).render(USER) == "Hi\nend"


def test_what_the_template_may_use() -> None:
    source = (
        "{{ bos_token }}|{{ tools | tojson }}|{{ strftime_now('%Y') }}|"
        "{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}|{{ extra }}"
    )
    text = ChatTemplate(source, bos_token="<s>").render(USER, tools=[{"name": "für"}], extra=7)
    assert text == f'<s>|[{{"name": "für"}}]|{datetime.datetime.now().year}|01|7'


def test_json_can_be_indented() -> None:
    assert (
        ChatTemplate("{{ tools | tojson(indent=2) }}").render([], tools=[{"a": 1}]) == '[\n  {\n    "a": 1\n  }\n]'
    )


def test_a_template_that_refuses_speaks_for_itself() -> None:
    template = ChatTemplate("{{ raise_exception('Conversation roles must alternate') }}")
    with pytest.raises(RequestError, match="Conversation roles must alternate") as failure:
        template.render(USER)
    assert failure.value.param == "messages"


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% endif %}", "{{ 1 | nofilter }}"])
def test_a_template_that_is_not_valid(source: str) -> None:
    with pytest.raises(ModelError, match="chat template is not valid"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 'a' * 10**8 }}",
        "{{ 10**8 * 'a' }}",
        "{{ [1] * 10**8 }}",
        "{{ 9 ** 9999999 }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_a_hostile_template_is_stopped(source: str) -> None:
    messages: list[dict[str, Any]] = [dict(USER[0])]
    with pytest.raises(RequestError):
        ChatTemplate(source).render(messages)
    assert messages == USER


def test_long_texts_within_the_bound_pass() -> None:
    source = "{{ '-' * 40 }}{% set ns = namespace(n=2) %}{{ ns.n ** 10 }}"
    assert ChatTemplate(source).render([]) == "-" * 40 + "1024"
    assert chat_template.MAX_RENDERED_CHARACTERS >= 1 << 20
