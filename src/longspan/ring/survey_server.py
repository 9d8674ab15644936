"""A stage's answers to a planner: what its machine has, how fast it is, and how far other stages are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psutil

from longspan import __version__
from longspan.errors import LongspanError, ProtocolError, RingError
from longspan.ring.dial import dial
from longspan.ring.frame import PROTOCOL_VERSION, Frame, Kind
from longspan.ring.loader import StageLoader
from longspan.ring.messages import Hello, Ping, Progress, decode, encode
from longspan.ring.security import Security
from longspan.ring.speed_probe import probe_speed
from longspan.ring.survey_messages import REPORT, SURVEY, NodeReport, Speed, Survey
from longspan.ring.tcp import TcpLink
from longspan.ring.worker import Worker

PATIENCE_SECONDS = 60.0
"""A planner that asks nothing for so long is gone."""

PINGS = 5
PING_SECONDS = 5.0


async def answer_survey(
    link: TcpLink, loader: StageLoader, worker: Worker, security: Security, *, busy: Callable[[], bool]
) -> None:
    """Answer one planner until it goes. busy: whether this stage serves a ring, which measuring would hold up."""
    while True:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                frame = await link.receive()
        except TimeoutError:
            raise ProtocolError(f"the planner has asked nothing for {PATIENCE_SECONDS:g} s") from None
        except ProtocolError:
            raise
        except RingError:
            return  # it has heard enough
        if frame.kind is Kind.PING:
            await link.send(pong(frame))
        elif frame.kind is Kind.SURVEY:
            await link.send(
                REPORT.encode(await _report(link, SURVEY.decode(frame), loader, worker, security, busy))
            )
        else:
            raise ProtocolError(f"unexpected {frame.kind.name} frame from a planner")


async def answer_pings(link: TcpLink) -> None:
    """Answer another stage that measures how far this one is, until it goes."""
    for _ in range(PINGS):
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                frame = await link.receive()
        except ProtocolError:
            raise
        except (TimeoutError, RingError):
            return
        await link.send(pong(frame))


def pong(frame: Frame) -> Frame:
    """The answer to a ping. Raises ProtocolError when it is none."""
    if frame.kind is not Kind.PING:
        raise ProtocolError(f"expected a PING frame, got {frame.kind.name}")
    return Frame(Kind.PONG, encode(decode(frame, Ping)).header)


async def round_trip(link: TcpLink) -> float:
    """Seconds there and back: the shortest of a few pings. Raises RingError."""
    found = []
    for number in range(PINGS):
        started = time.perf_counter()
        try:
            async with asyncio.timeout(PING_SECONDS):
                await link.send(encode(Ping(number)))
                frame = await link.receive()
        except TimeoutError:
            raise RingError(f"{link.peer} has not answered a ping within {PING_SECONDS:g} s") from None
        if frame.kind is not Kind.PONG or decode(frame, Ping).number != number:
            raise ProtocolError(f"expected a PONG frame, got {frame.kind.name}")
        found.append(time.perf_counter() - started)
    return min(found)


async def _report(
    link: TcpLink, survey: Survey, loader: StageLoader, worker: Worker, security: Security, busy: Callable[[], bool]
) -> NodeReport:
    loop = asyncio.get_running_loop()
    distances = [await _distance(address, loader.digest, security) for address in survey.peers]
    speed: Speed | None = None
    reason = "it serves a ring, which a measurement would hold up; stop that coordinator first"
    if not busy():

        def report(text: str) -> None:
            loop.call_soon_threadsafe(link.send_at_once, encode(Progress(text)))

        try:
            speed = await worker.call(lambda: probe_speed(loader, survey.few, survey.many, report))
            reason = ""
        except LongspanError as error:
            reason = str(error)[:2000]
    # What this process holds now is there for the stage that it will be.
    memory = loader.free_bytes() + psutil.Process().memory_info().rss
    return NodeReport(memory, speed, tuple(distances), reason)


async def _distance(address: tuple[str, int], digest: str, security: Security) -> float | None:
    try:
        link = await dial(*address, PING_SECONDS, security, "stage")
    except RingError:
        return None
    try:
        await link.send(encode(Hello(PROTOCOL_VERSION, __version__, "neighbour", "", digest)))
        return await round_trip(link)
    except RingError:
        return None
    finally:
        await link.close()
