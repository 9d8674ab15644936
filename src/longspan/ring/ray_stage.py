"""A stage on a node of a Ray cluster: what Ray runs there."""

from __future__ import annotations

import asyncio
import logging
import os

import msgspec

from longspan.ring.launcher import LocalLauncher, StageHandle
from longspan.ring.stage_process import StageOptions

ENDED = 3
"""Exit code of an actor whose stage has ended. Any would do: Ray starts the actor again unless it is told to go."""

log = logging.getLogger(__name__)


class RayStageActor:
    """Holds one stage as a child process, from its own start on, and ends when that ends, so that Ray starts both
    again: there, or on another node. After a stage that its coordinator has sent away it stays, and does nothing.
    Ray carries calls to these methods and nothing else.

    options: `StageOptions` as JSON. host: of its node as other nodes reach it; there the stage listens.
    """

    def __init__(self, index: int, options: str) -> None:
        import ray

        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
        self._host: str = ray.util.get_node_ip_address()
        stage = msgspec.structs.replace(msgspec.json.decode(options, type=StageOptions), host=self._host)
        self._stopping = False
        # Ray makes actors with asynchronous methods inside of their event loop.
        self._started = asyncio.get_running_loop().create_task(LocalLauncher().start(index, stage))
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def listening(self) -> tuple[str, int]:
        """Wait for the stage to listen; where. Raises RingError with what it said when it does not."""
        return (await asyncio.shield(self._started)).address

    async def ended(self) -> None:
        """Wait until the stage is not to come back; otherwise as long as the actor lives."""
        await asyncio.shield(self._watching)

    async def stop(self) -> None:
        """End the stage and wait until it is gone."""
        self._stopping = True
        try:
            stage = await self._started
        except Exception:
            return  # it has never been there; `listening` says why
        await stage.stop()

    async def _watch(self) -> None:
        try:
            stage: StageHandle = await asyncio.shield(self._started)
        except Exception:
            return
        sent_away = await stage.ended()
        if not sent_away and not self._stopping:
            log.warning("the stage on %s has ended; its actor goes with it", self._host)
            os._exit(ENDED)
