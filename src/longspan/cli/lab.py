"""`longspan lab`: the planner in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne
from longspan.cli.output import format_table, print_json
from longspan.errors import UsageError

if TYPE_CHECKING:
    from longspan.lab.run import LabReport
    from longspan.lab.scenarios import Scenario


def lab_list(*, json: bool = False) -> None:
    """List the scenarios and policies of the lab.

    For example:

        longspan lab list
        longspan lab list --json

    Parameters
    ----------
    json
        Print them as JSON.
    """
    from longspan.lab.policies import POLICIES
    from longspan.lab.scenarios import SCENARIOS
    from longspan.lab.traces import TRACE_READERS

    scenarios = [
        {"scenario": entry.name, "about": entry.about, "policies": list(entry.policies)}
        for entry in SCENARIOS.values()
    ]
    scenarios += [
        {"scenario": name, "about": f"a recorded {name} trace, given by --file", "policies": []}
        for name in TRACE_READERS
    ]
    policies = [{"policy": name, "about": about} for name, (about, _) in POLICIES.items()]
    if json:
        print_json({"scenarios": scenarios, "policies": policies})
        return
    print(format_table(("scenario", "what it is"), [(entry["scenario"], entry["about"]) for entry in scenarios]))
    print()
    print(format_table(("policy", "what it does"), [(entry["policy"], entry["about"]) for entry in policies]))


def lab_run(
    scenario: str,
    /,
    *,
    policy: tuple[str, ...] = (),
    costs: Literal["reference", "two-cores"] = "reference",
    stages: Annotated[int, Parameter(validator=Number(gte=1, lte=64))] = 1,
    link_delay: Annotated[float, Parameter(validator=Number(gte=0))] = 0.0,
    file: Path | None = None,
    requests: AtLeastOne = 200,
    speed: Annotated[float, Parameter(validator=Number(gt=0))] = 1.0,
    json: bool = False,
) -> None:
    """Run the real planner against a modelled ring, in virtual time.

    The figures are the same at every run. Fails when the planner makes an empty plan while work exists, or when a
    request gets other tokens than it gets alone.

    For example:

        longspan lab run staggered-prefill --json
        longspan lab run stress --costs two-cores --stages 2 --link-delay 25
        longspan lab run mooncake --file trace.jsonl --requests 500 --policy homogeneous --policy mixed

    Parameters
    ----------
    scenario
        A scenario of `longspan lab list`.
    policy
        Compare these policies instead of the scenario's own; may be given several times.
    costs
        What an iteration costs: as in the reference's lab, or as measured on two CPU cores.
    stages
        Equal stages that share the cost.
    link_delay
        Milliseconds from a stage to the next, and back.
    file
        The recorded trace, for mooncake, azure and burstgpt.
    requests
        Most requests of the trace to run.
    speed
        Replay the trace so many times faster.
    json
        Print the figures as JSON.
    """
    from longspan.lab.run import run_scenario

    chosen = _scenario(scenario, file, requests, speed)
    report = run_scenario(chosen, policy, costs=costs, stages=stages, link_delay=link_delay / 1e3)
    if json:
        print_json(report)
    else:
        _print(report)


def _scenario(name: str, file: Path | None, requests: int, speed: float) -> Scenario:
    from longspan.lab.scenarios import scenario, trace_scenario
    from longspan.lab.traces import TRACE_READERS

    if name not in TRACE_READERS:
        if file is not None:
            raise UsageError(f"--file goes with {', '.join(TRACE_READERS)}, not with the scenario {name!r}")
        return scenario(name)
    if file is None:
        raise UsageError(f"the scenario {name!r} needs a recorded trace: --file PATH")
    return trace_scenario(name, file, requests=requests, speed=speed)


def _print(report: LabReport) -> None:
    print(f"{report.scenario}: {report.about}")
    print(f"{report.stages} stage(s), {report.costs} costs, {report.link_delay_ms:g} ms a link; times are virtual")
    print()
    print(
        format_table(
            ("policy", "total", "req/s", "ttft 50", "ttft 95", "gap 95", "max", "batch", "iter", "mixed"),
            [
                (
                    row.policy,
                    f"{row.makespan_ms:.1f}",
                    f"{row.requests_per_second:.1f}",
                    row.p50_ttft_ms,
                    row.p95_ttft_ms,
                    row.p95_gap_ms,
                    row.longest_gap_ms,
                    row.mean_batch,
                    row.iterations,
                    row.mixed_iterations,
                )
                for row in report.rows
            ],
        )
    )
    for change in report.changes:
        figures = ", ".join(f"{name} {value:+.1f} %" for name, value in change.percent.items())
        print(f"\n{change.policy} against {change.against}: {figures}")
