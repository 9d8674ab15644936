"""Grammars: which tokens of a vocabulary may come next, by llguidance.

A grammar travels as one text, in llguidance's own JSON form, from whoever asked for it to the last stage. There a
`Matcher` follows the answer token by token; it can go back, so what it allows depends on nothing but the path.
"""

from __future__ import annotations

import collections
import functools
import json
import threading
from collections.abc import Sequence
from typing import Any

import llguidance
import llguidance.gbnf_to_lark
import numpy as np
import numpy.typing as npt

from longspan.errors import LongspanError, RequestError
from longspan.model.tokenizer import Tokenizer
from longspan.sampling.parameters import MAX_GRAMMAR_BYTES

Allowed = npt.NDArray[np.bool_]
"""(vocabulary,): whether each token may come."""

_WHITESPACE = r"( |\n[ \t]{0,16})?"
"""Between the tokens of JSON: a space, or a new line and its indentation. No more, because a weak model that may go
on with empty lines does so at every place where it may, and comes to no end."""

_KNOWN_GRAMMARS = 64
"""Grammars that a vocabulary keeps compiled."""

_STACK_BYTES = 512 << 20
"""Address space for compiling a grammar. The compiler recurses along chains of rules: 2,000 of them, 60 KB of text,
end a process whose stack has the usual 8 MB."""

_big_stack = threading.Lock()
_LIMITS = llguidance.LLParserLimits(max_grammar_size=100_000, verbose_errors=False)
_MARK = "\x02"


class GrammarError(LongspanError):
    """A grammar that was accepted went beyond what the parser can do, in the middle of an answer."""


def schema_grammar(schema: Any, *, whitespace: str | None = None) -> str:
    """The grammar of JSON texts that a JSON schema (a dict, or true for any JSON) accepts.

    whitespace: regular expression of what may stand between the tokens of the JSON, "" for nothing.
    Raises RequestError for a schema that is nested too deeply to be read.
    """
    if not isinstance(schema, dict):
        schema = {} if schema is True else {"enum": []}
    pattern = _WHITESPACE if whitespace is None else whitespace
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": pattern})
    except (RecursionError, ValueError) as error:
        raise RequestError(f"the schema cannot be read: {error}") from None


def regex_grammar(regex: str) -> str:
    """The grammar of the texts that a regular expression matches from their first to their last character."""
    return llguidance.LLMatcher.grammar_from_regex(regex)


def choice_grammar(choices: Sequence[str]) -> str:
    """The grammar of exactly these texts."""
    return lark_grammar("start: " + " | ".join(map(lark_text, choices)))


def lark_grammar(text: str) -> str:
    """The grammar of a text in llguidance's dialect of Lark."""
    return llguidance.LLMatcher.grammar_from_lark(text)


def lark_text(text: str) -> str:
    """A text as a string of a Lark grammar."""
    return json.dumps(text)


def written_grammar(text: str) -> str:
    """The grammar of a text in Lark or GBNF (the form of llama.cpp). Raises RequestError for a text in neither."""
    try:
        return lark_grammar(llguidance.gbnf_to_lark.any_to_lark(text))
    except (llguidance.gbnf_to_lark.GbnfToLarkError, RecursionError) as error:
        raise RequestError(f"the grammar is neither Lark nor GBNF: {error}") from None


def grammar_within(rules: str, name: str, grammar: str) -> str:
    """The grammar of Lark rules in which `@name` stands for another grammar."""
    parts = json.loads(grammar)["grammars"] if grammar.startswith("{") else [{"lark_grammar": grammar}]
    parts = [{**parts[0], "name": name}, *parts[1:]]
    return json.dumps({"grammars": [{"lark_grammar": rules}, *parts]})


