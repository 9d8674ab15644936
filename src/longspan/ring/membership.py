"""A stage's side of joining: registers with a coordinator, renews its lease, and comes back after every loss."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable

from longspan import __version__
from longspan.errors import ProtocolError, RingError
from longspan.ring.dial import dial
from longspan.ring.frame import PROTOCOL_VERSION, Kind
from longspan.ring.member_messages import JOIN, LEASE, LEAVE, HeldLayers, Join
from longspan.ring.messages import Hello, Refuse, decode, encode
from longspan.ring.security import OPEN, Security
from longspan.ring.tcp import TcpLink

CONNECT_SECONDS = 10.0
FIRST_RETRY_SECONDS = 0.25
LAST_RETRY_SECONDS = 5.0
RENEWALS = 3
"""Renewals in the time of a lease."""

CHECK_SECONDS = 0.2
"""How soon a coordinator learns that a stage holds other layers."""

log = logging.getLogger(__name__)


class DismissedError(RingError):
    """The coordinator has sent this stage away for good. Whoever has started it shall not start it again."""

    exit_code = 4


class Membership:
    """Keeps one stage registered. host, port: where it listens; an empty host is whichever the coordinator sees.

    digest: of its model, empty when it takes any. held: what it has loaded now.
    """

    def __init__(
        self,
        coordinator: tuple[str, int],
        name: str,
        host: str,
        port: int,
        *,
        digest: str,
        held: Callable[[], HeldLayers | None],
        security: Security = OPEN,
    ) -> None:
        self._coordinator = coordinator
        self._name = name
        self._host = host
        self._port = port
        self._digest = digest
        self._held = held
        self._security = security
        self._incarnation = secrets.token_hex(8)
        self._wait = FIRST_RETRY_SECONDS

    async def run(self) -> None:
        """Stay registered until cancelled, however often the coordinator goes and comes.

        Raises DismissedError when the coordinator sends this stage away.
        """
        said = ""
        while True:
            try:
                await self._stay()
            except DismissedError:
                raise
            except RingError as error:
                # Once for each reason: a coordinator may be away for a week.
                if str(error) != said:
                    said = str(error)
                    log.warning("not registered with %s:%d: %s; trying again", *self._coordinator, error)
            await asyncio.sleep(random.uniform(self._wait / 2, self._wait))
            self._wait = min(2 * self._wait, LAST_RETRY_SECONDS)

    async def _stay(self) -> None:
        link = await dial(*self._coordinator, CONNECT_SECONDS, self._security, "coordinator")
        try:
            await link.send(encode(Hello(PROTOCOL_VERSION, __version__, "member", "", self._digest)))
            while True:
                held = self._held()
                await link.send(JOIN.encode(Join(self._name, self._incarnation, self._host, self._port, held)))
                seconds = await self._lease(link)
                self._wait = FIRST_RETRY_SECONDS
                await self._until_due(link, seconds / RENEWALS, held)
        finally:
            await link.close()

    async def _lease(self, link: TcpLink) -> float:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                frame = await link.receive()
        except TimeoutError:
            raise RingError(f"no answer within {CONNECT_SECONDS:g} s") from None
        if frame.kind is Kind.REFUSE:
            raise RingError(f"refused: {decode(frame, Refuse).reason}")
        if frame.kind is Kind.LEAVE:
            raise DismissedError(f"{link.peer} has sent this stage away: {LEAVE.decode(frame).reason}")
        return LEASE.decode(frame).seconds

    async def _until_due(self, link: TcpLink, seconds: float, held: HeldLayers | None) -> None:
        """Wait for the time to renew, or until other layers are held. Raises RingError when the link ends."""
        deadline = asyncio.get_running_loop().time() + seconds
        receiving = asyncio.ensure_future(link.receive())
        try:
            while (left := deadline - asyncio.get_running_loop().time()) > 0 and self._held() == held:
                await asyncio.wait((receiving,), timeout=min(left, CHECK_SECONDS))
                if receiving.done():
                    frame = receiving.result()
                    if frame.kind is Kind.LEAVE:
                        raise DismissedError(f"{link.peer} has sent this stage away: {LEAVE.decode(frame).reason}")
                    raise ProtocolError(f"unexpected {frame.kind.name} frame from the coordinator")
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
