from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.errors import LongspanError, ModelError
from longspan.llamacpp.library import load_library
from longspan.model import metadata as values
from longspan.model.gguf_file import GgufFile, read_gguf
from longspan.model.metadata import ValueType
from longspan.model.shards import open_model, shard_names
from longspan.model.source import GgufSource
from longspan.model.tensor_types import TENSOR_TYPES, smallest_type
from tests.peak import peak_below


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def header(tensors: int = 0, entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def test_a_file_reads_as_the_gguf_package_reads_it(tiny_path: Path) -> None:
    ours, theirs = read_gguf(tiny_path), gguf.GGUFReader(tiny_path)
    assert {key: value.decode() for key, value in ours.metadata.items()} == {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    }
    assert [(t.name, t.type.number, t.shape, t.offset, t.size) for t in ours.tensors.values()] == [
        (t.name, int(t.tensor_type), tuple(t.shape.tolist()), t.data_offset, t.n_bytes) for t in theirs.tensors
    ]


def test_tensor_types_have_the_sizes_of_ggml() -> None:
    library = load_library()
    for kind in TENSOR_TYPES.values():
        assert (kind.block, kind.block_bytes) == (
            library.ggml_blck_size(kind.number),
            library.ggml_type_size(kind.number),
        ), kind.name
    for number in range(64):
        if number not in TENSOR_TYPES and number < 43 and number != 9:
            assert library.ggml_type_size(number) == 0, f"type {number} is missing in the table"


@pytest.mark.parametrize(("columns", "name"), [(4096, "Q1_0"), (576, "Q2_0"), (96, "MXFP4"), (7, "I8")])
def test_the_smallest_type_fits_the_columns(columns: int, name: str) -> None:
    kind = smallest_type(columns)
    assert columns % kind.block == 0
    assert kind.name == name or name == "I8"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no such file: .*nothing\.gguf"):
        read_gguf(tmp_path / "nothing.gguf")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        read_gguf(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="not a regular file"):
        read_gguf(tmp_path / "pipe")


def test_a_file_that_must_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "secret.gguf", header())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ModelError, match="cannot be read"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"GG", "is not a GGUF file"),
        (b"PK\3\4" + b"\0" * 100, "is not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(version=1), "version 1; versions 2 and 3"),
        (b"GGUF\3\0\0\0\0", "truncated"),
        (header(tensors=1 << 60), "claims 1152921504606846976 tensors"),
        (header(entries=1 << 40), "claims 1099511627776 metadata entries"),
        (header(entries=1) + b"\0" * 8, "truncated|claims"),
        (header(entries=1) + struct.pack("<Q", 1 << 62) + b"\0" * 40, "claims 4611686018427387904 bytes"),
        (header(entries=1) + text(b"\xff\xfe") + b"\0" * 40, "not UTF-8"),
        (header(entries=1) + text(b"key") + struct.pack("<I", 99) + b"\0" * 40, "unknown value type 99"),
        (
            header(entries=1) + text(b"key") + struct.pack("<IIQ", 9, 4, 1 << 61) + b"\0" * 40,
            "truncated or damaged: the value",
        ),
        (
            header(entries=1) + text(b"key") + struct.pack("<IIQ", 9, 8, 1 << 61) + b"\0" * 40,
            "truncated or damaged: the text",
        ),
        (
            header(entries=1) + text(b"key") + struct.pack("<IIQQ", 9, 8, 3, 1 << 62) + b"\0" * 40,
            "runs past the end",
        ),
        (header(entries=1) + text(b"key") + struct.pack("<IIQ", 9, 9, 1) + b"\0" * 40, "array of arrays"),
        (header(entries=2) + 2 * (text(b"key") + struct.pack("<II", 4, 1)) + b"\0" * 9, "is there twice"),
        (header(tensors=1) + tensor(b"t", (1,) * 5) + b"\0" * 99, "has 5 dimensions"),
        (header(tensors=1) + tensor(b"t", ()) + b"\0" * 99, "has 0 dimensions"),
        (header(tensors=1) + tensor(b"t", (1 << 40, 1 << 40)) + b"\0" * 99, "has the shape"),
        (header(tensors=1) + tensor(b"t", (0, 4)) + b"\0" * 99, "has the shape"),
        (header(tensors=1) + tensor(b"t", (4, 4), kind=31) + b"\0" * 99, "tensor type 31"),
        (header(tensors=1) + tensor(b"t", (33, 4), kind=2) + b"\0" * 99, "packs 32 together"),
        (header(tensors=1) + tensor(b"t", (4, 4), offset=7) + b"\0" * 99, "not aligned"),
        (header(tensors=1) + tensor(b"t", (4, 4)) + b"\0" * 9, r"is truncated: tensor 't' ends at"),
        (header(tensors=2) + 2 * tensor(b"t", (1,)) + b"\0" * 99, "is there twice"),
        (
            header(entries=1) + text(b"general.alignment") + struct.pack("<II", 4, 33) + b"\0" * 40,
            "expected a power of two",
        ),
    ],
)
def test_a_damaged_file_gets_its_own_message(tmp_path: Path, data: bytes, message: str) -> None:
    path = write(tmp_path / "model.gguf", data)
    with pytest.raises(ModelError, match=message) as failure:
        read_gguf(path)
    assert "model.gguf" in str(failure.value) or "packs" in str(failure.value)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.999])
