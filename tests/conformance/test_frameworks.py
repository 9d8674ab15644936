"""LangChain's and LlamaIndex's classes for the OpenAI API, as a person would use them."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [
    pytest.mark.conformance,
    # These packages warn of one another; here it counts what they say to the server.
    pytest.mark.filterwarnings("default"),
]

QUESTION = "Why is the sky blue?"


class TestLangChain:
    @pytest.fixture
    def chat(self, api: str) -> Any:
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(
            base_url=api, api_key="none", model="default", temperature=0, max_tokens=24, max_retries=0
        )

    def test_an_answer_and_a_stream(self, chat: Any) -> None:
        answer = chat.invoke([("system", "Be brief."), ("human", QUESTION)])
        assert len(answer.content) > 20
        assert answer.usage_metadata["output_tokens"] == 24
        assert answer.response_metadata["finish_reason"] == "length"
        chunks = list(chat.stream([("system", "Be brief."), ("human", QUESTION)]))
        assert "".join(chunk.content for chunk in chunks) == answer.content
        assert len(chunks) > 5

    async def test_several_at_once(self, chat: Any) -> None:
        answers = await chat.abatch([QUESTION, "Name a river.", QUESTION])
        assert answers[0].content == answers[2].content != answers[1].content

    def test_a_form(self, chat: Any) -> None:
        from pydantic import BaseModel

        class Person(BaseModel):
            name: str
            age: int

        for method in ("json_schema", "function_calling"):
            structured = chat.with_structured_output(Person, method=method)
            found = structured.invoke("Anna is 31 years old.", max_tokens=60, temperature=0)
            assert isinstance(found, Person)

    def test_a_tool(self, chat: Any) -> None:
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_core.tools import tool

        @tool
        def weather(city: str) -> str:
            """The weather in a city."""
            return f"rain in {city}"

        bound = chat.bind_tools([weather], tool_choice="weather")
        question = HumanMessage("What is the weather in Rome?")
        answer = bound.invoke([question], max_tokens=60)
        (call,) = answer.tool_calls
        assert call["name"] == "weather"
        assert isinstance(call["args"]["city"], str)
        told = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
        assert chat.invoke([question, answer, told]).content

    def test_completions_and_log_probabilities(self, api: str, chat: Any) -> None:
        from langchain_openai import OpenAI

        text = OpenAI(base_url=api, api_key="none", model="default", temperature=0, max_tokens=8)
        assert "Paris" in text.invoke("The capital of France is")
        answer = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
        assert len(answer.response_metadata["logprobs"]["content"]) == 24


class TestLlamaIndex:
    @pytest.fixture
    def llm(self, api: str) -> Any:
        from llama_index.llms.openai_like import OpenAILike

        return OpenAILike(
            model="default",
            api_base=api,
            api_key="none",
            is_chat_model=True,
            is_function_calling_model=True,
            temperature=0,
            max_tokens=24,
            context_window=1536,
            max_retries=0,
        )

    def test_an_answer_and_a_stream(self, llm: Any) -> None:
        from llama_index.core.llms import ChatMessage

        messages = [ChatMessage(role="user", content=QUESTION)]
        answer = llm.chat(messages)
        assert len(answer.message.content) > 20
        deltas = [chunk.delta or "" for chunk in llm.stream_chat(messages)]
        assert "".join(deltas) == answer.message.content
        assert llm.complete(QUESTION).text == answer.message.content

    async def test_without_waiting(self, llm: Any) -> None:
        answer = await llm.acomplete(QUESTION)
        assert len(answer.text) > 20

    def test_a_tool(self, llm: Any) -> None:
        from llama_index.core.tools import FunctionTool

        def weather(city: str) -> str:
            """The weather in a city."""
            return f"rain in {city}"

        answer = llm.chat_with_tools(
            [FunctionTool.from_defaults(weather)],
            user_msg="What is the weather in Rome?",
            tool_required=True,
            max_tokens=60,
        )
        (call, *_) = llm.get_tool_calls_from_response(answer)
        assert call.tool_name == "weather"
        assert isinstance(call.tool_kwargs["city"], str)

    def test_completions(self, api: str) -> None:
        from llama_index.llms.openai_like import OpenAILike

        text = OpenAILike(model="default", api_base=api, api_key="none", temperature=0, max_tokens=8)
        assert "Paris" in text.complete("The capital of France is").text
