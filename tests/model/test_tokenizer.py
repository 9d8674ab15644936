"""The tokenizer over small vocabularies: byte-level BPE, and SentencePiece with byte fallback."""

from __future__ import annotations

import concurrent.futures
import random
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.errors import ModelError, UsageError
from longspan.model import tokenizer as tokenizer_module
from longspan.model.detokenizer import IncrementalDetokenizer
from longspan.model.tokenizer import Tokenizer
from tests.tiny_models import BEGIN_TOKEN, END_TOKEN, write_tiny_model

WORDS = ("▁", "▁the", "▁ca", "t", "▁cat", "a", "c", "e", "h", "th", "the", "▁t", "▁c")


def write_sentencepiece(path: Path) -> Path:
    """<unk> <s> </s> <turn>, 256 byte tokens, a few words; `<s>` is put in front of every prompt."""
    writer = gguf.GGUFWriter(path, "llama")
    control, byte, normal = gguf.TokenType.CONTROL, gguf.TokenType.BYTE, gguf.TokenType.NORMAL
    names = ["<unk>", "<s>", "</s>", "<turn>", *(f"<0x{value:02X}>" for value in range(256)), *WORDS]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * 260 + [-float(index) for index in range(len(WORDS))])
    writer.add_token_types(
        [gguf.TokenType.UNKNOWN, control, control, control, *[byte] * 256, *[normal] * len(WORDS)]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_without_vocabulary(path: Path) -> Path:
    """What a middle stage is: no tokenizer at all."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tiny_model(tmp_path_factory.mktemp("bpe") / "tiny.gguf", "llama", layers=1))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_sentencepiece(tmp_path_factory.mktemp("spm") / "tiny.gguf"))


@pytest.fixture(scope="module", params=["bpe", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    value: Tokenizer = request.getfixturevalue(request.param)
    return value


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False, parse_special=False)


@settings(deadline=None)
@given(text=st.text(max_size=40))
def test_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    # SentencePiece writes a space as U+2581, so the two are one character to it.
    text = text.replace("▁", "_")
    assert tokenizer.decode(plain(tokenizer, text)) == text


@settings(deadline=None)
@given(data=st.data())
def test_streamed_text_is_the_text_of_all_bytes(tokenizer: Tokenizer, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=40))
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in tokens]
    text = "".join(pieces) + detokenizer.flush()
    assert text == b"".join(map(tokenizer.visible_piece, tokens)).decode("utf-8", "replace")


@settings(deadline=None)
@given(text=st.text(min_size=1, max_size=20))
def test_no_character_is_ever_split(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in plain(tokenizer, text)]
    assert "�" not in "".join(pieces) or "�" in text
    assert detokenizer.flush() == ""


def test_an_unfinished_character_shows_at_the_end(sentencepiece: Tokenizer) -> None:
    first, second = "é".encode()
    detokenizer = IncrementalDetokenizer(sentencepiece)
    assert detokenizer.push(4 + first) == ""
    assert detokenizer.push(4 + second) == "é"
    assert detokenizer.push(4 + first) == ""
    assert detokenizer.flush() == "�"


def test_control_tokens_are_text_only_when_asked(bpe: Tokenizer) -> None:
    text = "the<|im_end|>"
    parsed = bpe.encode(text, add_special=False, parse_special=True)
    assert parsed[-1] == END_TOKEN
    assert END_TOKEN not in plain(bpe, text)
    assert bpe.decode(parsed) == "the"
    assert bpe.decode(parsed, special=True) == text
    assert bpe.piece(END_TOKEN) == b"<|im_end|>"
    assert bpe.visible_piece(END_TOKEN) == b""
    hidden, shown = IncrementalDetokenizer(bpe), IncrementalDetokenizer(bpe, special=True)
    assert "".join(map(hidden.push, parsed)) == "the"
    assert "".join(map(shown.push, parsed)) == text


def test_begin_and_end_tokens(bpe: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert (bpe.bos, bpe.eos, bpe.adds_bos) == (BEGIN_TOKEN, END_TOKEN, False)
    assert END_TOKEN in bpe.end_tokens
    assert BEGIN_TOKEN not in bpe.end_tokens
    assert (sentencepiece.bos, sentencepiece.eos, sentencepiece.adds_bos) == (1, 2, True)
    assert {2, 3} <= sentencepiece.end_tokens
    assert sentencepiece.encode("the", add_special=True, parse_special=False)[0] == 1
    assert sentencepiece.encode("the", add_special=False, parse_special=False)[0] != 1


def test_pieces_and_the_longest_text(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.pieces == [sentencepiece.piece(token) for token in range(sentencepiece.vocabulary_size)]
    assert sentencepiece.pieces[4 + 0x41] == b"A"
    assert sentencepiece.pieces[261] == b" the"
    assert sentencepiece.most_bytes(3) == 3 * len("<turn>")


def test_zero_bytes_are_text(bpe: Tokenizer) -> None:
    assert bpe.decode(plain(bpe, "a\0b")) == "a\0b"


@pytest.mark.parametrize("token", [-1, 1 << 31, 1 << 70])
def test_tokens_outside_of_the_vocabulary_are_refused(tokenizer: Tokenizer, token: int) -> None:
    for use in (tokenizer.piece, tokenizer.visible_piece, IncrementalDetokenizer(tokenizer).push):
        with pytest.raises(UsageError, match=f"token {token} is not in the vocabulary"):
            use(token)
    with pytest.raises(UsageError, match="not in the vocabulary"):
        tokenizer.decode([0, token])


def test_text_that_cannot_be_encoded_is_refused(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="surrogate at character 2"):
        plain(bpe, "ab\ud800")
    monkeypatch.setattr(tokenizer_module, "MAX_TEXT_BYTES", 10)
    assert plain(bpe, "0123456789")
    with pytest.raises(UsageError, match="11 bytes; at most 10"):
        plain(bpe, "0123456789a")


def test_many_threads_get_what_one_gets(bpe: Tokenizer) -> None:
    generator = random.Random(3)
    texts = ["".join(generator.choices("the cat and ions 中é<|im_end|>", k=400)) for _ in range(60)]
    alone = [bpe.encode(text, add_special=False, parse_special=True) for text in texts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: bpe.encode(text, add_special=False, parse_special=True), texts))
    assert together == alone


def test_files_that_hold_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.gguf"):
        Tokenizer(tmp_path / "missing.gguf")
    (tmp_path / "text.gguf").write_text("not a GGUF")
    with pytest.raises(ModelError, match="cannot read a vocabulary"):
        Tokenizer(tmp_path / "text.gguf")
    with pytest.raises(ModelError, match="holds no vocabulary"):
        Tokenizer(write_without_vocabulary(tmp_path / "stage.gguf"))
