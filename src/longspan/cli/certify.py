"""`longspan certify`: is the split model the whole model, bit for bit?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.output import format_table, print_facts, print_json
from longspan.cli.progress import ProgressBars, progress_line

if TYPE_CHECKING:
    from longspan.bench.exactness import Certificate


def certify(
    model: str,
    /,
    *,
    stages: Annotated[int, Parameter(validator=Number(gte=1, lte=256))] = 2,
    splits: str | None = None,
    threads: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    activation_dtype: Literal["float32", "float16"] = "float32",
    library: str | None = None,
    json: bool = False,
) -> None:
    """Compare a split model with the whole model, row by row and bit by bit.

    Every row's logits are compared: one row at a time, windows of every size below the exact-row limit, after
    random trims, and four interleaved sequences with windows beside prefill. Exits with 1 when one bit differs.

    For example:

        longspan certify demo --stages 3
        longspan certify model.gguf --splits 0-10,10-32 --json

    Parameters
    ----------
    model
        The model to split.
    stages
        Into how many stages, as even as possible.
    splits
        Other split points: layer ranges as in 0-10,10-30.
    threads
        Threads to compute with.
    activation_dtype
        How activations travel between the stages.
    library
        Another libllama of the same build.
    json
        Print the result as JSON.
    """
    from longspan.bench.exactness import certify as compare
    from longspan.model.reference import resolve
    from longspan.model.splits import even_splits, parse_splits

    source = resolve(model, progress=ProgressBars())
    layers = source.description.layers
    ranges = (
        parse_splits(splits, layers)
        if splits is not None
        else even_splits(layers, stages, source.description.cut_multiple)
    )
    for start, end in ranges:
        source.check_range(start, end)
    with progress_line() as show:
        certificate = compare(
            source, ranges, threads=threads, dtype=activation_dtype, library=library, report=_steps(show)
        )
    if json:
        print_json(certificate)
    else:
        _print(certificate)
    if not certificate.exact:
        sys.exit(1)


def _steps(show: Callable[[str], None]) -> Callable[[str, float], None]:
    """On a terminal every step with its share; elsewhere a line when the step changes."""
    last = ""

    def report(text: str, share: float) -> None:
        nonlocal last
        if sys.stderr.isatty():
            show(f"{text}, {share:.0%}")
        elif text != last:
            last = text
            show(text)

    return report


def _print(certificate: Certificate) -> None:
    ranges = ", ".join(f"{start}-{end}" for start, end in certificate.stages)
    print_facts(
        [
            ("model", f"{certificate.model} ({certificate.architecture}), digest {certificate.digest[:12]}"),
            ("stages", f"{ranges}, activations in {certificate.activation_dtype}"),
            ("exact", "yes" if certificate.exact else "NO"),
            ("exact rows", f"batches of fewer than {certificate.exact_rows} rows"),
            ("compared", f"{certificate.rows_checked} rows in {certificate.seconds:.0f} s"),
        ]
    )
    rows = [
        (check.name, check.rows, check.differing, f"{check.max_abs_difference:g}") for check in certificate.checks
    ]
    print()
    print(format_table(("check", "rows", "differing", "max |difference|"), rows))
