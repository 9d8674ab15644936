"""Measure, write docs/results, and put the table into the README.

    python tools/results.py              measure everything
    python tools/results.py ring planner  measure only these
    python tools/results.py --table      only write the README's table from what was measured before

Each measurement is one `longspan … --json` command. Its answer goes to docs/results/NAME.json, together with the
command, the date, the commit and the machine.
"""

from __future__ import annotations

import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from longspan.observe.machine import describe_machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
README = ROOT / "README.md"
BEGIN = "<!-- results: written by `make bench` -->"
END = "<!-- end of results -->"


class Figure(NamedTuple):
    """One line of the table. `path` leads through the JSON: keys, indices, or key=value picking a row of a list."""

    text: str
    path: tuple[str | int, ...]
    form: str


class Measurement(NamedTuple):
    """A command and the figures of its answer that stand in the README."""

    name: str
    command: str
    figures: tuple[Figure, ...]


MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement(
        "certify",
        "longspan certify demo --stages 2 --json",
        (
            Figure("largest difference of a logit, whole model against two stages", ("max_abs_difference",), "{}"),
            Figure("rows compared for it", ("rows_checked",), "{:,}"),
        ),
    ),
    Measurement(
        "ring",
        "longspan bench ring --json",
        (
            Figure("decoding, against a bare llama_decode loop", ("decode_ratio_to_bare",), "{:.2f} ×"),
            Figure("what a hop costs besides compute and wire", ("hop_overhead_ms",), "{:.2f} ms"),
            Figure("reading the residual out of 15 layers", ("callback_overhead_ms",), "{:.2f} ms"),
            Figure("memory of half a model, against the whole", ("stage_memory_ratio",), "{:.2f} ×"),
        ),
    ),
)


def measure(measurement: Measurement) -> None:
    """Run one command and write its result file."""
    print(f"measuring: {measurement.command}", file=sys.stderr, flush=True)
    arguments = [sys.executable, "-m", "longspan", *shlex.split(measurement.command)[1:]]
    answer = subprocess.run(arguments, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], stdout=subprocess.PIPE, check=True, cwd=ROOT
    )
    machine = describe_machine()
    record = {
        "command": measurement.command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.decode().strip(),
        "machine": {
            "system": machine.system,
            "processor": machine.processor,
            "cores": machine.cores_usable,
            "memory": machine.memory_total,
            "python": machine.python,
            "llama.cpp": machine.library.build,
        },
        "result": json.loads(answer.stdout),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(record), indent=1).decode()
    (RESULTS / f"{measurement.name}.json").write_text(text + "\n", encoding="utf-8")


def figure_text(figure: Figure, result: Any) -> str:
    """A figure as it stands in the table. Raises KeyError or IndexError when the result does not have it."""
    value = result
    for step in figure.path:
        if isinstance(step, str) and "=" in step:
            key, _, wanted = step.partition("=")
            value = next(row for row in value if str(row[key]) == wanted)
        else:
            value = value[step]
    return figure.form.format(value)


def table() -> str:
    """The README's table of all results that have been measured, with the machine they were measured on."""
    lines = ["| what | result | measured by |", "|---|---|---|"]
    machines: dict[str, None] = {}
    for measurement in MEASUREMENTS:
        path = RESULTS / f"{measurement.name}.json"
        if not path.exists():
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        machine = record["machine"]
        machines[
            f"{machine['cores']:g} cores {machine['processor']}, {machine['system']}, "
            f"llama.cpp b{machine['llama.cpp']}, {record['date']}"
        ] = None
        for figure in measurement.figures:
            text = figure_text(figure, record["result"])
            lines.append(f"| {figure.text} | {text} | [`{measurement.command}`](docs/results/{path.name}) |")
    return "\n".join([*lines, "", f"On {'; '.join(machines)}."]) if machines else "Nothing has been measured yet."


def with_table(readme: str) -> str:
    """The README with the table between its two marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Measure what is named (everything when nothing is), then write the table."""
    names = [name for name in arguments if name != "--table"]
    unknown = set(names) - {measurement.name for measurement in MEASUREMENTS}
    if unknown:
        known = ", ".join(measurement.name for measurement in MEASUREMENTS)
        sys.stderr.write(f"no such measurement: {', '.join(sorted(unknown))}; there are: {known}\n")
        return 2
    for measurement in MEASUREMENTS:
        if measurement.name in names or not arguments:
            measure(measurement)
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
