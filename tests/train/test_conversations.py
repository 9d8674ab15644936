from __future__ import annotations

import numpy as np
import pytest

from longspan.errors import ModelError
from longspan.model.source import GgufSource
from longspan.model.tokenizer import Tokenizer
from longspan.train.conversations import MOST_USER_TOKENS, Conversations, turn_tokens
from tests.tiny_models import END_TOKEN, write_tiny_model

LETTER = 70


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> GgufSource:
    return GgufSource(write_tiny_model(tmp_path_factory.mktemp("conversations") / "tiny.gguf", "llama", layers=1))


@pytest.fixture(scope="module")
def tokenizer(source: GgufSource) -> Tokenizer:
    return Tokenizer(source.vocabulary_file())


def spoken(source: GgufSource, tokenizer: Tokenizer, says: list[int]) -> tuple[str, str]:
    """A conversation in which the model says these tokens, as text; and what of it the assistant said."""
    conversations = Conversations(turn_tokens(source, tokenizer), tokenizer, 3, seed=1)
    opening = len(conversations._queue[0]) + 1
    tokens, said = [], []
    for token in [LETTER] * opening + says:
        row, flags = conversations.advance(np.full(3, token, np.int32))
        tokens.append(int(row[0]))
        said.append(bool(flags[0]))
    answer = [token for token, flag in zip(tokens, said, strict=True) if flag]
    return tokenizer.decode(tokens, special=True), tokenizer.decode(answer, special=True)


def test_turns_follow_the_template(source: GgufSource, tokenizer: Tokenizer) -> None:
    text, answer = spoken(source, tokenizer, [END_TOKEN] + [LETTER] * 60 + [END_TOKEN] + [LETTER] * 60)
    letter = tokenizer.decode([LETTER])
    assert text.startswith("<|im_start|>user\n")
    users, rest = text.split("<|im_end|>\n<|im_start|>assistant\n", 1)
    assert users.endswith(letter)
    said, later = rest.split("<|im_end|>\n<|im_start|>user\n", 1)
    assert answer == said + "<|im_end|>", "the end of an answer is its assistant's, the template is nobody's"
    assert set(said) == {letter}
    assert "<|im_end|><|im_end|>" not in text
    assert later.startswith(letter)


def test_a_user_who_does_not_end_is_ended(source: GgufSource, tokenizer: Tokenizer) -> None:
    text, answer = spoken(source, tokenizer, [LETTER] * (MOST_USER_TOKENS + 60))
    assert text.count("<|im_start|>assistant\n") == 1
    assert answer


def test_temperatures_are_those_of_who_speaks(source: GgufSource, tokenizer: Tokenizer) -> None:
    conversations = Conversations(turn_tokens(source, tokenizer), tokenizer, 64, seed=1)
    assert (conversations.temperatures == 1.0).all()
    for _ in range(400):
        conversations.advance(np.full(64, END_TOKEN, np.int32))
    greedy = conversations.temperatures[conversations._answering] == 0.0
    assert 0.2 < greedy.mean() < 0.8


def test_a_model_without_template_is_refused(source: GgufSource, tokenizer: Tokenizer) -> None:
    class Bare(GgufSource):
        chat_template = None

    class Changed(GgufSource):
        chat_template = "{% for message in messages %}{{ message['content'] | lower }}{% endfor %}"

    with pytest.raises(ModelError, match="no chat template"):
        turn_tokens(Bare(source.path), tokenizer)
    with pytest.raises(ModelError, match="does not repeat"):
        turn_tokens(Changed(source.path), tokenizer)
