"""One request's answer as text: detokenizer, stop strings and figures."""

from __future__ import annotations

import collections
import dataclasses

from longspan.engine.stream import RequestStream
from longspan.model.detokenizer import IncrementalDetokenizer
from longspan.model.tokenizer import Tokenizer
from longspan.request import DraftFigures, GenerationRequest, Piece, Timings
from longspan.sampling.stop_text import StopMatcher
from longspan.schedule.events import TokensCommitted
from longspan.schedule.span import TokenLogprob
from longspan.status import RequestStatus


class Answer:
    """What the engine keeps of a request besides the planner's sequence. Times: seconds of the engine's clock."""

    def __init__(
        self,
        request: GenerationRequest,
        end_tokens: frozenset[int],
        tokenizer: Tokenizer,
        stream: RequestStream,
        now: float,
    ) -> None:
        self.request = request
        self.stream = stream
        self.cached_tokens = 0
        self._end_tokens = end_tokens
        self._detokenizer = IncrementalDetokenizer(tokenizer, special=request.write_special)
        self._matcher = StopMatcher(request.stop, include_stop=request.include_stop)
        self._figures = _Figures(arrival=now)
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def admitted(self, now: float, cached_tokens: int) -> None:
        """The request took a slot. After a preemption the first time counts."""
        if self._figures.admitted is None:
            self._figures.admitted = now
            self.cached_tokens = cached_tokens

    def scored(self, logprobs: tuple[TokenLogprob, ...]) -> None:
        """How likely the next tokens of the prompt were; the first piece tells it."""
        self._prompt_logprobs += logprobs

    def push(self, event: TokensCommitted, now: float) -> Piece:
        """The piece that committed tokens make. Its finish_reason is "stop" when a stop string is complete; tokens
        after the one that completed it are left out."""
        figures = self._figures
        if figures.first is None:
            figures.first = now
        figures.last = now
        if event.rows:
            figures.drafts += event.rows - 1
            figures.accepted[len(event.tokens) - 1] += 1
        texts: list[str] = []
        taken = 0
        for token in event.tokens:
            taken += 1
            hidden = token in self._end_tokens and not self.request.include_stop
            text = "" if hidden else self._detokenizer.push(token)
            # Stop strings count from `min_tokens` on, as end tokens do.
            early = figures.tokens + taken < self.request.sampling.min_tokens
            texts.append(text if early else self._matcher.push(text))
            if self._matcher.stopped:
                break
        figures.tokens += taken
        logprobs: tuple[TokenLogprob, ...] = event.logprobs[:taken]
        reason = "stop" if self._matcher.stopped else None
        scored, self._prompt_logprobs = self._prompt_logprobs, ()
        return Piece("".join(texts), event.tokens[:taken], logprobs, reason, now, scored)

    def finish(self, reason: str) -> Piece:
        """The last piece, with what was held back."""
        return Piece(
            self._matcher.push(self._detokenizer.flush()) + self._matcher.flush(),
            (),
            (),
            reason,
            self._figures.last,
        )

    def timings(self) -> Timings:
        """The figures so far."""
        figures = self._figures
        admitted = figures.arrival if figures.admitted is None else figures.admitted
        first = admitted if figures.first is None else figures.first
        return Timings(
            queue_seconds=admitted - figures.arrival,
            time_to_first_token_seconds=first - figures.arrival,
            generation_seconds=max(0.0, figures.last - first),
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            generated_tokens=figures.tokens,
            drafts=figures.of_drafts(),
        )

    def status(self, sequence: int, now: float) -> RequestStatus:
        """The answer for a person who watches."""
        figures = self._figures
        state = "waiting" if figures.admitted is None else "prompt" if figures.first is None else "generating"
        return RequestStatus(
            sequence,
            state,
            len(self.request.prompt),
            self.cached_tokens,
            figures.tokens,
            self.request.max_tokens,
            now - figures.arrival,
            self.timings().tokens_per_second,
        )


@dataclasses.dataclass
class _Figures:
    arrival: float
    admitted: float | None = None
    first: float | None = None
    last: float = 0.0
    tokens: int = 0
    drafts: int = 0
    accepted: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)

    def of_drafts(self) -> DraftFigures | None:
        """What became of the drafts; None where none were sent."""
        if not self.drafts:
            return None
        counts = self.accepted
        return DraftFigures(
            counts.total(),
            self.drafts,
            sum(accepted * windows for accepted, windows in counts.items()),
            tuple(counts[accepted] for accepted in range(max(counts) + 1)),
        )
