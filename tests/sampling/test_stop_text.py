"""Stop strings: the same answer however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.sampling.stop_text import StopMatcher

texts = st.text("abc", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def run(pieces: list[str], stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop=include_stop)
    answer = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    return answer, matcher.matched


def oracle(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """By definition: the first character at which some stop string is complete, the longest one there."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


@given(texts, stop_lists, st.lists(st.integers(0, 30)), st.booleans())
def test_the_cut_does_not_matter(text: str, stops: list[str], cuts: list[int], include_stop: bool) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    assert run(pieces, stops, include_stop) == oracle(text, stops, include_stop)


@given(texts, stop_lists)
def test_no_more_is_held_back_than_could_begin_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = out = ""
    for character in text:
        seen += character
        out += matcher.push(character)
        if matcher.stopped:
            break
        held = seen[len(out) :]
        assert out + held == seen
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_three_pieces() -> None:
    matcher = StopMatcher(["<|end|>"])
    assert [matcher.push(piece) for piece in ("answer<", "|en", "d|> and more")] == ["answer", "", ""]
    assert matcher.stopped
    assert matcher.matched == "<|end|>"


def test_a_false_beginning_goes_out_once_it_is_one() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("one\n\nUs") == "one"
    assert matcher.push("ed") == "\n\nUsed"
    assert matcher.push("\n") == ""
    assert matcher.flush() == "\n"
    assert not matcher.stopped


def test_text_after_the_stop_is_dropped() -> None:
    matcher = StopMatcher(["b"], include_stop=True)
    assert matcher.push("abc") == "ab"
    assert matcher.push("d") == ""
    assert matcher.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
