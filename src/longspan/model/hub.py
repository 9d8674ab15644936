"""`hf://owner/repository/file.gguf`: files of the Hugging Face hub, through huggingface_hub.

The library keeps its own cache, resumes what was cut, and reads the user's token and endpoint from their usual
places.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from longspan.errors import ModelError
from longspan.model.progress import Progress
from longspan.model.shards import shard_names

PREFIX = "hf://"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._\-]{0,95}"
_REFERENCE = re.compile(
    rf"^hf://(?P<owner>{_NAME})/(?P<repository>{_NAME})(?:@(?P<revision>[A-Za-z0-9._\-/]{{1,128}}?))?"
    rf"/(?P<file>(?:{_NAME}/)*{_NAME}\.gguf)$"
)


@dataclasses.dataclass(frozen=True)
class HubReference:
    """One file of a repository, at a branch, tag or commit if one is named."""

    repository: str
    file: str
    revision: str | None


def parse_hub_reference(text: str) -> HubReference:
    """Take `hf://owner/repository[@revision]/file.gguf` apart. Raises ModelError when it has another form."""
    match = _REFERENCE.match(text)
    if match is None:
        raise ModelError(
            f"{text!r} is no reference to a hub file. Write hf://OWNER/REPOSITORY/FILE.gguf, with the file's "
            "folder if it lies in one, and @REVISION behind the repository for a certain version."
        )
    return HubReference(f"{match['owner']}/{match['repository']}", match["file"], match["revision"])


def fetch_hub_file(text: str, progress: Progress) -> Path:
    """The file in the cache of huggingface_hub, with all its shards; fetched as far as it is missing.

    What is in the cache is taken without asking the hub, so a model stays the same until it is removed there.
    Raises ModelError: malformed reference, no such repository or file, access refused, or the hub out of reach
    while the file is not in the cache.
    """
    reference = parse_hub_reference(text)
    names = shard_names(reference.file)
    paths = [_fetch(text, reference, name, progress) for name in names]
    return paths[0]


def _fetch(text: str, reference: HubReference, name: str, progress: Progress) -> Path:
    # Imported here: the library takes 50 MB and half a second, and only this reference needs it.
    import httpx
    import huggingface_hub
    from huggingface_hub import errors

    where = f"{reference.repository} on the hub"
    kept = huggingface_hub.try_to_load_from_cache(reference.repository, name, revision=reference.revision)
    if isinstance(kept, str):
        return Path(kept)
    try:
        found = huggingface_hub.hf_hub_download(
            reference.repository, name, revision=reference.revision, tqdm_class=_progress_bar(name, progress)
        )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{where} asks for its terms to be accepted first. Accept them on its page, "
            "then log in with `hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(f"there is no {where}, or it is private (then log in with `hf auth login`).") from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{where} has no revision {reference.revision!r}.") from error
    except errors.RemoteEntryNotFoundError as error:
        raise ModelError(f"{where} has no file {name!r}. Look at its list of files.") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ModelError(
            f"{text} is not in the cache and the hub cannot be reached. Check the network (and HF_ENDPOINT, "
            f"HF_HUB_OFFLINE), then try again: what was fetched is kept. Cause: {_first_line(error)}"
        ) from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise ModelError(f"{text} could not be fetched: {_first_line(error)}") from error
    return Path(found)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _progress_bar(name: str, progress: Progress) -> type[Any]:
    """A tqdm class that draws nothing and tells `progress` instead."""
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            progress.start(f"fetching {name}", options.get("total"))
            progress.advance(int(options.get("initial") or 0))
            super().__init__(*arguments, **(options | {"disable": True}))

        def update(self, n: float | None = 1) -> bool | None:
            progress.advance(int(n or 0))
            return None

        def close(self) -> None:
            progress.finish()
            super().close()

    return Bar
