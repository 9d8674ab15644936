"""The README's table of figures, and the page that lists all results. Both follow from the result files alone."""

from __future__ import annotations

from collections.abc import Iterator

from tools.results.measurement import Measurement
from tools.results.measurements import MEASUREMENTS
from tools.results.record import RESULTS, ROOT, Record, read_record
from tools.results.value import figure_text

INDEX = RESULTS / "README.md"
README = ROOT / "README.md"
BEGIN = "<!-- results: written by `make results` -->"
END = "<!-- end of results -->"


def measured() -> Iterator[tuple[Measurement, Record]]:
    """Every measurement that has a result."""
    for measurement in MEASUREMENTS:
        if (record := read_record(measurement.name)) is not None:
            yield measurement, record


def table() -> str:
    """The README's table, with the machine that all was measured on."""
    lines = ["| what | result | measured by |", "|---|---|---|"]
    machines: dict[str, None] = {}
    for measurement, record in measured():
        machines[record.machine_text] = None
        for figure in measurement.figures:
            text = figure_text(figure, record.result)
            file = f"docs/results/{measurement.name}.md"
            lines.append(f"| {figure.text} | {text} | [`{record.command}`]({file}) |")
    if not machines:
        return "Nothing has been measured yet."
    return "\n".join([*lines, "", f"On {'; '.join(machines)}. [All results](docs/results/README.md)."])


def index() -> str:
    """The page that says where and when each result was measured."""
    lines = [
        "# Results",
        "",
        "Written by `make results`: a page for each measurement, with every row of its answer.",
        "",
        "| result | command | date | commit | seconds |",
        "|---|---|---|---|---:|",
    ]
    machines: dict[str, None] = {}
    for measurement, record in measured():
        machines[record.machine_text] = None
        seconds = "–" if record.seconds is None else f"{record.seconds:,.0f}"
        lines.append(
            f"| [{measurement.title}]({measurement.name}.md) | `{record.command}` | {record.date} "
            f"| {record.commit} | {seconds} |"
        )
    return "\n".join([*lines, "", f"On {'; '.join(machines) or 'no machine yet'}."]) + "\n"


def with_table(readme: str) -> str:
    """The README with the table between its two marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"
