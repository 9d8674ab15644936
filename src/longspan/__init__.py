"""One large language model, split by layers over machines that are far apart, served through the OpenAI API.

from longspan import LLM

with LLM("demo", stages=2) as llm:
    print(llm.chat("What is a river?", max_tokens=40).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longspan.llm import LLM, Answer, AsyncLLM

__version__ = "0.1.0"

__all__ = ["LLM", "Answer", "AsyncLLM", "__version__"]


def __getattr__(name: str) -> object:
    # Loaded when it is used: commands and stages import this package and need none of it.
    if name in __all__:
        from longspan import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
