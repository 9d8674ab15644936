"""The options that say how tokens are chosen and when an answer ends."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from longspan.request import GenerationRequest
from longspan.sampling.parameters import SamplingParameters

if TYPE_CHECKING:
    from longspan.llm.keywords import SamplingKeywords

ANSWER = Group("Answer", sort_key=0)

Share = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class SamplingArguments:
    """How the tokens of an answer are chosen. The same seed gives the same tokens, however the model is split."""

    temperature: Annotated[
        float, Parameter(group=ANSWER, validator=Number(gte=0, lte=5), help="0 always takes the likeliest token.")
    ] = 0.0
    top_k: Annotated[
        int, Parameter(group=ANSWER, validator=Number(gte=0), help="Only the likeliest so many tokens; 0 is all.")
    ] = 0
    top_p: Annotated[
        float,
        Parameter(group=ANSWER, validator=Number(gt=0, lte=1), help="Only the likeliest tokens up to this share."),
    ] = 1.0
    min_p: Annotated[
        Share, Parameter(group=ANSWER, help="Only tokens at least this likely, relative to the likeliest.")
    ] = 0.0
    seed: Annotated[
        int | None, Parameter(group=ANSWER, help="Fixes the random draws (default: another one each time).")
    ] = None
    stop: Annotated[
        tuple[str, ...], Parameter(group=ANSWER, help="End the answer before this text; may be given again.")
    ] = ()

    def keywords(self, max_tokens: int) -> SamplingKeywords:
        """The same as keyword arguments of `longspan.LLM`."""
        return {
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": self.stop,
        }

    def request(self, prompt: list[int], max_tokens: int) -> GenerationRequest:
        """A request for these tokens, sampled as the user asked."""
        return GenerationRequest(
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            sampling=SamplingParameters(
                temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p
            ),
            seed=self.seed,
            stop=self.stop,
        )
