"""Text to prompt tokens, on worker threads: a long prompt must not hold up the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from longspan.errors import ContextLengthError, RequestError
from longspan.model.prompt import with_bos
from longspan.server.contract import ServedModel, Template

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_CHEAP_BYTES = 16
"""A text with fewer bytes for each token of the context is tokenized without asking how long tokens can be."""

_MARK = "\ue000end of the final message\ue000"


class PromptWorker:
    """Two threads that render templates and tokenize; further requests wait their turn."""

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="longspan-prompt")

    async def run(
        self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Call `work` on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Drop what waits; what runs goes on to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def text_prompt(model: ServedModel, text: str, *, param: str, add_special: bool = True) -> list[int]:
    """Tokens of a raw prompt. `param` names the request's field in errors. Raises RequestError."""
    check_length(model, text, param)
    return model.tokenizer.encode(text, add_special=add_special, parse_special=True)


def token_prompt(model: ServedModel, tokens: list[int], *, param: str) -> list[int]:
    """Tokens that the client gave. Raises RequestError when one is not in the vocabulary."""
    size = model.tokenizer.vocabulary_size
    for token in tokens:
        if not 0 <= token < size:
            raise RequestError(
                f"`{param}` holds token {token}, but the model has tokens 0 to {size - 1}.", param=param
            )
    return tokens


def chat_prompt(
    model: ServedModel,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_arguments: dict[str, Any],
) -> list[int]:
    """Tokens of a conversation, through the model's chat template. Raises RequestError."""
    text = render_chat(
        require_template(model),
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_arguments=template_arguments,
    )
    check_length(model, text, "messages")
    tokens = model.tokenizer.encode(text, add_special=False, parse_special=True)
    return with_bos(model.tokenizer, tokens)


def require_template(model: ServedModel) -> Template:
    """The model's chat template. Raises RequestError when it has none."""
    if model.chat_template is None:
        raise RequestError(
            f"`{model.id}` has no chat template; use /v1/completions with a prompt.",
            param="messages",
            code="no_chat_template",
        )
    return model.chat_template


def render_chat(
    template: Template,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_arguments: dict[str, Any],
) -> str:
    """The conversation as text; for a message to be continued it ends right after that message's content."""
    if not continue_final_message:
        return template.render(messages, add_generation_prompt=add_generation_prompt, **template_arguments)
    # A mark at the end of the content shows where the template puts what closes the message.
    marked = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + _MARK}]
    text, mark, _ = template.render(marked, add_generation_prompt=False, **template_arguments).partition(_MARK)
    if not mark:
        raise RequestError(
            "This model's chat template drops the final message, so it cannot be continued.",
            param="continue_final_message",
        )
    return text


def check_length(model: ServedModel, text: str, param: str) -> None:
    """Raise ContextLengthError for a text that cannot fit the context, without tokenizing it."""
    size, context = len(text.encode("utf-8", "replace")), model.context_length
    if size <= context * _CHEAP_BYTES or size <= model.tokenizer.most_bytes(context):
        return
    least = -(-size // model.tokenizer.most_bytes(1))
    raise ContextLengthError(
        f"This model's maximum context length is {context} tokens, but the prompt has at least {least} tokens.",
        param=param,
    )
