"""The model that llama.cpp runs, of any architecture that can be split: tokens in, logits and hidden states out."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from longspan.errors import LongspanError
from longspan.llamacpp.library import load_library
from longspan.model.architecture import find_architecture
from longspan.model.source import ModelSource
from longspan.runtime.llama.context import LlamaContext
from longspan.runtime.llama.graph_tap import GraphTap
from longspan.runtime.llama.memory import check_memory
from longspan.train.conversations import Tokens

_ROWS_PER_THREAD = 12
"""More rows would be written a little faster, but texts would be shorter, and heads are for whole answers."""
_MOST_ROWS = 512


@dataclasses.dataclass
class LlamaBase:
    """A `BaseModel`. threads: of the compute. library: another libllama of the same build."""

    source: ModelSource
    threads: int
    library: str | None = None

    def __post_init__(self) -> None:
        self.device = torch.device("cpu")
        self.width = self.source.description.width
        self._file = self.source.stage_file(0, self.source.description.layers)
        self._embedding = self.source.token_embedding(self.library)
        self._input = find_architecture(self.source.description.architecture).input_tensor
        self._context: LlamaContext | None = None
        self._tap: GraphTap | None = None

    def most_rows(self, length: int) -> int:
        return min(_MOST_ROWS, _ROWS_PER_THREAD * self.threads)

    def begin(self, rows: int, length: int) -> None:
        self.close()
        library = load_library(self.library)
        check_memory(library, self._file, rows, length)
        self._tap = (
            GraphTap(library, None, self.width, rows, input=self._input) if self._input is not None else None
        )
        self._context = LlamaContext(
            library,
            self._file,
            slots=rows,
            cells=length,
            threads=self.threads,
            max_rows=rows,
            max_outputs=rows,
            callback=self._tap.callback if self._tap else None,
            by_token=self._tap is not None,
        )
        self._context.keep_hidden(True)

    def step(self, tokens: Tokens, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        context = self._context
        assert context is not None
        inputs = np.ascontiguousarray(self._embedding.rows(tokens), np.float32)
        rows = len(tokens)
        self._decode(context, inputs, np.full(rows, position, np.int32), np.arange(rows, dtype=np.int32))
        logits = np.stack([context.logits(row) for row in range(rows)])
        hidden = np.stack([context.hidden(row) for row in range(rows)])
        if not np.isfinite(hidden).all():
            raise LongspanError(
                f"{self.source.path}: the model's hidden states are not finite numbers; the file may be damaged."
            )
        return torch.from_numpy(logits), torch.from_numpy(hidden)

    def _decode(self, context: LlamaContext, inputs: np.ndarray, positions: Tokens, slots: Tokens) -> None:
        for _ in range(2):  # the tap may have to look at names once more
            if self._tap is not None:
                self._tap.prepare(inputs, 1)
            failure = context.decode(inputs, positions, slots, None)
            if failure:
                raise LongspanError(f"the model cannot be run for writing: {failure}")
            if self._tap is None or self._tap.finish(len(slots), 1):
                return
            for slot in slots.tolist():
                context.trim(slot, int(positions[0]))
        raise LongspanError("llama.cpp did not compute the input tensor of this model")

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.close()
