"""`longspan serve`: a model behind the OpenAI API."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import EngineArguments
from longspan.cli.ring_table import ring_table
from longspan.cli.session import running_engine
from longspan.cli.stopping import run_until_stopped

if TYPE_CHECKING:
    from longspan.engine import EngineOptions
    from longspan.server import ServerOptions

HTTP = Group("HTTP", sort_key=0)


def serve(
    model: str,
    /,
    *,
    host: Annotated[str, Parameter(group=HTTP)] = "127.0.0.1",
    port: Annotated[int, Parameter(group=HTTP, validator=Number(gte=0, lte=65_535))] = 8080,
    api_key: Annotated[tuple[str, ...], Parameter(group=HTTP, env_var="LONGSPAN_API_KEY")] = (),
    access_log: Annotated[bool, Parameter(group=HTTP)] = False,
    quiet: bool = False,
    engine: EngineArguments = EngineArguments(),
) -> None:
    """Serve a model over the OpenAI API.

    Without --stages and --ring the whole model runs in this process. Says on
    the standard output where it listens as soon as it can answer, and ends
    when it gets Ctrl-C or SIGTERM.

    For example:

        longspan serve demo
        longspan serve demo --stages 2 --link-delay 25 --port 0
        longspan serve demo --ring first.example:7000,second.example:7001
        longspan serve model.gguf --splits 0-10,10-32 --stages 2

    Parameters
    ----------
    model
        The model to serve.
    host
        Address to listen on; 0.0.0.0 lets other machines in.
    port
        Port to listen on; 0 takes any free one.
    api_key
        Let only clients in that send this key; may be given again.
    access_log
        Write a JSON line for every request (never its text) to the standard error stream.
    quiet
        Do not show the ring.
    """
    from longspan.server import ServerOptions
    from longspan.server.access_log import log_accesses_to_standard_error

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    if access_log:
        log_accesses_to_standard_error()
    options = ServerOptions(api_keys=api_key, access_log=access_log)
    run_until_stopped(_serve(engine.options(model), options, host, port, quiet=quiet))


async def _serve(
    engine_options: EngineOptions, server_options: ServerOptions, host: str, port: int, *, quiet: bool
) -> None:
    """Start the engine, serve until a signal, stop the engine."""
    from longspan import server

    def tell(url: str) -> None:
        print(f"listening on {url}", flush=True)

    async with running_engine(engine_options) as engine:
        if not quiet:
            print(ring_table(engine.ring()), file=sys.stderr, flush=True)
        await server.serve(server.create_app(engine, options=server_options), host, port, on_listening=tell)
