"""Measure, write docs/results, and put the table into the README.

    python tools/results.py              measure everything
    python tools/results.py ring planner  measure only these
    python tools/results.py --table      only write the README's table from what was measured before

Each measurement is one `longspan … --json` command. Its answer goes to docs/results/NAME.json, together with the
command, the date, the commit and the machine; docs/results/README.md lists them.
"""

from __future__ import annotations

import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from longspan.observe.machine import describe_machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
INDEX = RESULTS / "README.md"
README = ROOT / "README.md"
BEGIN = "<!-- results: written by `make bench` -->"
END = "<!-- end of results -->"


class Figure(NamedTuple):
    """One line of the table.

    path leads through the JSON: keys, indices, or "key=value" picking a row of a list. noise: the path of the share
    by which repeats of the measurement differ, if the command gives it.
    """

    text: str
    path: tuple[str | int, ...]
    form: str
    noise: tuple[str | int, ...] = ()


class Measurement(NamedTuple):
    """A command and the figures of its answer that stand in the README."""

    name: str
    command: str
    figures: tuple[Figure, ...]


MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement(
        "certify-2",
        "longspan certify demo --stages 2 --json",
        (
            Figure("largest difference of a logit, whole model against two stages", ("max_abs_difference",), "{}"),
            Figure("rows compared for it", ("rows_checked",), "{:,}"),
        ),
    ),
    Measurement(
        "certify-3",
        "longspan certify demo --stages 3 --json",
        (Figure("the same against three stages", ("max_abs_difference",), "{}"),),
    ),
    Measurement(
        "ring",
        "longspan bench ring --json",
        (
            Figure(
                "decoding, against a bare llama_decode loop",
                ("decode_ratio_to_bare",),
                "{:.2f} ×",
                ("decode_noise",),
            ),
            Figure(
                "what a hop takes besides compute, on loopback", ("hop_overhead_ms",), "{:.2f} ms", ("hop_noise",)
            ),
            Figure(
                "reading the residual stream out of half a model",
                ("callback_overhead_ms",),
                "{:.2f} ms",
                ("callback_noise",),
            ),
            Figure(
                "memory of a stage with half the layers, against the whole", ("stage_memory_ratio",), "{:.2f} ×"
            ),
        ),
    ),
    Measurement(
        "api",
        "longspan bench api --json",
        (
            Figure("what the API adds to a token, 1 stream", ("rows", "streams=1", "added_ms"), "{:.2f} ms"),
            Figure(
                "throughput over the API at 32 streams, against the engine called directly",
                ("rows", "streams=32", "throughput_ratio"),
                "{:.2f} ×",
                ("rows", "streams=32", "noise"),
            ),
        ),
    ),
    Measurement(
        "planner",
        "longspan bench planner --json",
        (
            Figure(
                "planning an iteration, 64 requests running", ("rows", "running=64", "plan_us_p50"), "{:.0f} µs"
            ),
            Figure("the same, 512 running and 4,096 waiting", ("rows", "running=512", "plan_us_p50"), "{:.0f} µs"),
        ),
    ),
    Measurement(
        "staggered-prefill",
        "longspan lab run staggered-prefill --json",
        (
            Figure(
                "lab: mixed iterations against bounded prefill, makespan",
                ("changes", "against=bounded", "percent", "makespan_ms"),
                "{:+.1f} %",
            ),
            Figure(
                "lab: the same, 95th percentile of the first token",
                ("changes", "against=bounded", "percent", "p95_ttft_ms"),
                "{:+.1f} %",
            ),
        ),
    ),
    Measurement(
        "interference",
        "longspan bench interference --stages 2 --rounds 2 --json",
        tuple(
            Figure(
                f"long prompts beside four streams, mixed iterations against homogeneous: {what}",
                ("stages=2", key),
                "{:.2f} ×",
                ("stages=2", "noise"),
            )
            for what, key in (
                ("throughput", "throughput_ratio"),
                ("first token of the prompts", "ttft_p50_ratio"),
                ("95th percentile of the streams' gaps", "p95_gap_ratio"),
            )
        ),
    ),
    Measurement(
        "concurrency",
        "longspan bench concurrency --json",
        tuple(
            Figure(
                f"throughput at {count} request{'s' if count > 1 else ''}, against llama.cpp's own server",
                ("rows", f"concurrency={count}", "ratio"),
                "{:.2f} ×",
                ("rows", f"concurrency={count}", "noise"),
            )
            for count in (1, 4, 8)
        ),
    ),
    Measurement(
        "wan",
        "longspan bench wan --texts copy --texts prose --delays 100 --concurrency 1 --arms none --arms mtp "
        "--arms auto --arms tree --frontier off --json",
        tuple(
            Figure(
                f"100 ms each way, one request, {text}: {arm} against no speculation",
                ("rows", f"text={text}", f"arm={arm}", "ratio_to_none"),
                "{:.2f} ×",
                ("rows", f"text={text}", f"arm={arm}", "noise"),
            )
            for text, arm in (("copy", "auto"), ("prose", "mtp"), ("prose", "auto"), ("prose", "tree"))
        ),
    ),
    Measurement(
        "lab-ring",
        "longspan lab ring --json",
        (
            Figure(
                "lab: tokens a second of a ring of processes, predicted in virtual time: worst of six settings",
                ("worst_rate_error",),
                "off by {:.1%}",
                ("noise",),
            ),
            Figure("lab: the same, rows sent for nothing", ("worst_stale_error",), "off by {:.1%}"),
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
    text = figure.form.format(value_at(figure.path, result))
    return f"{text} (noise {value_at(figure.noise, result):.1%})" if figure.noise else text


def value_at(path: tuple[str | int, ...], value: Any) -> Any:
    """What stands at a path of a JSON document."""
    rows: list[Any] = []
    for step in path:
        if isinstance(step, str) and "=" in step:
            key, _, wanted = step.partition("=")
            # Several such steps one after the other all narrow the same list.
            rows = [row for row in (value if isinstance(value, list) else rows) if str(row[key]) == wanted]
            value = rows[0]
        else:
            value = value[step]
    return value


def measured() -> Iterator[tuple[Measurement, dict[str, Any]]]:
    """Every measurement that has a result file, with what the file holds."""
    for measurement in MEASUREMENTS:
        path = RESULTS / f"{measurement.name}.json"
        if path.exists():
            yield measurement, json.loads(path.read_text(encoding="utf-8"))


def table() -> str:
    """The README's table of all results that have been measured, with the machine they were measured on."""
    lines = ["| what | result | measured by |", "|---|---|---|"]
    machines: dict[str, None] = {}
    for measurement, record in measured():
        machines[machine_text(record)] = None
        for figure in measurement.figures:
            text = figure_text(figure, record["result"])
            file = f"docs/results/{measurement.name}.json"
            lines.append(f"| {figure.text} | {text} | [`{measurement.command}`]({file}) |")
    return (
        "\n".join([*lines, "", f"On {'; '.join(machines)}. [When, and at which commit](docs/results/README.md)."])
        if machines
        else "Nothing has been measured yet."
    )


def index() -> str:
    """The page that says where and when each result was measured."""
    lines = [
        "# Results",
        "",
        "Written by `make bench`. Each file holds the whole answer of its command.",
        "",
        "| file | command | date | commit | machine |",
        "|---|---|---|---|---|",
    ]
    for measurement, record in measured():
        file = f"{measurement.name}.json"
        lines.append(
            f"| [{file}]({file}) | `{record['command']}` | {record['date']} | {record['commit']} "
            f"| {machine_text(record)} |"
        )
    return "\n".join(lines) + "\n"


def machine_text(record: dict[str, Any]) -> str:
    """The machine of a result in one line."""
    machine = record["machine"]
    cores = f"{machine['cores']:g} cores of {machine['processor']}"
    return f"{cores}, {machine['system']}, llama.cpp b{machine['llama.cpp']}"


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
            try:
                measure(measurement)
            except subprocess.CalledProcessError as error:
                sys.stderr.write(f"{measurement.command} ended with exit code {error.returncode}\n")
                return 1
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    INDEX.write_text(index(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
