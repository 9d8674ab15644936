"""`longspan bench interference`: long prompts beside decoding streams."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne, Requantize
from longspan.cli.output import format_table, print_json
from longspan.cli.progress import ProgressBars, progress_line


def bench_interference(
    model: str = "demo",
    /,
    *,
    stages: tuple[int, ...] = (1, 2),
    rounds: AtLeastOne = 3,
    prompts: AtLeastOne = 2,
    prompt_tokens: AtLeastOne = 1500,
    answer_tokens: AtLeastOne = 96,
    threads: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    requantize: Requantize = None,
    json: bool = False,
) -> None:
    """Measure what long prompts do to streams that are decoding.

    Four streams decode while long prompts arrive. Two arms, A B B A in one run: iterations that hold either decode
    rows or prefill ("homogeneous"), and mixed iterations. Ratios are mixed over homogeneous; below 1 is better for
    gaps and first tokens, above 1 for throughput.

    For example:

        longspan bench interference
        longspan bench interference --stages 2 --rounds 5 --json

    Parameters
    ----------
    model
        The model to measure with.
    stages
        Numbers of stages to measure.
    rounds
        Rounds of A B B A.
    prompts
        Long prompts, one after the other.
    prompt_tokens
        Tokens of a long prompt.
    answer_tokens
        Tokens that each decoding stream generates.
    threads
        Threads of each stage (default: its share of the cores).
    json
        Print the figures as JSON.
    """
    from longspan.bench.interference import Interference
    from longspan.bench.interference import bench_interference as measure
    from longspan.bench.measured_model import measured_model

    _, reference = measured_model(model, requantize, ProgressBars())
    benchmark = Interference(
        reference,
        rounds=rounds,
        prompts=prompts,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        threads=threads,
    )
    with progress_line() as show:
        figures = measure(benchmark, stages, show)
    if json:
        print_json(figures)
        return
    rows = [
        (
            figure.stages,
            figure.p95_gap_ratio,
            figure.max_gap_ratio,
            figure.ttft_p50_ratio,
            figure.throughput_ratio,
            f"{figure.noise:.1%}",
            "yes" if figure.identical_tokens else "NO",
        )
        for figure in figures
    ]
    print(
        format_table(
            ("stages", "p95 gap", "longest gap", "p50 first token", "throughput", "noise", "same tokens"), rows
        )
    )
