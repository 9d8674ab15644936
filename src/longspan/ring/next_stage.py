"""The way from one stage to the next: how it is opened, and what is said when it is lost."""

from __future__ import annotations

import asyncio
import time

from longspan import __version__
from longspan.errors import LongspanError, ProtocolError, RingError
from longspan.ring.dial import dial
from longspan.ring.frame import PROTOCOL_VERSION, Kind
from longspan.ring.messages import Hello, Refuse, Welcome, decode, encode
from longspan.ring.security import Security
from longspan.ring.tcp import TcpLink

CONNECT_SECONDS = 20.0
"""How long a stage waits for the next stage, which may still be loading its layers."""


class NeighbourError(RingError):
    """The stage before or after this one is at fault.

    stage: which one.
    """

    def __init__(self, stage: int, message: str) -> None:
        super().__init__(message)
        self.stage = stage


class NextStage:
    """The stage after `stage`, in one ring of one model."""

    def __init__(self, ring: str, digest: str, stage: int, security: Security) -> None:
        self._hello = Hello(PROTOCOL_VERSION, __version__, "upstream", ring, digest, stage)
        self._stage = stage
        self._security = security

    async def dial(self, host: str, port: int) -> TcpLink:
        """Open the link, when the next stage has taken it. Raises NeighbourError within `CONNECT_SECONDS`."""
        deadline = time.monotonic() + CONNECT_SECONDS
        following = self._stage + 1
        try:
            link = await dial(host, port, CONNECT_SECONDS, self._security, "stage")
        except RingError as error:
            raise NeighbourError(
                following, f"stage {self._stage} has no way to stage {following}: {error}"
            ) from None
        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                await self._introduce(link)
        except BaseException as error:
            await link.close()
            if isinstance(error, TimeoutError):
                error = RingError(f"no answer within {CONNECT_SECONDS:g} s")
            if isinstance(error, RingError):
                raise NeighbourError(
                    following,
                    f"stage {following} at {host}:{port} does not take the link of stage {self._stage}: {error}",
                ) from None
            raise
        return link

    async def _introduce(self, link: TcpLink) -> None:
        await link.send(encode(self._hello))
        answer = await link.receive()
        if answer.kind is Kind.REFUSE:
            raise RingError(f"refused: {decode(answer, Refuse).reason}")
        if answer.kind is not Kind.WELCOME:
            raise ProtocolError(f"expected a WELCOME frame, got {answer.kind.name}")
        decode(answer, Welcome)

    def lost(self, error: LongspanError) -> NeighbourError:
        """That the link has ended."""
        return NeighbourError(self._stage + 1, f"its link from stage {self._stage} has ended: {error}")
