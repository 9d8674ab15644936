from __future__ import annotations

from longspan.train.openers import openers


def test_a_seed_gives_the_same_questions_and_another_one_others() -> None:
    assert openers(50, 3) == openers(50, 3)
    assert openers(50, 3) != openers(50, 4)


def test_questions_differ_and_some_begin_with_nothing() -> None:
    found = openers(2000, 0)
    assert len(set(found)) > 800
    assert 0.1 < found.count("") / len(found) < 0.2
    assert not any("{" in text for text in found)
