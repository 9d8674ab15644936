"""Models that are split into several GGUF files: `…-00001-of-0000N.gguf` and so on."""

from __future__ import annotations

import re
from pathlib import Path

from longspan.errors import ModelError
from longspan.model.gguf_file import GgufFile, read_gguf

_SHARD_NAME = re.compile(r"^(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_MAXIMUM_SHARDS = 1_000


def shard_names(name: str) -> list[str]:
    """The names of all shards if `name` has the form of one, else `name` alone."""
    match = _SHARD_NAME.match(name)
    if match is None or not 1 < int(match["count"]) <= _MAXIMUM_SHARDS:
        return [name]
    count = int(match["count"])
    return [f"{match['prefix']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def open_model(path: Path) -> GgufFile:
    """Metadata and tensors of a model, over all shards when it is split into several files.

    path: the file, or the first shard (`…-00001-of-0000N.gguf`). Metadata is that of the first shard.
    Raises ModelError as `read_gguf` does, and when a shard is missing, repeated, or not the first.
    """
    first = read_gguf(path)
    count = first.integer("split.count", 1)
    if count == 1:
        return first
    shards = [path.with_name(name) for name in shard_names(path.name)]
    if len(shards) != count:
        raise ModelError(
            f"{path} is one of {count} shards, so its name must end in -00001-of-{count:05d}.gguf with the others "
            "beside it. Rename it back, or merge the shards with llama-gguf-split --merge."
        )
    if first.integer("split.no", 0) != 0 or path != shards[0]:
        raise ModelError(f"{path} is not the first shard of its model. Give the first one: {shards[0]}.")
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise ModelError(f"shards are missing beside {path}: {', '.join(missing[:8])}. Get them too.")
    tensors = dict(first.tensors)
    for index, shard in enumerate(shards[1:], start=1):
        part = read_gguf(shard)
        if part.integer("split.no", -1) != index or part.integer("split.count", -1) != count:
            raise ModelError(f"{shard} is not shard {index + 1} of {count}; it belongs to another model.")
        repeated = tensors.keys() & part.tensors.keys()
        if repeated:
            raise ModelError(f"{shard} repeats the tensor {min(repeated)!r} of an earlier shard.")
        tensors.update(part.tensors)
    expected = first.integer("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise ModelError(f"the shards of {path} hold {len(tensors)} tensors, expected {expected}. Get them again.")
    return GgufFile(tuple(shards), first.metadata, tensors)
