"""What the server needs of an engine. `longspan.engine.Engine` fits; so does a scripted one in the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from longspan.model.grammar import GrammarVocabulary
from longspan.model.tokenizer import Tokenizer
from longspan.request import GenerationRequest, Piece, Timings
from longspan.status import EngineActivity, EngineStatistics, Readiness, RingStatus


class AnswerStream(Protocol):
    """One request's answer while it is made; iterated on the event loop that submitted it.

    Iterating gives the committed pieces, the last one with a finish reason, or raises the LongspanError that ended
    the request. timings: None until the last piece.
    """

    @property
    def timings(self) -> Timings | None: ...

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    def cancel(self) -> None:
        """Give up on it; from any thread, as often as one likes, also when it is finished."""
        ...


class Template(Protocol):
    """A chat template. source: its text, from which one sees what it knows about."""

    @property
    def source(self) -> str: ...

    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool, **kwargs: Any) -> str: ...


class ServedModel(Protocol):
    """The model behind the API.

    id: the name in the API. root: the reference it was loaded from. created: Unix seconds.
    context_length: most tokens of prompt and answer together.
    """

    @property
    def id(self) -> str: ...

    @property
    def root(self) -> str: ...

    @property
    def created(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> Template | None: ...

    @property
    def grammars(self) -> GrammarVocabulary: ...


class ServingEngine(Protocol):
    """Callable from any thread and any event loop. `model` may raise RingError while it is not known yet."""

    @property
    def model(self) -> ServedModel: ...

    def submit(self, request: GenerationRequest) -> AnswerStream:
        """Raises QueueFullError, ContextLengthError or RingError at once."""
        ...

    def ring(self) -> RingStatus: ...

    async def remove_stage(self, name: str) -> None:
        """Raises UnknownStageError, RingError."""
        ...

    def readiness(self) -> Readiness: ...

    def statistics(self) -> EngineStatistics: ...

    def activity(self, moment: float) -> EngineActivity: ...
