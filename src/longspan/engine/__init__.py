"""Ties the rooms together: requests in, token events out.

options     what an engine is started with
engine      the public face; any thread may call it
core        the engine's own thread: planner, ring, streams
formation   from options to a ring: which layers where, and the processes that hold them
answer      one request's text: detokenizer, stop strings, figures
stream      how an answer reaches the caller's event loop
"""

from longspan.engine.engine import Engine, ServedModel
from longspan.engine.options import EngineOptions
from longspan.engine.stream import RequestStream

__all__ = ["Engine", "EngineOptions", "RequestStream", "ServedModel"]