class Matcher:
    """Follows answers along one grammar; not for several threads at once.

    end_tokens: what ends an answer. They are allowed where the grammar is complete, all of them, and then for ever.
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary_size: int, end_tokens: frozenset[int]) -> None:
        self._matcher = matcher
        self._size = vocabulary_size
        self._end_tokens = end_tokens
        self._path: list[int] = []

    def allowed(self, answer: Sequence[int]) -> Allowed | None:
        """What may follow `answer`; None when `answer` itself is against the grammar, so that nothing is known.

        Raises GrammarError when the parser gave up.
        """
        if not self._follow(answer):
            ended = answer[len(self._path)] in self._end_tokens and self._matcher.is_accepting()
            return self._ends if ended else None
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)

    def forced(self, answer: Sequence[int]) -> list[int]:
        """Tokens that most likely follow `answer` because the grammar leaves nothing else to say; often none.

        The same text can come in other tokens, so they are good drafts, not more.
        """
        return self._matcher.compute_ff_tokens() if self._follow(answer) else []

    @functools.cached_property
    def _ends(self) -> Allowed:
        result = np.zeros(self._size, np.bool_)
        result[list(self._end_tokens)] = True
        return result

    def _follow(self, answer: Sequence[int]) -> bool:
        """Go to the state after `answer`; whether the grammar allows it, without an end token."""
        path = self._path
        common = _common_length(path, answer)
        if common < len(path):
            self._matcher.rollback(len(path) - common)
            del path[common:]
        rest = list(answer[common:])
        # The matcher never sees an end token: it could not be taken back.
        end = next((place for place, token in enumerate(rest) if token in self._end_tokens), len(rest))
        taken = self._matcher.try_consume_tokens(rest[:end])
        path += rest[:taken]
        self._check()
        return taken == len(rest)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot be followed: {self._matcher.get_error()}")


class GrammarVocabulary:
    """One model's vocabulary, prepared for grammars at the first use (about a second for 50,000 tokens).

    Every method may be called from any thread.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiled: collections.OrderedDict[str, llguidance.LLMatcher] = collections.OrderedDict()
        self._prepared: llguidance.LLTokenizer | None = None

    def check(self, grammar: str, param: str) -> None:
        """Raise RequestError, naming `param`, for a grammar that cannot be honoured."""
        if (size := len(grammar.encode("utf-8", "replace"))) > MAX_GRAMMAR_BYTES:
            raise RequestError(f"`{param}` has {size} bytes, at most {MAX_GRAMMAR_BYTES} are possible", param=param)
        try:
            allowed = self.matcher(grammar).allowed(())
        except GrammarError as error:
            reason = " ".join(str(error).split())[:500]
        else:
            if allowed is not None and allowed.any():
                return
            reason = "no text follows it"
        raise RequestError(f"`{param}` cannot be honoured: {reason}", param=param, code="unsupported_grammar")

    def matcher(self, grammar: str) -> Matcher:
        """A new matcher. Raises GrammarError for a grammar that `check` refuses."""
        compiled = self._matcher(grammar)
        if compiled.is_error():
            raise GrammarError(compiled.get_error())
        return Matcher(compiled.deep_copy(), self._tokenizer.vocabulary_size, self._tokenizer.end_tokens)

    def _matcher(self, grammar: str) -> llguidance.LLMatcher:
        with self._lock:
            found = self._compiled.get(grammar)
            if found is None:
                found = self._compiled[grammar] = self._compile(grammar)
                if len(self._compiled) > _KNOWN_GRAMMARS:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return found

    def _compile(self, grammar: str) -> llguidance.LLMatcher:
        vocabulary = self._vocabulary()
        found: list[llguidance.LLMatcher] = []

        def compile_grammar() -> None:
            found.append(llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS))

        with _big_stack:
            before = threading.stack_size(_STACK_BYTES)
            try:
                thread = threading.Thread(target=compile_grammar, name="longspan-grammar")
                thread.start()
            finally:
                threading.stack_size(before)
        thread.join()
        return found[0]

    def _vocabulary(self) -> llguidance.LLTokenizer:
        if self._prepared is None:
            tokenizer = self._tokenizer
            ends = sorted(tokenizer.end_tokens)
            if not ends:
                raise RequestError("the model has no end token, so no answer can follow a grammar to its end")
            wrapper = llguidance.TokenizerWrapper(_Words(tokenizer, ends[0]))
            self._prepared = llguidance.LLTokenizer(wrapper, eos_token=ends)
        return self._prepared


class _Words:
    """A tokenizer in the form that llguidance takes."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos
        self.tokens = tokenizer.pieces
        self.special_token_ids = [
            token for token in range(tokenizer.vocabulary_size) if not tokenizer.visible_piece(token)
        ]
        self._tokenizer = tokenizer
        self._mark = self._encode(_MARK)

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens of a text in the middle of another one: without the space that some models put in front."""
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        tokens, length = self._encode(_MARK + text), len(self._mark)
        return tokens[length:] if tokens[:length] == self._mark else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False, parse_special=False)


def _common_length(first: list[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    if first == list(second[: len(first)]):
        return len(first)
    return next(
        (place for place, (one, other) in enumerate(zip(first, second, strict=False)) if one != other),
        min(len(first), len(second)),
    )
