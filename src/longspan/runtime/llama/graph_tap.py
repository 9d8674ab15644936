"""Reads rows out of llama.cpp's compute graph, and writes rows into it.

A stage that is not the last needs the residual stream after its last layer. Some architectures take no embeddings
as they are (llama.cpp scales or refuses them): there the rows are written over a tensor at the start of the graph.

llama.cpp asks its evaluation callback about every node of every graph (some 32 a layer), and each question costs an
entry into Python. Comparing names there is the larger part, so the tap learns at which questions its tensors come
and after how many the graph ends, and from then on only counts. The tensors it counts to are checked by name; a
surprise makes the run void, the runtime repeats it with names, and the tap stays with names for a while (twice as
long after each surprise) before it counts again.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from longspan.llamacpp.library import Library
from longspan.llamacpp.structs import EVALUATION_CALLBACK
from longspan.runtime.base import Activations

_MOST_NAMED_RUNS = 4096


class GraphTap:
    """Rows in and out of a graph, in the order in which the sub-batches compute them.

    output: tensor to read, None for none. input: tensor to write over, None for none.
    buffer: (max_rows, width) float32, filled from the start by each run. seconds: what the last run spent copying.
    """

    def __init__(
        self, library: Library, output: str | None, width: int, max_rows: int, *, input: str | None = None
    ) -> None:
        self._library = library
        self._output = output.encode() if output is not None else None
        self._input = input.encode() if input is not None else None
        self._row_bytes = 4 * width
        self.buffer: npt.NDArray[np.float32] = np.zeros((max_rows if output is not None else 0, width), np.float32)
        self.seconds = 0.0
        self._address = self.buffer.ctypes.data
        self._inputs: Activations = np.zeros((0, width), np.float32)
        self._read_rows = 0
        self._written_rows = 0
        self._learned: tuple[tuple[int, ...], int] | None = None
        self._penalty = 1
        self._named_runs = 0
        self._counting = False
        self._asked = 0
        self._targets: list[int] = []
        self._next = 0
        self._surprised = False
        self._hits: list[int] = []
        self.callback: Any = EVALUATION_CALLBACK(self._make_callback())

    @property
    def writes(self) -> bool:
        """Whether rows go in through this tap, and tokens through the batch are only placeholders."""
        return self._input is not None

    @property
    def reads(self) -> bool:
        """Whether rows come out through this tap."""
        return self._output is not None

    def prepare(self, inputs: Activations, sub_batches: int) -> None:
        """Get ready for a run. inputs: (rows, width), in the order of computation; used when the tap writes."""
        self.seconds = 0.0
        self._inputs = np.ascontiguousarray(inputs, np.float32) if self.writes else inputs
        self._read_rows = self._written_rows = 0
        self._asked = 0
        self._surprised = False
        self._hits = []
        self._counting = self._learned is not None and self._named_runs == 0
        self._named_runs = max(0, self._named_runs - 1)
        if self._counting and self._learned is not None:
            places, nodes = self._learned
            self._targets = [nodes * count + place for count in range(sub_batches) for place in places]
            self._targets.reverse()
            self._next = self._targets.pop()

    def finish(self, rows: int, sub_batches: int) -> bool:
        """After a run: True when `rows` rows were read and all inputs written, False when it has to be repeated."""
        complete = (
            not self._surprised
            and (not self.reads or self._read_rows == rows)
            and (not self.writes or self._written_rows == len(self._inputs))
        )
        per_graph = self.reads + self.writes
        if self._counting and not complete:
            self._learned = None
            self._named_runs = self._penalty
            self._penalty = min(2 * self._penalty, _MOST_NAMED_RUNS)
        elif complete and self._learned is None and len(self._hits) == per_graph * sub_batches:
            self._learned = (tuple(self._hits[:per_graph]), self._asked // sub_batches)
        return complete

    def _make_callback(self) -> Any:
        name_of = self._library.ggml_get_name
        wanted = {name for name in (self._input, self._output) if name is not None}

        def callback(tensor: int, ask: bool, _data: object) -> bool:
            if not ask:
                self._touch(tensor)
                return True
            self._asked = asked = self._asked + 1
            if self._counting:
                return asked == self._next
            if name_of(tensor) in wanted:
                self._hits.append(asked)
                return True
            return False

        return callback

    def _touch(self, tensor: int) -> None:
        """The tensor that was asked for has been computed."""
        started = time.perf_counter()
        if self._counting:
            self._next = self._targets.pop() if self._targets else -1
        name = self._library.ggml_get_name(tensor)
        size = self._library.ggml_nbytes(tensor)
        rows = size // self._row_bytes
        if name == self._output and self._read_rows + rows <= len(self.buffer):
            address = self._address + self._read_rows * self._row_bytes
            self._library.ggml_backend_tensor_get(tensor, address, 0, size)
            self._read_rows += rows
        elif name == self._input and self._written_rows + rows <= len(self._inputs):
            address = self._inputs.ctypes.data + self._written_rows * self._row_bytes
            self._library.ggml_backend_tensor_set(tensor, address, 0, size)
            self._written_rows += rows
        else:
            self._surprised = True
        self.seconds += time.perf_counter() - started
