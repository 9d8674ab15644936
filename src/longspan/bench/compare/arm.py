"""One side of a comparison, from a TOML file.

name = "mixed"
model = "demo"
serve = ["--stages", "2", "--mixing", "on"]    # options of `longspan serve`
python = "/other/venv/bin/python"              # another build; default: this one
[environment]
OMP_NUM_THREADS = "1"
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from longspan.bench.compare.build import Build
from longspan.errors import LongspanError, UsageError

RESERVED = ("--port", "--host", "--trace", "--quiet", "--api-key")
"""Options of `longspan serve` that the comparison itself gives."""


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See above."""

    name: str
    model: str = "demo"
    serve: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    python: str = sys.executable

    def arguments(self, trace: Path) -> list[str]:
        """Of the interpreter, to serve this arm and write its trace."""
        fixed = ["--port", "0", "--quiet", "--trace", str(trace)]
        return ["-m", "longspan", "serve", self.model, *fixed, *self.serve]


def read_arm(path: Path) -> Arm:
    """The arm of a file. Raises UsageError when it cannot be read, or sets what the comparison sets."""
    try:
        arm = msgspec.toml.decode(path.read_bytes(), type=Arm)
    except OSError as error:
        raise UsageError(f"the arm {path} cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"the arm {path} cannot be used: {error}") from error
    for option in arm.serve:
        if option.partition("=")[0] in RESERVED:
            raise UsageError(f"the arm {path} sets {option}; the comparison does that itself")
    return arm


async def build_of(arm: Arm) -> Build:
    """What the arm's interpreter runs. Raises LongspanError when it cannot say."""
    process = await asyncio.create_subprocess_exec(
        arm.python,
        "-m",
        "longspan.bench.compare.build",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise LongspanError(f"{arm.python} does not run Longspan: {errors.decode('utf-8', 'replace')[-500:]}")
    return msgspec.json.decode(output, type=Build)
