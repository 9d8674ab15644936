"""Whether two models mean the same tokens by the same numbers."""

from __future__ import annotations

from longspan.errors import ModelError
from longspan.model.gguf_file import read_gguf
from longspan.model.source import ModelSource

_TOKENS = "tokenizer.ggml.tokens"


def check_same_vocabulary(model: ModelSource, draft: ModelSource) -> None:
    """Raise ModelError, saying where they differ, unless the draft model has the vocabulary of the model."""
    files = [read_gguf(source.vocabulary_file()) for source in (model, draft)]
    wanted, found = (file.metadata.get(_TOKENS) for file in files)
    rows = [source.description.vocabulary for source in (model, draft)]
    if wanted is not None and found is not None and wanted.raw == found.raw and rows[0] == rows[1]:
        return
    if wanted is None or found is None:
        difference = "one of the two files holds no tokens"
    elif wanted.count != found.count or wanted.raw == found.raw:
        difference = f"it has {max(found.count or 0, rows[1])} tokens instead of {max(wanted.count or 0, rows[0])}"
    else:
        pairs = enumerate(zip(_texts(wanted.decode()), _texts(found.decode()), strict=True))
        number, (meant, other) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
        difference = f"its token {number} is {other!r} instead of {meant!r}"
    raise ModelError(
        f"{draft.description.model_id} cannot draft for {model.description.model_id}: {difference}. Drafts are "
        "numbers of tokens; take a smaller model of the same family."
    )


def _texts(decoded: object) -> list[str]:
    assert isinstance(decoded, list)
    return [str(text) for text in decoded]