def test_a_truncated_model(tiny_path: Path, tmp_path: Path, share: float) -> None:
    data = tiny_path.read_bytes()
    with pytest.raises(ModelError, match="truncated"):
        read_gguf(write(tmp_path / "cut.gguf", data[: int(len(data) * share)]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_header_gives_a_message_or_a_model(tiny_path: Path, tmp_path: Path, data: st.DataObject) -> None:
    original = tiny_path.read_bytes()
    first = min(tensor.offset for tensor in read_gguf(tiny_path).tensors.values())
    mutated = bytearray(original)
    for _ in range(data.draw(st.integers(1, 6))):
        mutated[data.draw(st.integers(0, first - 1))] = data.draw(st.integers(0, 255))
    path = write(tmp_path / "mutated.gguf", bytes(mutated))
    try:
        GgufSource(path)
    except LongspanError as error:
        assert str(error)


def fuzz_heads(tiny_path: Path, path: Path, cases: int) -> None:
    """Heads with a few bytes changed, or with lengths and counts of thousands of millions."""
    original = tiny_path.read_bytes()
    first = min(tensor.offset for tensor in read_gguf(tiny_path).tensors.values())
    path.write_bytes(original)
    draw = random.Random(5)
    huge = [struct.pack("<Q", number) for number in (2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)]
    taken = 0
    with path.open("r+b") as file, peak_below(64 << 20):
        for _ in range(cases):
            head = bytearray(original[:first])
            for _ in range(draw.choice((1, 1, 2, 5))):
                # Half of them near the beginning, where the counts are.
                place = draw.randrange(first if draw.random() < 0.5 else 200)
                change = draw.choice(huge) if draw.random() < 0.3 else draw.randbytes(1)
                head[place : place + len(change)] = change
            file.seek(0)
            file.write(head[:first])
            file.flush()
            try:
                read_gguf(path)
                taken += 1
            except LongspanError as error:
                assert str(error)
    assert 0 < taken < cases


def test_mutated_heads_take_no_memory(tiny_path: Path, tmp_path: Path) -> None:
    fuzz_heads(tiny_path, tmp_path / "mutated.gguf", 300)


@pytest.mark.soak
def test_many_mutated_heads_take_no_memory(tiny_path: Path, tmp_path: Path) -> None:
    fuzz_heads(tiny_path, tmp_path / "mutated.gguf", 100_000)


def test_values_decode_and_slice() -> None:
    assert values.scalar(ValueType.BOOL, True).decode() is True
    assert values.text("für").decode() == "für"
    array = values.array(ValueType.INT16, [5, -6, 7])
    assert array.decode() == [5, -6, 7]
    assert array.slice(1, 3).decode() == [-6, 7]


def test_a_key_of_another_kind_is_named(tiny_path: Path) -> None:
    file = read_gguf(tiny_path)
    with pytest.raises(ModelError, match=r"no whole number under 'general\.name'"):
        GgufFile(file.paths, {"general.name": values.text("x")}, {}).integer("general.name")
    with pytest.raises(ModelError, match=r"no text under 'general\.architecture'"):
        _ = GgufFile(file.paths, {}, {}).architecture


# Models of several files


def split_up(source: Path, folder: Path, count: int = 2) -> list[Path]:
    """Write a model as shards with the gguf package, metadata in the first, as llama-gguf-split does."""
    reader = gguf.GGUFReader(source)
    paths = [folder / name for name in shard_names(f"model-00001-of-{count:05d}.gguf")]
    for index, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        if index == 0:
            for name, field in reader.fields.items():
                if not name.startswith("GGUF.") and name != "general.architecture":
                    part = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(name, field.contents(), field.types[0], part)
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for found in reader.tensors[index::count]:
            writer.add_tensor(found.name, found.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_shards_are_one_model(tiny_path: Path, tmp_path: Path) -> None:
    paths = split_up(tiny_path, tmp_path, 3)
    file, whole = open_model(paths[0]), read_gguf(tiny_path)
    assert file.paths == tuple(paths)
    assert file.tensors.keys() == whole.tensors.keys()
    assert {tensor.path for tensor in file.tensors.values()} == set(paths)
    assert GgufSource(paths[0]).description.layers == 4
    assert GgufSource(paths[0]).description.model_id == "model"


def test_a_later_shard_points_to_the_first(tiny_path: Path, tmp_path: Path) -> None:
    paths = split_up(tiny_path, tmp_path)
    with pytest.raises(ModelError, match=r"not the first shard .*model-00001-of-00002\.gguf"):
        open_model(paths[1])


def test_a_missing_shard_is_named(tiny_path: Path, tmp_path: Path) -> None:
    paths = split_up(tiny_path, tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelError, match=r"shards are missing .*model-00002-of-00002\.gguf"):
        open_model(paths[0])


def test_a_shard_of_another_model(tiny_path: Path, tmp_path: Path) -> None:
    paths = split_up(tiny_path, tmp_path)
    paths[1].write_bytes(tiny_path.read_bytes())
    with pytest.raises(ModelError, match="not shard 2 of 2"):
        open_model(paths[0])


def test_a_renamed_shard(tiny_path: Path, tmp_path: Path) -> None:
    paths = split_up(tiny_path, tmp_path)
    renamed = paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelError, match="one of 2 shards, so its name must end in -00001-of-00002"):
        open_model(renamed)


def test_repeated_tensors(tiny_path: Path, tmp_path: Path) -> None:
    paths = split_up(tiny_path, tmp_path)
    data = bytearray(paths[0].read_bytes())
    place = data.index(b"split.no") + 8 + 4
    data[place : place + 2] = struct.pack("<H", 1)
    paths[1].write_bytes(bytes(data))
    with pytest.raises(ModelError, match="repeats the tensor"):
        open_model(paths[0])
