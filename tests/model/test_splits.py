from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import UsageError
from longspan.model.splits import even_splits, parse_splits


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 8))
def test_even_splits_cover_every_layer_once_and_are_even(layers: int, stages: int, multiple: int) -> None:
    groups = -(-layers // multiple)
    if stages > groups:
        with pytest.raises(UsageError, match=f"at most {groups} stages"):
            even_splits(layers, stages, multiple)
        return
    splits = even_splits(layers, stages, multiple)
    assert len(splits) == stages
    assert [layer for start, end in splits for layer in range(start, end)] == list(range(layers))
    assert all(start % multiple == 0 for start, _ in splits)
    sizes = [-(-(end - start) // multiple) for start, end in splits]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_no_stages_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        even_splits(4, 0)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_parse_splits_reads_what_was_written(sizes: list[int]) -> None:
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    splits = list(zip([0, *ends[:-1]], ends, strict=True))
    text = ",".join(f"{start}-{end}" for start, end in splits)
    assert parse_splits(text, ends[-1]) == splits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a layer range"),
        ("0-15,", "is not a layer range"),
        ("0:15,15:30", "is not a layer range"),
        ("-1-15,15-30", "is not a layer range"),
        ("0-15,15-31", "goes past the model's 30 layers"),
        ("0-15,15-15,15-30", "15-15 is empty"),
        ("0-20,15-30", "overlaps the one before, which ends at 20"),
        ("0-10,15-30", "no stage holds the layers 10-15"),
        ("5-30", "no stage holds the layers 0-5"),
        ("0-15,15-29", "no stage holds the layers 29-30"),
        ("0-99999999", "is not a layer range"),
    ],
)
def test_bad_splits_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_splits(text, 30)
