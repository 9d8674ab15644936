"""What the endpoints share."""

from __future__ import annotations

import functools

from longspan.server.contract import ServingEngine
from longspan.server.metrics import ServerMetrics
from longspan.server.options import ServerOptions
from longspan.server.prompts import PromptWorker


class Service:
    """The engine, and what the server keeps beside it."""

    def __init__(self, engine: ServingEngine, options: ServerOptions) -> None:
        self.engine = engine
        self.options = options
        self.worker = PromptWorker()

    @functools.cached_property
    def metrics(self) -> ServerMetrics:
        """Made at the first use, because their labels need the model's name."""
        return ServerMetrics(self.engine)
