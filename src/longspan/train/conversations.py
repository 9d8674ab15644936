"""Many conversations at once that a model writes with itself: its user's turns, its answers, and the words of its
chat template between them."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from longspan.errors import LongspanError, ModelError
from longspan.model.chat_template import ChatTemplate
from longspan.model.prompt import with_bos
from longspan.model.source import ModelSource
from longspan.model.tokenizer import Tokenizer
from longspan.train.openers import openers

Tokens = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

ANSWER_TEMPERATURES = (0.0, 0.0, 0.0, 0.3, 0.7, 1.0)
"""Half of the answers are greedy, as in the recipe of the demo's head."""
USER_TEMPERATURE = 1.0
MOST_USER_TOKENS = 96
"""A user's turn that does not end by itself is ended here."""

_MARKS = ("QXFIRSTQX", "QXANSWERQX", "QXSECONDQX")


@dataclasses.dataclass(frozen=True)
class TurnTokens:
    """What a template puts around turns.

    opening: before the first user's turn. to_answer: between a user's turn and the answer. to_user: between an
    answer and the next user's turn.
    """

    opening: tuple[int, ...]
    to_answer: tuple[int, ...]
    to_user: tuple[int, ...]


def turn_tokens(source: ModelSource, tokenizer: Tokenizer) -> TurnTokens:
    """Read them off the model's own chat template. Raises ModelError when it has none, or changes what is said."""
    if source.chat_template is None:
        raise ModelError(
            f"{source.path} has no chat template. A head is trained on what the model says in its own template: "
            "give a model that was made for chats."
        )
    template = _template(source.chat_template, tokenizer)
    first, answer, second = _MARKS
    asked = [{"role": "user", "content": first}]
    told = [*asked, {"role": "assistant", "content": answer}, {"role": "user", "content": second}]
    try:
        opening, to_answer = template.render(asked, add_generation_prompt=True).split(first)
        _, rest = template.render(told, add_generation_prompt=True).split(answer)
        to_user, _ = rest.split(second)
    except (ValueError, LongspanError) as error:
        raise ModelError(
            f"{source.path}: its chat template does not repeat a user's turn or an answer as it is ({error}), so "
            "there is no telling where turns begin. A head cannot be trained with it."
        ) from error

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special=False, parse_special=True))

    return TurnTokens(tuple(with_bos(tokenizer, list(encode(opening)))), encode(to_answer), encode(to_user))


def _template(text: str, tokenizer: Tokenizer) -> ChatTemplate:
    def word(token: int | None) -> str:
        return "" if token is None else tokenizer.piece(token).decode("utf-8", "replace")

    return ChatTemplate(text, word(tokenizer.bos), word(tokenizer.eos))


class Conversations:
    """Rows that speak in step: at every position each row has one token, sampled or put there by the template.

    Which rows a seed gives does not depend on what the model says.
    """

    def __init__(self, turns: TurnTokens, tokenizer: Tokenizer, count: int, seed: int) -> None:
        self._turns = turns
        self._ends = np.zeros(tokenizer.vocabulary_size, np.bool_)
        self._ends[list(tokenizer.end_tokens)] = True
        beginnings = [
            [*turns.opening, *tokenizer.encode(text, add_special=False, parse_special=False)]
            for text in openers(count, seed)
        ]
        room = max(*map(len, beginnings), len(turns.to_answer), len(turns.to_user))
        self._queue = np.zeros((count, room), np.int32)
        self._at = np.zeros(count, np.intp)
        self._until = np.zeros(count, np.intp)
        self._answering = np.zeros(count, np.bool_)
        self._spoken = np.zeros(count, np.int32)
        self._rows = np.arange(count)
        generator = np.random.default_rng(seed)
        self._own = generator.choice(np.array(ANSWER_TEMPERATURES, np.float32), count)
        for row, beginning in enumerate(beginnings):
            self._put(row, beginning)

    @property
    def temperatures(self) -> npt.NDArray[np.float32]:
        """(rows,): at which the next token is sampled; 0 for the likeliest."""
        return np.where(self._answering, self._own, np.float32(USER_TEMPERATURE))

    def advance(self, sampled: Tokens) -> tuple[Tokens, Flags]:
        """The next token of every row, (rows,), and which of them the assistant said.

        sampled: (rows,) what the model says next; not heard where the template speaks.
        """
        forced = self._at < self._until
        place = np.minimum(self._at, self._queue.shape[1] - 1)
        tokens = np.where(forced, self._queue[self._rows, place], sampled).astype(np.int32)
        self._at += forced
        said = ~forced & self._answering
        self._spoken += ~forced
        ended = ~forced & self._ends[tokens]
        silenced = ~forced & ~self._answering & (self._spoken >= MOST_USER_TOKENS)
        for row in np.flatnonzero(ended | silenced):
            self._next_turn(int(row), int(tokens[row]))
        return tokens, said

    def _next_turn(self, row: int, last: int) -> None:
        between = self._turns.to_user if self._answering[row] else self._turns.to_answer
        # The template's own end of turn is there already when the model ended it.
        self._put(row, between[1:] if between[:1] == (last,) else between)
        self._answering[row] = not self._answering[row]
        self._spoken[row] = 0

    def _put(self, row: int, tokens: list[int] | tuple[int, ...]) -> None:
        self._queue[row, : len(tokens)] = tokens
        self._at[row], self._until[row] = 0, len(tokens)
