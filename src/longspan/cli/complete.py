"""`longspan complete`: one prompt and its answer, or a file of them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.batch import STANDARD, complete_batch
from longspan.cli.engine_options import EngineArguments
from longspan.cli.output import print_json
from longspan.cli.sampling_options import ANSWER, SamplingArguments
from longspan.cli.session import running_engine
from longspan.cli.timing import timings_object
from longspan.errors import UsageError
from longspan.request import Piece

if TYPE_CHECKING:
    from longspan.engine import EngineOptions
    from longspan.llm.keywords import SamplingKeywords


def complete(
    model: str,
    /,
    *,
    prompt: Annotated[str | None, Parameter(group=ANSWER, allow_leading_hyphen=True)] = None,
    file: Annotated[Path | None, Parameter(group=ANSWER)] = None,
    batch: Annotated[str | None, Parameter(group=ANSWER, allow_leading_hyphen=True)] = None,
    output: Annotated[str, Parameter(group=ANSWER, allow_leading_hyphen=True)] = STANDARD,
    max_tokens: Annotated[int, Parameter(group=ANSWER, validator=Number(gte=1))] = 64,
    chat: Annotated[bool, Parameter(group=ANSWER)] = False,
    sampling: SamplingArguments = SamplingArguments(),
    engine: EngineArguments = EngineArguments(),
    json: bool = False,
) -> int:
    """Continue one prompt and stop, or a whole file of them.

    The tokens are the same for every way of splitting the model, and for every link delay.

    Without --prompt, --file and --batch the prompt comes from standard input.

    A batch is a file with a JSON object a line: {"prompt": TEXT}, {"prompt": [TOKENS]} or {"messages": [...]}, with
    an "id" and options of its own (max_tokens, temperature, seed, stop, …) as it likes. The answers come in the
    same order, a line each; a line that cannot be answered gets an "error", and the exit code is 1.

    For example:

        longspan complete demo --prompt "The capital of France is"
        longspan complete demo --chat --prompt "Name three colours." --stages 2
        longspan complete demo --file story.txt --json
        longspan complete demo --json < question.txt
        longspan complete demo --prompt "Once" --temperature 0.8 --seed 7
        longspan complete demo --batch prompts.jsonl --output answers.jsonl

    Parameters
    ----------
    model
        The model to ask.
    prompt
        The text to continue; - reads it from standard input.
    file
        A file with the text to continue.
    batch
        A file with many prompts, a JSON object a line; - reads them from standard input.
    output
        Where the answers of a batch go; - is standard output.
    max_tokens
        Most tokens of the answer.
    chat
        Put the prompt as a question through the model's chat template.
    json
        Print text, tokens, finish reason and timings as JSON.
    """
    if sum(given is not None for given in (prompt, file, batch)) > 1:
        raise UsageError("--prompt, --file and --batch each say what to continue; give one of them.")
    options = engine.options(model, slots=1 if batch is None else 8)
    if batch is not None:
        return asyncio.run(_batch(options, batch, output, sampling.keywords(max_tokens), chat=chat))
    if output != STANDARD:
        raise UsageError("--output belongs to --batch.")
    text = _text(prompt, file)
    result = asyncio.run(_complete(options, text, max_tokens, chat=chat, sampling=sampling, stream=not json))
    if json:
        print_json(result)
    else:
        print()
    return 0


def _text(prompt: str | None, file: Path | None) -> str:
    """The text to continue."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read: {error}. Give a text file.") from error
    if prompt is None and sys.stdin.isatty():
        raise UsageError("there is nothing to continue; give --prompt, --file or --batch, or pipe a text in.")
    return sys.stdin.read() if prompt in (None, STANDARD) else prompt


async def _batch(options: EngineOptions, source: str, target: str, common: SamplingKeywords, *, chat: bool) -> int:
    """Answer a whole file; the exit code is 1 when a line could not be answered."""
    async with running_engine(options) as engine:
        answers = await complete_batch(engine, options.slots, source, target, common, chat=chat)
    print(
        f"{answers.answered} answered, {answers.failed} failed, {answers.tokens} tokens, "
        f"{answers.tokens_per_second:.1f} tokens/s",
        file=sys.stderr,
    )
    return 1 if answers.failed else 0


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
    from longspan.llm.prompts import chat_tokens, prompt_tokens

    async with running_engine(options) as engine:
        tokens = chat_tokens(engine.model, prompt) if chat else prompt_tokens(engine.model, prompt)
        if not tokens:
            raise UsageError("the prompt is empty and the model has no start token; give some text.")
        answer = engine.submit(sampling.request(tokens, max_tokens))
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
