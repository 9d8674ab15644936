"""The answers of /v1/responses: whole, and in events."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec

from longspan.errors import LongspanError
from longspan.request import GenerationRequest, Piece
from longspan.server.answers import Answers
from longspan.server.contract import ServedModel
from longspan.server.openai.chat_format import ChatFormat
from longspan.server.openai.logprobs import chat_entries
from longspan.server.responses.output_items import OutputEvent, OutputItem, OutputItems
from longspan.server.responses.response_request import ResponseRequest, TextOptions, wants_logprobs


class InputTokensDetails(msgspec.Struct, frozen=True):
    """cached_tokens: prompt tokens whose KV was there already."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """reasoning_tokens: of the answer, those that are no text of it."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Tokens of one answer."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Incomplete(msgspec.Struct, frozen=True):
    """Why an answer was cut off."""

    reason: str


class ResponseError(msgspec.Struct, frozen=True):
    """Why an answer failed."""

    code: str
    message: str


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, and the request's settings as they were understood."""

    id: str
    created_at: int
    status: str
    model: str
    output: tuple[OutputItem, ...]
    usage: ResponseUsage | None
    error: ResponseError | None
    incomplete_details: Incomplete | None
    completed_at: int | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    text: TextOptions
    reasoning: dict[str, str | None]
    top_logprobs: int
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    object: str = "response"
    previous_response_id: None = None
    max_tool_calls: None = None
    store: bool = False
    background: bool = False
    truncation: str = "disabled"
    service_tier: str = "default"


VERBOSITY = "medium"
"""The only one there is."""

_NO_TOOL = {"description": None, "parameters": None, "strict": None}
"""Fields that every function has in an answer."""

FIRST_NUMBER = 2
"""Events that come before those of the output."""


class ResponseAnswer:
    """One answer as it grows."""

    def __init__(
        self, request: ResponseRequest, model: ServedModel, generation: GenerationRequest, form: ChatFormat
    ) -> None:
        self.id = f"resp_{secrets.token_hex(12)}"
        self.output = OutputItems(form, FIRST_NUMBER)
        self._request = request
        self._model = model
        self._prompt_tokens = len(generation.prompt)
        self._created = int(time.time())
        self._wants_logprobs = wants_logprobs(request)
        self._generated = 0
        self._reason: str | None = None

    def add(self, piece: Piece) -> list[OutputEvent]:
        """Take one more piece; gives the events that it makes."""
        entries = tuple(chat_entries(piece, self._model.tokenizer)) if self._wants_logprobs else ()
        self._generated += len(piece.tokens)
        self._reason = piece.finish_reason
        return self.output.push(piece, entries)

    @property
    def status(self) -> str:
        """In the API's words."""
        if self._reason is None:
            return "in_progress"
        return "incomplete" if self._reason == "length" else "completed"

    def response(self, answers: Answers, error: LongspanError | None = None) -> ResponseObject:
        """The whole object, as it is now, or as it is after `error`."""
        request = self._request
        ended = error is not None or self._reason is not None
        return ResponseObject(
            id=self.id,
            created_at=self._created,
            status="failed" if error is not None else self.status,
            model=self._model.id,
            output=tuple(self.output.items),
            usage=self._usage(answers) if ended else None,
            error=None if error is None else ResponseError("server_error", str(error)),
            incomplete_details=Incomplete("max_output_tokens") if self.status == "incomplete" else None,
            completed_at=int(time.time()) if self.status == "completed" else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            parallel_tool_calls=request.parallel_tool_calls is not False,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            tool_choice=request.tool_choice or "auto",
            tools=[_NO_TOOL | tool for tool in request.tools or ()],
            text=msgspec.structs.replace(request.text or TextOptions(), verbosity=VERBOSITY),
            reasoning={"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
            top_logprobs=request.top_logprobs or 0,
            user=request.user,
            safety_identifier=request.safety_identifier,
            prompt_cache_key=request.prompt_cache_key,
        )

    def _usage(self, answers: Answers) -> ResponseUsage:
        timings = answers.timings(0)
        return ResponseUsage(
            self._prompt_tokens,
            InputTokensDetails(timings.cached_tokens if timings else 0),
            self._generated,
            OutputTokensDetails(),
            self._prompt_tokens + self._generated,
        )
