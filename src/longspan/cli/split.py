"""`longspan split`: write a model as a layer package, or check one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from longspan.cli.output import human_bytes, print_facts, print_json
from longspan.cli.progress import ProgressBars
from longspan.errors import UsageError
from longspan.model import package
from longspan.model.package import Manifest
from longspan.model.reference import resolve
from longspan.model.source import GgufSource
from longspan.model.split import split_model


def split(
    model: str,
    /,
    *,
    out: Path | None = None,
    requantize: str | None = None,
    verify: bool = False,
    json: bool = False,
) -> None:
    """Write a model as a layer package: a directory with a file for every layer.

    A machine that holds some layers needs only their files, metadata.gguf and package.json. The tensors are copied
    as they are unless --requantize asks for other ones.

    For example:

        longspan split demo --out demo-package
        longspan split demo --out demo-q4 --requantize Q4_0
        longspan split demo-package --verify

    Parameters
    ----------
    model
        The model to split, or with --verify alone the package to check.
    out
        The directory to write; it must not be there yet.
    requantize
        Pack the matrices of the layers as this type, such as Q4_0: smaller or faster, less exact.
    verify
        Read every file of the package again and compare its sha256.
    json
        Print what was written or checked as JSON.
    """
    progress = ProgressBars()
    if out is None:
        directory = Path(model).expanduser()
        if not verify or requantize is not None or not directory.is_dir():
            raise UsageError(
                "say where the package shall be written: longspan split MODEL --out DIR. "
                "A package that is there already is checked by: longspan split DIR --verify"
            )
        manifest = package.verify(directory, progress)
    else:
        source = resolve(model, progress=progress)
        if not isinstance(source, GgufSource):
            raise UsageError(f"{model} is a layer package already. Give the model that it was made from.")
        directory = out.expanduser()
        manifest = split_model(source, directory, requantise=requantize, progress=progress)
        if verify:
            package.verify(directory, progress)
    if json:
        print_json({**_facts(manifest, directory), "verified": verify, "package": manifest})
    else:
        print_facts(_lines(manifest, directory, verified=verify))


def _facts(manifest: Manifest, directory: Path) -> dict[str, object]:
    return {"path": str(directory), "bytes": _size(manifest), "artifacts": len(manifest.artifacts)}


def _size(manifest: Manifest) -> int:
    return sum(artifact.bytes for artifact in manifest.artifacts)


def _lines(manifest: Manifest, directory: Path, *, verified: bool) -> Iterator[tuple[str, str]]:
    largest = max(artifact.bytes for artifact in manifest.artifacts if artifact.role == "layer")
    yield "package", str(directory)
    yield "model", f"{manifest.model_id} ({manifest.architecture}, {manifest.quantisation})"
    yield "layers", f"{manifest.layer_count}, at most {human_bytes(largest)} each"
    yield "size", f"{human_bytes(_size(manifest))} in {len(manifest.artifacts)} files"
    yield "digest", manifest.digest
    if verified:
        yield "verified", "every file has the sha256 of package.json"
