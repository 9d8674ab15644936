"""`longspan chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import EngineArguments
from longspan.cli.sampling_options import ANSWER, SamplingArguments
from longspan.cli.session import running_engine
from longspan.cli.timing import timings_line
from longspan.errors import LongspanError, UsageError

if TYPE_CHECKING:
    from longspan.engine import Engine

HELP = """\
/reset   forget the conversation
/quit    leave (so does Ctrl-D)
Ctrl-C   stop the answer
"""


def chat(
    model: str,
    /,
    *,
    system: Annotated[str | None, Parameter(group=ANSWER)] = None,
    max_tokens: Annotated[int | None, Parameter(group=ANSWER, validator=Number(gte=1))] = None,
    sampling: SamplingArguments = SamplingArguments(),
    engine: EngineArguments = EngineArguments(),
) -> None:
    """Talk to a model.

    The model sees the whole conversation each time. Ctrl-C stops an answer, /reset forgets, /quit leaves.
    Lines that are piped in are asked one after the other.

    For example:

        longspan chat demo
        longspan chat demo --stages 2 --link-delay 25
        longspan chat demo --system "Answer in one sentence." --temperature 0.7
        printf 'Name a colour.\\nAnother one.\\n' | longspan chat demo

    Parameters
    ----------
    model
        The model to talk to.
    system
        What the model should know before the conversation.
    max_tokens
        Most tokens of one answer (default: what is left of the context).
    """
    options = engine.options(model, slots=2)  # the turn before stays, to go on from
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        session = running_engine(options)
        running = runner.run(session.__aenter__())
        stack.callback(lambda: runner.run(session.__aexit__(None, None, None)))
        _talk(runner, Conversation(running, system, max_tokens, sampling))


class Conversation:
    """The messages so far, and the engine that answers them.

    Raises UsageError when the model has no chat template.
    """

    def __init__(
        self, engine: Engine, system: str | None, max_tokens: int | None, sampling: SamplingArguments
    ) -> None:
        if engine.model.chat_template is None:
            raise UsageError(f"{engine.model.id} has no chat template; use `longspan complete` with plain text.")
        self._engine = engine
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)
        self._max_tokens = max_tokens
        self._sampling = sampling

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self._messages = list(self._opening)

    async def ask(self, question: str) -> str:
        """Write the answer to the standard output as it comes, and give the line of figures.

        The question and the answer join the conversation, also an answer that was stopped half-way; a question
        that cannot be answered does not.
        """
        from longspan.llm.prompts import chat_tokens

        messages = [*self._messages, {"role": "user", "content": question}]
        prompt = chat_tokens(self._engine.model, messages)
        room = max(self._engine.model.context_length - len(prompt), 1)
        stream = self._engine.submit(self._sampling.request(prompt, min(self._max_tokens or room, room)))
        answer = ""
        try:
            async for piece in stream:
                answer += piece.text
                sys.stdout.write(piece.text)
                sys.stdout.flush()
        finally:
            stream.cancel()
            if answer:
                self._messages = [*messages, {"role": "assistant", "content": answer}]
        return timings_line(stream.timings) if stream.timings else ""


def _talk(runner: asyncio.Runner, conversation: Conversation) -> None:
    """Read a line, answer it, until there are no more."""
    interactive = sys.stdin.isatty()
    if interactive:
        # Gives input() line editing and a history.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401

        print(HELP)
    while True:
        try:
            line = _read_line(interactive)
        except KeyboardInterrupt:
            print("\n/quit or Ctrl-D leaves.")
            continue
        if line is None or line == "/quit":
            return
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(HELP)
        elif line:
            _answer(runner, conversation, line)


def _read_line(interactive: bool) -> str | None:
    """The next line without blanks around it; None at the end."""
    if interactive:
        try:
            return input("› ").strip()
        except EOFError:
            return None
    line = sys.stdin.readline()
    return line.strip() if line else None


def _answer(runner: asyncio.Runner, conversation: Conversation, question: str) -> None:
    """Answer one question. Ctrl-C ends the answer, an error is told; neither ends the conversation."""
    try:
        figures = runner.run(conversation.ask(question))
        print(f"\n\033[2m{figures}\033[0m\n" if sys.stdout.isatty() else f"\n[{figures}]\n")
    except KeyboardInterrupt:
        print("\n[stopped]\n")
    except LongspanError as error:
        print(f"\nlongspan: {error}\n", file=sys.stderr)
