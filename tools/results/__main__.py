"""Measure, and write docs/results and the README's table.

python -m tools.results                measure everything
python -m tools.results ring planner   measure only these
python -m tools.results --table        write pages, pictures and the table from what was measured before
python -m tools.results --list         the names there are
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools.results.measure import Tried, measure, publish, publish_all
from tools.results.measurements import MEASUREMENTS

BUDGET_SECONDS = 2400
"""What everything together may take on two cores."""


def main(arguments: Sequence[str]) -> int:
    """Measure what is named, everything when nothing is. 1: something failed. 2: a name is not there."""
    if list(arguments) == ["--list"]:
        for measurement in MEASUREMENTS:
            print(f"{measurement.name:<20}{measurement.command}")
        return 0
    if list(arguments) == ["--table"]:
        publish_all()
        return 0
    unknown = set(arguments) - {measurement.name for measurement in MEASUREMENTS}
    if unknown:
        known = ", ".join(measurement.name for measurement in MEASUREMENTS)
        sys.stderr.write(f"no such measurement: {', '.join(sorted(unknown))}; there are: {known}\n")
        return 2
    chosen = [measurement for measurement in MEASUREMENTS if measurement.name in arguments or not arguments]
    tried: list[Tried] = []
    for number, measurement in enumerate(chosen, 1):
        print(f"[{number} of {len(chosen)}] {measurement.name}: {measurement.command}", file=sys.stderr, flush=True)
        found = measure(measurement)
        tried.append(found)
        print(
            f"    {found.seconds:.0f} s{f': {found.failure}' if found.failure else ''}", file=sys.stderr, flush=True
        )
        if not found.failure:
            publish(measurement)
    _say(tried)
    return 1 if any(found.failure for found in tried) else 0


def _say(tried: Sequence[Tried]) -> None:
    seconds = sum(found.seconds for found in tried)
    print(
        f"\n{len(tried)} measured in {seconds / 60:.1f} minutes (all together may take {BUDGET_SECONDS / 60:.0f})"
    )
    for found in tried:
        print(f"  {found.name:<20}{found.seconds:6.0f} s  {found.failure or 'well'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
