"""What a request asks of the sampler, as it travels to the last stage."""

from __future__ import annotations

import msgspec

MAX_LOGIT_BIAS = 1024
MAX_GRAMMAR_BYTES = 1 << 16


class SamplingParameters(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sampling state of one sequence; sent to the last stage when a sequence takes a slot.

    temperature: 0 means greedy (the first of the highest logits).
    top_k: 0 means all tokens. top_p: 1 means all. min_p: 0 means all.
    seed: 64 bits. The draw for the token at position p depends only on (seed, p).
    repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or answer.
    presence_penalty, frequency_penalty: subtracted once, or once an occurrence, for tokens of the answer.
    prompt_length: tokens of the prompt, so that the sampler knows where the answer starts.
    logit_bias: (token, bias) pairs. suppress: tokens never sampled while fewer than `min_tokens` were generated.
    logprobs: how many alternatives to report for each sampled token; -1 means none at all, 0 the token's own.
    prompt_logprobs: the same for each token of the prompt but the first.
    grammar: what the answer must follow, in the form of `model.grammar`; empty for nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_length: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    suppress: tuple[int, ...] = ()
    logprobs: int = -1
    grammar: str = ""
    prompt_logprobs: int = -1

    @property
    def greedy(self) -> bool:
        """True when no random draw is needed."""
        return self.temperature <= 0.0
