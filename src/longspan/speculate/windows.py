"""The optimistic stream of one sequence, and the windows that are cut from it.

The stream is the committed tokens followed by drafts. Windows are consecutive ranges of its positions that never
overlap, so no position is written twice. The first token of a window is the one that the target gives for free at
the end of the window before; until that is back, it is the draft for it. Several windows may be in flight, and they
come back in order. The sample of row r of a window at position p is compared with the stream's token at p + r + 1,
wherever that is: in the same window, in a later one, or not sent yet. At the first difference the target's token is
committed, the stream is cut behind it, the epoch is raised, and the next window starts there: its start position
is the rewind. A plain decode is a window of one row, without drafts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Tokens

from longspan.schedule.sequence import Sequence, Status
from longspan.schedule.span import DraftRequest, Phase, Sample, Span
from longspan.speculate.acceptance import SequenceBooks
from longspan.speculate.ledger import Ledger
from longspan.speculate.proposer import Proposer

HEAD_CHAIN = 8
SURE = 0.9
"""While at least this many drafts wait behind a window, or so many have this chance and more are at hand, the head
drafts only where the window goes wrong."""

_ROWS = [tuple(range(count)) for count in range(65)]


class Windows:
    """What lies beyond the committed tokens of a sequence. Only `Sequence` and the dealing of rows call it.

    head_wanted: whether the last stage's MTP head shall draft for this sequence. head_follows: whether it shall
    keep in step when not. drafts_early: whether it shall draft behind the prompt already.
    width, depth: what the policy chose last, for the metrics.
    sent_windows: how many were sent so far.
    """

    __slots__ = (
        "_books",
        "_chances",
        "_continues",
        "_drafts",
        "_dry",
        "_expected",
        "_in_flight",
        "_ledger",
        "_marks",
        "_observed",
        "_proposer",
        "_sequence",
        "_vocabulary",
        "depth",
        "drafts_early",
        "head_follows",
        "head_wanted",
        "sent_windows",
        "width",
    )

    def __init__(
        self, sequence: Sequence, proposer: Proposer, books: SequenceBooks, ledger: Ledger, vocabulary: int
    ) -> None:
        """vocabulary: drafts outside [0, vocabulary) are cut off; a proposer may be anybody's."""
        self._sequence = sequence
        self._proposer = proposer
        self._books = books
        self._ledger = ledger
        self._vocabulary = vocabulary
        self._observed = 0
        self._drafts: list[int] = []  # tokens of the stream behind the committed ones
        self._marks: list[tuple[str, int]] = []  # of each draft, its book and rank
        self._chances: list[float] = []  # of each draft, that it is right when those before it are
        self._in_flight: deque[int] = deque()  # rows of each window of this epoch, the oldest first
        self._expected: deque[tuple[str, float]] = deque()  # of each of them, the book and gain of its drafts
        self._dry = False
        self._continues = False  # the newest draft goes on as soon as it is asked for
        proposer.attach(self._wake)
        self.head_wanted = self.head_follows = self.drafts_early = False
        self.width = self.depth = 1
        self.sent_windows = 0

    # --------------------------------------------------------------------------------------- what could be sent

    @property
    def sequence(self) -> Sequence:
        """Whose windows these are."""
        return self._sequence

    @property
    def decodable(self) -> bool:
        """True when the last committed token's row can be sent: nothing that samples is in flight."""
        sequence = self._sequence
        length = len(sequence.tokens)
        return length > sequence.prompt_length and sequence.dispatched == length - 1

    @property
    def in_flight(self) -> int:
        """Windows of this epoch that are on their way."""
        return len(self._in_flight)

    @property
    def runs_ahead(self) -> bool:
        """Whether further windows leave before the first is back."""
        return self.depth > 1

    @property
    def sent_drafts(self) -> int:
        """Drafts at the head of the stream that are on their way."""
        sequence = self._sequence
        return max(0, sequence.dispatched - len(sequence.tokens))

    @property
    def chances(self) -> list[float]:
        """Of each draft of the stream, the chance that it is right when all before it are. Not to be changed."""
        return self._chances

    @property
    def next_book(self) -> str:
        """The book of the first draft that was not sent; empty if there is none."""
        sent = self.sent_drafts
        return self._marks[sent][0] if sent < len(self._marks) else ""

    @property
    def open_ended(self) -> bool:
        """True when the proposer may have more than the stream holds."""
        return not self._dry

    @property
    def may_grow(self) -> bool:
        """True when the next window may have more rows a moment later: it does not end at the token limit yet."""
        sequence = self._sequence
        return not self._dry and len(sequence.tokens) + len(self._drafts) < sequence.token_limit - 1

    @property
    def available(self) -> int:
        """Rows that could be sent now, drafts included; 0 while prompt rows are still to be sent."""
        sequence = self._sequence
        length, sent = len(sequence.tokens), sequence.dispatched
        if sent < length - 1 or sequence.ended:
            return 0
        if sent < length and not self.decodable:
            return 0  # the last row of a prompt belongs to prefill
        return min(length + len(self._drafts), sequence.token_limit - 1) - sent

    @property
    def draft_behind_prompt(self) -> DraftRequest:
        """Whether the head shall draft from the row that ends the prompt."""
        wanted = self.drafts_early and self._proposer.uses_head
        return DraftRequest.ALWAYS if wanted else DraftRequest.NEVER

    def look_ahead(self, drafts: int) -> None:
        """Let the proposer fill the stream until `drafts` drafts wait to be sent, or it has no more."""
        sequence = self._sequence
        length = len(sequence.tokens)
        held = len(self._drafts)
        wanted = min(self.sent_drafts + drafts, sequence.token_limit - 1 - length)
        if self._dry or held >= wanted:
            return
        self._tell_proposer()
        while held < wanted:
            if not self._append(wanted - held):
                self._dry = True
                return
            held = len(self._drafts)

    # ------------------------------------------------------------------------------------------ out and back

    def next_span(self, rows: int, expected: float = 0.0) -> Span | None:
        """Send the next window of at most `rows` rows; None when there is nothing to send.

        expected: tokens that its drafts shall bring, which is compared with what they do; 0: it is not. Its first
        row is the last committed token if that was not sent yet; all rows are sampled.
        """
        count = min(rows, self.available)
        if count <= 0:
            return None
        sequence = self._sequence
        start = sequence.dispatched
        offset = start - len(sequence.tokens)
        if offset < 0:
            tokens = (sequence.tokens[-1], *self._drafts[: count - 1])
        else:
            tokens = tuple(self._drafts[offset : offset + count])
        self._expected.append((self.next_book if expected else "", expected))
        sequence.dispatched = start + count
        self._in_flight.append(count)
        self.sent_windows += 1
        drafted = count + min(offset, 0)
        span = Span(
            sequence.id,
            sequence.slot,
            sequence.epoch,
            start,
            tokens,
            Phase.VERIFY if drafted else Phase.DECODE,
            _ROWS[count] if count < len(_ROWS) else tuple(range(count)),
            None,
            self._draft_request(count),
        )
        self._ledger.sent(span, drafted)
        return span

    def commit(self, span: Span, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Take over what the ring computed for a span of this epoch; returns the samples that were committed.

        samples: one for each asked row, in order. Committing ends at the first sample that differs from the stream,
        at an end token, or at the token limit (the last two set `ended`). Windows that are still in flight behind a
        difference or an end are void: their epoch is over, or the sequence is.
        """
        sequence = self._sequence
        book, expected = "", 0.0
        if span.phase.is_exact:
            self._in_flight.popleft()
            book, expected = self._expected.popleft()
        tokens, drafts, limit, ends = sequence.tokens, self._drafts, sequence.token_limit, sequence.end_tokens
        sent = self.sent_drafts
        matched = 0
        differs = False
        committed = samples
        for count, sample in enumerate(samples, start=1):
            token = sample.token
            tokens.append(token)
            if matched < len(drafts):
                differs = drafts[matched] != token
                self._judge(matched, not differs)
                matched += not differs
            if len(tokens) >= limit or token in ends:
                sequence.ended = True
            if differs or sequence.ended:
                committed = samples[:count]
                break
        self._drop(matched)
        sequence.computed = span.start + span.sample_rows[len(committed) - 1] + 1 if committed else span.end
        if differs or sequence.ended:
            self._cut()
        if expected and not sequence.ended:
            self._books.gains(book).observe(len(committed) - 1, expected)
        if samples:
            self._dry = False
            if span.phase.is_exact:
                self._ledger.committed(len(span.tokens), len(committed), min(matched, sent))
        if committed and committed[-1].draft and not sequence.ended:
            self._tell_proposer()
            self._proposer.receive(committed[-1].draft)
        return committed

    def forget(self) -> None:
        """The sequence was rewound, or is over: drop drafts, and count what is in flight as void."""
        self._drop(len(self._drafts))
        self._in_flight.clear()
        self._expected.clear()
        self._dry = False
        sequence = self._sequence
        over = sequence.status is Status.FINISHED  # a rewind has raised the epoch, an end has not
        if over:
            self._proposer.end()
        self._ledger.voided(sequence.id, sequence.epoch + over)

    # ------------------------------------------------------------------------------------------------ the stream

    def _wake(self) -> None:
        """Ask the proposer again, though it had nothing: it has thought meanwhile."""
        self._dry = False

    def _cut(self) -> None:
        """Nothing of the stream beyond the committed tokens is valid any more."""
        sequence = self._sequence
        self._drop(len(self._drafts))
        last = len(sequence.tokens) - 1
        if sequence.dispatched > last:
            self._void(last)

    def _void(self, last: int) -> None:
        """Rows from position `last` on were sent for nothing; the next span starts there, in a new epoch."""
        sequence = self._sequence
        sequence.dispatched = last
        sequence.epoch += 1
        self._in_flight.clear()
        self._expected.clear()
        self._ledger.voided(sequence.id, sequence.epoch)

    def _drop(self, count: int) -> None:
        """Take the first drafts off the stream."""
        del self._drafts[:count]
        del self._marks[:count]
        del self._chances[:count]

    def _judge(self, index: int, accepted: bool) -> None:
        """Account for a draft of the stream, sent or not, that the target has decided on."""
        book, rank = self._marks[index]
        self._books.record(book, rank, accepted)
        self._ledger.judged(book, accepted)

    def _tell_proposer(self) -> None:
        tokens = self._sequence.tokens
        if self._observed < len(tokens):
            self._proposer.observe(tokens[self._observed :])
            self._observed = len(tokens)

    def _append(self, room: int) -> bool:
        """Append one draft of the proposer to the stream; False when it has none that can be used."""
        draft = self._proposer.propose(self._drafts, room)
        tokens = self._usable(draft.tokens[:room])
        if not tokens:
            return False
        draft = draft._replace(tokens=tokens, book=draft.book or self._proposer.name)
        self._drafts += tokens
        self._continues = draft.continues
        self._chances += self._books.chances(draft)
        self._marks += [(draft.book, draft.rank + offset) for offset in range(len(tokens))]
        return True

    def _usable(self, tokens: Tokens[int]) -> Tokens[int]:
        """Drafts up to the first end token, whose row is never needed, or the first that is no token at all."""
        ends = self._sequence.end_tokens
        for index, token in enumerate(tokens):
            if token in ends or not 0 <= token < self._vocabulary:
                return tokens[:index]
        return tokens

    def _draft_request(self, rows: int) -> DraftRequest:
        if not self._proposer.uses_head:
            return DraftRequest.NEVER
        if not self.head_wanted:
            # A single row cannot diverge. Asked like this, the head drafts nothing and yet keeps in step, so that
            # its drafts are good when they are wanted again.
            return DraftRequest.ON_DIVERGENCE if rows == 1 and self.head_follows else DraftRequest.NEVER
        waiting = len(self._drafts) - self.sent_drafts
        goes_on = (
            self._continues and not self._dry and len(self._drafts) >= HEAD_CHAIN and self._chances[-1] >= SURE
        )
        return DraftRequest.ON_DIVERGENCE if goes_on or waiting >= max(HEAD_CHAIN, rows) else DraftRequest.ALWAYS
