"""The model that a benchmark runs on."""

from __future__ import annotations

from longspan.errors import UsageError
from longspan.model.progress import Progress
from longspan.model.reference import resolve
from longspan.model.requantise import requantised_source
from longspan.model.source import GgufSource, ModelSource

AS_IT_IS = "none"
DEMO = "demo"
DEMO_TYPE = "Q4_0"
"""llama.cpp has no repacked kernels for the demo's own type, Q4_1: eight rows cost it as much as eight calls, which
would hide what batches and windows bring. It has them for Q4_0, as it has for the types that people mostly use."""


def measured_model(reference: str, requantize: str | None, progress: Progress) -> tuple[ModelSource, str]:
    """The model and the reference that names it to other processes.

    requantize: the type that the layers are packed as; AS_IT_IS leaves them; None is DEMO_TYPE for the demo model
        and AS_IT_IS for any other.
    Raises ModelError as `resolve` does, UsageError for a layer package, whose type was chosen when it was split.
    """
    source = resolve(reference, progress=progress)
    if requantize is None:
        requantize = DEMO_TYPE if reference == DEMO else AS_IT_IS
    if requantize == AS_IT_IS:
        return source, reference
    if not isinstance(source, GgufSource):
        raise UsageError(
            f"{reference} is a layer package, whose type was chosen by `longspan split --requantize`; "
            "measure it as it is, or give the model that it was made from"
        )
    packed = requantised_source(source, requantize, progress)
    return packed, str(packed.path)
