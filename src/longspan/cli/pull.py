"""`longspan pull`: fetch a model, and say what it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from longspan.cli.output import human_bytes, print_facts, print_json
from longspan.cli.progress import ProgressBars
from longspan.model.reference import resolve
from longspan.model.source import ModelSource


def pull(model: str, /, *, json: bool = False) -> None:
    """Fetch a model into the cache, and say what it is.

    A model that is on disk already is only read and described; one that was cut off is fetched again.

    For example:

        longspan pull demo
        longspan pull hf://owner/repo/file.gguf
        longspan pull ./model.gguf --json

    Parameters
    ----------
    model
        The model to fetch.
    json
        Print what it is as JSON.
    """
    source = resolve(model, progress=ProgressBars())
    if json:
        known = dataclasses.asdict(source.description)
        print_json({**known, "digest": source.digest, "path": str(source.path), "bytes": source.size})
    else:
        print_facts(_lines(source))


def _lines(source: ModelSource) -> Iterator[tuple[str, str]]:
    known = source.description
    yield "model", known.model_id
    yield "architecture", known.architecture
    yield "layers", f"{known.layers}, {known.width} wide"
    yield "vocabulary", f"{known.vocabulary} tokens{', tied' if known.tied_embeddings else ''}"
    yield "context", f"{known.context_length} tokens"
    yield "quantisation", known.quantisation
    yield "size", human_bytes(source.size)
    yield "digest", source.digest
    yield "path", str(source.path)
