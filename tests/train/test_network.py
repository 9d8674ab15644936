"""The head in PyTorch computes what the stage computes with the same file: this is what training relies on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="training needs PyTorch: pip install 'longspan[train]'")

from longspan.llamacpp.library import load_library  # noqa: E402
from longspan.model.draft_model import DraftModel, compose_draft_model  # noqa: E402
from longspan.model.mtp_head import MtpHead, find_head, read_head, write_head  # noqa: E402
from longspan.model.reference import resolve  # noqa: E402
from longspan.model.source import GgufSource, ModelSource  # noqa: E402
from longspan.runtime.llama.head_context import HeadContext  # noqa: E402
from longspan.train.network import HeadNetwork  # noqa: E402
from longspan.train.target import OutputRule, Target, output_matrix  # noqa: E402
from tests.tiny_heads import write_tiny_head  # noqa: E402
from tests.tiny_models import write_tiny_model  # noqa: E402

Rows = npt.NDArray[np.float32]
CPU = torch.device("cpu")
ROWS = 12
DEPTH = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModelSource, MtpHead]]:
    folder = tmp_path_factory.mktemp("network")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGSPAN_CACHE", str(folder / "cache"))
        source = GgufSource(write_tiny_model(folder / "tiny.gguf", "llama", weight_type="Q8_0", layers=2))
        yield source, read_head(write_tiny_head(folder / "head.safetensors", source))


def composed(source: ModelSource, head: MtpHead) -> DraftModel:
    stage = source.stage_file(0, source.description.layers)
    return compose_draft_model(
        head, stage, source.token_embedding(), source.digest, block_type="F32", vocabulary_type="F32"
    )


def on_the_stage(
    model: DraftModel, tokens: list[int], hidden: Rows, following: list[int]
) -> tuple[list[Rows], list[Rows]]:
    """Logits and hidden states of a chain behind the last row, whose drafts are `following`."""
    context = HeadContext(load_library(), model, slots=1, cells=64, threads=1)
    try:
        logits, states = context.run(tokens, hidden, [0] * len(tokens), [len(tokens) - 1])
        found = [(logits[0], states[0])]
        for token in following:
            logits, states = context.run([token], states, [0], [0])
            found.append((logits[0], states[0]))
    finally:
        context.close()
    return [logits for logits, _ in found], [states for _, states in found]


def in_torch(source: ModelSource, head: MtpHead, tokens: list[int], hidden: Rows) -> Rows:
    """(DEPTH, rows, width): states of chains behind every row, the prefix before them."""
    known = np.concatenate([head.prefix_tokens, tokens, [0]]).astype(np.int32)
    states = np.concatenate([head.prefix_hidden, hidden])
    states = np.concatenate([states, np.zeros((len(known) - len(states), head.width), np.float32)])
    embeddings = source.token_embedding().rows(known)
    network = HeadNetwork(head, CPU)
    with torch.no_grad():
        found = network.unroll(torch.tensor(embeddings)[None], torch.tensor(states)[None], DEPTH)
    result: Rows = found[:, 0].numpy()
    return result


def compare(source: ModelSource, head: MtpHead, *, tolerance: float) -> None:
    model = composed(source, head)
    generator = np.random.default_rng(5)
    # The last rows of the network's input lack a known token or state: a chain ends at row ROWS - 1 there.
    tokens = generator.integers(3, source.description.vocabulary, ROWS + DEPTH - 1).tolist()
    hidden = 3.0 * generator.standard_normal((ROWS, head.width)).astype(np.float32)
    if len(head.prefix_hidden):
        hidden *= np.abs(head.prefix_hidden).mean() / np.abs(hidden).mean()
    logits, states = on_the_stage(model, tokens[:ROWS], hidden, tokens[ROWS:])
    ours = in_torch(source, head, tokens, hidden)[:, len(head.prefix_hidden) + ROWS - 1]
    matrix = model.output.rows(model.vocabulary)
    for depth in range(DEPTH):
        scale = float(np.abs(states[depth]).max())
        np.testing.assert_allclose(ours[depth], states[depth], atol=tolerance * scale, err_msg=f"depth {depth + 1}")
        said = matrix @ ours[depth]
        np.testing.assert_allclose(said, logits[depth], atol=tolerance * float(np.abs(said).max()))
        assert int(said.argmax()) == int(logits[depth].argmax())


def test_it_is_what_the_stage_computes(tiny: tuple[ModelSource, MtpHead]) -> None:
    compare(*tiny, tolerance=0.005)


def test_it_is_what_the_stage_computes_with_the_demo_head() -> None:
    source = resolve("demo")
    path = find_head(source)
    assert path is not None
    compare(source, read_head(path), tolerance=0.005)


def test_a_head_goes_through_training_and_the_file_unchanged(
    tiny: tuple[ModelSource, MtpHead], tmp_path: Path
) -> None:
    _, head = tiny
    write_head(HeadNetwork(head, CPU).head(), tmp_path / "again.safetensors")
    again = read_head(tmp_path / "again.safetensors")
    for name in ("eh_proj", "embedding_norm", "hidden_norm", "output_norm", "prefix_tokens", "prefix_hidden"):
        np.testing.assert_array_equal(getattr(again, name), getattr(head, name), err_msg=name)
    for name, values in head.block.items():
        np.testing.assert_array_equal(again.block[name], values, err_msg=name)


def test_the_gradient_is_that_of_the_cross_entropy(tiny: tuple[ModelSource, MtpHead]) -> None:
    source, _ = tiny
    rule = OutputRule(0.5, 20.0)
    target = Target.of(output_matrix(source), rule, np.arange(3, 90, dtype=np.int32), CPU, torch.float32)
    generator = torch.Generator().manual_seed(2)
    width, length = source.description.width, 9
    states = torch.randn((2, 3, length - 3, width), generator=generator).requires_grad_()
    hidden = torch.randn((3, length, width), generator=generator)
    weights = torch.rand((2, 3, length - 3), generator=generator)
    loss = target.distillation(states, hidden, weights)
    (gradient,) = torch.autograd.grad(loss, states)

    wanted = rule.logits(hidden @ target.matrix.T).softmax(-1)
    said = (states @ target.matrix.T).log_softmax(-1)
    shares = (weights / weights.sum())[..., None]
    plain = -sum((wanted[:, step : step + length - 3] * said[step - 1] * shares[step - 1]).sum() for step in (1, 2))
    (expected,) = torch.autograd.grad(plain, states)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)
