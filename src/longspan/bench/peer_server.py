"""llama.cpp's own server, out of the same xllamacpp, in a process of its own: the peer to compare with."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import xllamacpp


class PeerOptions(msgspec.Struct, frozen=True):
    """slots: requests that run at once. cells: positions of one slot."""

    path: str
    threads: int
    slots: int
    cells: int


def main() -> None:
    """Serve what the one JSON argument says until standard input is closed."""
    options = msgspec.json.decode(sys.argv[1], type=PeerOptions)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(Path(options.path))
    parameters.n_parallel = options.slots
    parameters.n_ctx = options.slots * options.cells
    parameters.cpuparams.n_threads = options.threads
    parameters.cpuparams_batch.n_threads = options.threads
    parameters.port = 0
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"listening on {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
