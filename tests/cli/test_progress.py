"""What a person sees of long work, on a terminal and elsewhere."""

from __future__ import annotations

import contextlib
import io

import pytest

from longspan.cli.progress import ProgressBars, progress_line


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def work() -> None:
    bars = ProgressBars()
    bars.start("fetching demo", 1000)
    bars.advance(600)
    bars.finish()


def test_off_a_terminal_a_line_says_what_begins(capsys: pytest.CaptureFixture[str]) -> None:
    work()
    assert capsys.readouterr() == ("", "fetching demo …\n")


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with contextlib.redirect_stderr(Terminal()) as terminal:
        work()
    assert "fetching demo" in terminal.getvalue()
    assert "600/1,000 bytes" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_off_a_terminal_every_text_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_line() as show:
        show("loading")
        show("checking")
    assert capsys.readouterr() == ("", "loading\nchecking\n")


def test_on_a_terminal_the_line_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with contextlib.redirect_stderr(Terminal()) as terminal, progress_line() as show:
        show("loading")
    assert terminal.getvalue().rstrip("\r").endswith("\x1b[2K")
