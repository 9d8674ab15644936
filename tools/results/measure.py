"""Run a measurement's command, keep its answer, and write what follows from it."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
import time
from typing import NamedTuple

from tools.results.measurement import Measurement
from tools.results.page import page
from tools.results.picture import draw
from tools.results.record import RESULTS, ROOT, new_record, read_record, write_record
from tools.results.table import INDEX, README, index, measured, with_table
from tools.results.value import figure_text

MOST_SECONDS = 900
"""A command that takes longer hangs."""


class Tried(NamedTuple):
    """How a measurement went. failure: empty when it went well."""

    name: str
    seconds: float
    failure: str


def measure(measurement: Measurement) -> Tried:
    """Run the command and write its result file; what was measured before stays when that fails."""
    started = time.perf_counter()
    try:
        answer = subprocess.run(
            arguments(measurement.command), stdout=subprocess.PIPE, check=True, cwd=ROOT, timeout=MOST_SECONDS
        )
        seconds = time.perf_counter() - started
        record = new_record(measurement.command, answer.stdout, seconds)
    except subprocess.CalledProcessError as error:
        return Tried(measurement.name, time.perf_counter() - started, f"exit code {error.returncode}")
    except subprocess.TimeoutExpired:
        return Tried(measurement.name, time.perf_counter() - started, f"not done after {MOST_SECONDS} s")
    except ValueError as error:
        return Tried(measurement.name, time.perf_counter() - started, f"its answer is no JSON: {error}")
    for figure in measurement.figures:
        try:
            figure_text(figure, record.result)
        except (LookupError, TypeError) as error:
            return Tried(measurement.name, seconds, f"its answer lacks {figure.text!r}: {error!r}")
    write_record(measurement.name, record)
    return Tried(measurement.name, seconds, "")


def arguments(command: str) -> list[str]:
    """A command of the table as this interpreter runs it: `longspan …` or `python -m …`."""
    program, *rest = shlex.split(command)
    return [sys.executable, *(["-m", "longspan"] if program == "longspan" else []), *rest]


def publish(measurement: Measurement) -> None:
    """Write a result's picture and page, the list of results and the README's table."""
    record = read_record(measurement.name)
    assert record is not None
    if measurement.picture is not None and importlib.util.find_spec("matplotlib"):
        draw(measurement, record.result, RESULTS / f"{measurement.name}.png")
    (RESULTS / f"{measurement.name}.md").write_text(page(measurement, record), encoding="utf-8")
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    INDEX.write_text(index(), encoding="utf-8")


def publish_all() -> None:
    """The same for everything that was measured before."""
    for measurement, _ in measured():
        publish(measurement)
