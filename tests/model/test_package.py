from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.errors import ModelError, PackageError, UsageError
from longspan.model import split as split_module
from longspan.model.gguf_file import read_gguf
from longspan.model.package import Manifest, is_package, read_manifest, verify
from longspan.model.package_source import PackageSource
from longspan.model.progress import SilentProgress
from longspan.model.source import GgufSource
from longspan.model.split import split_model
from tests.model.conftest import Recorder
from tests.model.staged_model import staged
from tests.model.test_compose import assert_holds_the_layers
from tests.tiny_models import write_tiny_model

SILENT = SilentProgress()


@pytest.fixture
def package(tiny: GgufSource, tmp_path: Path) -> Path:
    split_model(tiny, tmp_path / "package", requantise=None, progress=SILENT)
    return tmp_path / "package"


def edit(package: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((package / "package.json").read_bytes())
    change(manifest)
    (package / "package.json").write_text(json.dumps(manifest))


def test_a_package_describes_its_model(package: Path, tiny: GgufSource) -> None:
    manifest = read_manifest(package)
    assert manifest.schema_version == 1
    assert manifest.source_sha256 == manifest.digest == tiny.digest
    assert manifest.requantised is None
    assert [artifact.role for artifact in manifest.artifacts] == ["metadata", "embedding", "output"] + ["layer"] * 4
    for artifact in manifest.artifacts:
        assert (package / artifact.path).stat().st_size == artifact.bytes
        assert len(read_gguf(package / artifact.path).tensors) == artifact.tensor_count
    source = PackageSource(package)
    assert source.description == tiny.description
    assert source.digest == tiny.digest
    assert source.chat_template == tiny.chat_template
    assert source.size == sum(path.stat().st_size for path in package.rglob("*.gguf"))


@pytest.mark.parametrize("tied", [True, False])
def test_stages_of_a_package_are_those_of_the_model(tied: bool, tmp_path: Path, cache: Path) -> None:
    model = GgufSource(write_tiny_model(tmp_path / "model.gguf", "qwen3", tied=tied))
    split_model(model, tmp_path / "package", requantise=None, progress=SILENT)
    ranges = [(0, 2), (2, 4), (0, 4)]
    straight = [model.stage_file(*span).read_bytes() for span in ranges]
    shutil.rmtree(cache)
    source = PackageSource(tmp_path / "package")
    for span, expected in zip(ranges, straight, strict=True):
        assert_holds_the_layers(source.stage_file(*span), model, *span)
        assert source.stage_file(*span).read_bytes() == expected
    tokens = np.array([1, 5, 9], np.int32)
    assert np.array_equal(source.token_embedding().rows(tokens), model.token_embedding().rows(tokens))


@pytest.mark.parametrize(
    ("span", "kept"),
    [((0, 2), ("0000", "0001")), ((1, 3), ("0001", "0002")), ((2, 4), ("0002", "0003", "output"))],
)
def test_a_stage_needs_only_its_own_artifacts(package: Path, span: tuple[int, int], kept: tuple[str, ...]) -> None:
    for path in package.rglob("*.gguf"):
        if path.stem not in (*kept, "metadata"):
            path.unlink()
    assert PackageSource(package).stage_file(*span).is_file()
    other = (0, 4) if span != (0, 4) else (0, 1)
    with pytest.raises(PackageError, match=r"not complete; missing: .*\.gguf"):
        PackageSource(package).stage_file(*other)


def test_a_tied_last_stage_needs_the_embedding(tmp_path: Path) -> None:
    model = GgufSource(write_tiny_model(tmp_path / "model.gguf", "llama", tied=True))
    split_model(model, tmp_path / "package", requantise=None, progress=SILENT)
    (tmp_path / "package" / "embedding.gguf").unlink()
    source = PackageSource(tmp_path / "package")
    assert source.stage_file(0, 2).is_file()
    with pytest.raises(PackageError, match=r"missing: embedding\.gguf"):
        source.stage_file(2, 4)
    with pytest.raises(PackageError, match=r"missing: embedding\.gguf"):
        source.token_embedding()


# Damage


def test_no_package_at_all(tmp_path: Path) -> None:
    with pytest.raises(
        PackageError, match=r"no layer package: it has no package.json. Make one with `longspan split"
    ):
        PackageSource(tmp_path)


def test_missing_and_short_artifacts_are_named(package: Path) -> None:
    (package / "layers" / "0001.gguf").unlink()
    short = package / "layers" / "0002.gguf"
    short.write_bytes(short.read_bytes()[:-1])
    with pytest.raises(
        PackageError, match=r"missing: layers/0001.gguf; of another size: layers/0002.gguf \(\d+ bytes"
    ):
        PackageSource(package).stage_file(0, 3)
    with pytest.raises(PackageError, match="missing: layers/0001"):
        verify(package, SILENT)


def test_a_flipped_bit_is_found(package: Path, recorder: Recorder) -> None:
    assert verify(package, recorder).layer_count == 4
    assert recorder.lines == [("checking package", sum(p.stat().st_size for p in package.rglob("*.gguf")))]
    path = package / "layers" / "0002.gguf"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(PackageError, match=r"sha256 of layers/0002.gguf is not the one in package.json"):
        verify(package, SILENT)
    assert PackageSource(package).stage_file(0, 2).is_file()
    with pytest.raises(PackageError, match=r"sha256 of layers/0002.gguf is not the one"):
        PackageSource(package).stage_file(2, 4)


def test_verify_reads_again_what_was_read_before(package: Path) -> None:
    verify(package, SILENT)
    path = package / "layers" / "0003.gguf"
    stamp = path.stat()
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(PackageError, match="layers/0003"):
        verify(package, SILENT)


def test_metadata_of_another_model(package: Path, tmp_path: Path) -> None:
    other = GgufSource(write_tiny_model(tmp_path / "other.gguf", "llama", layers=3, tied=False))
    split_model(other, tmp_path / "other", requantise=None, progress=SILENT)
    theirs = read_manifest(tmp_path / "other").artifact("metadata")
    shutil.copy(tmp_path / "other" / "metadata.gguf", package / "metadata.gguf")

    def adopt(manifest: dict[str, Any]) -> None:
        manifest["artifacts"][0].update(bytes=theirs.bytes, sha256=theirs.sha256)

    edit(package, adopt)
    with pytest.raises(PackageError, match=r"of a model with 3 layers, package\.json says 4"):
        PackageSource(package)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(schema_version=2), "schema version 2, this Longspan reads 1"),
        (lambda m: m.pop("schema_version"), "schema version None"),
        (lambda m: m.pop("width"), "damaged: .*width"),
        (lambda m: m.update(surprise=1), "damaged: .*surprise"),
        (lambda m: m.update(layer_count="4"), "damaged: .*layer_count"),
        (lambda m: m.update(layer_count=10**9), "layer_count is 1000000000"),
        (lambda m: m.update(vocabulary=0), "vocabulary is 0"),
        (lambda m: m.update(model_id=""), "model_id is empty"),
        (lambda m: m.update(digest="0" * 64), "digest is 0000"),
        (lambda m: m.update(source_sha256="zz"), "source_sha256 is not 64 hex"),
        (lambda m: m.update(output_tensors=["../x"]), "output_tensors"),
        (lambda m: m["artifacts"].pop(4), "not exactly once: layer 1"),
        (lambda m: m["artifacts"].append(m["artifacts"][4]), "not exactly once: layer 1"),
        (lambda m: m["artifacts"].pop(0), "not exactly once: metadata"),
        (lambda m: m["artifacts"][4].update(layer=9), "not exactly once: layer 1, layer 9"),
        (lambda m: m["artifacts"][4].update(path="layers/0000.gguf"), "a path is there twice"),
        (lambda m: m["artifacts"][4].update(path="/etc/passwd"), "not a plain relative path"),
        (lambda m: m["artifacts"][4].update(path="../model.gguf"), "not a plain relative path"),
        (lambda m: m["artifacts"][4].update(path="layers/../../x.gguf"), "not a plain relative path"),
        (lambda m: m["artifacts"][4].update(path="a\\b"), "not a plain relative path"),
        (lambda m: m["artifacts"][4].update(path="a\0b"), "not a plain relative path"),
        (lambda m: m["artifacts"][4].update(path="package.json"), "not a plain relative path"),
        (lambda m: m["artifacts"][4].update(path=""), "not a plain relative path"),
        (lambda m: m["artifacts"][4].update(bytes=-1), "size of layers/0001.gguf is absurd"),
        (lambda m: m["artifacts"][4].update(sha256="f" * 63), "not 64 hex digits"),
        (lambda m: m["artifacts"][4].update(role="layers"), "damaged: "),
        (lambda m: m["artifacts"][0].update(layer=0), "metadata.gguf has a wrong layer"),
    ],
)
def test_a_manifest_that_cannot_be_true(
    package: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(package, change)
    with pytest.raises(PackageError, match=message):
        PackageSource(package)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": 1}']
)
def test_a_manifest_that_is_no_manifest(package: Path, content: bytes) -> None:
    (package / "package.json").write_bytes(content)
    with pytest.raises(PackageError, match=r"package\.json (is damaged|has the schema version)"):
        read_manifest(package)


