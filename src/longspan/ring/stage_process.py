"""The main of a stage process: `longspan stage`, and what the local launcher starts."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop

from longspan.errors import LongspanError, UsageError
from longspan.openmp import set_waiting
from longspan.ring.identity import NAME
from longspan.ring.security import Security, SecurityOptions, check_exposure, load_security

if TYPE_CHECKING:
    from longspan.ring.loader import StageLoader
    from longspan.ring.membership import Membership
    from longspan.ring.stage_server import StageServer


class StageOptions(msgspec.Struct, frozen=True):
    """What a stage process needs to know before a coordinator calls.

    model: reference of it; None: whatever the coordinator serves, whose layers it then gives.
    join: HOST:PORT of a coordinator to register with. name: the stage's identity there; None: its machine and port.
    mtp_head: load the model's MTP head, if there is one, in case that the coordinator asks for drafts; a text names
    the head's file.
    follow_parent: end when standard input is closed, which happens whenever the parent process goes.
    """

    model: str | None
    host: str = "127.0.0.1"
    port: int = 0
    threads: int | None = None
    library: str | None = None
    follow_parent: bool = False
    security: SecurityOptions = SecurityOptions()
    mtp_head: bool | str = True
    join: str | None = None
    name: str | None = None


def announce(host: str, port: int) -> None:
    """Print the line that says where the stage listens; launchers wait for it."""
    print(f"stage listening on {host}:{port}", flush=True)  # noqa: T201 - this line is the command's result


async def run_stage(options: StageOptions, on_listening: Callable[[str, int], None] = announce) -> None:
    """Serve until a signal ends the process. Raises LongspanError when the model or the address cannot be used."""
    set_waiting()  # before the library is loaded
    from longspan.ring.stage_server import serve_stage

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    stopping = False

    def stop() -> None:
        # Once: a parent that goes also sends a signal, and the second cancellation would cut off the cleaning up.
        nonlocal stopping
        if not stopping:
            stopping = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if options.follow_parent:
        _stop_with_parent(loop, stop)
    try:
        security = load_security(options.security)
        check_exposure((options.host,), security, insecure=options.security.insecure, what="listen on")
        loader = _loader(options)
        await serve_stage(
            loader,
            options.host,
            options.port,
            lambda port: on_listening(options.host, port),
            security,
            _member(options, loader, security),
        )
    except asyncio.CancelledError:
        return


def _member(
    options: StageOptions, loader: StageLoader, security: Security
) -> Callable[[StageServer], Membership] | None:
    from longspan.ring.membership import Membership
    from longspan.ring.ring_plan import parse_address

    if options.join is None:
        return None
    coordinator = parse_address(options.join)
    # A host that stands for all of a machine's addresses tells others nothing.
    host = "" if options.host in ("0.0.0.0", "::") else options.host
    if options.name is not None and not NAME.fullmatch(options.name):
        raise UsageError(f"{options.name!r} is no name for a stage: use letters, digits, dots, _ and -")
    machine = re.sub(r"[^A-Za-z0-9]+", "-", platform.node().split(".")[0]).strip("-")[:40] or "stage"
    return lambda server: Membership(
        coordinator,
        options.name or f"{machine}-{server.port}",
        host,
        server.port,
        digest=loader.digest,
        held=lambda: server.held,
        security=security,
    )


def _loader(options: StageOptions) -> StageLoader:
    from longspan.model.mtp_head import read_head
    from longspan.model.reference import resolve
    from longspan.ring.fetched_loader import FetchedLoader
    from longspan.ring.llama_loader import LlamaLoader

    head = Path(options.mtp_head) if isinstance(options.mtp_head, str) else options.mtp_head
    if isinstance(head, Path):
        read_head(head)  # what is wrong with the file shall be known before a coordinator calls
    if options.model is None:
        return FetchedLoader(threads=options.threads, library=options.library, mtp_head=head)
    return LlamaLoader(resolve(options.model), threads=options.threads, library=options.library, mtp_head=head)


def _stop_with_parent(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    def watch() -> None:
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(stop)

    threading.Thread(target=watch, name="longspan-parent-watch", daemon=True).start()


def _options_of_parent() -> StageOptions | None:
    """Get ready for whatever stage this becomes, and wait for a line that says it; None: the parent is gone."""
    set_waiting()  # before the library is loaded
    from longspan.ring import fetched_loader, llama_loader, stage_server  # noqa: F401 - half of a start's time

    line = bytearray()
    while not line.endswith(b"\n"):
        more = os.read(0, 1 << 16)
        if not more:
            return None
        line += more
    return msgspec.json.decode(line, type=StageOptions)


def main() -> int:
    """Run a stage without a command line parser: what launchers start.

    Its options are one JSON argument; without it, a line of JSON on standard input, which may come much later.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a traceback while modules are imported would help nobody
    try:
        options = msgspec.json.decode(sys.argv[1], type=StageOptions) if sys.argv[1:] else _options_of_parent()
        if options is not None:
            uvloop.run(run_stage(options))
    except LongspanError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a launcher shows this to the person
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
