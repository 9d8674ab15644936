"""An engine for the length of one command."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from longspan.cli.progress import ProgressBars, progress_line
from longspan.openmp import set_waiting

if TYPE_CHECKING:
    from longspan.engine import Engine, EngineOptions


@contextlib.asynccontextmanager
async def running_engine(options: EngineOptions) -> AsyncIterator[Engine]:
    """Fetch the model if it is not here yet, start an engine, and stop it whatever happens.

    Raises the LongspanError that kept the engine from starting.
    """
    set_waiting(stages_here=options.stages)  # before the library is loaded
    from longspan.engine import Engine
    from longspan.model.reference import resolve

    # Fetched here and not by the engine, so that a person sees a bar; the engine then finds the file.
    await asyncio.to_thread(resolve, options.model, progress=ProgressBars())
    with progress_line() as show:
        engine = Engine(options, on_progress=show)
        try:
            await engine.start()
        except BaseException:
            await engine.stop()
            raise
    try:
        yield engine
    finally:
        await engine.stop()
