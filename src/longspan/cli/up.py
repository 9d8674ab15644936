"""`longspan up`: start the stages of a ring on other machines."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from longspan.cli.stopping import run_until_stopped

if TYPE_CHECKING:
    from longspan.ring.ssh_launcher import SshLauncher, SshStage
    from longspan.ring.stage_process import StageOptions

FIRST_WAIT_SECONDS = 0.5
LAST_WAIT_SECONDS = 30.0


def up(
    *,
    hosts: Path,
    model: str | None = None,
    token_file: Annotated[str | None, Parameter(env_var="LONGSPAN_TOKEN_FILE")] = None,
    insecure: bool = False,
) -> None:
    """Start the stages of a ring on other machines over SSH, watch them, and stop them.

    The hosts file has an entry for each stage, in ring order:

        [[host]]
        ssh = "garage.example"
        listen = "192.0.2.7:7001"
        keys = "keys/garage"
        python = "/opt/longspan/bin/python"

    Copied are the keys of each node and nothing else; Longspan must be
    installed there. Says how to serve the ring as soon as all stages listen,
    starts those again that end, and stops them all with Ctrl-C.

    For example:

        longspan up --hosts hosts.toml --model demo
        longspan up --hosts hosts.toml

    Parameters
    ----------
    hosts
        TOML file with the machines. Further fields of an entry: user, port (of
        SSH), remote_keys (a directory there, instead of keys), model, threads.
    model
        The model of the stages; without it the coordinator gives them their
        layers.
    token_file
        File on the machines with the secret that all nodes share.
    insecure
        Let the stages listen without keys and token.
    """
    from longspan.ring.security import SecurityOptions
    from longspan.ring.ssh_launcher import SshLauncher, read_hosts
    from longspan.ring.stage_process import StageOptions

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    machines = read_hosts(hosts)
    options = StageOptions(model, security=SecurityOptions(token_file=token_file, insecure=insecure))
    run_until_stopped(keep_up(SshLauncher(machines), options, len(machines)))


async def keep_up(launcher: SshLauncher, options: StageOptions, count: int) -> None:
    """Start the stages, say where they are, and start again what ends, until cancelled. Raises RingError."""
    started = await asyncio.gather(
        *(launcher.start(index, options) for index in range(count)), return_exceptions=True
    )
    stages = [stage for stage in started if not isinstance(stage, BaseException)]
    try:
        for failure in started:
            if isinstance(failure, BaseException):
                raise failure
        addresses = ",".join(f"{stage.address[0]}:{stage.address[1]}" for stage in stages)
        print(f"longspan serve MODEL --ring {addresses}", flush=True)
        async with asyncio.TaskGroup() as group:
            for index in range(count):
                group.create_task(_watch(launcher, options, stages, index))
    finally:
        await asyncio.gather(*(stage.stop() for stage in stages), return_exceptions=True)


async def _watch(launcher: SshLauncher, options: StageOptions, stages: list[SshStage], index: int) -> None:
    from longspan.errors import RingError

    wait = FIRST_WAIT_SECONDS
    while True:
        await stages[index].ended()
        logging.warning("stage %d has ended; it is started again", index)
        await stages[index].stop()
        while True:
            try:
                stages[index] = await launcher.start(index, options)
                wait = FIRST_WAIT_SECONDS
                break
            except RingError as error:
                logging.warning("%s", error)
            await asyncio.sleep(random.uniform(wait / 2, wait))
            wait = min(2 * wait, LAST_WAIT_SECONDS)
