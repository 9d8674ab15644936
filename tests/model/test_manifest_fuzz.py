"""Manifests that were damaged or made up give a message, never a crash and never a path outside of the package."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from longspan.errors import PackageError
from longspan.model.package import artifact_path, read_manifest
from longspan.model.progress import SilentProgress
from longspan.model.source import GgufSource
from longspan.model.split import split_model
from tests.mutations import mutated
from tests.peak import peak_below


def fuzz(tiny: GgufSource, folder: Path, cases: int) -> None:
    package = folder / "package"
    split_model(tiny, package, requantise=None, progress=SilentProgress())
    path = package / "package.json"
    good = path.read_bytes()
    draw = random.Random(11)
    taken = 0
    with peak_below(64 << 20):
        for _ in range(cases):
            path.write_bytes(mutated(draw, good))
            try:
                manifest = read_manifest(package)
            except PackageError:
                continue
            taken += 1
            assert len({artifact.path for artifact in manifest.artifacts}) == manifest.layer_count + 3
            for artifact in manifest.artifacts:
                assert artifact_path(package, artifact).resolve().is_relative_to(package.resolve())
                assert artifact.bytes > 0
    assert taken < cases / 2


def test_mutated_manifests(tiny: GgufSource, tmp_path: Path) -> None:
    fuzz(tiny, tmp_path, 1000)


@pytest.mark.soak
def test_many_mutated_manifests(tiny: GgufSource, tmp_path: Path) -> None:
    fuzz(tiny, tmp_path, 100_000)
