"""Stages over SSH: against a real SSH server on this machine that runs what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import psutil
import pytest

from longspan.cli import up
from longspan.errors import RingError, UsageError
from longspan.model.source import GgufSource
from longspan.ring.driver import RingDriver
from longspan.ring.keys import create_authority, create_node
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.registrar import Registrar
from longspan.ring.ring_plan import RingPlan, StagePlace
from longspan.ring.security import SecurityOptions, load_security
from longspan.ring.ssh_launcher import SshHost, SshLauncher, read_hosts
from longspan.ring.stage_process import StageOptions

PYTHON = sys.executable


class _Machine:
    """An SSH server; children: processes that it has started. home: where files are put."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.children: list[asyncio.subprocess.Process] = []
        self.port = 0
        self.options: dict[str, Any] = {}

    async def run(self, process: asyncssh.SSHServerProcess[str]) -> None:
        assert process.command is not None
        child = await asyncio.create_subprocess_shell(
            f"exec {process.command}",
            cwd=self.home,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.children.append(child)
        assert child.stdin is not None and child.stdout is not None
        following = asyncio.create_task(self._feed(process, child.stdin))
        with contextlib.suppress(OSError):
            while line := await child.stdout.readline():
                process.stdout.write(line.decode("utf-8", "replace"))
        code = await child.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        with contextlib.suppress(OSError):
            process.exit(code)

    @staticmethod
    async def _feed(process: asyncssh.SSHServerProcess[str], child: asyncio.StreamWriter) -> None:
        """The end of the connection ends the input of the child."""
        with contextlib.suppress(OSError, asyncssh.Error):
            while text := await process.stdin.read(1024):
                child.write(text.encode())
        child.close()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[_Machine]:
    home = tmp_path / "home"
    home.mkdir()
    here = _Machine(home)
    host_key, user_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    authorized = tmp_path / "authorized"
    authorized.write_bytes(user_key.export_public_key())
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[host_key],
        authorized_client_keys=str(authorized),
        process_factory=here.run,
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(home).encode()),
    )
    here.port = server.get_port()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{here.port} {host_key.export_public_key().decode()}")
    here.options = {"known_hosts": str(known), "client_keys": [user_key], "config": None, "agent_path": None}
    try:
        yield here
    finally:
        server.close()
        await server.wait_closed()
        for child in here.children:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        await asyncio.sleep(0.05)


async def test_a_stage_is_started_used_and_stopped(machine: _Machine, tiny_model: Path, tmp_path: Path) -> None:
    """Its keys are the only thing that is copied, and only its user can read them."""
    create_authority(tmp_path / "keys")
    for name, role in (("coordinator", "coordinator"), ("garage", "stage")):
        create_node(tmp_path / "keys", name, role)  # type: ignore[arg-type]
    there = machine.home / ".longspan" / "up" / "stage-0"
    copied = SshHost("127.0.0.1", "127.0.0.1:0", keys=str(tmp_path / "keys" / "garage"), port=machine.port)
    launcher = SshLauncher((copied,), **machine.options)
    with pytest.raises(RingError, match="could not start"):
        await launcher.start(0, StageOptions(str(tmp_path / "no.gguf")))  # the interpreter is another one there
    assert sorted(path.name for path in machine.home.rglob("*") if path.is_file()) == [
        "authority.pem",
        "node.key",
        "node.pem",
    ]
    assert there.stat().st_mode & 0o077 == 0
    assert (there / "node.key").stat().st_mode & 0o077 == 0
    host = SshHost("127.0.0.1", "127.0.0.1:0", remote_keys=str(there), python=PYTHON, port=machine.port, threads=1)
    handle = await SshLauncher((host,), **machine.options).start(0, StageOptions(str(tiny_model)))
    try:
        source = GgufSource(tiny_model)
        security = load_security(SecurityOptions(str(tmp_path / "keys" / "coordinator")))
        driver = RingDriver(
            RingPlan("ring", (StagePlace(0, 0, source.description.layers, handle.address),), 2, 64, "float32", 0.0),
            LlamaLoader(source, threads=1),
            on_result=lambda result: None,
            on_room=lambda: None,
            on_failure=lambda error: None,
            on_progress=lambda text: None,
            security=security,
        )
        assert (await driver.form()).slots == 2
        await driver.close()
        assert handle.running
    finally:
        await handle.stop()
    assert handle._process.is_closing()
    async with asyncio.timeout(10):
        await machine.children[-1].wait()
    assert not psutil.pid_exists(machine.children[-1].pid)


