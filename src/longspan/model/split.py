"""Writing a layer package from a model."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from longspan.errors import UsageError
from longspan.model.compose import EMBEDDING, block_of, is_output
from longspan.model.gguf_writer import NewTensor, gguf_chunks, gguf_size
from longspan.model.metadata import MetadataValue
from longspan.model.nextn import carries_head
from longspan.model.package import MANIFEST, SCHEMA_VERSION, Artifact, Manifest, Role, requantised_digest
from longspan.model.progress import Progress
from longspan.model.quantisation import row_type
from longspan.model.requantise import described_as, packed
from longspan.model.source import GgufSource
from longspan.model.storage import check_space, explained, sync_directory, temporary_name


@dataclasses.dataclass(frozen=True)
class _Planned:
    """An artifact before it is written."""

    path: str
    role: Role
    layer: int | None
    metadata: Mapping[str, MetadataValue]
    tensors: Sequence[NewTensor]


def split_model(source: GgufSource, out: Path, *, requantise: str | None, progress: Progress) -> Manifest:
    """Write the layer package of `source` to the new directory `out` and return its manifest.

    requantise: None copies every tensor raw. A type of `quantisation.TARGETS` packs the matrices of the layers
        anew (see `model.requantise`).
    Raises UsageError when `out` is there already, ModelError when it cannot be written or the type is unknown. An
    interrupted split leaves nothing under the name `out`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            f"{out} is there already. Name a new directory, or check it with `longspan split {out} --verify`."
        )
    if requantise is not None:
        row_type(requantise, 256)
    plan = _plan(source, requantise)
    with explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        total = sum(gguf_size(planned.metadata, planned.tensors) for planned in plan)
        check_space(out.parent, total)
        with _unfinished(out) as folder:
            progress.start(f"splitting {source.description.model_id}", total)
            try:
                artifacts = tuple(_write(planned, folder, progress) for planned in plan)
            finally:
                progress.finish()
            manifest = _manifest(source, requantise, artifacts)
            _write_whole(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
            sync_directory(folder / "layers")
            sync_directory(folder)
            folder.replace(out)
            sync_directory(out.parent)
    return manifest


@contextlib.contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """A directory beside `out`, locked while it is written; those that a killed split left are removed first."""
    for left in out.parent.glob(f".{out.name}.*.part"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    folder = temporary_name(out)
    folder.mkdir()
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _plan(source: GgufSource, target: str | None) -> list[_Planned]:
    tied = source.description.tied_embeddings
    layers: dict[int, list[NewTensor]] = {layer: [] for layer in range(source.description.layers)}
    everywhere, embedding, output, mtp = [], [], [], []
    drafts = carries_head(source)
    for tensor in source.file.tensors.values():
        new = packed(tensor, target, tied=tied)
        block = block_of(tensor.name)
        if block is not None:
            if block in layers:
                layers[block].append(new)
            elif block == len(layers) and drafts:
                mtp.append(new)  # of several MTP layers the first is all that is used
        elif is_output(tensor.name):
            output.append(new)
        elif tensor.name == EMBEDDING:
            embedding.append(new)
        else:
            everywhere.append(new)
    metadata = described_as(source.file.metadata, target)
    short = {"general.architecture": metadata["general.architecture"]}
    return [
        _Planned("metadata.gguf", "metadata", None, metadata, everywhere),
        _Planned("embedding.gguf", "embedding", None, short, embedding),
        _Planned("output.gguf", "output", None, short, output),
        *([_Planned("mtp.gguf", "mtp", None, short, mtp)] if mtp else []),
        *(_Planned(f"layers/{layer:04d}.gguf", "layer", layer, short, layers[layer]) for layer in layers),
    ]


def _write(planned: _Planned, folder: Path, progress: Progress) -> Artifact:
    path = folder / planned.path
    path.parent.mkdir(exist_ok=True)
    digest = hashlib.sha256()
    size = 0
    with path.open("xb") as file:
        for chunk in gguf_chunks(planned.metadata, planned.tensors):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            progress.advance(len(chunk))
        file.flush()
        os.fsync(file.fileno())
    return Artifact(planned.path, planned.role, planned.layer, size, len(planned.tensors), digest.hexdigest())


def _write_whole(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _manifest(source: GgufSource, target: str | None, artifacts: tuple[Artifact, ...]) -> Manifest:
    known = source.description
    digest = source.digest if target is None else requantised_digest(source.digest, target, artifacts)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        model_id=known.model_id,
        name=known.name,
        source_sha256=source.digest,
        digest=digest,
        requantised=target,
        architecture=known.architecture,
        layer_count=known.layers,
        width=known.width,
        vocabulary=known.vocabulary,
        context_length=known.context_length,
        quantisation=target or known.quantisation,
        tied_embeddings=known.tied_embeddings,
        output_tensors=tuple(name for name in source.file.tensors if is_output(name)),
        artifacts=artifacts,
    )
