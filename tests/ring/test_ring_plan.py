from __future__ import annotations

import pytest

from longspan.errors import UsageError
from longspan.ring.ring_plan import RingPlan, StagePlace, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.7:7070", ("192.0.2.7", 7070)),
        (" node-3.example:0 ", ("node-3.example", 0)),
        ("[2001:db8::7]:65535", ("2001:db8::7", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", ":7070", "host:port", "host:-1", "host:65536", "host:٣", "[]:1"]
)
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an address: expected HOST:PORT, for instance"):
        parse_address(text)


def test_only_links_that_leave_the_coordinators_machine_are_long() -> None:
    near, far, farther = (
        StagePlace(0, 0, 1, None, near=True),
        StagePlace(1, 1, 2, ("a", 1)),
        StagePlace(2, 2, 3, ("b", 1)),
    )
    plan = RingPlan("ring", (near, far, farther), 1, 2, "float32", 25.0)
    assert plan.delay_between(None, near) == plan.delay_between(near, None) == 0.0
    assert plan.delay_between(None, far) == plan.delay_between(near, far) == 25.0
    assert plan.delay_between(far, farther) == plan.delay_between(farther, None) == 25.0
