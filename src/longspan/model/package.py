"""Layer packages: a model as a directory in which every layer is a file of its own.

    package.json        what the model is, and each artifact with its size and sha256
    metadata.gguf       metadata with tokenizer and chat template, and small tensors that every stage needs
    embedding.gguf      token_embd
    output.gguf         output norm and, unless it is tied, the output matrix
    mtp.gguf            the model's own MTP layer, if it has one that can draft (see `model.nextn`)
    layers/0000.gguf …  one a layer, tensors named as in the model

A stage needs package.json, metadata.gguf and its layers; the last stage output.gguf too, embedding.gguf if the
embedding is the output matrix or if it drafts, and for that mtp.gguf. package.json is written last; the directory
gets its name only when it is whole.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from longspan.errors import PackageError
from longspan.model.digest import compute_digest, remember_digest, remembered_digest
from longspan.model.progress import Progress

SCHEMA_VERSION = 1
MANIFEST = "package.json"
Role = Literal["metadata", "embedding", "output", "mtp", "layer"]
_SHARED: tuple[Role, ...] = ("metadata", "embedding", "output")
_MAXIMUM_MANIFEST = 16 << 20
_MAXIMUM_LAYERS = 4_096
_PATH = re.compile(r"^[A-Za-z0-9_\-][A-Za-z0-9._\-]*(?:/[A-Za-z0-9_\-][A-Za-z0-9._\-]*){0,3}$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_OUTPUT_TENSOR = re.compile(r"^output(?:_norm)?\.[a-z_]{1,32}$")
_SHOWN = 6


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file. path: relative, with `/`. layer: its number if the role is "layer". bytes: its size."""

    path: str
    role: Role
    layer: int | None
    bytes: int
    tensor_count: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of package.json.

    source_sha256: sha256 of the model file that was split. requantised: the tensor type that was asked for, None if
    the tensors are those of the source. digest: what stages of one ring compare. It is source_sha256 when nothing
    was requantised, so stages of the package and of the model file fit together; else see `requantised_digest`.
    output_tensors: names of the tensors in output.gguf; a stage without it needs stand-ins for them.
    The other fields are those of `ModelDescription`.
    """

    schema_version: int
    model_id: str
    name: str
    source_sha256: str
    digest: str
    requantised: str | None
    architecture: str
    layer_count: int
    width: int
    vocabulary: int
    context_length: int
    quantisation: str
    tied_embeddings: bool
    output_tensors: tuple[str, ...]
    artifacts: tuple[Artifact, ...]

    def artifact(self, role: Role, layer: int | None = None) -> Artifact:
        return next(found for found in self.artifacts if found.role == role and found.layer == layer)

    @property
    def mtp(self) -> Artifact | None:
        """The model's own MTP layer, if there is one that can be used."""
        return next((found for found in self.artifacts if found.role == "mtp"), None)

    def needed_to_draft(self) -> list[Artifact]:
        """What drafting on the last stage takes, besides the stage itself: the tokens, and the MTP layer."""
        return [self.artifact("embedding"), *([self.mtp] if self.mtp is not None else [])]

    def needed(self, start: int, end: int) -> list[Artifact]:
        """What a stage of the layers [start, end) is composed from."""
        shared: list[Role] = ["metadata"]
        if end == self.layer_count:
            shared += ["embedding", "output"] if self.tied_embeddings else ["output"]
        return [self.artifact(role) for role in shared] + [self.artifact("layer", n) for n in range(start, end)]


