"""Token trees on llama.cpp stages: every row of every tree against the same tokens one row at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from longspan.errors import ProtocolError, UsageError
from longspan.model.source import GgufSource
from longspan.model.storage import CACHE_VARIABLE
from longspan.ring.llama_loader import LlamaLoader
from longspan.ring.messages import Assignment
from longspan.runtime.llama.branches import MOST_BRANCHES, branch_sequences
from longspan.runtime.slots import stem_length
from longspan.sampling.parameters import SamplingParameters
from longspan.schedule.span import Phase, TokenLogprob
from tests.runtime.pipeline import Pipeline, span
from tests.tiny_models import write_tiny_model

Rows = list[npt.NDArray[np.float32]]
CELLS = 320


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GgufSource]:
    folder = tmp_path_factory.mktemp("trees")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder / "cache"))
        yield GgufSource(write_tiny_model(folder / "tiny.gguf", "llama", weight_type="Q8_0"))


class Stages(Pipeline):
    """Stages one after the other that keep the logits of every sampled row."""

    def __init__(self, source: GgufSource, splits: Sequence[tuple[int, int]], *, trees: bool) -> None:
        self.rows: Rows = []
        loader = LlamaLoader(source, threads=1, sampler=self._sample)
        super().__init__(
            [
                loader.load(
                    Assignment(index, len(splits), start, end, 4, None, 1, CELLS, "float32", trees=trees),
                    lambda _text: None,
                )
                for index, (start, end) in enumerate(splits)
            ],
            source.token_embedding(),
        )

    def _sample(
        self,
        logits: npt.NDArray[np.float32],
        _parameters: SamplingParameters,
        _position: int,
        _history: Sequence[int],
    ) -> tuple[int, TokenLogprob | None]:
        self.rows.append(logits.copy())
        return int(logits.argmax()), None

    def logits(self, start: int, tokens: Sequence[int], parents: tuple[int, ...] | None = None) -> Rows:
        """Logits after each of the tokens."""
        self.rows = []
        phase = Phase.VERIFY if len(tokens) > 1 else Phase.DECODE
        asked = tuple(range(len(tokens)))
        result = self.run([span(0, start, list(tokens), phase=phase, parents=parents, sample_rows=asked)])
        assert not result.failures, result.failures
        return self.rows

    def close(self) -> None:
        for stage in self.stages:
            stage.close()


@pytest.mark.parametrize("splits", [[(0, 4)], [(0, 2), (2, 4)]])
def test_every_row_of_a_tree_is_bit_exact(source: GgufSource, splits: list[tuple[int, int]]) -> None:
    chance = random.Random(7)
    trees, serial = Stages(source, splits, trees=True), Stages(source, [(0, 4)], trees=False)
    try:
        committed = [chance.randrange(300) for _ in range(20)]
        trees.logits(0, committed)
        in_order = len(committed) - 1
        for position, token in enumerate(committed[:in_order]):
            serial.logits(position, [token])
        compared = 0
        for _ in range(25):
            again = committed[in_order:]
            tokens, parents = list(again), list(range(-1, len(again) - 1))
            for _ in range(chance.randint(0, 12)):
                parents.append(chance.randint(len(again) - 1, len(tokens) - 1))
                tokens.append(chance.randrange(300))
            forks = tuple(parents) if len(tokens) > len(again) else None
            rows = trees.logits(in_order, tokens, forks)
            for row in range(len(again) - 1, len(tokens)):
                path: list[int] = []
                node = row
                while node >= 0:
                    path.insert(0, tokens[node])
                    node = parents[node]
                alone = [serial.logits(in_order + depth, [token])[0] for depth, token in enumerate(path)][-1]
                assert np.array_equal(rows[row], alone), f"row {row} of {parents}"
                compared += 1
            # A branch is accepted, and with it a token of the target's own.
            in_order += len(again)
            node = chance.randrange(len(again) - 1, len(tokens))
            branch: list[int] = []
            while node >= len(again):
                branch.insert(0, tokens[node])
                node = parents[node]
            committed += [*branch, chance.randrange(300)]
            for depth, token in enumerate(again):
                serial.logits(in_order - len(again) + depth, [token])
        assert compared > 150
    finally:
        trees.close()
        serial.close()


def test_rows_belong_to_the_branches_that_lead_through_them() -> None:
    parents = (-1, 0, 1, 1, 2, 0 + 1)
    sequences = branch_sequences(parents)
    assert stem_length(parents) == 2
    assert sequences == [[0, 1, 2, 3], [0, 1, 2, 3], [2], [1], [2], [3]]


def test_a_tree_with_more_branches_than_the_library_has_sequences_is_refused(source: GgufSource) -> None:
    stages = Stages(source, [(0, 4)], trees=True)
    try:
        stages.logits(0, [5, 6])
        for leaves in (MOST_BRANCHES, MOST_BRANCHES, 2):  # again and again: what one tree borrowed is given back
            tree = (7, *range(100, 100 + leaves))
            assert len(stages.logits(2, tree, (-1, *(0,) * leaves))) == 1 + leaves
        with pytest.raises(ProtocolError, match="more than the 63 branches"):
            stages.logits(2, (7, *range(MOST_BRANCHES + 1)), (-1, *(0,) * (MOST_BRANCHES + 1)))
    finally:
        stages.close()


def test_a_stage_for_trees_has_one_slot(source: GgufSource) -> None:
    with pytest.raises(UsageError, match="one slot, not 2"):
        LlamaLoader(source, threads=1).load(
            Assignment(0, 1, 0, 4, 4, None, 2, CELLS, "float32", trees=True), lambda _text: None
        )
