"""Stages on a Ray cluster: one actor each, in a placement group that spreads them over the nodes.

Ray places, watches and restarts; no activation and no token goes through it. A stage joins its coordinator by
itself, so that it may come back on another node: its name says whose place it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from longspan.errors import RingError, RuntimeUnavailableError, UsageError
from longspan.ring.launcher import START_SECONDS, STOP_SECONDS, Launcher, StageHandle
from longspan.ring.ray_stage import RayStageActor
from longspan.ring.ring_plan import parse_address
from longspan.ring.stage_process import StageOptions

if TYPE_CHECKING:
    from collections.abc import Callable

REACH_SECONDS = 5.0
FOR_EVER = -1

log = logging.getLogger(__name__)


class RayLauncher(Launcher):
    """Starts `stages` stages on the cluster at an address, "HOST:PORT" or "auto".

    share_nodes: a node may get several of them; else each has its own, and Ray keeps it so.
    name: what the stages are called at the coordinator, with their index behind it.
    """

    def __init__(self, address: str, stages: int, *, share_nodes: bool = False, name: str = "stage") -> None:
        if "://" in address:
            raise UsageError(
                f"{address!r} is no address that stages can be started from; give HOST:PORT of the cluster's head, "
                "or auto, on a machine of the cluster (`ray job submit` brings a command there)"
            )
        self._host_and_port = None if address == "auto" else parse_address(address)
        self._address = address
        self._stages = stages
        self._share_nodes = share_nodes
        self._name = name
        self._placing = asyncio.Lock()
        self._group: Any = None
        self._connected = False

    async def start(self, index: int, options: StageOptions) -> RayStage:
        """See `Launcher.start`. Host, port and name of the options are given by the node and the index.

        Raises RuntimeUnavailableError without Ray, UsageError for stages that would not join, RingError for a
        cluster that cannot be reached or is too small.
        """
        if options.join is None:
            raise UsageError("stages on a Ray cluster join a coordinator; say which")
        if self._share_nodes and options.security.keys is not None:
            raise UsageError("stages on one node have one certificate: they would take each other's place")
        ray = _library()
        threads = options.threads or 1
        async with self._placing:
            if self._group is None:
                self._group = await self._place(ray, threads)
        options = msgspec.structs.replace(options, port=0, name=f"{self._name}-{index}", follow_parent=True)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=index
        )
        actor = (
            ray.remote(RayStageActor)
            .options(num_cpus=threads, max_restarts=FOR_EVER, scheduling_strategy=strategy)
            .remote(index, msgspec.json.encode(options).decode())
        )
        stage = RayStage(index, actor, ray)
        try:
            await stage.await_listening()
        except BaseException:
            await stage.stop()
            raise
        return stage

    async def close(self) -> None:
        """See `Launcher.close`: the nodes are free again."""
        if not self._connected:
            return
        ray = _library()
        self._connected = False
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                await asyncio.to_thread(ray.util.remove_placement_group, group)
        await asyncio.to_thread(ray.shutdown)

    async def _place(self, ray: Any, threads: int) -> Any:
        """A placement group with a bundle for each stage. Raises RingError when the cluster has no room for it."""
        await self._connect(ray)
        able = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= threads]
        wanted = 1 if self._share_nodes else self._stages
        if len(able) < wanted:
            raise RingError(
                f"{self._stages} stages need {wanted} Ray nodes with {threads} CPUs each, and the cluster at "
                f"{self._address} has {len(able)}. Add nodes (`ray start --address`), or ask for fewer --stages, "
                "fewer --threads, or --share-nodes."
            )
        group = ray.util.placement_group(
            [{"CPU": threads}] * self._stages, strategy="SPREAD" if self._share_nodes else "STRICT_SPREAD"
        )
        if not await asyncio.to_thread(group.wait, START_SECONDS):
            ray.util.remove_placement_group(group)
            raise RingError(
                f"the Ray cluster at {self._address} had no room for {self._stages} stages with {threads} CPUs "
                f"each within {START_SECONDS:g} s: other work has its CPUs. `ray status` shows which."
            )
        return group

    async def _connect(self, ray: Any) -> None:
        """Become a driver of the cluster. Raises RingError."""
        if self._connected:
            return
        if self._host_and_port is not None:
            await _reach(*self._host_and_port)
        # Another thread, because in the main one Ray would take the signals; it says so in a warning.
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            await _in_daemon(
                lambda: ray.init(address=self._address, logging_level=logging.ERROR), "longspan-ray-init"
            )
        except TimeoutError:
            raise RingError(
                f"no Ray cluster has answered at {self._address} within {START_SECONDS:g} s. Is its head there?"
            ) from None
        except Exception as error:
            raise RingError(f"cannot use the Ray cluster at {self._address}: {error}") from None
        self._connected = True


class RayStage(StageHandle):
    """A stage that Ray keeps up. It has ended when Ray has given it up. address: where it listens now."""

    def __init__(self, index: int, actor: Any, ray: Any) -> None:
        self.address = ("", 0)
        self.pid = None
        self._index = index
        self._actor = actor
        self._ray = ray
        self._following: asyncio.Task[bool] | None = None

    @property
    def running(self) -> bool:
        """See `StageHandle.running`. It is running while Ray starts it again."""
        return self._following is not None and not self._following.done()

    async def await_listening(self) -> None:
        """Wait until the stage listens. Raises RingError with what came instead."""
        try:
            async with asyncio.timeout(START_SECONDS):
                self.address = await self._listening()
        except TimeoutError:
            raise RingError(
                f"Ray has not started stage {self._index} within {START_SECONDS:g} s: no node is free for it"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise RingError(f"stage {self._index} could not start on the Ray cluster: {_cause(error)}") from None
        self._following = asyncio.create_task(self._follow())

    async def ended(self) -> bool:
        """See `StageHandle.ended`."""
        return self._following is not None and await asyncio.shield(self._following)

    async def stop(self) -> None:
        """See `StageHandle.stop`. Ray does not start it again."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        with contextlib.suppress(TimeoutError, self._ray.exceptions.RayError):
            async with asyncio.timeout(2 * STOP_SECONDS):
                await self._actor.stop.remote()
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    async def _listening(self) -> tuple[str, int]:
        # Asked again for as long as the actor is to live, wherever that will be.
        host, port = await self._actor.listening.options(max_task_retries=FOR_EVER).remote()
        return str(host), int(port)

    async def _follow(self) -> bool:
        """Say what happens to the stage, until it was sent away (True) or Ray has given it up (False)."""
        errors = self._ray.exceptions
        while True:
            try:
                await self._actor.ended.remote()
                return True
            except errors.RayError:
                log.warning("stage %d on %s is lost; Ray starts it again", self._index, self.address[0])
            try:
                self.address = await self._listening()
            except errors.RayError as error:
                log.warning("stage %d has not come back: %s", self._index, _cause(error))
                return False
            log.warning("stage %d is back, and listens on %s:%d", self._index, *self.address)


async def _reach(host: str, port: int) -> None:
    """Raises RingError when nobody listens there: Ray itself would try for minutes."""
    try:
        async with asyncio.timeout(REACH_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError, TimeoutError) as error:
        reason = f"no answer within {REACH_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
        raise RingError(
            f"cannot reach a Ray cluster at {host}:{port}: {reason}. `ray start --head` prints its address."
        ) from None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _in_daemon(work: Callable[[], object], name: str) -> None:
    """Run what may never return in a thread that nobody waits for at the end. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            # What would end the process from a thread is an error like any other here.
            done.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    async with asyncio.timeout(START_SECONDS):
        await done


def _library() -> Any:
    try:
        import ray
        import ray.util.placement_group
        import ray.util.scheduling_strategies
    except ImportError:
        raise RuntimeUnavailableError(
            "starting stages on a Ray cluster needs ray: pip install 'longspan[ray]'"
        ) from None
    return ray


def _cause(error: BaseException) -> str:
    """What the stage said, out of Ray's report of it."""
    cause = getattr(error, "cause", None)
    return str(cause if isinstance(cause, Exception) else error)
