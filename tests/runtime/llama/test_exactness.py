"""The search for the exact-row limit, against a context whose limit is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from longspan.errors import LongspanError
from longspan.runtime.llama.exactness import Exactness, ExactnessProbe

WIDTH, CELLS = 4, 1024


class Context:
    """Rows of batches of `breaks` and more differ in a bit, and so do rows that are alone when `lonely`.

    When hidden states are kept, batches of `hidden_breaks` and more differ too.
    """

    width = WIDTH

    max_rows = 512

    def __init__(
        self, breaks: int, *, lonely: bool = False, cells: int = CELLS, hidden_breaks: int = 10_000
    ) -> None:
        self.cells = cells
        self.decodes = 0
        self.held = 0
        self._breaks = breaks
        self._lonely = lonely
        self._hidden_breaks = hidden_breaks
        self.hidden = False
        self._rows: npt.NDArray[np.float32] = np.empty((0, WIDTH), np.float32)

    def trim(self, slot: int, keep: int) -> None:
        assert slot == 0
        assert keep <= self.held
        self.held = keep

    def decode(
        self,
        activations: npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int32],
        outputs: npt.NDArray[np.int8] | None,
    ) -> str:
        assert positions[0] == self.held
        assert not slots.any()
        assert outputs is not None
        self.held += len(positions)
        if self.held > self.cells:
            return "no room"
        self.decodes += 1
        breaks = min(self._breaks, self._hidden_breaks) if self.hidden else self._breaks
        odd = 1 if len(positions) >= breaks else -1 if self._lonely and len(positions) == 1 else 0
        self._rows = activations + np.float32(1 + odd * 2e-7)
        return ""

    def keep_hidden(self, kept: bool) -> None:
        self.hidden = kept

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self._rows[row]
        return found


@pytest.mark.parametrize("max_rows", [16, 100, 512])
@pytest.mark.parametrize(
    "breaks", [2, 3, 4, 9, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 300, 511, 512, 513, 9999]
)
def test_finds_the_limit(breaks: int, max_rows: int) -> None:
    context = Context(breaks)
    found = ExactnessProbe(context, None, max_rows).find()  # type: ignore[arg-type]
    if breaks == 2:
        # As if rows alone took another kernel, and then batches of three and more differ from those of two as well.
        assert found == Exactness(max_rows + 1, pad=True)
    else:
        assert found == Exactness(min(breaks, max_rows + 1))
    assert context.held == 0, "the slot is empty afterwards"


@pytest.mark.parametrize("breaks", [4, 5, 33, 64, 65, 9999])
def test_rows_that_differ_alone_get_company(breaks: int) -> None:
    context = Context(breaks, lonely=True)
    assert ExactnessProbe(context, None, 512).find() == Exactness(min(breaks, 513), pad=True)  # type: ignore[arg-type]
    assert context.held == 0


def test_company_that_does_not_help_is_not_used() -> None:
    context = Context(3, lonely=True)
    assert ExactnessProbe(context, None, 512).find() == Exactness(2)  # type: ignore[arg-type]


@pytest.mark.parametrize("cells", [1, 2, 8, 11, 16, 23, 24, 40])
def test_a_short_context_is_not_overrun(cells: int) -> None:
    context = Context(9999, cells=cells)
    found = ExactnessProbe(context, None, 512).find()  # type: ignore[arg-type]
    assert 2 <= found.exact_rows <= 513


def test_a_known_limit_is_found_with_few_runs() -> None:
    """Each run is a batch of up to 512 rows through the whole stage."""
    context = Context(64)
    ExactnessProbe(context, None, 512).find()  # type: ignore[arg-type]
    assert context.decodes <= 16 + 4


def test_a_run_that_fails_is_said() -> None:
    context = Context(64)
    context.decode = lambda *_: "llama_decode: aborted"  # type: ignore[method-assign]
    with pytest.raises(LongspanError, match="the self-check of 1 rows failed: llama_decode: aborted"):
        ExactnessProbe(context, None, 512).find()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hidden_breaks", "exact_rows", "expected"),
    [(10_000, 64, 128), (129, 64, 128), (128, 64, 63), (64, 64, 63), (63, 64, 0)],
)
def test_finds_how_many_rows_may_keep_their_hidden_states(
    hidden_breaks: int, exact_rows: int, expected: int
) -> None:
    context = Context(9999, hidden_breaks=hidden_breaks)
    probe = ExactnessProbe(context, None, 512)  # type: ignore[arg-type]
    assert probe.hidden_rows(Exactness(exact_rows), 128) == expected
    assert not context.hidden
    assert context.held == 0