def requantised_digest(source_sha256: str, target: str, artifacts: Iterable[Artifact]) -> str:
    """sha256 over the source's sha256, the target type, and role, layer and sha256 of every artifact in order.

    Two packages have the same digest only when they came from one source in one way and hold the same bytes.
    """
    lines = ["longspan package 1", source_sha256, target]
    lines += sorted(f"{found.role} {found.layer} {found.sha256}" for found in artifacts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_package(directory: Path) -> bool:
    """Whether there is a package.json; an unfinished package has none."""
    return (directory / MANIFEST).is_file()


def read_manifest(directory: Path) -> Manifest:
    """Read and check package.json.

    Raises PackageError: missing, too large, malformed, of another schema version, or contradicting itself.
    """
    path = directory / MANIFEST
    try:
        with path.open("rb") as file:
            data = file.read(_MAXIMUM_MANIFEST + 1)
    except FileNotFoundError as error:
        raise PackageError(
            f"{directory} is no layer package: it has no {MANIFEST}. "
            "Make one with `longspan split MODEL --out DIR`."
        ) from error
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(data) > _MAXIMUM_MANIFEST:
        raise PackageError(f"{path} is larger than {_MAXIMUM_MANIFEST >> 20} MB; no package needs that.")
    try:
        version = msgspec.json.decode(data, type=dict[str, object]).get("schema_version")
        if version != SCHEMA_VERSION:
            raise PackageError(
                f"{path} has the schema version {version!r}, this Longspan reads {SCHEMA_VERSION}. "
                "Split the model again, or use the Longspan that wrote it."
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PackageError(f"{path} is damaged: {error}. Get the package again.") from error
    _check_manifest(manifest, path)
    return manifest


def _check_manifest(manifest: Manifest, path: Path) -> None:
    def demand(condition: bool, what: str) -> None:
        if not condition:
            raise PackageError(f"{path} is damaged: {what}. Get the package again.")

    demand(0 < manifest.layer_count <= _MAXIMUM_LAYERS, f"layer_count is {manifest.layer_count}")
    demand(0 < manifest.width <= 1 << 20, f"width is {manifest.width}")
    demand(0 < manifest.vocabulary <= 1 << 24, f"vocabulary is {manifest.vocabulary}")
    demand(0 < manifest.context_length <= 1 << 30, f"context_length is {manifest.context_length}")
    demand(
        len(manifest.output_tensors) <= 8 and all(_OUTPUT_TENSOR.match(name) for name in manifest.output_tensors),
        f"output_tensors is {manifest.output_tensors}",
    )
    demand(bool(manifest.model_id) and len(manifest.model_id) <= 256, "model_id is empty or too long")
    for artifact in manifest.artifacts:
        demand(
            _PATH.match(artifact.path) is not None and artifact.path != MANIFEST,
            f"the artifact path {artifact.path!r} is not a plain relative path inside the package",
        )
        demand(bool(_SHA256.match(artifact.sha256)), f"the sha256 of {artifact.path} is not 64 hex digits")
        demand(artifact.bytes > 0 and artifact.tensor_count >= 0, f"the size of {artifact.path} is absurd")
        demand((artifact.role == "layer") == (artifact.layer is not None), f"{artifact.path} has a wrong layer")
    expected: Counter[tuple[Role, int | None]] = Counter((role, None) for role in _SHARED)
    expected.update(("layer", layer) for layer in range(manifest.layer_count))
    if manifest.mtp is not None:
        expected[("mtp", None)] = 1
    found = Counter((artifact.role, artifact.layer) for artifact in manifest.artifacts)
    wrong = sorted(
        f"{role} {'' if n is None else n}".strip() for role, n in (expected - found) + (found - expected)
    )
    demand(not wrong, f"these artifacts are listed not exactly once: {', '.join(wrong[:_SHOWN])}")
    demand(
        len({artifact.path for artifact in manifest.artifacts}) == len(manifest.artifacts), "a path is there twice"
    )
    for name, value in (("source_sha256", manifest.source_sha256), ("digest", manifest.digest)):
        demand(bool(_SHA256.match(value)), f"{name} is not 64 hex digits")
    digest = manifest.source_sha256
    if manifest.requantised is not None:
        digest = requantised_digest(digest, manifest.requantised, manifest.artifacts)
    demand(manifest.digest == digest, f"digest is {manifest.digest}, its contents give {digest}")


def artifact_path(directory: Path, artifact: Artifact) -> Path:
    """Where the artifact lies. Raises PackageError when a symbolic link leads out of the package."""
    path = directory.joinpath(*PurePosixPath(artifact.path).parts)
    if not path.resolve().is_relative_to(directory.resolve()):
        raise PackageError(f"{path} leads out of the package {directory}. Put the file itself there.")
    return path


def check_present(directory: Path, artifacts: Iterable[Artifact]) -> None:
    """Raise PackageError naming the artifacts that are missing or have another size; reads no contents."""
    missing, wrong = [], []
    for artifact in artifacts:
        path = artifact_path(directory, artifact)
        if not path.is_file():
            missing.append(artifact.path)
        elif path.stat().st_size != artifact.bytes:
            wrong.append(f"{artifact.path} ({path.stat().st_size} bytes instead of {artifact.bytes})")
    reasons = []
    if missing:
        reasons.append(f"missing: {_listed(missing)}")
    if wrong:
        reasons.append(f"of another size: {_listed(wrong)}")
    if reasons:
        raise PackageError(
            f"the package {directory} is not complete; {'; '.join(reasons)}. Copy these files again."
        )


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def verify(directory: Path, progress: Progress) -> Manifest:
    """Read every artifact and compare its sha256 with package.json.

    Raises PackageError naming the artifacts that are missing, of another size, or of other contents.
    """
    manifest = read_manifest(directory)
    check_present(directory, manifest.artifacts)
    _check_contents(directory, manifest.artifacts, progress)
    return manifest


def check_artifacts(directory: Path, artifacts: Iterable[Artifact], progress: Progress) -> None:
    """Check these artifacts as `verify` does, but read only those that were not read before as they are now."""
    artifacts = list(artifacts)
    check_present(directory, artifacts)
    unread = [
        artifact
        for artifact in artifacts
        if remembered_digest([artifact_path(directory, artifact)]) != artifact.sha256
    ]
    if unread:
        _check_contents(directory, unread, progress)


def _check_contents(directory: Path, artifacts: Iterable[Artifact], progress: Progress) -> None:
    artifacts = list(artifacts)
    wrong = []
    progress.start(f"checking {directory.name}", sum(artifact.bytes for artifact in artifacts))
    try:
        for artifact in artifacts:
            paths = [artifact_path(directory, artifact)]
            if compute_digest(paths, progress.advance) == artifact.sha256:
                remember_digest(paths, artifact.sha256)
            else:
                wrong.append(artifact.path)
    finally:
        progress.finish()
    if wrong:
        raise PackageError(
            f"the package {directory} is damaged: the sha256 of {_listed(wrong)} is not the one in {MANIFEST}. "
            "Copy these files again."
        )
