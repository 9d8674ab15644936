"""What the server asks of the engine, and what the engine tells it back."""

from __future__ import annotations

import msgspec

from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import TokenLogprob


class GenerationRequest(msgspec.Struct, frozen=True):
    """One prompt to continue.

    prompt: token ids, at least one. max_tokens: most tokens to generate, at least one.
    sampling: as given by the user; the engine fills in `prompt_length` and, when `seed` is None, a random seed.
    stop: strings that end the answer (they are not part of it, unless `include_stop`).
    stop_token_ids: tokens that end the answer besides the model's own end tokens.
    ignore_eos: go on past the model's end tokens. write_special: control tokens are part of the text.
    cache_salt: the prompt's KV is shared only with requests of the same salt.
    priority: lower runs first; 0 is normal. deadline: seconds after arrival at which a WAITING request times out.
    whole: nobody reads before the answer's end, so the pieces are handed over then, all at once.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParameters = SamplingParameters()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    write_special: bool = False
    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    whole: bool = False


class Piece(msgspec.Struct, frozen=True):
    """A committed burst of one request.

    text: what the tokens add to the answer (an unfinished character or a possible stop string is held back).
    tokens: committed token ids, the end token included. logprobs: parallel to `tokens` when asked, else empty.
    prompt_logprobs: on the first piece when asked, of each token of the prompt but the first.
    finish_reason: None, or "stop" | "length" | "cancelled" on the last piece. at: when it was committed, in
    seconds of the engine's clock.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    at: float = 0.0
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class DraftFigures(msgspec.Struct, frozen=True):
    """What became of the drafts of one answer, by the windows that counted.

    windows: traversals of the ring, those without drafts too. drafts: sent in them. accepted: of those, committed.
    histogram: windows by the number of drafts that were accepted, from 0.
    """

    windows: int
    drafts: int
    accepted: int
    histogram: tuple[int, ...]


class Timings(msgspec.Struct, frozen=True):
    """Figures of one finished request. Seconds, measured in the engine. drafts: None where none were sent."""

    queue_seconds: float
    time_to_first_token_seconds: float
    generation_seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    drafts: DraftFigures | None = None

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens after the first, over the time after the first; 0 when there is only one."""
        if self.generated_tokens < 2 or self.generation_seconds <= 0:
            return 0.0
        return (self.generated_tokens - 1) / self.generation_seconds
