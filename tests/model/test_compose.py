from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from longspan.errors import ModelError
from longspan.model import compose, digest
from longspan.model.gguf_file import Tensor, read_gguf
from longspan.model.source import GgufSource, ModelSource
from tests.model.conftest import Recorder
from tests.model.staged_model import staged
from tests.whole_model import WholeModel


def raw(tensor: Tensor) -> bytes:
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        return file.read(tensor.size)


def assert_holds_the_layers(stage: Path, source: GgufSource, start: int, end: int) -> None:
    """Every tensor of the layers is in the stage, byte for byte and renumbered, and no other layer is."""
    composed = read_gguf(stage)
    layers = {name for name in composed.tensors if name.startswith("blk.")}
    expected = {}
    for name, tensor in source.file.tensors.items():
        block = compose.block_of(name)
        if block is not None and start <= block < end:
            expected[name.replace(f"blk.{block}.", f"blk.{block - start}.")] = tensor
    assert layers == expected.keys()
    for name, tensor in expected.items():
        assert (composed.tensors[name].type, composed.tensors[name].shape) == (tensor.type, tensor.shape)
        assert raw(composed.tensors[name]) == raw(tensor)


def test_the_demo_model_in_two_stages(demo: Path) -> None:
    source = GgufSource(demo)
    first, last = source.stage_file(0, 15), source.stage_file(15, 30)
    assert_holds_the_layers(first, source, 0, 15)
    assert_holds_the_layers(last, source, 15, 30)
    size = demo.stat().st_size
    assert first.stat().st_size < 0.35 * size
    assert last.stat().st_size < 0.65 * size
    tokens = [504, 3575, 282, 4649, 314, 7042, 30]
    with WholeModel(demo) as whole, staged(source, [(0, 15), (15, 30)]) as split:
        assert split.stages[0].vocabulary == 1
        assert split.stages[1].vocabulary == 49_152
        assert np.array_equal(whole.run(tokens), split.run(tokens))
        assert np.array_equal(whole.run([28]), split.run([28]))


def test_a_stage_file_is_what_the_gguf_package_reads(tiny: GgufSource) -> None:
    reader = gguf.GGUFReader(tiny.stage_file(1, 3))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["llama.block_count"] == 2
    assert fields["llama.vocab_size"] == 1
    assert fields["tokenizer.ggml.model"] == "no_vocab"
    assert not [name for name in fields if name.startswith("tokenizer.") and name != "tokenizer.ggml.model"]
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes["token_embd.weight"] == [64, 1]
    assert shapes["output.weight"] == [64, 1]


def test_the_last_stage_holds_the_vocabulary_once(tiny: GgufSource) -> None:
    stage = read_gguf(tiny.stage_file(2, 4))
    assert "output.weight" not in stage.tensors
    assert raw(stage.tensors["token_embd.weight"]) == raw(tiny.file.tensors["output.weight"])
    assert stage.integer("llama.vocab_size") == tiny.description.vocabulary


@pytest.mark.parametrize(("start", "end"), [(0, 5), (-1, 2), (2, 2), (3, 1), (4, 4)])
def test_a_range_that_the_model_does_not_have(tiny: GgufSource, start: int, end: int) -> None:
    with pytest.raises(ModelError, match=f"layers {start}-{end} is not possible: the model has 4 layers"):
        tiny.stage_file(start, end)


def test_a_stage_is_composed_once(tiny_path: Path, recorder: Recorder) -> None:
    path = GgufSource(tiny_path, progress=recorder).stage_file(0, 2)
    assert [line for line in recorder.lines if line[0] == "layers 0-2"] == [("layers 0-2", path.stat().st_size)]
    assert recorder.done == path.stat().st_size
    stamp = path.stat().st_mtime_ns
    again = Recorder()
    assert GgufSource(tiny_path, progress=again).stage_file(0, 2) == path
    assert path.stat().st_mtime_ns == stamp
    assert again.lines == []


