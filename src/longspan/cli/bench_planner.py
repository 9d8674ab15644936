"""`longspan bench planner`: what a plan costs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.output import format_table, print_json


def bench_planner(*, plans: Annotated[int, Parameter(validator=Number(gte=10))] = 400, json: bool = False) -> None:
    """Measure how long the planner takes, with up to 512 running and 4096 waiting sequences.

    Nearly every running sequence has a decode row in every plan; an answer ends, and a waiting prompt takes its
    place, in every fourth. No model is needed.

    For example:

        longspan bench planner
        longspan bench planner --plans 1000 --json

    Parameters
    ----------
    plans
        Plans to measure for each size.
    json
        Print the figures as JSON.
    """
    from longspan.bench.planner import measure_planners

    rows = measure_planners(plans=plans)
    if json:
        print_json({"unit": "microseconds", "rows": rows})
        return
    print("microseconds a call")
    print(
        format_table(
            ("running", "waiting", "plan p50", "plan p99", "mean", "complete p50", "complete p99"),
            [
                (
                    row.running,
                    row.waiting,
                    row.plan_us_p50,
                    row.plan_us_p99,
                    row.plan_us_mean,
                    row.complete_us_p50,
                    row.complete_us_p99,
                )
                for row in rows
            ],
        )
    )
