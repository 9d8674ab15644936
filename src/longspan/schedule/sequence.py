"""One request's tokens, and how much of them was sent to the ring."""

from __future__ import annotations

import enum

import msgspec

from longspan.schedule.request import SequenceRequest
from longspan.schedule.span import DraftRequest, Phase, Sample, Span
from longspan.schedule.speculator import Tail

NO_SLOT = -1

_DECODE = Phase.DECODE
_FIRST_ROW = (0,)


class Status(enum.Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One request on its way. Only the planner changes it.

    id: never used again. slot: KV stream, or NO_SLOT. epoch: raised whenever what is in flight becomes void.
    tokens: the prompt and every committed token; only ever appended to.
    dispatched: positions whose rows were sent to the ring in this epoch (or copied there by an operation).
    computed: positions that the ring has confirmed; computed <= dispatched.
    confirm_at: value of `computed` at which other sequences can start from more of this one's KV than before.
    ended: no further token may follow: an end token was committed, or the token limit is reached.
    claim: cells of the shared pool that count as taken by this sequence.
    cached_tokens: positions that were served from another sequence's KV at the first admission.
    scored: tokens of the prompt, from the second on, of which it is known how likely they were.
    losses: rings that were lost while one of its rows was under way, since its last committed token.
    standing: its stream stands still because the ring was lost, until the last row of its replay is dispatched.
    overtakes: later, not more urgent sequences that were admitted first.

    tail: what lies beyond the committed tokens; None: nothing does, and one decode row is in flight at most.
    """

    __slots__ = (
        "admitted_at",
        "arrival",
        "cached_tokens",
        "claim",
        "computed",
        "confirm_at",
        "dispatched",
        "end_tokens",
        "ended",
        "epoch",
        "hashes",
        "id",
        "losses",
        "overtakes",
        "priority",
        "prompt_length",
        "request",
        "scored",
        "slot",
        "standing",
        "status",
        "tail",
        "token_limit",
        "tokens",
    )

    def __init__(self, identity: int, request: SequenceRequest, arrival: float, longest: int) -> None:
        self.id = identity
        self.request = request
        self.arrival = arrival
        self.priority = request.priority
        self.end_tokens = request.end_tokens
        self.prompt_length = len(request.prompt)
        self.tokens = list(request.prompt)
        self.status = Status.WAITING
        self.slot = NO_SLOT
        self.epoch = 0
        self.dispatched = 0
        self.computed = 0
        self.confirm_at = 0
        self.claim = 0
        self.cached_tokens = 0
        self.scored = 0
        self.losses = 0
        self.standing = False
        self.overtakes = 0
        self.admitted_at: float | None = None
        self.hashes: list[int] = []
        self.tail: Tail | None = None
        self.limit_tokens(longest)

    def limit_tokens(self, longest: int) -> None:
        """Prompt and answer together may have `longest` tokens."""
        self.token_limit = min(longest, self.prompt_length + self.request.max_tokens)
        self.ended = len(self.tokens) >= self.token_limit

    @property
    def resumed(self) -> bool:
        """True when the sequence had a slot before, so that its stream is open and its wait is a pause."""
        return self.admitted_at is not None

    @property
    def generated(self) -> int:
        """Committed tokens after the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def prefill_end(self) -> int:
        """Positions that must be in the KV before the sequence can decode.

        A fresh prompt runs to its last token, whose row is sampled. A replay stops before the last committed token:
        that one is the next decode row.
        """
        length = len(self.tokens)
        return length if length == self.prompt_length else length - 1

    @property
    def prefill_remaining(self) -> int:
        """Rows of prefill or replay that were not dispatched yet; 0 or less when the sequence decodes."""
        return self.prefill_end - self.dispatched

    @property
    def decodable(self) -> bool:
        """True when the last committed token's row can be sent: nothing that samples is in flight."""
        length = len(self.tokens)
        return length > self.prompt_length and self.dispatched == length - 1

    def decode_span(self) -> Span:
        """Dispatch the row of the last committed token."""
        start = self.dispatched
        self.dispatched = start + 1
        return Span(self.id, self.slot, self.epoch, start, (self.tokens[start],), _DECODE, _FIRST_ROW)

    def prefill_span(self, rows: int) -> Span:
        """Dispatch the next `rows` rows of prefill or replay; the row that ends a fresh prompt is sampled."""
        start = self.dispatched
        end = start + rows
        self.dispatched = end
        fresh = len(self.tokens) == self.prompt_length
        sampled = fresh and end == self.prompt_length
        asked: tuple[int, ...] = (rows - 1,) if sampled else ()
        given: tuple[int, ...] = ()
        if self.scores_prompt:
            first = max(start, self.scored)
            asked = tuple(range(first - start, rows))
            given = tuple(self.tokens[first + 1 : end + 1])
        return Span(
            self.id,
            self.slot,
            self.epoch,
            start,
            tuple(self.tokens[start:end]),
            Phase.PREFILL if fresh else Phase.RECOMPUTE,
            asked,
            None,
            self.tail.draft_behind_prompt if sampled and self.tail is not None else DraftRequest.NEVER,
            given,
        )

    @property
    def scores_prompt(self) -> bool:
        """True while rows of the prompt are to say how likely the tokens behind them were."""
        return self.request.sampling.prompt_logprobs >= 0 and len(self.tokens) == self.prompt_length

    def score(self, span: Span, samples: tuple[Sample, ...]) -> tuple[Span, tuple[Sample, ...]]:
        """Take the given tokens off a span and its samples; gives what is left of both for `commit`."""
        count = len(span.given)
        self.scored += count
        return msgspec.structs.replace(span, sample_rows=span.sample_rows[count:], given=()), samples[count:]

    def commit(self, span: Span, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Take over what the ring computed for a span of this epoch; returns the samples that were committed.

        Committing ends with an end token or the token limit; then the sequence has `ended`.
        """
        if samples:
            self.losses = 0
        if self.tail is not None:
            return self.tail.commit(span, samples)
        self.computed = span.start + len(span.tokens)
        tokens = self.tokens
        for count, sample in enumerate(samples, start=1):
            token = sample.token
            tokens.append(token)
            if len(tokens) >= self.token_limit or token in self.end_tokens:
                self.ended = True
                return samples[:count]
        return samples

    @property
    def stopped(self) -> bool:
        """True when the last token is a committed end token."""
        return len(self.tokens) > self.prompt_length and self.tokens[-1] in self.end_tokens

    def rewind(self) -> None:
        """Forget the slot and all that is in flight. Committed tokens stay."""
        self.epoch += 1
        self.slot = NO_SLOT
        self.status = Status.WAITING
        self.dispatched = 0
        self.computed = 0
        self.claim = 0
        if self.tail is not None:
            self.tail.forget()
