"""The uncommon words of a slot."""

from __future__ import annotations

import numpy as np
import pytest

from longspan.model.embedding import TokenEmbedding
from longspan.model.source import GgufSource
from longspan.runtime import draft_lexicon
from longspan.runtime.draft_lexicon import DraftLexicon
from tests.tiny_models import write_tiny_model

COMMON = 100


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> TokenEmbedding:
    return GgufSource(write_tiny_model(tmp_path_factory.mktemp("lexicon") / "tiny.gguf", "llama")).token_embedding()


@pytest.fixture
def lexicon(matrix: TokenEmbedding) -> DraftLexicon:
    common = np.zeros(matrix.vocabulary, np.bool_)
    common[:COMMON] = True
    return DraftLexicon(matrix, common)


def test_only_uncommon_tokens_of_the_vocabulary_are_remembered(
    lexicon: DraftLexicon, matrix: TokenEmbedding
) -> None:
    lexicon.note([5, 150, 99, 100, 150, -1, matrix.vocabulary, 1 << 40])
    assert sorted(lexicon.tokens.tolist()) == [100, 150]
    lexicon.note([150, 7])
    assert len(lexicon.tokens) == 2


def test_their_logits_are_those_of_the_output_matrix(lexicon: DraftLexicon, matrix: TokenEmbedding) -> None:
    lexicon.note([201, 150, 120])
    hidden = np.random.default_rng(0).standard_normal(matrix.width).astype(np.float32)
    expected = matrix.rows(lexicon.tokens) @ hidden
    assert np.allclose(lexicon.logits(hidden), expected, rtol=1e-5)


def test_the_oldest_give_way(
    lexicon: DraftLexicon, matrix: TokenEmbedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_lexicon, "MOST_WORDS", 4)
    for token in (110, 111, 112):
        lexicon.note([token])
    lexicon.note([113, 114])
    assert sorted(lexicon.tokens.tolist()) == [111, 112, 113, 114]
    lexicon.note([110])
    assert sorted(lexicon.tokens.tolist()) == [110, 112, 113, 114]
    lexicon.note(range(120, 130))
    assert sorted(lexicon.tokens.tolist()) == [126, 127, 128, 129]
    hidden = np.ones(matrix.width, np.float32)
    assert np.allclose(lexicon.logits(hidden), matrix.rows(lexicon.tokens).sum(axis=1), rtol=1e-4)


def test_a_copy_goes_its_own_way(lexicon: DraftLexicon) -> None:
    lexicon.note([150])
    other = lexicon.copy()
    other.note([160])
    lexicon.note([170])
    assert sorted(other.tokens.tolist()) == [150, 160]
    assert sorted(lexicon.tokens.tolist()) == [150, 170]
