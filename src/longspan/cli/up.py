"""`longspan up`: start the stages of a ring on other machines."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from longspan.cli.stopping import run_until_stopped
from longspan.errors import RingError, UsageError

if TYPE_CHECKING:
    from longspan.ring.launcher import Launcher, StageHandle
    from longspan.ring.stage_process import StageOptions

FIRST_WAIT_SECONDS = 0.5
LAST_WAIT_SECONDS = 30.0

RAY = Group("Ray", sort_key=0)


def up(
    *,
    hosts: Path | None = None,
    ray: Annotated[str | None, Parameter(group=RAY)] = None,
    stages: Annotated[int | None, Parameter(group=RAY, validator=Number(gte=1, lte=256))] = None,
    join: Annotated[str | None, Parameter(group=RAY)] = None,
    name: Annotated[str, Parameter(group=RAY)] = "stage",
    share_nodes: Annotated[bool, Parameter(group=RAY)] = False,
    keys: Annotated[str | None, Parameter(group=RAY)] = None,
    model: str | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    token_file: Annotated[str | None, Parameter(env_var="LONGSPAN_TOKEN_FILE")] = None,
    insecure: bool = False,
) -> None:
    """Start the stages of a ring on other machines, watch them, and stop them.

    Over SSH (--hosts), or on a Ray cluster (--ray). Longspan must be installed
    on the machines. Says how to serve the ring as soon as all stages listen;
    those that end are started again, and Ctrl-C stops them all.

    The hosts file has an entry for each stage, in ring order; only the keys of
    each node are copied:

        [[host]]
        ssh = "garage.example"
        listen = "192.0.2.7:7001"
        keys = "keys/garage"
        python = "/opt/longspan/bin/python"

    On a Ray cluster each stage is an actor on a node of its own. When it or
    its node dies, Ray starts it again, there or elsewhere, and it takes its
    place again at the coordinator that it joins (longspan serve --join). No
    data of the ring goes through Ray.

    For example:

        longspan up --hosts hosts.toml --model demo
        longspan up --hosts hosts.toml
        longspan up --ray 192.0.2.1:6379 --stages 3 --join 192.0.2.1:7070 --token-file ring.token
        longspan up --ray auto --stages 3 --join 192.0.2.1:7070 --keys /etc/longspan/keys

    Parameters
    ----------
    hosts
        TOML file with the machines. Further fields of an entry: user, port (of
        SSH), remote_keys (a directory there, instead of keys), model, threads.
    ray
        HOST:PORT of the cluster's head, or auto; on a machine of the cluster.
    stages
        How many stages to start there.
    join
        HOST:PORT of the coordinator, as the nodes reach it. It may come later.
    name
        Stages are called NAME-0, NAME-1 and so on at the coordinator: another
        name for another set at the same one.
    share_nodes
        Let several stages run on one node.
    keys
        Directory on each node with the keys of that node.
    model
        The model of the stages; without it the coordinator gives them their
        layers.
    threads
        Threads of a stage (default: all cores). So many CPUs of a Ray node
        are taken for it; without it, one.
    token_file
        File on the machines with the secret that all nodes share.
    insecure
        Let the stages listen without keys and token.
    """
    from longspan.ring.ring_plan import parse_address
    from longspan.ring.security import SecurityOptions
    from longspan.ring.stage_process import StageOptions

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    if (hosts is None) == (ray is None):
        raise UsageError("give --hosts FILE or --ray ADDRESS: where the stages are to run")
    launcher: Launcher
    if hosts is not None:
        from longspan.ring.ssh_launcher import SshLauncher, read_hosts

        if stages is not None or join is not None or keys is not None or share_nodes:
            raise UsageError("--stages, --join, --keys and --share-nodes are for --ray; the hosts file says it all")
        machines = read_hosts(hosts)
        launcher, count = SshLauncher(machines), len(machines)
    else:
        from longspan.ring.ray_launcher import RayLauncher

        if stages is None or join is None:
            raise UsageError("--ray needs --stages and --join: how many, and the coordinator that they belong to")
        parse_address(join)
        assert ray is not None
        launcher, count = RayLauncher(ray, stages, share_nodes=share_nodes, name=name), stages
    security = SecurityOptions(keys, token_file, insecure=insecure)
    options = StageOptions(model, threads=threads, security=security, join=join)
    run_until_stopped(keep_up(launcher, options, count))


async def keep_up(launcher: Launcher, options: StageOptions, count: int) -> None:
    """Start the stages, say how to serve them, and start again what ends, until cancelled. Raises RingError."""
    started = await asyncio.gather(
        *(launcher.start(index, options) for index in range(count)), return_exceptions=True
    )
    stages = [stage for stage in started if not isinstance(stage, BaseException)]
    try:
        for failure in started:
            if isinstance(failure, BaseException):
                raise failure
        if options.join is not None:
            print(f"longspan serve MODEL --join {options.join} --stages {count}", flush=True)
        else:
            addresses = ",".join(f"{stage.address[0]}:{stage.address[1]}" for stage in stages)
            print(f"longspan serve MODEL --ring {addresses}", flush=True)
        async with asyncio.TaskGroup() as group:
            for index in range(count):
                group.create_task(_watch(launcher, options, stages, index))
    finally:
        await asyncio.gather(*(stage.stop() for stage in stages), return_exceptions=True)
        await launcher.close()


async def _watch(launcher: Launcher, options: StageOptions, stages: list[StageHandle], index: int) -> None:
    wait = FIRST_WAIT_SECONDS
    while True:
        sent_away = await stages[index].ended()
        await stages[index].stop()
        if sent_away:
            logging.warning("stage %d was sent away by the coordinator; it is not started again", index)
            return
        logging.warning("stage %d has ended; it is started again", index)
        while True:
            try:
                stages[index] = await launcher.start(index, options)
                wait = FIRST_WAIT_SECONDS
                break
            except RingError as error:
                logging.warning("%s", error)
            await asyncio.sleep(random.uniform(wait / 2, wait))
            wait = min(2 * wait, LAST_WAIT_SECONDS)
