"""The benchmark over distance: what it counts, and a short run of it."""

from __future__ import annotations

import pytest

from longspan.bench.wan import Wan, WanPlan
from longspan.bench.wan_texts import MOST_REQUESTS, TEXTS, prompts, repeated_share
from longspan.errors import UsageError
from longspan.model.chat_template import ChatTemplate
from longspan.model.reference import resolve
from longspan.model.tokenizer import Tokenizer


def test_the_repeated_share_counts_runs_of_eight_tokens_that_were_there_before() -> None:
    passage = list(range(20))
    assert repeated_share(passage, passage) == 1.0
    assert repeated_share(passage, [50, *passage[:9]]) == pytest.approx(0.9)
    assert repeated_share(passage, passage[:7]) == 0.0
    assert repeated_share([], [1] * 12) == pytest.approx(11 / 12)
    assert repeated_share(passage, []) == 0.0


def test_every_text_has_prompts_of_its_own() -> None:
    source = resolve("demo")
    tokenizer = Tokenizer(source.vocabulary_file())
    assert source.chat_template is not None
    template = ChatTemplate(source.chat_template)
    found = [prompt for text in TEXTS for prompt in prompts(text, tokenizer, template)]
    assert len(set(found)) == len(TEXTS) * MOST_REQUESTS
    assert prompts("copy", tokenizer, None)
    with pytest.raises(UsageError, match="no chat template"):
        prompts("prose", tokenizer, None)


def plan(**changes: object) -> WanPlan:
    settings: dict[str, object] = {
        "model": "demo",
        "texts": ("copy",),
        "delays_ms": (20.0,),
        "concurrency": (1,),
        "arms": ("none", "ngram-suffix"),
        "tokens": 40,
        "rounds": 1,
        "stages": 2,
        "threads": 1,
    }
    return WanPlan(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_plan_that_cannot_be_measured_is_refused() -> None:
    with pytest.raises(UsageError, match="compare"):
        plan(arms=("mtp",))
    with pytest.raises(UsageError, match="at most"):
        plan(concurrency=(1, MOST_REQUESTS + 1))


async def test_copying_over_a_slow_link_takes_fewer_trips_and_gives_the_same_tokens() -> None:
    found = await Wan(plan(), resolve("demo"), lambda _text: None).measure()
    none, copied = found.rows
    assert (none.arm, copied.arm) == ("none", "ngram-suffix")
    assert none.ratio_to_none == 1.0
    assert none.tokens_per_traversal == 1.0
    assert none.in_flight_average is None
    assert none.identical and copied.identical
    assert copied.tokens_per_traversal > 2
    assert copied.in_flight_average is not None and copied.in_flight_average > 1
    assert copied.stage_rate is not None and copied.stage_share is not None and none.stage_share is not None
    assert 0 < none.stage_share < copied.stage_share  # it may pass 1: both are measured, at different times
    assert copied.filled_tokens_per_second == pytest.approx(copied.stage_share * copied.stage_rate)
    (text,) = found.texts
    assert text.as_meant and text.repeated_share > 0.9
