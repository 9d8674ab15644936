"""The example of docs/guides/proposers.md, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from longspan.runtime.base import Capacity
from longspan.runtime.script import Script, scripted_tokens
from longspan.runtime.scripted import ScriptedRuntime
from longspan.sampling.parameters import SamplingParameters
from longspan.speculate.acceptance import CommonBooks, SequenceBooks
from longspan.speculate.proposer import Proposer
from longspan.speculate.proposers import DRAFT, PROPOSERS, proposer_maker
from tests.speculate.toy_planner import ToyPlanner

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "proposers.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
LINE_BREAK = 198


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Proposer:
    """The guide's proposer, entered by name as the guide does it."""
    monkeypatch.setattr("longspan.speculate.proposers.PROPOSERS", dict(PROPOSERS))
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, names)  # noqa: S102  the guide is ours
    return proposer_maker("numbers")(SequenceBooks(CommonBooks()))


def test_the_example_has_thirty_lines() -> None:
    code = [line for line in BLOCKS[0].splitlines() if line.strip() and not line.startswith(("from", "import"))]
    assert len(code) <= 30


def test_the_example_drafts_the_next_number(numbers: Proposer) -> None:
    assert numbers.propose([], 4).tokens == ()
    numbers.observe([33, 7, 8, LINE_BREAK])
    draft = numbers.propose([], 4)
    assert (list(draft.tokens), draft.continues) == ([34], False)
    assert list(numbers.propose([34, 5, LINE_BREAK], 4).tokens) == [34]
    assert numbers.propose([34], 4).tokens == ()
    numbers.observe([34, 33, LINE_BREAK])
    assert list(numbers.propose([], 4).tokens) == [35]


def test_with_the_example_the_tokens_are_the_same(numbers: Proposer) -> None:
    script = Script(vocabulary=256, repeat=0.8, confidence=8.0)
    capacity = Capacity(slots=1, cells_per_slot=512, max_rows=512, exact_rows=512)
    stages = [ScriptedRuntime(script, last=last, capacity=capacity) for last in (False, True)]
    planner = ToyPlanner(script, stages, slots=1)
    prompt = [33, 5, LINE_BREAK, 34, 5, LINE_BREAK, 35, 5, LINE_BREAK]
    sequence = planner.submit(prompt, 40, numbers, SamplingParameters())
    while not sequence.ended:
        planner.plan(lambda _: 4)
        planner.complete()
    assert sequence.tokens[len(prompt) :] == scripted_tokens(script, prompt, 40, SamplingParameters())


def test_the_guide_names_every_proposer() -> None:
    named = set(re.findall(r"^\| `([^`]+)` \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {*PROPOSERS, DRAFT}
