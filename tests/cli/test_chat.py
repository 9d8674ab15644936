"""`longspan chat`: lines piped in, and a person at a terminal."""

from __future__ import annotations

import codecs
import os
import pty
import select
import subprocess
import sys
import time

COMMAND = [sys.executable, "-m", "longspan", "chat", "demo", "--threads", "1", "--slots", "1", "--context", "1024"]
DEADLINE_SECONDS = 60


def test_lines_piped_in_are_answered_one_after_the_other() -> None:
    lines = "Name a colour.\n/reset\n\nName another.\n/quit\nnot asked\n"
    done = subprocess.run(
        [*COMMAND, "--max-tokens", "8"], input=lines, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.count("tokens/s") == 2
    assert "Traceback" not in done.stderr


def test_the_conversation_is_remembered_until_reset() -> None:
    def prompt_lengths(lines: str) -> list[int]:
        done = subprocess.run(
            [*COMMAND, "--max-tokens", "4", "--system", "Be brief."],
            input=lines,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return [int(part.split()[0].rstrip("]")) for part in done.stdout.split("prompt ")[1:]]

    first, second, third = prompt_lengths("One.\nOne.\n/reset\nOne.\n")
    assert second > first == third


def test_a_question_that_is_too_long_does_not_end_the_conversation() -> None:
    done = subprocess.run(
        [*COMMAND, "--max-tokens", "4"],
        input="word " * 2000 + "\nName a colour.\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "positions" in done.stderr
    assert done.stdout.count("tokens/s") == 1


class Terminal:
    """A chat at a pseudo-terminal."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            COMMAND, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(theirs)
        self.seen = ""
        # A character may come in two reads.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def wait_for(self, text: str, *, pressing: str = "") -> None:
        """Read until `text` has come; it and what was before it are then forgotten.

        pressing: a key to press again each second. Python's input() sleeps through a signal that comes between the
        prompt and its first wait, until the next one.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not come, but {self.seen!r}"
            self.type(pressing)
            ready, _, _ = select.select([self._ours], [], [], 1)
            if ready:
                self.seen += self._decoder.decode(os.read(self._ours, 65536))
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def _own_terminal() -> None:
    """Makes the pseudo-terminal the process's own, so that Ctrl-C typed there reaches it as a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    terminal = Terminal()
    try:
        terminal.wait_for("› ")
        terminal.type("Write a very long story about a river.\n")
        terminal.wait_for("river.")
        terminal.wait_for("the")
        terminal.type("\x03")
        terminal.wait_for("[stopped]")
        terminal.wait_for("› ")
        terminal.wait_for("Ctrl-D leaves", pressing="\x03")
        terminal.type("/help\n")
        terminal.wait_for("/reset")
        terminal.wait_for("› ")
        terminal.type("/quit\n")
        assert terminal.process.wait(timeout=20) == 0
    finally:
        terminal.close()
