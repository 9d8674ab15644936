"""The coordinator's door for stages that come by themselves: who is there, and until when."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
from collections.abc import Callable

import msgspec

from longspan import __version__
from longspan.errors import ProtocolError, RingError, UnknownStageError, UsageError
from longspan.ring.frame import PROTOCOL_VERSION, Kind
from longspan.ring.handshake import NotAdmittedError
from longspan.ring.identity import Identity
from longspan.ring.listening import stop_listening
from longspan.ring.member_messages import JOIN, LEASE, LEAVE, Join, Lease, Leave
from longspan.ring.messages import Greeting, Hello, Refuse, decode, encode
from longspan.ring.seating import Member
from longspan.ring.security import OPEN, Security
from longspan.ring.tcp import TcpLink

LEASE_SECONDS = 15.0
"""A member that has not renewed its lease for so long is gone, whatever TCP says."""

HELLO_SECONDS = 10.0
MAX_STRANGERS = 64
MOST_MEMBERS = 256

log = logging.getLogger(__name__)


class Registrar:
    """Members of one ring by name. `port` is known after `start`.

    on_return: a member has come back as another process while its old one was still registered.
    """

    def __init__(
        self,
        digest: str,
        security: Security = OPEN,
        *,
        on_return: Callable[[Member], None] = lambda member: None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._digest = digest
        self._security = security
        self._on_return = on_return
        self._lease_seconds = lease_seconds
        self._server: asyncio.Server | None = None
        self._members: dict[str, tuple[Member, TcpLink]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: collections.OrderedDict[TcpLink, None] = collections.OrderedDict()
        self._changed = asyncio.Event()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises UsageError when the address cannot be listened on."""
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: TcpLink(self._on_connected, expects_tls=self._security.active), host, port
            )
        except (OSError, ValueError, OverflowError) as error:
            raise UsageError(
                f"stages cannot join at {host}:{port}: {getattr(error, 'strerror', None) or error}. "
                "Another process may use the port; choose another one."
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening. Members are told nothing: they try again, and find whoever listens here next."""
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in (*self._strangers, *(link for _, link in self._members.values())):
            link.abort()

    @property
    def members(self) -> tuple[Member, ...]:
        """Who is there now; may be read from any thread."""
        return tuple(member for member, _ in list(self._members.values()))

    async def change(self) -> None:
        """Wait until somebody comes, goes or changes."""
        self._changed.clear()
        await self._changed.wait()

    async def remove(self, name: str) -> None:
        """Send a member away for good. Raises UnknownStageError."""
        if name not in self._members:
            there = ", ".join(self._members) or "nobody"
            raise UnknownStageError(f"no stage {name!r} has joined; there is {there}")
        _, link = self._members.pop(name)
        self._changed.set()
        await self._dismiss(link, f"the operator has removed {name}")

    @staticmethod
    async def _dismiss(link: TcpLink, reason: str) -> None:
        with contextlib.suppress(RingError):
            await link.send(LEAVE.encode(Leave(reason)))
        await link.close()

    # ------------------------------------------------------------------------------------------------ one stage

    def _on_connected(self, link: TcpLink) -> None:
        if self._server is None:
            link.abort()
            return
        task = asyncio.get_running_loop().create_task(self._attend(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.popitem(last=False)[0].abort()
        self._strangers[link] = None

    async def _attend(self, link: TcpLink) -> None:
        name = ""
        try:
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    join = await self._welcome(link)
            except TimeoutError:
                raise ProtocolError(f"it has not said who it is within {HELLO_SECONDS:g} s") from None
            name = join.name
            await self._keep(link, join)
        except (_RefusedError, NotAdmittedError) as refusal:
            log.warning("refused %s: %s", link.peer, refusal)
            with contextlib.suppress(RingError):
                await link.send(encode(Refuse(str(refusal), PROTOCOL_VERSION, __version__, "")))
        except RingError as error:
            log.info("%s %s has left: %s", link.peer, name, error)
        finally:
            self._strangers.pop(link, None)
            if name in self._members and self._members[name][1] is link:
                del self._members[name]
                self._changed.set()
            await link.close()

    async def _welcome(self, link: TcpLink) -> Join:
        """Who the stage is. Raises _RefusedError for one that cannot be a member."""
        identity = await self._security.accept(link)
        frame = await link.receive()
        if frame.kind is not Kind.HELLO:
            raise ProtocolError(f"expected a HELLO frame, got {frame.kind.name}")
        greeting = decode(frame, Greeting)
        if greeting.protocol != PROTOCOL_VERSION:
            raise _RefusedError(
                f"protocol version mismatch: this coordinator speaks {PROTOCOL_VERSION} (Longspan {__version__}), "
                f"the stage {greeting.protocol} (Longspan {greeting.version}). Install the same Longspan on both."
            )
        hello = decode(frame, Hello)
        if hello.role != "member" or not identity.may_be("stage"):
            raise _RefusedError("only stages join here, with `longspan stage --join`")
        if hello.digest and hello.digest != self._digest:
            raise _RefusedError(
                f"model mismatch: this coordinator serves the model with digest {self._digest[:12]}, the stage "
                f"holds {hello.digest[:12]}. Start it with the same model, or without one."
            )
        return self._checked(identity, JOIN.decode(await link.receive()))

    def _checked(self, identity: Identity, join: Join) -> Join:
        if identity.name is not None:
            join = msgspec.structs.replace(join, name=identity.name)  # whatever it calls itself
        if join.name not in self._members and len(self._members) >= MOST_MEMBERS:
            raise _RefusedError(f"{MOST_MEMBERS} stages have joined already, which is the most")
        return join

    async def _keep(self, link: TcpLink, join: Join) -> None:
        """Keep the stage as a member as long as it renews its lease."""
        self._strangers.pop(link, None)
        await self._enter(link, join)
        while True:
            await link.send(LEASE.encode(Lease(self._lease_seconds)))
            try:
                async with asyncio.timeout(self._lease_seconds):
                    frame = await link.receive()
            except TimeoutError:
                raise RingError(f"it has not renewed its lease for {self._lease_seconds:g} s") from None
            renewed = JOIN.decode(frame)
            known, _ = self._members.get(join.name, (None, None))
            if known is None or renewed.incarnation != join.incarnation:
                raise ProtocolError("it renews a lease that it does not have")
            if renewed.holds != known.holds:
                self._members[join.name] = (dataclasses.replace(known, holds=renewed.holds), link)
                self._changed.set()

    async def _enter(self, link: TcpLink, join: Join) -> None:
        host = join.host or link.peer.rpartition(":")[0]
        old, old_link = self._members.get(join.name, (None, None))
        self._number += 1
        member = Member(join.name, join.incarnation, self._number, (host, join.port), join.holds)
        self._members[join.name] = (member, link)
        self._changed.set()
        log.info("stage %s has joined from %s, listening on %s:%d", member.name, link.peer, *member.address)
        if old is None or old_link is None:
            return
        if old.incarnation != member.incarnation:
            self._on_return(member)
            await self._dismiss(old_link, f"another process has joined as {member.name}")
        else:
            await old_link.close()


class _RefusedError(RingError):
    """Why a stage cannot join; it is told."""
