"""Text to tokens and back, by llama.cpp's own tokenizer over a vocabulary-only load."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from ctypes import c_int32
from pathlib import Path

from longspan.errors import ModelError, UsageError
from longspan.llamacpp.library import Library, load_library

MAX_TEXT_BYTES = 1 << 25
"""Longest text that is tokenized in one call, as UTF-8; time and memory grow linearly with it."""

_VOCABULARY_TYPE_NONE = 0
# llama_token_attr: tokens of these kinds are not text that a model means to say.
_ATTRIBUTE_UNKNOWN = 1
_ATTRIBUTE_CONTROL = 8
_PIECE_BUFFER = 512


class Tokenizer:
    """The vocabulary of one model. Every method may be called from any thread.

    vocabulary_size: token ids are 0 … vocabulary_size - 1.
    end_tokens: every token that ends an answer (end of sequence, of turn, of message).
    bos, eos: None when the vocabulary has none. adds_bos: whether the model expects `bos` before its prompt.

    Raises ModelError when the file cannot be read or holds no vocabulary.
    """

    def __init__(self, vocabulary_file: Path, *, library: Library | None = None) -> None:
        self._library = library or load_library()
        parameters = self._library.llama_model_default_params()
        parameters.vocab_only = True
        model = self._library.llama_model_load_from_file(os.fsencode(vocabulary_file), parameters)
        if not model:
            reason = self._library.explain() or "llama.cpp gave no reason"
            raise ModelError(
                f"cannot read a vocabulary from {vocabulary_file}: {reason}. Give a complete GGUF with a tokenizer."
            )
        # Not at interpreter exit: a worker thread may still be inside the library, and the process frees it anyway.
        weakref.finalize(self, self._library.llama_model_free, model).atexit = False
        self._vocabulary = self._library.llama_model_get_vocab(model)
        if self._library.llama_vocab_type(self._vocabulary) == _VOCABULARY_TYPE_NONE:
            raise ModelError(f"{vocabulary_file} holds no vocabulary: give the GGUF of a whole model.")
        self.vocabulary_size: int = self._library.llama_vocab_n_tokens(self._vocabulary)
        self.bos = self._token_or_none(self._library.llama_vocab_bos(self._vocabulary))
        self.eos = self._token_or_none(self._library.llama_vocab_eos(self._vocabulary))
        self.adds_bos: bool = self.bos is not None and bool(self._library.llama_vocab_get_add_bos(self._vocabulary))
        is_end, vocabulary = self._library.llama_vocab_is_eog, self._vocabulary
        self.end_tokens = frozenset(token for token in range(self.vocabulary_size) if is_end(vocabulary, token))
        self._pieces: list[bytes | None] = [None] * self.vocabulary_size
        self._visible: list[bytes | None] = [None] * self.vocabulary_size
        self._longest_piece = 0

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`.

        add_special: put the tokens around it that the model expects (its `bos`, …).
        parse_special: read the text of a control token ("<|im_end|>") as that token, not as characters.
        Raises UsageError for a text longer than MAX_TEXT_BYTES or with unpaired surrogates.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text holds an unpaired surrogate at character {error.start}, which is no text; remove it."
            ) from error
        if len(data) > MAX_TEXT_BYTES:
            raise UsageError(f"the text has {len(data)} bytes; at most {MAX_TEXT_BYTES} can be tokenized at once.")
        # A token covers at least one byte, beside the special ones and a space put in front.
        room = len(data) + 8
        while True:
            tokens = (c_int32 * room)()
            count: int = self._library.llama_tokenize(
                self._vocabulary, data, len(data), tokens, room, add_special, parse_special
            )
            if count >= 0:
                return list(tokens[:count])
            if -count <= room:
                raise ModelError(f"llama.cpp could not tokenize a text of {len(data)} bytes.")
            room = -count

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of `tokens`; bytes that are not UTF-8 become U+FFFD.

        special: whether control tokens are written out. Raises UsageError for a token outside of the vocabulary.
        """
        for token in tokens:
            self._check(token)
        data = (c_int32 * len(tokens))(*tokens)
        room = 16 * len(tokens) + 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            length: int = self._library.llama_detokenize(
                self._vocabulary, data, len(tokens), buffer, room, False, special
            )
            if length >= 0:
                return buffer.raw[:length].decode("utf-8", "replace")
            room = -length

    def piece(self, token: int) -> bytes:
        """Bytes that `token` stands for, control tokens written out. Raises UsageError for an unknown token."""
        self._check(token)
        piece = self._pieces[token]
        return self._read_piece(token)[0] if piece is None else piece

    def visible_piece(self, token: int) -> bytes:
        """Bytes that `token` adds to an answer, none for control tokens. Raises UsageError for an unknown token."""
        self._check(token)
        piece = self._visible[token]
        return self._read_piece(token)[1] if piece is None else piece

    @property
    def pieces(self) -> list[bytes]:
        """`piece` of every token, in order. The first use reads the whole vocabulary."""
        return [self.piece(token) for token in range(self.vocabulary_size)]

    def most_bytes(self, tokens: int) -> int:
        """Bytes of the longest text that fits in `tokens` tokens: a bound that saves tokenizing a longer one."""
        if not self._longest_piece:
            self._longest_piece = max(map(len, self.pieces), default=1)
        return tokens * self._longest_piece

    def _check(self, token: int) -> None:
        # The library ends the process for a token that it does not know.
        if not 0 <= token < self.vocabulary_size:
            raise UsageError(
                f"token {token} is not in the vocabulary; token ids go from 0 to {self.vocabulary_size - 1}."
            )

    def _read_piece(self, token: int) -> tuple[bytes, bytes]:
        room = _PIECE_BUFFER
        while True:
            buffer = ctypes.create_string_buffer(room)
            length: int = self._library.llama_token_to_piece(self._vocabulary, token, buffer, room, 0, True)
            if length >= 0:
                break
            room = -length
        piece = buffer.raw[:length]
        attributes: int = self._library.llama_vocab_get_attr(self._vocabulary, token)
        visible = b"" if attributes & (_ATTRIBUTE_UNKNOWN | _ATTRIBUTE_CONTROL) else piece
        self._pieces[token] = piece
        self._visible[token] = visible
        return piece, visible

    @staticmethod
    def _token_or_none(token: int) -> int | None:
        return None if token < 0 else token
