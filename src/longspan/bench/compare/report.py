"""A comparison as Markdown and as a picture."""

from __future__ import annotations

from pathlib import Path

from longspan.bench.compare.comparison import Comparison
from longspan.observe.picture import new_figure, save_picture


def markdown(found: Comparison, picture: str | None) -> str:
    """The report. picture: name of the file with the picture, beside the report."""
    a, b = found.arms
    build = found.builds[0]
    lines = [
        f"# {b.name} against {a.name}",
        "",
        f"{_gate(found)} {found.date}, {found.workload.rounds} rounds of A B B A, one server at a time.",
        "",
        "| | A | B |",
        "|---|---|---|",
        f"| name | {a.name} | {b.name} |",
        f"| options | `{' '.join(a.serve) or 'none'}` | `{' '.join(b.serve) or 'none'}` |",
        f"| model | {a.model} `{found.digests[0][:12]}` | {b.model} `{found.digests[1][:12]}` |",
        f"| build | {_build(found, 0)} | {_build(found, 1)} |",
        "",
        f"Workload: {found.workload.dataset.count} × {found.workload.dataset.name}, "
        f"{found.workload.output_tokens} tokens each, {found.workload.concurrency} at once, "
        f"{found.workload.warmups} to warm up.",
        "",
        "| metric | better | A | B | change | noise | counts from | verdict |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {row.metric} | {row.better} | {row.a:.2f} | {row.b:.2f} | {row.change:+.1%} | {row.noise:.1%} "
        f"| {row.threshold:.1%} | {row.verdict} |"
        for row in found.verdicts
    ]
    passes = found.passes
    lines += [
        "",
        f"Answers: {_answers(found)}.",
        f"Requests under way at once: {min(one.contention.concurrency for one in passes):.1f} to "
        f"{max(one.contention.concurrency for one in passes):.1f} on average, "
        f"{min(one.contention.shared for one in passes)} or more iterations a pass with several sequences; "
        + ("contention is proven." if found.contended else "contention is NOT proven."),
        "",
    ]
    if picture is not None:
        lines += [f"![Every measurement of both arms, round by round]({picture})", ""]
    libraries = ", ".join(f"{name} {version}" for name, version in build.libraries.items())
    machine = found.machine
    lines += [
        f"Machine: {machine.processor}, {machine.cores_usable:g} cores usable, {machine.system}. "
        f"Python {build.python}, {libraries}.",
        "",
        "A difference counts when it is larger than max(2 %, 2 × noise); above 5 % noise nothing is concluded.",
        "",
    ]
    return "\n".join(lines)


def draw(found: Comparison, path: Path) -> None:
    """Write the picture: each metric relative to A's median, by rounds. Raises UsageError without matplotlib."""
    rows = found.verdicts
    figure = new_figure(10, 1 + 1.1 * len(rows))
    for index, row in enumerate(rows):
        axes = figure.add_subplot(len(rows), 1, index + 1)
        for arm, colour, mark in (("A", "#b26b00", "o"), ("B", "#2a6fbb", "s")):
            taken = [one for one in found.passes if one.arm == arm]
            places = [one.round + (0.25 if arm == "A" else 0.5) for one in taken]
            axes.scatter(places, [one.figures[row.metric] / row.a for one in taken], s=16, c=colour, marker=mark)
        axes.axhspan(1 - row.threshold, 1 + row.threshold, color="#8883")
        axes.set_title(f"{row.metric}: {row.change:+.1%}, {row.verdict}", fontsize=9, loc="left")
        axes.set_xticks([])
        axes.tick_params(labelsize=8)
    figure.text(0.01, 0.005, "circles A, squares B, relative to A's median; grey: does not count", fontsize=8)
    save_picture(figure, path)


def _gate(found: Comparison) -> str:
    if found.gate.passed:
        return "**The gate is passed.**"
    return f"**The gate is not passed**: {'; '.join(found.gate.failures)}."


def _answers(found: Comparison) -> str:
    if found.identical:
        return "the same texts in all passes"
    numbers = ", ".join(map(str, found.differing[:10]))
    return f"{len(found.differing)} requests were answered differently (numbers {numbers})"


def _build(found: Comparison, index: int) -> str:
    build = found.builds[index]
    return f"{build.version} `{build.digest[:12]}`" + (f", commit {build.commit}" if build.commit else "")