async def test_a_stage_that_ends_is_started_again_and_all_stop_in_the_end(
    machine: _Machine, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = SshHost("127.0.0.1", "127.0.0.1:0", python=PYTHON, port=machine.port, threads=1)
    launcher = SshLauncher((host, host), **machine.options)
    running = asyncio.create_task(up.keep_up(launcher, StageOptions(str(tiny_model)), 2))
    async with asyncio.timeout(60):
        while "serve MODEL --ring 127.0.0.1:" not in capsys.readouterr().out:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        machine.children[0].kill()
        while len(machine.children) < 3:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(10):
        for child in machine.children:
            await child.wait()


async def test_a_stage_that_was_sent_away_is_not_started_again(machine: _Machine) -> None:
    registrar = Registrar("0" * 64)
    await registrar.start("127.0.0.1", 0)
    try:
        host = SshHost("127.0.0.1", "127.0.0.1:0", python=PYTHON, port=machine.port, threads=1)
        options = StageOptions(None, join=f"127.0.0.1:{registrar.port}", name="garage")
        running = asyncio.create_task(up.keep_up(SshLauncher((host,), **machine.options), options, 1))
        async with asyncio.timeout(60):
            while not registrar.members:
                await registrar.change()
            await registrar.remove("garage")
            await running
        assert len(machine.children) == 1
    finally:
        await registrar.close()


async def test_what_cannot_be_reached_or_is_no_machine_of_ours_is_said(machine: _Machine) -> None:
    options = StageOptions("demo")
    nowhere = SshLauncher((SshHost("127.0.0.1", "127.0.0.1:0", port=1),), **machine.options)
    with pytest.raises(RingError, match=r"no SSH connection to 127.0.0.1 for stage 0"):
        await nowhere.start(0, options)
    stranger = {**machine.options, "known_hosts": asyncssh.import_known_hosts("")}
    unknown = SshLauncher((SshHost("127.0.0.1", "127.0.0.1:0", port=machine.port),), **stranger)
    with pytest.raises(RingError, match=r"no SSH connection .*not trusted"):
        await unknown.start(0, options)
    keyless = SshHost("127.0.0.1", "127.0.0.1:0", keys="/nowhere", port=machine.port)
    with pytest.raises(UsageError, match="not the directory of a node's keys"):
        await SshLauncher((keyless,), **machine.options).start(0, options)


def test_a_hosts_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('[[host]]\nssh = "garage"\nlisten = "192.0.2.7:7001"\nkeys = "keys/garage"\nport = 2222\n')
    (host,) = read_hosts(file)
    assert host == SshHost("garage", "192.0.2.7:7001", keys="keys/garage", port=2222)
    for content, message in (
        ("", "no hosts file"),
        ("[[host]]\n", "missing required field"),
        ('[[host]]\nssh = "a"\nlisten = "b"\n', "is not an address"),
        ('[[host]]\nssh = "a"\nlisten = "b:1"\npassword = "x"\n', "password"),
        ('[[host]]\nssh = "a"\nlisten = "b:1"\nkeys = "x"\nremote_keys = "y"\n', "give one of them"),
        ("x" * 2_000_000, "more than"),
    ):
        file.write_text(content)
        with pytest.raises(UsageError, match=message):
            read_hosts(file)
    with pytest.raises(UsageError, match="cannot read the hosts file"):
        read_hosts(tmp_path / "nothing")
