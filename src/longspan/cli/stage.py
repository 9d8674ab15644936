"""`longspan stage`: hold some layers of a model for a coordinator elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.progress import ProgressBars
from longspan.openmp import set_waiting


def stage(
    *,
    model: str,
    listen: str = "127.0.0.1:0",
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    library: str | None = None,
) -> None:
    """Hold some layers of a model, and run them for a coordinator.

    Waits for a coordinator that serves the same model (longspan serve --ring
    HOST:PORT), which says what layers this stage gets. When the coordinator
    goes, the stage keeps its layers and waits for the next one.

    For example:

        longspan stage --model demo --listen 0.0.0.0:7001
        longspan stage --model /models/demo-package --listen 192.0.2.7:7001

    Parameters
    ----------
    model
        The model; the coordinator must serve the same one.
    listen
        HOST:PORT to listen on. Port 0 takes any free port and tells which.
    threads
        Threads to compute with (default: all cores).
    library
        Another libllama of the same build, for example with CUDA.
    """
    set_waiting()  # before the library is loaded
    import uvloop

    from longspan.model.reference import resolve
    from longspan.ring.ring_plan import parse_address
    from longspan.ring.stage_process import StageOptions, run_stage

    host, port = parse_address(listen)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    # Fetched here and not by the stage, so that a person sees a bar; the stage then finds the file.
    resolve(model, progress=ProgressBars())
    uvloop.run(run_stage(StageOptions(model, host, port, threads=threads, library=library)))