def test_a_stage_file_that_was_cut_is_composed_again(tiny: GgufSource) -> None:
    path = tiny.stage_file(0, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert tiny.stage_file(0, 2).read_bytes() == whole


def test_an_interrupted_composition_leaves_nothing_that_looks_whole(
    tiny: GgufSource, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chunks(*_: object) -> object:
        yield b"GGUF"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compose, "gguf_chunks", chunks)
        with pytest.raises(KeyboardInterrupt):
            tiny.stage_file(0, 2)
    assert [path.name for path in (cache / "stages").rglob("*") if path.suffix in (".gguf", ".part")] == []
    assert tiny.stage_file(0, 2).is_file()


def test_leftovers_of_a_killed_composition_are_removed(tiny: GgufSource) -> None:
    path = tiny.stage_file(0, 2)
    left = path.with_name(f".{path.name}.0123456789ab.part")
    left.write_bytes(b"half")
    path.unlink()
    tiny.stage_file(0, 2)
    assert not left.exists()


def compose_in_child(path: Path, results: multiprocessing.Queue[str]) -> None:
    results.put(str(GgufSource(path).stage_file(0, 3)))


def test_processes_that_compose_at_once_agree(tiny_path: Path, cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    children = [context.Process(target=compose_in_child, args=(tiny_path, results)) for _ in range(3)]
    for child in children:
        child.start()
    paths = {results.get(timeout=60) for _ in children}
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert len(paths) == 1
    assert_holds_the_layers(Path(paths.pop()), GgufSource(tiny_path), 0, 3)
    assert not list(cache.rglob("*.part"))


def test_a_full_disk_is_said_before_anything_is_written(tiny: GgufSource, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"0 MB free, 0 MB are needed. Free some space.*LONGSPAN_CACHE"):
        tiny.stage_file(0, 2)


def test_a_cache_that_cannot_be_written(tiny: GgufSource, cache: Path) -> None:
    _ = tiny.digest
    shutil.rmtree(cache, ignore_errors=True)
    cache.write_text("a file where the directory belongs")
    with pytest.raises(ModelError, match=r"cannot write .*LONGSPAN_CACHE"):
        tiny.stage_file(0, 2)


def test_a_source_that_is_cut_meanwhile(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_path.read_bytes())
    source = GgufSource(path)
    _ = source.digest
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelError, match="was cut while it was read"):
        source.stage_file(2, 4)


def test_full_and_partial_ranges_have_files_of_their_own(tiny: GgufSource) -> None:
    paths = {tiny.stage_file(start, end) for start, end in ((0, 4), (0, 3), (3, 4))}
    assert len(paths) == 3
    assert all(tiny.digest in path.parts for path in paths)


def test_the_digest_is_that_of_the_file_and_read_once(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny_path.read_bytes())
    expected = hashlib.sha256(copy.read_bytes()).hexdigest()
    assert GgufSource(copy).digest == expected
    calls: list[object] = []
    compute: Callable[..., str] = digest.compute_digest

    def counted(*rest: object) -> str:
        calls.append(rest)
        return compute(*rest)

    monkeypatch.setattr(digest, "compute_digest", counted)
    assert GgufSource(copy).digest == expected
    assert calls == []
    os.utime(copy, ns=(1, 1))
    assert GgufSource(copy).digest == expected
    assert len(calls) == 1


def test_a_damaged_digest_note_is_written_again(tiny_path: Path, cache: Path) -> None:
    first = GgufSource(tiny_path).digest
    notes = list((cache / "digests").glob("*.json"))
    for content in (b"", b"[]", b'{"files": 1}', b"\xff"):
        notes[0].write_bytes(content)
        assert GgufSource(tiny_path).digest == first


def test_what_a_model_is(demo: Path) -> None:
    known = GgufSource(demo).description
    assert known.model_id == "SmolLM2-135M-Instruct"
    assert (known.architecture, known.layers, known.width, known.vocabulary) == ("llama", 30, 576, 49_152)
    assert (known.context_length, known.quantisation, known.tied_embeddings) == (8192, "Q4_1", True)
    assert GgufSource(demo).digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert "<|im_start|>" in (GgufSource(demo).chat_template or "")


def test_every_source_is_a_model_source() -> None:
    assert issubclass(GgufSource, ModelSource)
