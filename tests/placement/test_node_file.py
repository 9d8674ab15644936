"""Node files, as a person writes them and as a person gets them wrong."""

from __future__ import annotations

import json
import random

import pytest

from longspan.errors import PlacementError
from longspan.placement.node import COORDINATOR, Link
from longspan.placement.node_file import read_nodes
from tests.mutations import mutated

TOML = """
rtt_ms = 20
mbps = 80

[[node]]
name = "attic"
address = "192.0.2.7:7000"
memory = "16 GiB"
reserve = "2gb"
layer_ms = 0.8
row_ms = 0.3
head_ms = 4
position_us = 0.02
layers = "0-12"

[[node]]
name = "cellar"
memory = 1000000
layer_ms = 2

[[link]]
between = ["coordinator", "attic"]
rtt_ms = 35
"""


def test_everything_is_read_in_its_unit() -> None:
    (attic, cellar), network = read_nodes(TOML.encode())
    assert (attic.name, attic.address, attic.layers) == ("attic", "192.0.2.7:7000", (0, 12))
    assert (attic.memory_bytes, attic.reserve_bytes) == (16 << 30, 2 * 10**9)
    assert attic.layer_seconds == pytest.approx(0.0008)
    assert attic.row_seconds == pytest.approx(0.0003)
    assert attic.head_seconds == pytest.approx(0.004)
    assert attic.position_seconds == pytest.approx(2e-8)
    assert (cellar.memory_bytes, cellar.row_seconds, cellar.further_row_seconds) == (10**6, None, 0.002)
    assert network.between("cellar", "attic") == Link(0.01, 1e7)
    assert network.between("attic", COORDINATOR) == network.between(COORDINATOR, "attic") == Link(0.0175, 1e7)


def test_json_says_the_same() -> None:
    data = {"node": [{"name": "attic", "memory": "1.5 KiB", "layer_ms": 1}]}
    (attic,), network = read_nodes(json.dumps(data).encode())
    assert attic.memory_bytes == 1536
    assert network.usual == Link(0.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("layer_ms = 2", "", "missing required field `layer_ms`"),
        ("layer_ms = 2", "layer_ms = 0", r"layer_ms"),
        ("layer_ms = 2", "layer_ms = nan", r"layer_ms"),
        ("memory = 1000000", 'memory = "lots"', "node cellar has memory = 'lots'"),
        ("memory = 1000000", "memory = -1", "node cellar has memory = -1"),
        ('layers = "0-12"', 'layers = "all"', "node attic has layers = 'all'"),
        ('"attic"]', '"shed"]', "between 'coordinator' and 'shed'"),
        ("head_ms", "heat_ms", "unknown field `heat_ms`"),
        ("[[node]]", "[[nod", "cannot be used"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, message: str) -> None:
    assert old in TOML
    with pytest.raises(PlacementError, match=message):
        read_nodes(TOML.replace(old, new).encode())


def test_what_is_too_large_is_not_read() -> None:
    with pytest.raises(PlacementError, match="at most"):
        read_nodes(b" " * (2 << 20))


def test_mutated_node_files() -> None:
    good = json.dumps(
        {
            "rtt_ms": 3,
            "node": [{"name": "a", "memory": "1 GiB", "layer_ms": 1.5, "layers": "0-2"}],
            "link": [{"between": ["a", "coordinator"], "rtt_ms": 1}],
        }
    ).encode()
    draw = random.Random(3)
    taken = 0
    for _ in range(1000):
        try:
            nodes, _ = read_nodes(mutated(draw, good))
        except PlacementError:
            continue
        taken += 1
        assert all(node.layer_seconds > 0 and node.memory_bytes >= 0 for node in nodes)
    assert taken
