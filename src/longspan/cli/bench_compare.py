"""`longspan bench compare`: does a change count?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longspan.cli.engine_options import AtLeastOne
from longspan.cli.output import format_table, print_json, write_result
from longspan.cli.progress import progress_line

if TYPE_CHECKING:
    from longspan.bench.compare.comparison import Comparison


def bench_compare(
    a: Path,
    b: Path,
    /,
    *,
    gate: Path | None = None,
    rounds: AtLeastOne = 5,
    requests: AtLeastOne = 16,
    concurrency: AtLeastOne = 4,
    input_len: AtLeastOne = 64,
    output_len: AtLeastOne = 32,
    dataset_name: Literal["synthetic-low", "synthetic-medium", "synthetic-high", "humaneval", "mt-bench"] = (
        "synthetic-medium"
    ),
    dataset_path: Path | None = None,
    num_warmups: AtLeastOne = 2,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Compare two arms: rounds A B B A, one server at a time, equal answers, and a verdict that knows the noise.

    An arm is a TOML file: name, model, serve (options of `longspan serve`), environment, python (another build).
    A difference counts above max(2 %, 2 x noise); above 5 % noise it is inconclusive. Exit code 1 when the gate is
    not passed.

    For example:

        longspan bench compare plain.toml mixed.toml
        longspan bench compare plain.toml mixed.toml --gate gate.toml --out results/mixed --json

    Parameters
    ----------
    a
        The arm as it is.
    b
        The arm with the change.
    gate
        A file of what must hold (default: throughput, first token and gaps no worse, answers the same).
    rounds
        Rounds of A B B A.
    requests
        Requests of a pass.
    concurrency
        Requests at once.
    input_len
        Tokens of a synthetic prompt, about.
    output_len
        Tokens of every answer, exactly.
    dataset_name
        Where prompts come from.
    dataset_path
        Its file, where it has one.
    num_warmups
        Requests before each measurement; the same for both arms.
    out
        Write OUT.json, OUT.md and, with matplotlib, OUT.png.
    json
        Print everything as JSON, each request too.
    """
    import asyncio

    from longspan.bench.compare.arm import read_arm
    from longspan.bench.compare.comparison import Rounds, Workload
    from longspan.bench.compare.gate import DEFAULT_GATE, read_gate
    from longspan.bench.load.datasets import DatasetOrder
    from longspan.openmp import set_waiting

    arms = (read_arm(a), read_arm(b))
    required = read_gate(gate) if gate is not None else DEFAULT_GATE
    workload = Workload(
        dataset=DatasetOrder(name=dataset_name, path=dataset_path, count=requests, input_tokens=input_len),
        output_tokens=output_len,
        concurrency=concurrency,
        warmups=num_warmups,
        rounds=rounds,
    )
    set_waiting()
    with progress_line() as show:
        found = asyncio.run(Rounds(arms, workload, show).compare(required))
    if out is not None:
        _write(found, out)
    if json:
        print_json(found)
    else:
        _print(found)
    return 0 if found.gate.passed else 1


def _write(found: Comparison, out: Path) -> None:
    import importlib.util

    import msgspec

    from longspan.bench.compare.report import draw, markdown

    picture = out.with_suffix(".png") if importlib.util.find_spec("matplotlib") else None
    if picture is not None:
        draw(found, picture)
    write_result(out.with_suffix(".json"), msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    write_result(out.with_suffix(".md"), markdown(found, picture.name if picture is not None else None).encode())


def _print(found: Comparison) -> None:
    a, b = found.arms
    print(f"A: {a.name}   B: {b.name}   {found.workload.rounds} rounds of A B B A\n")
    rows = [
        (row.metric, row.a, row.b, f"{row.change:+.1%}", f"{row.noise:.1%}", f"{row.threshold:.1%}", row.verdict)
        for row in found.verdicts
    ]
    print(format_table(("metric", "A", "B", "change", "noise", "counts from", "verdict"), rows))
    print(f"\nanswers: {'the same in all passes' if found.identical else f'{len(found.differing)} differ'}")
    print(f"contention: {'proven' if found.contended else 'NOT proven'}")
    print("gate: " + ("passed" if found.gate.passed else "not passed: " + "; ".join(found.gate.failures)))
