"""MTP layers that models carry themselves: against numpy, and against llama.cpp's own MTP context."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from longspan.llamacpp.library import load_library
from longspan.model.draft_model import DraftModel
from longspan.model.nextn import compose_own_head, has_head, obstacle
from longspan.model.package_source import PackageSource
from longspan.model.progress import SilentProgress
from longspan.model.source import GgufSource
from longspan.model.split import split_model
from longspan.model.storage import CACHE_VARIABLE
from longspan.runtime.llama.head_context import HeadContext
from tests.model.mixture_models import OWN, WIDTH, write_mixture_model
from tests.runtime.llama.mtp_context import MtpContext
from tests.runtime.nextn_reference import ReferenceLayer

Rows = npt.NDArray[np.float32]

CARRIERS = ("glm4moe", "deepseek2")
LENGTH = 4
TOKENS = (3, 17, 80, 9, 41, 5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path


def states(count: int = len(TOKENS), seed: int = 0) -> Rows:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def composed_chain(model: DraftModel, tokens: tuple[int, ...], hidden: Rows, slot: int = 0) -> list[Rows]:
    """Logits of the steps of a chain, as the drafter runs them."""
    head = HeadContext(load_library(), model, slots=2, cells=64, threads=1)
    try:
        logits, state = head.run(tokens, hidden, [slot] * len(tokens), [len(tokens) - 1])
        steps = [logits[0]]
        while len(steps) < LENGTH:
            logits, state = head.run([int(steps[-1].argmax())], state, [slot], [0])
            steps.append(logits[0])
        return steps
    finally:
        head.close()


def furthest(found: list[Rows], expected: list[Rows]) -> float:
    """The largest difference of two chains' logits, as a share of their deviation."""
    return float(np.abs(np.stack(found) - np.stack(expected)).max() / np.stack(expected).std())


@pytest.mark.parametrize("own", [(), tuple(OWN)], ids=["shared", "own"])
@pytest.mark.parametrize("name", CARRIERS)
def test_a_carried_layer_drafts_as_the_formulas_and_as_llama_cpp(
    name: str, own: tuple[str, ...], folder: Path
) -> None:
    path = write_mixture_model(folder / "model.gguf", name, draft=1, own=own)
    hidden = states()
    found = composed_chain(compose_own_head(GgufSource(path)), TOKENS, hidden)
    reference = ReferenceLayer(path)
    # Keys and values are float16 in llama.cpp, and each step adds its rounding.
    assert furthest(found[:1], reference.chain(TOKENS, hidden, 1)) < 0.02
    assert furthest(found, reference.chain(TOKENS, hidden, LENGTH)) < 0.1
    with MtpContext(path) as context:
        theirs = context.chain(TOKENS, hidden, LENGTH)
    assert furthest(found, theirs) < 0.01
    # What would be another layer is far away: its fusion, and what it attends to.
    assert furthest(found, reference.chain(TOKENS, states(seed=1), LENGTH)) > 1
    assert furthest(found, reference.chain((4, *TOKENS[1:]), hidden, LENGTH)) > 0.2


def test_of_several_layers_the_first_drafts(folder: Path) -> None:
    path = write_mixture_model(folder / "two.gguf", "glm4moe", draft=2)
    source = GgufSource(path)
    assert (source.description.layers, source.mtp_layers) == (5, 2)
    found = composed_chain(compose_own_head(source), TOKENS, states())
    assert furthest(found, ReferenceLayer(path).chain(TOKENS, states(), LENGTH)) < 0.1


@pytest.mark.parametrize("name", CARRIERS)
def test_a_package_carries_the_layer_too(name: str, folder: Path) -> None:
    source = GgufSource(write_mixture_model(folder / "model.gguf", name, draft=1, own=("shared_head_norm",)))
    expected = compose_own_head(source).file.read_bytes()
    split_model(source, folder / "package", requantise=None, progress=SilentProgress())
    shutil.rmtree(folder / "cache")
    package = PackageSource(folder / "package")
    assert (package.mtp_layers, obstacle(package), has_head(package)) == (1, "", True)
    model = compose_own_head(package)
    assert model.file.read_bytes() == expected
    hidden = states()
    assert (
        furthest(composed_chain(model, TOKENS, hidden), composed_chain(compose_own_head(source), TOKENS, hidden))
        == 0
    )


def test_a_requantised_package_drafts_with_what_it_holds(folder: Path) -> None:
    path = write_mixture_model(folder / "model.gguf", "glm4moe", draft=1)
    split_model(GgufSource(path), folder / "package", requantise="Q8_0", progress=SilentProgress())
    found = composed_chain(compose_own_head(PackageSource(folder / "package")), TOKENS, states())
    assert furthest(found[:1], ReferenceLayer(path).chain(TOKENS, states(), 1)) < 0.3


@pytest.mark.parametrize(
    ("name", "left_out", "reason"),
    [
        ("dots1", (), "it is not known how those of dots1 models are fed"),
        ("glm4moe", ("nextn.eh_proj.weight",), "the tensor blk.5.nextn.eh_proj.weight is missing"),
        ("deepseek2", ("expert_gating_func",), "deepseek2.expert_gating_func"),
    ],
)
def test_why_a_layer_cannot_draft_is_said(name: str, left_out: tuple[str, ...], reason: str, folder: Path) -> None:
    source = GgufSource(write_mixture_model(folder / "model.gguf", name, draft=1, left_out=left_out))
    assert reason in obstacle(source)
    assert not has_head(source)
    split_model(source, folder / "package", requantise=None, progress=SilentProgress())
    assert not has_head(PackageSource(folder / "package"))
    assert "made without them" in obstacle(PackageSource(folder / "package")) or name == "dots1"
    assert not (folder / "package" / "mtp.gguf").exists()


def test_a_model_without_such_layers_has_no_obstacle(folder: Path) -> None:
    source = GgufSource(write_mixture_model(folder / "model.gguf", "glm4moe"))
    assert (source.mtp_layers, obstacle(source), has_head(source)) == (0, "", False)
