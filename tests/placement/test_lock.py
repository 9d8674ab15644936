"""Locks hold exactly one topology, and nothing else is taken for one."""

from __future__ import annotations

import random

import msgspec
import pytest

from longspan.errors import LockError, TopologyMismatchError
from longspan.placement.lock import (
    LockedStage,
    TopologyLock,
    check_topology,
    decode_lock,
    encode_lock,
    lock_of,
)
from longspan.placement.placement import place
from tests.mutations import mutated
from tests.peak import peak_below
from tests.placement.test_placement import DEMAND, NEAR, node, shape

LOCK = TopologyLock(
    1,
    "small",
    "ab" * 32,
    8,
    (LockedStage("attic", 0, 3, "192.0.2.7:7000"), LockedStage("cellar", 3, 8, "192.0.2.8:7000")),
)


def test_a_lock_comes_back_as_it_was() -> None:
    assert decode_lock(encode_lock(LOCK)) == LOCK
    assert LOCK.ranges == ((0, 3), (3, 8))


def test_a_placement_becomes_a_lock() -> None:
    placement = place(shape(), [node("a", memory=230, address="h:1"), node("b", address="h:2")], NEAR, DEMAND)
    lock = lock_of(placement)
    assert decode_lock(encode_lock(lock)) == lock
    assert [(stage.node, stage.start, stage.end, stage.address) for stage in lock.stages] == [
        (stage.node, stage.start, stage.end, stage.address) for stage in placement.stages
    ]


def replaced(**fields: object) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(LOCK, **fields))


FIRST, SECOND = LOCK.stages


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b" " * (1 << 21), "at most"),
        (replaced(version=2), "has version 2, this Longspan reads 1"),
        (replaced(version=True), "has version True"),
        (replaced(digest="AB" * 32), "not 64 hex digits"),
        (replaced(digest="ab" * 32 + "\n"), "not 64 hex digits"),
        (replaced(model_id=""), "model_id"),
        (replaced(layers=0), "of 0 layers"),
        (replaced(stages=()), "has 0 stages"),
        (replaced(layers=9), "no node holds the layers 8-9"),
        (replaced(stages=(FIRST,)), "no node holds the layers 3-8"),
        (replaced(stages=(SECOND, FIRST)), "cellar holds the layers 3-8 where 0 was the next"),
        (replaced(stages=(FIRST, msgspec.structs.replace(SECOND, start=4))), "where 3 was the next"),
        (replaced(stages=(FIRST, msgspec.structs.replace(SECOND, node="attic"))), "attic stands there twice"),
        (replaced(stages=(FIRST, msgspec.structs.replace(SECOND, address=None))), "some nodes have an address"),
        (encode_lock(LOCK).replace(b'"layers"', b'"layer"'), "cannot be read"),
        (encode_lock(LOCK).replace(b'"version": 1', b'"version": 1, "more": 2'), "unknown field"),
    ],
)
def test_what_is_no_lock_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(LockError, match=message):
        decode_lock(data)


RING = [("192.0.2.7:7000", 0, 3), ("cellar", 3, 8)]


def test_the_locked_ring_is_let_through() -> None:
    check_topology(LOCK, "ab" * 32, 8, RING)
    check_topology(LOCK, "ab" * 32, 8, [(None, 0, 3), (None, 3, 8)])


@pytest.mark.parametrize(
    ("digest", "layers", "ring", "message"),
    [
        ("cd" * 32, 8, RING, "the lock is of the model abababababab .small., this is cdcdcdcdcdcd"),
        ("ab" * 32, 9, RING, "the lock is of 8 layers, this model has 9"),
        ("ab" * 32, 8, RING[:1], "the lock has 2 stages, the ring 1"),
        ("ab" * 32, 8, [("attic", 0, 4), ("cellar", 4, 8)], r"stage 0 \(attic\) holds the layers 0-3 .*, 0-4"),
        (
            "ab" * 32,
            8,
            [("attic", 0, 3), ("shed", 3, 8)],
            "stage 1 is 192.0.2.8:7000 in the lock, shed in the ring",
        ),
    ],
)
def test_every_other_ring_is_refused_by_its_difference(
    digest: str, layers: int, ring: list[tuple[str | None, int, int]], message: str
) -> None:
    with pytest.raises(TopologyMismatchError, match=message) as caught:
        check_topology(LOCK, digest, layers, ring)
    assert caught.value.exit_code == 3


def fuzz(cases: int) -> None:
    good = encode_lock(LOCK)
    draw = random.Random(7)
    taken = 0
    with peak_below(64 << 20):
        for _ in range(cases):
            try:
                lock = decode_lock(mutated(draw, good))
            except LockError:
                continue
            taken += 1
            bounds = [stage.start for stage in lock.stages] + [lock.layers]
            assert bounds == [0, *(stage.end for stage in lock.stages)]
            assert len({stage.node for stage in lock.stages}) == len(lock.stages)
            assert decode_lock(encode_lock(lock)) == lock
    assert 0 < taken < cases / 2


def test_mutated_locks() -> None:
    fuzz(1000)


@pytest.mark.soak
def test_many_mutated_locks() -> None:
    fuzz(100_000)