def test_a_huge_manifest_is_not_read(package: Path) -> None:
    with (package / "package.json").open("wb") as file:
        file.truncate(64 << 20)
    with pytest.raises(PackageError, match="larger than 16 MB"):
        read_manifest(package)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_manifest_gives_a_message_or_the_same(package: Path, data: st.DataObject) -> None:
    path = package / "package.json"
    spare = package.with_name("original.json")
    if not spare.exists():
        shutil.copy(path, spare)
    mutated = bytearray(spare.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(mutated))
    try:
        manifest = read_manifest(package)
    except PackageError as error:
        assert str(error)
    else:
        assert isinstance(manifest, Manifest)
        assert all(".." not in artifact.path for artifact in manifest.artifacts)


def test_a_link_out_of_the_package(package: Path, tmp_path: Path) -> None:
    path = package / "layers" / "0001.gguf"
    path.rename(tmp_path / "outside.gguf")
    path.symlink_to(tmp_path / "outside.gguf")
    with pytest.raises(PackageError, match=r"0001.gguf leads out of the package"):
        PackageSource(package).stage_file(0, 2)
    with pytest.raises(PackageError, match="leads out of the package"):
        verify(package, SILENT)


def test_a_package_may_be_reached_through_a_link(package: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(package)
    assert PackageSource(tmp_path / "link").stage_file(0, 2).is_file()


# Writing


def test_an_existing_directory_is_left_alone(tiny: GgufSource, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("keep me")
    with pytest.raises(UsageError, match="out is there already"):
        split_model(tiny, tmp_path / "out", requantise=None, progress=SILENT)
    assert (tmp_path / "out" / "letter.txt").read_text() == "keep me"
    (tmp_path / "empty").mkdir()
    split_model(tiny, tmp_path / "empty", requantise=None, progress=SILENT)
    assert is_package(tmp_path / "empty")


def test_an_interrupted_split_leaves_nothing(
    tiny: GgufSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = split_module._write

    def stop_at_layer_two(planned: Any, *rest: Any) -> Any:
        if planned.layer == 2:
            raise KeyboardInterrupt
        written.append(planned.path)
        return write(planned, *rest)

    monkeypatch.setattr(split_module, "_write", stop_at_layer_two)
    with pytest.raises(KeyboardInterrupt):
        split_model(tiny, tmp_path / "out", requantise=None, progress=SILENT)
    assert "layers/0001.gguf" in written
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == []


def test_what_a_killed_split_left_is_removed_and_never_a_package(tiny: GgufSource, tmp_path: Path) -> None:
    left = tmp_path / ".out.0123456789ab.part"
    left.mkdir()
    (left / "metadata.gguf").write_bytes(b"half")
    assert not is_package(left)
    split_model(tiny, tmp_path / "out", requantise=None, progress=SILENT)
    assert not left.exists()


def test_a_split_under_way_is_not_disturbed(tiny: GgufSource, tmp_path: Path) -> None:
    with split_module._unfinished(tmp_path / "out") as folder:
        (folder / "begun").write_text("")
        split_model(tiny, tmp_path / "out", requantise=None, progress=SILENT)
        assert (folder / "begun").exists()


def test_a_place_that_cannot_be_written(tiny: GgufSource, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot write"):
        split_model(tiny, tmp_path / "file" / "out", requantise=None, progress=SILENT)


# Requantising


def test_an_unknown_type_is_refused_with_the_possible_ones(tiny: GgufSource, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be requantised to 'Q4_9'\. Possible: Q4_0, .*Q6_K"):
        split_model(tiny, tmp_path / "out", requantise="Q4_9", progress=SILENT)


def test_requantising_packs_matrices_and_keeps_the_rest(tmp_path: Path) -> None:
    model = GgufSource(write_tiny_model(tmp_path / "model.gguf", "qwen2moe", tied=False))
    manifest = split_model(model, tmp_path / "out", requantise="Q4_0", progress=SILENT)
    assert manifest.source_sha256 == model.digest
    assert manifest.digest != model.digest
    types = {
        name: tensor.type.name for name, tensor in read_gguf(tmp_path / "out/layers/0001.gguf").tensors.items()
    }
    assert types["blk.1.attn_q.weight"] == types["blk.1.ffn_down_exps.weight"] == "Q4_0"
    assert types["blk.1.attn_norm.weight"] == types["blk.1.attn_q.bias"] == "F32"
    assert types["blk.1.ffn_gate_inp.weight"] == types["blk.1.ffn_gate_inp_shexp.weight"] == "F32"
    assert read_gguf(tmp_path / "out/embedding.gguf").tensors["token_embd.weight"].type.name == "F32"
    assert read_gguf(tmp_path / "out/output.gguf").tensors["output.weight"].type.name == "Q8_0"
    source = PackageSource(tmp_path / "out")
    assert source.description.quantisation == "Q4_0"
    tokens = list(range(3, 20))
    with staged(source, [(0, 4)]) as one, staged(source, [(0, 1), (1, 4)]) as two, staged(model, [(0, 4)]) as raw:
        whole = one.run(tokens)
        assert np.array_equal(whole, two.run(tokens))
        assert 0 < np.abs(whole - raw.run(tokens)).mean() < 2


def test_the_same_requantisation_has_the_same_digest(tmp_path: Path) -> None:
    model = GgufSource(write_tiny_model(tmp_path / "model.gguf", "llama"))
    digests = [
        split_model(model, tmp_path / f"out{index}", requantise=target, progress=SILENT).digest
        for index, target in enumerate(("Q4_0", "Q4_0", "Q8_0"))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_forged_digest_of_a_requantised_package(tmp_path: Path) -> None:
    model = GgufSource(write_tiny_model(tmp_path / "model.gguf", "llama"))
    split_model(model, tmp_path / "out", requantise="Q4_0", progress=SILENT)
    edit(tmp_path / "out", lambda manifest: manifest.update(digest=manifest["source_sha256"]))
    with pytest.raises(PackageError, match="its contents give"):
        PackageSource(tmp_path / "out")


def test_the_demo_model_as_q4_0_takes_seconds(demo: Path, tmp_path: Path) -> None:
    model = GgufSource(demo)
    started = time.perf_counter()
    manifest = split_model(model, tmp_path / "out", requantise="Q4_0", progress=SILENT)
    assert time.perf_counter() - started < 20
    assert sum(artifact.bytes for artifact in manifest.artifacts) < 0.95 * demo.stat().st_size
    embedding = read_gguf(tmp_path / "out" / "embedding.gguf").tensors["token_embd.weight"]
    assert embedding.type.name == "Q8_0", "the output matrix stays as exact as it is"
    assert verify(tmp_path / "out", SILENT) == manifest
    encoded = msgspec.json.decode((tmp_path / "out" / "package.json").read_bytes())
    assert encoded["digest"] == manifest.digest
