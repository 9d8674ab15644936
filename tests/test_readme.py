"""What the README and the guides say can be done, can be done."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import cyclopts
import pytest

from longspan.cli.main import build_app
from longspan.model.architecture import ARCHITECTURES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")

OTHER_PROGRAMS = {"git", "pip", "curl", "cd", "haproxy"}
"""What a command line in our pages may start with, besides `longspan` and `make`."""


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of all fenced blocks of a language."""
    return [
        (str(page.relative_to(ROOT)), found[2])
        for page in PAGES
        for found in FENCE.finditer(page.read_text(encoding="utf-8"))
        if found[1] == language
    ]


COMMAND_LINES = [
    (page, line.removeprefix("$ "))
    for page, text in blocks("console")
    for line in text.splitlines()
    if line.startswith("$ ")
]

MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_the_pages_show_commands() -> None:
    assert {line.split()[0] for _, line in COMMAND_LINES} >= {"longspan", "make"}


def test_two_commands_stand_at_the_top() -> None:
    assert [line for page, line in COMMAND_LINES if page == "README.md"][:2] == ["make demo", "make test"]


@pytest.mark.parametrize(("page", "line"), COMMAND_LINES)
def test_a_command_line_is_one_that_works(page: str, line: str) -> None:
    for part in re.split(r"\s(?:\||&&)\s", line):
        words = [word for word in shlex.split(part, comments=True) if not re.match(r"^\w+=", word)]
        words = words[: next((i for i, word in enumerate(words) if word in ("<", ">")), len(words))]
        if words[0] == "make":
            assert set(words[1:]) <= MAKE_TARGETS, f"{page}: {part}"
        elif words[0] == "longspan":
            assert_parses(page, words[1:])
        else:
            assert words[0] in OTHER_PROGRAMS | {"printf"}, f"{page}: {part}"


def assert_parses(page: str, arguments: list[str]) -> None:
    """The command line takes these arguments; nothing is run."""
    try:
        build_app(arguments).parse_args(arguments, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        pytest.fail(f"{page}: longspan {shlex.join(arguments)}: {error}")


def test_a_wrong_command_line_would_be_seen() -> None:
    with pytest.raises(pytest.fail.Exception, match="--stagess"):
        assert_parses("README.md", ["chat", "demo", "--stagess", "2"])


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python_blocks_are_python(page: str, text: str) -> None:
    ast.parse(text, page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_guide_lists_the_architectures_that_can_be_split() -> None:
    page = (ROOT / "docs" / "guides" / "models.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- architectures -->\n")[2].partition("<!-- end of architectures -->")[0]
    assert re.findall(r"`([^`]+)`", listed) == sorted(ARCHITECTURES)


def test_every_dependency_has_its_reason() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"[a-z0-9_-]+", " ".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))))
    project = re.findall(
        r'^    "([A-Za-z0-9_-]+)[><=]', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M
    )
    assert set(project) <= listed
    assert len(project) > 15
