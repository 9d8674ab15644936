"""The metrics block of an answer."""

from __future__ import annotations

import msgspec
import pytest

from longspan.request import DraftFigures, Timings
from longspan.server.openai.usage import answer_metrics


def test_what_became_of_the_drafts() -> None:
    drafts = DraftFigures(windows=4, drafts=7, accepted=3, histogram=(2, 1, 1))
    block = msgspec.to_builtins(answer_metrics(Timings(0.0, 0.5, 1.0, 2, 0, 8, drafts)))
    assert block["speculative_decoding"] == {
        "mean_acceptance_length": pytest.approx(1.75),
        "draft_acceptance_rate": pytest.approx(3 / 7),
        "acceptance_histogram": (2, 1, 1),
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 7,
    }


def test_without_drafts_there_is_no_such_block() -> None:
    assert "speculative_decoding" not in msgspec.to_builtins(answer_metrics(Timings(0.0, 0.5, 1.0, 2, 0, 8)))
