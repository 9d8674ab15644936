"""`longspan complete`: one prompt, one answer."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import EngineArguments
from longspan.cli.output import print_json
from longspan.cli.sampling_options import ANSWER, SamplingArguments
from longspan.cli.session import running_engine
from longspan.cli.timing import timings_object
from longspan.errors import UsageError
from longspan.request import Piece

if TYPE_CHECKING:
    from longspan.engine import Engine, EngineOptions


def complete(
    model: str,
    /,
    *,
    prompt: Annotated[str, Parameter(group=ANSWER, allow_leading_hyphen=True)],
    max_tokens: Annotated[int, Parameter(group=ANSWER, validator=Number(gte=1))] = 64,
    chat: Annotated[bool, Parameter(group=ANSWER)] = False,
    sampling: SamplingArguments = SamplingArguments(),
    engine: EngineArguments = EngineArguments(),
    json: bool = False,
) -> None:
    """Continue one prompt and stop.

    The tokens are the same for every way of splitting the model, and for every link delay.

    For example:

        longspan complete demo --prompt "The capital of France is"
        longspan complete demo --chat --prompt "Name three colours." --stages 2
        longspan complete demo --prompt - --json < question.txt
        longspan complete demo --prompt "Once" --temperature 0.8 --seed 7

    Parameters
    ----------
    model
        The model to ask.
    prompt
        The text to continue; - reads it from standard input.
    max_tokens
        Most tokens of the answer.
    chat
        Put the prompt as a question through the model's chat template.
    json
        Print text, tokens, finish reason and timings as JSON.
    """
    if prompt == "-":
        prompt = sys.stdin.read()
    options = engine.options(model)
    result = asyncio.run(_complete(options, prompt, max_tokens, chat=chat, sampling=sampling, stream=not json))
    if json:
        print_json(result)
    else:
        print()


async def _complete(
    options: EngineOptions,
    prompt: str,
    max_tokens: int,
    *,
    chat: bool,
    sampling: SamplingArguments,
    stream: bool,
) -> dict[str, Any]:
    """Run the request; with `stream`, write the text to the standard output as it comes."""
    async with running_engine(options) as engine:
        answer = engine.submit(sampling.request(encode_prompt(engine, prompt, chat=chat), max_tokens))
        pieces: list[Piece] = []
        async for piece in answer:
            pieces.append(piece)
            if stream:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
        return {
            "text": "".join(piece.text for piece in pieces),
            "tokens": [token for piece in pieces for token in piece.tokens],
            "finish_reason": pieces[-1].finish_reason,
            "timings": timings_object(answer.timings),
        }


def encode_prompt(engine: Engine, prompt: str, *, chat: bool) -> list[int]:
    """Token ids of a prompt as it stands, or of a chat whose only message it is.

    Raises UsageError when there is nothing to continue, or `chat` is asked of a model without a template.
    """
    tokenizer = engine.model.tokenizer
    if chat:
        if engine.model.chat_template is None:
            raise UsageError(f"{engine.model.id} has no chat template; leave --chat away to continue plain text.")
        text = engine.model.chat_template.render([{"role": "user", "content": prompt}])
        return tokenizer.encode(text, add_special=False, parse_special=True)
    tokens = tokenizer.encode(prompt, add_special=True, parse_special=True)
    if not tokens:
        raise UsageError("the prompt is empty and the model has no start token; give some text with --prompt.")
    return tokens
