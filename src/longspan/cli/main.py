"""The `longspan` command: finds the command, runs it, and turns every error into a message and an exit code.

Exit codes: 0 done; 1 a check failed or something went wrong; 2 the command was used wrongly (also: a model or value
that cannot be used); 3 the ring is not complete; 4 the coordinator has sent this stage away; 70 a bug;
130 interrupted; 141 the reader of our output went away.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from longspan import __version__
from longspan.cli.commands import COMMANDS, FAMILIES, GROUPS
from longspan.errors import LongspanError, UsageError

BUG = 70
INTERRUPTED = 130
READER_GONE = 141

DESCRIPTION = """\
One large language model, split by layers over machines that are far apart.

Try:
  longspan demo                     see it answer, split over two processes
  longspan chat demo --stages 2     talk to it
  longspan COMMAND --help           what a command does, with examples

MODEL is a .gguf file, a layer package, demo, demo-gemma or
hf://owner/repo/file.gguf
"""


def build_app(arguments: Sequence[str] = ()) -> App:
    """The command line. The command named by `arguments` shows its whole docstring, the others one line each."""
    groups = {title: Group(title, sort_key=order) for order, title in enumerate(GROUPS)}
    app = App(
        name="longspan",
        help=DESCRIPTION,
        help_format="plaintext",
        version=f"longspan {__version__}",
        version_format="plaintext",
        # A switch has no --no- form, and a default that says nothing (None, False) is not shown.
        default_parameter=Parameter(negative=(), show_default=_shown_default),
        suppress_keyboard_interrupt=False,
    )
    app["--help"].group = app["--version"].group = Group("Options", sort_key=len(GROUPS))
    families: dict[str, App] = {}
    for family in FAMILIES:
        families[family.name] = App(name=family.name, help=family.summary, group=groups[family.group])
        app.command(families[family.name])
    for command in COMMANDS:
        first, _, second = command.name.partition(" ")
        if second:
            families[first].command(command.target, name=second, help=command.summary)
        else:
            app.command(command.target, name=first, help=command.summary, group=groups[command.group])
        words = command.name.split()
        if list(arguments[: len(words)]) == words:
            named = families[first][second] if second else app[first]
            named.help = unwrapped(inspect.getdoc(named.default_command) or "")
    return app


def unwrapped(text: str) -> str:
    """A docstring whose paragraphs are one line each, for the terminal to wrap. Indented ones stay as they are."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        paragraph if any(line[:1] in (" ", "-") for line in lines) else " ".join(lines)
        for paragraph in paragraphs
        if (lines := paragraph.split("\n"))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code. Nothing but a message reaches the user when it fails."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        result = build_app(arguments)(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except CycloptsError as error:
        return _complain(f"{error}\nSee: {_help_command(arguments)}", UsageError.exit_code)
    except LongspanError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:
        if os.environ.get("LONGSPAN_DEBUG"):
            raise
        return _complain(
            f"this is a bug in Longspan: {type(error).__name__}: {error}\n"
            "Set LONGSPAN_DEBUG=1 and run it again to see where.",
            BUG,
        )


def _shown_default(value: object) -> str | None:
    says_nothing = value is None or value is False or value == () or value == ""
    return None if says_nothing else str(value)


def _complain(message: str, exit_code: int) -> int:
    """Write a message to the standard error stream and pass the exit code on."""
    print(f"longspan: {message}", file=sys.stderr)
    return exit_code


def _help_command(arguments: Sequence[str]) -> str:
    """The help page that a person who misused a command should look at."""
    known = {family.name for family in FAMILIES} | {command.name for command in COMMANDS}
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if name in known:
            return f"longspan {name} --help"
    return "longspan --help"
