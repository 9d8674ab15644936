"""The body of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from longspan.errors import RequestError
from longspan.request import GenerationRequest
from longspan.sampling.limits import MAX_LOGPROBS
from longspan.server.contract import ServedModel
from longspan.server.formats.call_format import call_format
from longspan.server.formats.told_tools import with_tools, without_calls
from longspan.server.openai.chat_format import ChatFormat, chat_format, chat_grammar
from longspan.server.openai.fields import (
    Count,
    GenerationFields,
    check_fields,
    generation_requests,
    refuse_unsupported,
)
from longspan.server.openai.messages import Messages, template_messages
from longspan.server.openai.structured import answer_grammar
from longspan.server.openai.tools import ToolChoice, Tools, ToolUse, tool_use
from longspan.server.prompts import chat_prompt, require_template


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """max_completion_tokens is the newer name of max_tokens; without either the answer may fill the context.

    add_generation_prompt: whether the template opens the assistant's turn (default: yes).
    continue_final_message: the answer goes on where the last message, an assistant's, ends.
    chat_template_kwargs: further variables for the template. reasoning_effort: handed to a template that knows it.
    """

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    reasoning_effort: str | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    # Refused unless they ask for nothing.
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    verbosity: str | None = None
    echo: bool | None = None


NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "verbosity": (None, "medium"),
    "echo": (None, False),
}
"""Fields that are known but not supported, with the values that ask for nothing."""
_OWN_TEMPLATE_VARIABLES = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "self")

decoder = msgspec.json.Decoder(ChatRequest)


def chat_generation(request: ChatRequest, model: ServedModel) -> tuple[list[GenerationRequest], ChatFormat]:
    """What the engine is asked for, one request a choice, and how the answers are to be read.

    Renders, tokenizes and compiles: call it on a worker thread.
    Raises RequestError, its `param` the field that cannot be honoured.
    """
    check_fields(request, model)
    refuse_unsupported(request, NEUTRAL_VALUES)
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    if None not in (request.max_tokens, request.max_completion_tokens):
        raise RequestError("`max_tokens` and `max_completion_tokens` are one field; send one.", param="max_tokens")
    if request.return_metrics and (request.n or 1) > 1:
        raise RequestError("`return_metrics` is for one choice; leave `n` out.", param="return_metrics")
    use = tool_use(request.tools, request.tool_choice, request.parallel_tool_calls)
    calls, told_by_template = call_format(require_template(model).source)
    prompt = _prompt(request, model, use, told_by_template)
    form = chat_format(use, calls, model, prompt)
    requests = generation_requests(
        request,
        model,
        prompt,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        default_max_tokens=None,
        logprobs=(request.top_logprobs or 0) if request.logprobs else -1,
        prompt_field="messages",
        prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
        grammar=chat_grammar(answer_grammar(request, model), use, form, model),
        write_special=form.marks_are_control_tokens(model),
    )
    return requests, form


def _prompt(request: ChatRequest, model: ServedModel, use: ToolUse, told_by_template: bool) -> list[int]:
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise RequestError(
            "`continue_final_message` goes on with the last message, so `add_generation_prompt` must be false.",
            param="continue_final_message",
        )
    if continues and request.messages[-1].role != "assistant":
        raise RequestError(
            "`continue_final_message` needs an assistant's message at the end.", param="continue_final_message"
        )
    template = require_template(model)
    arguments = dict(request.chat_template_kwargs or {})
    for name in _OWN_TEMPLATE_VARIABLES:
        if name in arguments:
            raise RequestError(
                f"`chat_template_kwargs.{name}` is set by the server.", param=f"chat_template_kwargs.{name}"
            )
    if request.reasoning_effort is not None:
        if "reasoning_effort" not in template.source:
            raise RequestError(
                "This model's chat template has no place for `reasoning_effort`.",
                param="reasoning_effort",
                code="unsupported_parameter",
            )
        arguments["reasoning_effort"] = request.reasoning_effort
    generation_prompt = not continues if request.add_generation_prompt is None else request.add_generation_prompt
    messages = template_messages(request.messages, template)
    if use.offered and told_by_template:
        arguments["tools"] = [tool.described() for tool in use.offered]
    elif use.offered:
        messages = with_tools(list(map(without_calls, messages)), use.offered)
    return chat_prompt(
        model,
        messages,
        add_generation_prompt=generation_prompt,
        continue_final_message=continues,
        template_arguments=arguments,
    )
