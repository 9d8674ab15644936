"""`longspan serve`: a model behind the OpenAI API."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
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
    api_key_file: Annotated[Path | None, Parameter(group=HTTP, env_var="LONGSPAN_API_KEY_FILE")] = None,
    cors_origin: Annotated[tuple[str, ...], Parameter(group=HTTP)] = (),
    body_limit: Annotated[int, Parameter(group=HTTP, validator=Number(gte=1))] = 10_000_000,
    heartbeat: Annotated[float, Parameter(group=HTTP, validator=Number(gt=0))] = 15.0,
    access_log: Annotated[bool, Parameter(group=HTTP)] = False,
    quiet: bool = False,
    engine: EngineArguments = EngineArguments(),
) -> None:
    """Serve a model over the OpenAI and the Anthropic API.

    Without --stages and --ring the whole model runs in this process. Says on
    the standard output where it listens as soon as it can answer, and ends
    when it gets Ctrl-C or SIGTERM.

    For example:

        longspan serve demo
        longspan serve demo --stages 2 --link-delay 25 --port 0
        longspan serve demo --api-key-file keys.txt --cors-origin https://chat.example
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
        Let only clients in that send this key; may be given again. Other users of this machine can read
        it from the list of processes: prefer --api-key-file or the environment.
    api_key_file
        A file with more of these keys, one a line; lines that begin with # are notes.
    cors_origin
        Let web pages of this origin ask from a browser; may be given again, and * is any page.
    body_limit
        Most bytes of a request's body.
    heartbeat
        After so many seconds without a token a stream sends a comment, so that proxies keep it open.
    access_log
        Write a JSON line for every request (never its text) to the standard error stream.
    quiet
        Do not show the ring.
    """
    from longspan.server import ServerOptions
    from longspan.server.access_log import log_accesses_to_standard_error
    from longspan.server.api_keys import checked_keys, keys_of_file

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    if access_log:
        log_accesses_to_standard_error()
    options = ServerOptions(
        api_keys=checked_keys((*api_key, *(keys_of_file(api_key_file) if api_key_file is not None else ()))),
        cors_origins=cors_origin,
        body_limit=body_limit,
        heartbeat_seconds=heartbeat,
        access_log=access_log,
    )
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
