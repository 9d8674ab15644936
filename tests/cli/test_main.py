"""The command line's frame: help pages, exit codes, and that no traceback reaches a user."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longspan import errors
from longspan.cli import commands, main
from longspan.cli.commands import COMMANDS, FAMILIES, GROUPS, Command


@pytest.fixture
def run_as_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Runs a function as if it were the only command, and gives the exit code."""

    def run(function: Callable[[], object]) -> int:
        monkeypatch.setattr(sys.modules[__name__], "planted", function, raising=False)
        monkeypatch.setattr(main, "COMMANDS", (Command("planted", f"{__name__}:planted", commands.CHECK, "x"),))
        return main.main(["planted"])

    return run


def test_help_lists_every_command_in_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    page = capsys.readouterr().out
    for command in COMMANDS:
        if " " not in command.name:
            assert f"│ {command.name} " in page and command.summary[:40] in page
    for heading in {command.group for command in COMMANDS}:
        assert heading in page
    assert max(len(line) for line in page.splitlines()) <= 80


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help_with_examples(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*command.name.split(), "--help"]) == 0
    page = capsys.readouterr().out
    assert "For example:" in page
    assert f"    longspan {command.name}" in page
    assert command.group in GROUPS


def test_every_benchmark_is_a_command() -> None:
    files = {path.stem for path in Path(commands.__file__).parent.glob("bench_*.py")}
    assert files == {command.name.replace(" ", "_") for command in COMMANDS if command.name.startswith("bench ")}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_lists_its_commands(family: commands.Family, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([family.name, "--help"]) == 0
    page = capsys.readouterr().out
    names = [command.name.partition(" ") for command in COMMANDS]
    own = {second for first, _, second in names if first == family.name and second}
    for second in {second for _, _, second in names if second}:
        assert (f"│ {second} " in page) == (second in own)


def test_paragraphs_are_wrapped_by_the_terminal_and_examples_are_not() -> None:
    text = "Do it.\n\nOne\nparagraph.\n\n    longspan do\n    longspan do it\n\nParameters\n----------\nx\n    y"
    expected = "Do it.\n\nOne paragraph.\n\n    longspan do\n    longspan do it\n\nParameters\n----------\nx\n    y"
    assert main.unwrapped(text) == expected


def test_help_is_quick_and_loads_no_command() -> None:
    script = (
        "import sys; from longspan.cli.main import main; main(['--help']); "
        "print([name for name in sys.modules if name.startswith('longspan.') and '.cli' not in name])"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['longspan.errors']"
    # Half a second on an idle machine; the limit leaves room for a busy one.
    assert time.perf_counter() - started < 3


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == "longspan 0.1.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doktor"], 'Did you mean "doctor"?'),
        (["doctor", "--jsn"], "--jsn"),
        (["doctor", "extra"], "extra"),
        (["chat"], "MODEL"),
        (["complete", "demo", "--prompt", "x", "--stages", "0"], "stages"),
        (["complete", "demo", "--prompt", "x", "--max-tokens", "many"], "many"),
    ],
)
def test_wrong_use_ends_with_2_and_says_where_help_is(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "See: longspan" in captured.err
    assert "Traceback" not in captured.err


def error_classes(base: type[errors.LongspanError]) -> list[type[errors.LongspanError]]:
    return [base, *(found for child in base.__subclasses__() for found in error_classes(child))]


@pytest.mark.parametrize("kind", error_classes(errors.LongspanError), ids=lambda kind: kind.__name__)
def test_every_error_is_a_message_and_its_exit_code(
    kind: type[errors.LongspanError],
    run_as_command: Callable[[Callable[[], object]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        error = kind.__new__(kind, "the file is short; fetch it again")
        Exception.__init__(error, "the file is short; fetch it again")
        raise error

    assert run_as_command(fail) == kind.exit_code != 0
    assert capsys.readouterr().err == "longspan: the file is short; fetch it again\n"


def test_a_bug_is_called_a_bug(
    run_as_command: Callable[[Callable[[], object]], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise KeyError("slot")

    assert run_as_command(fail) == 70
    error = capsys.readouterr().err
    assert "bug" in error and "LONGSPAN_DEBUG=1" in error and "Traceback" not in error
    monkeypatch.setenv("LONGSPAN_DEBUG", "1")
    with pytest.raises(KeyError):
        run_as_command(fail)


def test_interruption_ends_with_130(run_as_command: Callable[[Callable[[], object]], int]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    assert run_as_command(interrupt) == 130


def test_result_of_a_command_is_the_exit_code(run_as_command: Callable[[Callable[[], object]], int]) -> None:
    assert run_as_command(lambda: 1) == 1
    assert run_as_command(lambda: None) == 0


def test_a_closed_pipe_is_quiet() -> None:
    script = "import sys; from longspan.cli.main import main; sys.exit(main(['doctor', '--json']))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors_seen = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert errors_seen == b""


def test_python_m_longspan_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "longspan", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("longspan: ")
