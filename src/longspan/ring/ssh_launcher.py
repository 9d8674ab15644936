"""Stages on other machines, started over SSH.

Nothing is copied to a machine but the keys of its node. Longspan is there already, and the model, unless the
coordinator gives the layers. A stage ends when the connection does, so that none is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from longspan.errors import RingError, RuntimeUnavailableError, UsageError
from longspan.ring.launcher import LISTENING, START_SECONDS, STOP_SECONDS, Launcher, StageHandle
from longspan.ring.membership import DismissedError
from longspan.ring.ring_plan import parse_address
from longspan.ring.stage_process import StageOptions

if TYPE_CHECKING:
    import asyncssh

KEY_FILES = ("authority.pem", "node.pem", "node.key")
MAX_HOSTS = 256
MAX_HOSTS_BYTES = 1 << 20

log = logging.getLogger(__name__)

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class SshHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine of a hosts file.

    ssh: host name or address. listen: HOST:PORT where its stage listens, as the others reach it. keys: directory
    here with the keys of its node, which are copied there. remote_keys: or a directory that is there already.
    python: the interpreter that has Longspan. user, port: of SSH; None: what its configuration says.
    model: there; None: the coordinator gives the layers.
    """

    ssh: str
    listen: str
    keys: str | None = None
    remote_keys: str | None = None
    python: str = "python3"
    user: str | None = None
    port: Port | None = None
    model: str | None = None
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None


class _HostsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: Annotated[tuple[SshHost, ...], msgspec.Meta(min_length=1, max_length=MAX_HOSTS)]


def read_hosts(path: Path) -> tuple[SshHost, ...]:
    """The machines of a TOML file, `[[host]]` for each. Raises UsageError that names what is wrong."""
    try:
        content = path.read_bytes()[: MAX_HOSTS_BYTES + 1]
    except OSError as error:
        raise UsageError(f"cannot read the hosts file {path}: {error.strerror}") from None
    if len(content) > MAX_HOSTS_BYTES:
        raise UsageError(f"the hosts file {path} has more than {MAX_HOSTS_BYTES} bytes")
    try:
        hosts = msgspec.toml.decode(content, type=_HostsFile).host
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"{path} is no hosts file: {error}. Give [[host]] with ssh and listen for each.") from None
    for host in hosts:
        parse_address(host.listen)
        if host.keys is not None and host.remote_keys is not None:
            raise UsageError(f"{path}: {host.ssh} has keys and remote_keys; give one of them")
    return hosts


class SshLauncher(Launcher):
    """Starts stage `index` on machine `index`. connect: further options of `asyncssh.connect`."""

    def __init__(self, hosts: tuple[SshHost, ...], **connect: Any) -> None:
        self._hosts = hosts
        self._connect = connect

    async def start(self, index: int, options: StageOptions) -> SshStage:
        """See `Launcher.start`. The address, keys and model of the machine take the place of those in `options`."""
        ssh = _library()
        host = self._hosts[index]
        given = {name: value for name, value in (("username", host.user), ("port", host.port)) if value is not None}
        try:
            async with asyncio.timeout(START_SECONDS):
                connection = await ssh.connect(host.ssh, **given, **self._connect)
        except (OSError, ssh.Error, TimeoutError) as error:
            raise RingError(f"no SSH connection to {host.ssh} for stage {index}: {_reason(error)}") from None
        try:
            keys = host.remote_keys if host.keys is None else await _copy_keys(connection, Path(host.keys), index)
            there, port = parse_address(host.listen)
            options = msgspec.structs.replace(
                options,
                model=host.model or options.model,
                host=there,
                port=port,
                threads=host.threads or options.threads,
                security=msgspec.structs.replace(options.security, keys=keys),
                follow_parent=True,
            )
            command = [host.python, "-m", "longspan.ring.stage_process", msgspec.json.encode(options).decode()]
            process = await connection.create_process(shlex.join(command), stderr=ssh.STDOUT)
            handle = SshStage(index, host, connection, process)
            await handle.await_listening()
        except (OSError, ssh.Error) as error:
            connection.close()
            raise RingError(f"stage {index} could not start on {host.ssh}: {_reason(error)}") from None
        except BaseException:
            connection.close()
            raise
        return handle


class SshStage(StageHandle):
    """A stage on another machine."""

    def __init__(
        self,
        index: int,
        host: SshHost,
        connection: asyncssh.SSHClientConnection,
        process: asyncssh.SSHClientProcess[str],
    ) -> None:
        self.address = parse_address(host.listen)
        self.pid = None
        self._index = index
        self._host = host
        self._connection = connection
        self._process = process
        self._relay: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """See `StageHandle.running`."""
        return not self._process.is_closing()

    async def await_listening(self) -> None:
        """Wait for the line that says where the stage listens. Raises RingError with what came instead."""
        said: list[str] = []
        try:
            async with asyncio.timeout(START_SECONDS):
                while line := await self._process.stdout.readline():
                    if line.startswith(LISTENING):
                        port = parse_address(line.strip().removeprefix(LISTENING))[1]
                        self.address = (self.address[0], port)
                        self._relay = asyncio.create_task(self._read())
                        return
                    said = [*said[-19:], line.rstrip()]
        except TimeoutError:
            said.append(f"it did not listen within {START_SECONDS:g} s")
        raise RingError(f"stage {self._index} could not start on {self._host.ssh}: {' / '.join(said) or 'no word'}")

    async def ended(self) -> bool:
        """See `StageHandle.ended`."""
        await self._process.wait_closed()
        return self._process.exit_status == DismissedError.exit_code

    async def stop(self) -> None:
        """See `StageHandle.stop`."""
        if self.running:
            # The stage follows its standard input.
            with contextlib.suppress(OSError):
                self._process.stdin.write_eof()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait_closed()
            except TimeoutError:
                self._process.kill()
        self._connection.close()
        await self._connection.wait_closed()
        if self._relay is not None:
            self._relay.cancel()
            await asyncio.gather(self._relay, return_exceptions=True)

    async def _read(self) -> None:
        while line := await self._process.stdout.readline():
            log.warning("stage %d on %s: %s", self._index, self._host.ssh, line.rstrip())


async def _copy_keys(connection: asyncssh.SSHClientConnection, folder: Path, index: int) -> str:
    """Copy the keys of a node into a directory that only its user can read; that directory."""
    missing = [name for name in KEY_FILES if not (folder / name).is_file()]
    if missing:
        raise UsageError(f"{folder} is not the directory of a node's keys: {' and '.join(missing)} missing")
    target = f".longspan/up/stage-{index}"
    async with connection.start_sftp_client() as sftp:
        await sftp.makedirs(target, exist_ok=True)
        await sftp.chmod(target, 0o700)
        for name in KEY_FILES:
            path = f"{target}/{name}"
            # Made and closed to others before anything secret is in it.
            async with sftp.open(path, "wb") as file:
                await sftp.chmod(path, 0o600)
                await file.write((folder / name).read_bytes())
        return str(await sftp.realpath(target))


def _library() -> Any:
    try:
        import asyncssh
    except ImportError:
        raise RuntimeUnavailableError(
            "starting stages over SSH needs asyncssh: pip install 'longspan[ssh]'"
        ) from None
    return asyncssh


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {START_SECONDS:g} s"
    return str(error) or type(error).__name__
