"""What must hold before a change is promoted: a TOML file of requirements.

transcripts = true            # every answer of both arms is the same text
contention = true             # requests really ran at the same time

[[require]]
metric = "output_throughput"
verdicts = ["improvement"]    # default: improvement or no difference
least_change = 0.05           # optional bounds of B / A - 1
most_change = 0.5
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from longspan.bench.compare.verdict import Verdict, Word
from longspan.errors import UsageError


class Requirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On one metric. least_change, most_change: bounds of its change."""

    metric: str
    verdicts: tuple[Word, ...] = ("improvement", "no difference")
    least_change: float = -math.inf
    most_change: float = math.inf


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is required. transcripts: equal answers. contention: it was proven."""

    require: tuple[Requirement, ...]
    transcripts: bool = True
    contention: bool = True


class GateResult(msgspec.Struct, frozen=True):
    """passed: everything holds. failures: sentences about what does not."""

    passed: bool
    failures: tuple[str, ...]


DEFAULT_GATE = Gate(
    (Requirement("output_throughput"), Requirement("median_ttft_ms"), Requirement("p95_itl_ms")),
)
"""A change is promoted on throughput, first token, gap and equal output together."""


def read_gate(path: Path) -> Gate:
    """The gate of a file. Raises UsageError when it cannot be read."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Gate)
    except OSError as error:
        raise UsageError(f"the gate {path} cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"the gate {path} cannot be used: {error}") from error


def pass_gate(gate: Gate, verdicts: Sequence[Verdict], *, transcripts: bool, contention: bool) -> GateResult:
    """Whether the verdicts meet a gate. Raises UsageError when it requires a metric that was not compared."""
    by_name = {verdict.metric: verdict for verdict in verdicts}
    failures = []
    for wanted in gate.require:
        found = by_name.get(wanted.metric)
        if found is None:
            raise UsageError(
                f"the gate requires {wanted.metric!r}, which is not compared; there are {', '.join(by_name)}"
            )
        if found.verdict not in wanted.verdicts:
            failures.append(f"{wanted.metric}: {found.verdict}, required is {' or '.join(wanted.verdicts)}")
        if not wanted.least_change <= found.change <= wanted.most_change:
            failures.append(
                f"{wanted.metric}: changed by {found.change:+.1%}, required is "
                f"{wanted.least_change:+.1%} to {wanted.most_change:+.1%}"
            )
    if gate.transcripts and not transcripts:
        failures.append("answers differ")
    if gate.contention and not contention:
        failures.append("that requests ran at the same time was not proven")
    return GateResult(not failures, tuple(failures))
