"""`longspan stage`: hold some layers of a model for a coordinator elsewhere."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.progress import ProgressBars
from longspan.openmp import set_waiting


def stage(
    *,
    model: str | None = None,
    listen: str = "127.0.0.1:0",
    join: str | None = None,
    name: str | None = None,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    library: str | None = None,
    mtp_head: Path | None = None,
    keys: Annotated[str | None, Parameter(env_var="LONGSPAN_KEYS")] = None,
    token_file: Annotated[str | None, Parameter(env_var="LONGSPAN_TOKEN_FILE")] = None,
    pin: tuple[str, ...] = (),
    insecure: bool = False,
) -> None:
    """Hold some layers of a model, and run them for a coordinator.

    Waits for a coordinator that serves the same model (longspan serve --ring
    HOST:PORT), which says what layers this stage gets. When the coordinator
    goes, the stage keeps its layers and waits for the next one.

    For example:

        longspan stage --model demo --listen 0.0.0.0:7001 --keys keys/first
        longspan stage --join 192.0.2.1:7070 --listen 192.0.2.7:7001 --keys keys/attic
        longspan stage --model /models/demo-package --listen 192.0.2.7:7001 --token-file ring.token

    Parameters
    ----------
    model
        The model; the coordinator must serve the same one. Without it, the
        coordinator gives this stage the layers that it is to hold, and they
        are kept in the cache.
    listen
        HOST:PORT to listen on. Port 0 takes any free port and tells which.
    join
        HOST:PORT of a coordinator (longspan serve --join) to register with,
        and to come back to whenever it was away.
    name
        What this stage is called there; whoever joins with the same name takes
        its place (default: the machine's name and the port).
    threads
        Threads to compute with (default: all cores).
    library
        Another libllama of the same build, for example with CUDA.
    mtp_head
        File of the head that drafts when this is the last stage, made by
        longspan train-mtp; the coordinator's --mtp-head must be the same
        (default: the one that Longspan or the model carries, if any).
    keys
        Directory of this node's certificate, made by longspan keys init. Only
        nodes of the same authority are let in then, and only a coordinator
        gives work.
    token_file
        File with the secret that all nodes share, made by longspan keys token.
    pin
        Let in only certificates with these fingerprints; may be given again.
    insecure
        Listen for other machines without keys and token: everybody who can
        reach this stage can use it and read what it computes.
    """
    set_waiting()  # before the library is loaded
    import uvloop

    from longspan.model.reference import resolve
    from longspan.ring.ring_plan import parse_address
    from longspan.ring.security import SecurityOptions
    from longspan.ring.stage_process import StageOptions, run_stage

    host, port = parse_address(listen)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    # Fetched here and not by the stage, so that a person sees a bar; the stage then finds the file.
    if model is not None:
        resolve(model, progress=ProgressBars())
    security = SecurityOptions(keys, token_file, pin, insecure)
    uvloop.run(
        run_stage(
            StageOptions(
                model,
                host,
                port,
                threads=threads,
                library=library,
                security=security,
                mtp_head=True if mtp_head is None else str(mtp_head),
                join=join,
                name=name,
            )
        )
    )
