"""Ten steps on a tiny model, and what can go wrong before and after them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install 'longspan[train]'")

from longspan.errors import LongspanError, ModelError, UsageError  # noqa: E402
from longspan.model.mtp_head import read_head  # noqa: E402
from longspan.model.source import GgufSource  # noqa: E402
from longspan.ring.llama_loader import LlamaLoader  # noqa: E402
from longspan.ring.messages import Assignment  # noqa: E402
from longspan.runtime.llama.runtime import LlamaRuntime  # noqa: E402
from longspan.train import training  # noqa: E402
from longspan.train.checkpoint import state_path  # noqa: E402
from longspan.train.options import TrainingOptions  # noqa: E402
from longspan.train.run import TrainingResult, measure_head, train_head  # noqa: E402
from tests.tiny_models import write_tiny_model  # noqa: E402


@dataclasses.dataclass
class Trained:
    source: GgufSource
    out: Path
    texts: Path
    result: TrainingResult


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("training")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGSPAN_CACHE", str(made / "cache"))
        yield made


@pytest.fixture(scope="module")
def trained(folder: Path) -> Trained:
    source = GgufSource(write_tiny_model(folder / "tiny.gguf", "llama", layers=2))
    out, texts = folder / "head.safetensors", folder / "texts"
    options = TrainingOptions(out, minutes=1.0, texts=texts, steps=10, seed=1)
    return Trained(source, out, texts, train_head(source, options))


def test_ten_steps_are_better_than_the_start(trained: Trained) -> None:
    result = trained.result
    assert result.steps == 10
    assert result.end.loss < result.start.loss - 0.1
    assert result.end.tokens_per_traversal >= result.start.tokens_per_traversal


def test_what_comes_out_is_loaded_by_a_stage(trained: Trained) -> None:
    head = read_head(trained.out)
    assert (head.base, head.base_digest) == (trained.source.description.model_id, trained.source.digest)
    assert len(head.prefix_tokens) == len(head.prefix_hidden) + 1 == 33
    loader = LlamaLoader(trained.source, threads=1, mtp_head=trained.out)
    runtime = loader.load(Assignment(0, 1, 0, 2, 2, None, 1, 64, "float32"), lambda _: None)
    assert isinstance(runtime, LlamaRuntime)
    try:
        assert runtime.drafter is not None
    finally:
        runtime.close()


def test_measuring_gives_what_training_saw(trained: Trained) -> None:
    found = measure_head(trained.source, str(trained.out), TrainingOptions(Path(), texts=trained.texts))
    # The file holds float16 numbers.
    np.testing.assert_allclose(found.by_depth, trained.result.end.by_depth, atol=0.02)
    assert found.loss == pytest.approx(trained.result.end.loss, rel=0.01)


def test_resuming_goes_on_and_gets_no_worse(trained: Trained, folder: Path) -> None:
    out = folder / "longer.safetensors"
    shutil.copy(trained.out, out)
    shutil.copy(state_path(trained.out), state_path(out))
    options = TrainingOptions(out, minutes=1.0, resume=str(out), texts=trained.texts, steps=10, seed=2)
    result = train_head(trained.source, options)
    assert result.steps == 20, "the state remembers the steps before"
    assert not result.start.better_than(result.end)
    assert result.start.loss == pytest.approx(trained.result.end.loss, rel=0.01)


def test_an_interrupted_run_keeps_what_it_has(
    trained: Trained, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "interrupted.safetensors"
    step = training.Training._step

    def interrupted(self: training.Training, rate: float) -> None:
        if self.progress.steps == 5:
            raise KeyboardInterrupt
        step(self, rate)

    monkeypatch.setattr(training.Training, "_step", interrupted)
    result = train_head(trained.source, TrainingOptions(out, minutes=1.0, seed=1))
    assert (result.interrupted, result.steps) == (True, 5)
    assert read_head(out).width == trained.source.description.width
    assert state_path(out).is_file()
    assert (folder / "interrupted.safetensors.texts").is_dir(), "what was written serves the run that goes on"


def test_a_head_of_another_model_is_refused(trained: Trained, folder: Path) -> None:
    other = GgufSource(write_tiny_model(folder / "other.gguf", "llama", layers=2, seed=9))
    options = TrainingOptions(folder / "new.safetensors", resume=str(trained.out))
    with pytest.raises(ModelError, match=r"belongs to tiny .* not to other"):
        train_head(other, options)
    with pytest.raises(ModelError, match="belongs to tiny"):
        measure_head(other, str(trained.out), options)
    with pytest.raises(ModelError, match="carries no MTP head"):
        measure_head(other, "carried", options)


def test_a_finished_head_is_not_overwritten(trained: Trained) -> None:
    before = trained.out.read_bytes()
    with pytest.raises(UsageError, match=r"--resume .*head\.safetensors"):
        train_head(trained.source, TrainingOptions(trained.out))
    assert trained.out.read_bytes() == before


def test_a_damaged_state_is_named(trained: Trained, folder: Path) -> None:
    out = folder / "damaged.safetensors"
    shutil.copy(trained.out, out)
    state_path(out).write_bytes(b"no safetensors")
    options = TrainingOptions(out, minutes=1.0, resume=str(out), texts=trained.texts, steps=1)
    with pytest.raises(LongspanError, match=r"damaged\.safetensors\.state is damaged"):
        train_head(trained.source, options)


def test_any_architecture_can_be_trained_for(folder: Path) -> None:
    for architecture in ("gemma2", "qwen3moe", "phi3"):
        source = GgufSource(write_tiny_model(folder / f"{architecture}.gguf", architecture))
        out = folder / f"{architecture}.safetensors"
        result = train_head(source, TrainingOptions(out, minutes=0.5, steps=2))
        assert (result.base, result.steps) == ("LlamaBase", 2)
        read_head(out)
