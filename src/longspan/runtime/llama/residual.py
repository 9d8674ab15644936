"""Reads the residual stream after a stage's last layer out of llama.cpp's compute graph.

llama.cpp asks its evaluation callback about every node of every graph (some 32 a layer), and each question costs an
entry into Python. Comparing names there is the larger part, so the reader learns at which question the tensor
comes and after how many the graph ends, and from then on only counts. The tensor it counts to is checked by name; a
surprise makes the run void, the runtime repeats it with names, and the reader stays with names for a while (twice
as long after each surprise) before it counts again.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from longspan.llamacpp.library import Library
from longspan.llamacpp.structs import EVALUATION_CALLBACK

_MOST_NAMED_RUNS = 4096


class ResidualReader:
    """Collects the rows of the tensor `name` in the order in which the sub-batches compute them.

    buffer: (max_rows, width) float32, filled from the start by each run. seconds: what the last run spent copying.
    """

    def __init__(self, library: Library, name: str, width: int, max_rows: int) -> None:
        self._library = library
        self._name = name.encode()
        self._row_bytes = 4 * width
        self.buffer: npt.NDArray[np.float32] = np.zeros((max_rows, width), np.float32)
        self.seconds = 0.0
        self._address = self.buffer.ctypes.data
        self._rows = 0
        self._learned: tuple[int, int] | None = None
        self._penalty = 1
        self._named_runs = 0
        self._counting = False
        self._asked = 0
        self._next = 0
        self._surprised = False
        self._hits: list[int] = []
        self.callback: Any = EVALUATION_CALLBACK(self._make_callback())

    def prepare(self) -> None:
        """Get ready for a run."""
        self.seconds = 0.0
        self._rows = 0
        self._asked = 0
        self._surprised = False
        self._hits = []
        self._counting = self._learned is not None and self._named_runs == 0
        self._named_runs = max(0, self._named_runs - 1)
        self._next = self._learned[0] if self._learned is not None else 0

    def finish(self, rows: int, sub_batches: int) -> bool:
        """After a run: True when the buffer holds all `rows`, False when the run has to be repeated."""
        complete = not self._surprised and self._rows == rows
        if self._counting and not complete:
            self._learned = None
            self._named_runs = self._penalty
            self._penalty = min(2 * self._penalty, _MOST_NAMED_RUNS)
        elif complete and self._learned is None and sub_batches == len(self._hits):
            self._learned = (self._hits[0], self._asked // sub_batches)
        return complete

    def _make_callback(self) -> Any:
        name_of = self._library.ggml_get_name
        wanted = self._name

        def callback(tensor: int, ask: bool, _data: object) -> bool:
            if not ask:
                self._read(tensor)
                return True
            self._asked = asked = self._asked + 1
            if self._counting:
                return asked == self._next
            if name_of(tensor) == wanted:
                self._hits.append(asked)
                return True
            return False

        return callback

    def _read(self, tensor: int) -> None:
        started = time.perf_counter()
        if self._counting:
            assert self._learned is not None
            self._next += self._learned[1]
            if self._library.ggml_get_name(tensor) != self._name:
                self._surprised = True
                return
        size = self._library.ggml_nbytes(tensor)
        rows = size // self._row_bytes
        if self._rows + rows > len(self.buffer):
            self._surprised = True
            return
        self._library.ggml_backend_tensor_get(tensor, self._address + self._rows * self._row_bytes, 0, size)
        self._rows += rows
        self.seconds += time.perf_counter() - started
