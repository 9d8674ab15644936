"""A model as a Python object: no server, no HTTP.

llm          `LLM`, for programs that wait
async_llm    `AsyncLLM`, for programs that do not
answer       what comes back
keywords     what can be asked, and how an engine can be started
prompts      texts and messages to tokens
batch        many requests over one engine
"""

from longspan.llm.answer import Answer
from longspan.llm.async_llm import AsyncLLM
from longspan.llm.llm import LLM

__all__ = ["LLM", "Answer", "AsyncLLM"]
