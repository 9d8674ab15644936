"""What a scripted model answers: a pure function of the tokens at positions 0 … p, without arithmetic.

The tokens before are folded into one 64-bit state, a position at a time, so that a state stands for one history
only (but for chance 2^-64). From the state come the logits: one token stands out, the others are noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from longspan.sampling.draw import mix
from longspan.sampling.parameters import SamplingParameters
from longspan.sampling.sampler import sample

_MASK = (1 << 64) - 1
_NOISE = 4.0
"""Logits of the tokens that do not stand out lie in [0, 4)."""
_NEVER = -30.0


@dataclasses.dataclass(frozen=True)
class Script:
    """A scripted model.

    vocabulary: tokens 0 … vocabulary - 1. repeat: probability that the answer goes on as the text did after the
    most recent earlier occurrence of the last token (or, where there is none, jumps to some earlier place), so that
    N-gram drafts come true this often. end_token: comes only as token number `end_after` (from 0) of an answer.
    confidence: how far, in logits, the scripted token stands above the noise; greedy answers are the scripted
    tokens, sampled ones leave them now and then.
    """

    vocabulary: int = 256
    repeat: float = 0.0
    end_token: int | None = None
    end_after: int | None = None
    confidence: float = 6.0

    def advance(self, state: int, token: int, position: int) -> int:
        """The state after `token` at `position`, from the state before it (0 before position 0). Never 0."""
        return mix((mix(state ^ (token + 1)) + (position + 1) * 0x9E3779B97F4A7C15) & _MASK) or 1

    def logits(self, state: int, history: Sequence[int], prompt_length: int) -> npt.NDArray[np.float32]:
        """Logits (vocabulary,) after `history` (positions 0 … p), whose state is `state`."""
        noise = np.arange(self.vocabulary, dtype=np.uint64) + np.uint64(state)
        noise = (noise ^ (noise >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        noise = (noise ^ (noise >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result = ((noise >> np.uint64(40)).astype(np.float32)) * np.float32(_NOISE * 2.0**-24)
        if self.end_token is not None:
            result[self.end_token] = _NEVER
        result[self._scripted(state, history, prompt_length)] = _NOISE + self.confidence
        return result

    def _scripted(self, state: int, history: Sequence[int], prompt_length: int) -> int:
        """The token that stands out."""
        if self.end_token is not None and len(history) - prompt_length == self.end_after:
            return self.end_token
        choice = mix(state)
        if (choice >> 11) * 2.0**-53 < self.repeat and len(history) > 1:
            token = _continuation(history, choice)
        else:
            token = mix(choice) % self.vocabulary
        return (token + 1) % self.vocabulary if token == self.end_token else token


def _continuation(history: Sequence[int], choice: int) -> int:
    """What followed the most recent earlier occurrence of the last token, else some token of the history."""
    for position in range(len(history) - 2, -1, -1):
        if history[position] == history[-1]:
            return history[position + 1]
    return history[1 + choice % (len(history) - 1)]


def scripted_tokens(script: Script, prompt: Sequence[int], count: int, parameters: SamplingParameters) -> list[int]:
    """The answer of `count` tokens to `prompt`, one after the other: what any ring must give.

    It goes on past an end token. `prompt_length` of the parameters is filled in.
    """
    parameters = msgspec.structs.replace(parameters, prompt_length=len(prompt))
    history = list(prompt)
    state = 0
    for position, token in enumerate(history):
        state = script.advance(state, token, position)
    for _ in range(count):
        logits = script.logits(state, history, len(prompt))
        token, _ = sample(logits, parameters, len(history), history)
        state = script.advance(state, token, len(history))
        history.append(token)
    return history[len(prompt) :]
