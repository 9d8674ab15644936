from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from longspan.errors import ArchitectureError, ModelError
from longspan.model import architecture as table
from longspan.model import metadata as values
from longspan.model.architecture import ARCHITECTURES, find_architecture
from longspan.model.gguf_file import read_gguf
from longspan.model.metadata import MetadataValue, ValueType
from longspan.model.source import GgufSource
from longspan.model.stage_metadata import LayerMetadata
from tests import tiny_models
from tests.model.mixture_models import MIXTURES_WITH_DENSE_LAYERS, write_mixture_model
from tests.model.staged_model import staged
from tests.tiny_models import TINY_ARCHITECTURES, Recipe, write_tiny_model
from tests.whole_model import WholeModel

Splits = list[tuple[int, int]]


def difference(path: Path, *cuts: Splits) -> float:
    """The largest difference of a logit between the whole model and any of the splits, over 34 positions."""
    source = GgufSource(path)
    tokens = np.random.default_rng(1).integers(3, source.description.vocabulary, 34).tolist()
    parts = [tokens[:31], tokens[31:32], tokens[32:]]
    with WholeModel(path, context=64) as model:
        whole = np.concatenate([model.run(part) for part in parts])
    assert np.abs(whole).max() > 1, "the model says nothing"
    worst = 0.0
    for splits in cuts:
        with staged(source, splits) as model:
            split = np.concatenate([model.run(part) for part in parts])
        assert split.shape == whole.shape == (34, source.description.vocabulary)
        worst = max(worst, float(np.abs(split - whole).max()))
    return worst


def cuts_of(name: str, layers: int) -> list[Splits]:
    """Some cuts in two, and as many stages as possible."""
    multiple = find_architecture(name).cut_multiple
    places = [place for place in range(multiple, layers, multiple) if name != "cohere2" or place != layers - 1]
    two: list[Splits] = [[(0, place), (place, layers)] for place in places[:: max(1, len(places) // 3)]]
    ends = [*places, layers]
    return [[(0, layers)], *two, list(zip([0, *places], ends, strict=True))]


@pytest.mark.parametrize("name", TINY_ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_stages_compute_what_the_whole_model_computes(name: str, tied: bool, tmp_path: Path) -> None:
    if tied and not find_architecture(name).tied_fallback:
        pytest.skip("llama.cpp wants an output matrix")
    layers = 8 if name in ("smollm3", "gemma3") else 4
    try:
        path = write_tiny_model(tmp_path / "model.gguf", name, layers=layers, tied=tied)
    except ValueError:
        pytest.skip("the architecture has no output matrix of its own")
    assert difference(path, *cuts_of(name, layers)) == 0.0


_RELATIVES = {
    "arcee": Recipe(feed_forward="plain"),
    "chatglm": Recipe(fused_attention=True, feed_forward="fused", rotated=0.5),
    "command-r": Recipe(
        untied=False, layer_norm=True, norm_bias=False, shared_norm=True, extra={"logit_scale": 0.5}
    ),
    "ernie4_5": Recipe(),
    "exaone": Recipe(),
    "hunyuan-dense": Recipe(head_norm="head"),
    "maincoder": Recipe(head_norm="head"),
    "minicpm": Recipe(extra={"logit_scale": 2.0, "residual_scale": 0.6, "embedding_scale": 3.0}),
    "mistral3": Recipe(),
    "nanbeige": Recipe(),
    "nemotron": Recipe(layer_norm=True, feed_forward="plain"),
    "orion": Recipe(layer_norm=True),
    "xverse": Recipe(),
}
"""Architectures that differ little from the ones above, seen from where models are cut."""


@pytest.mark.parametrize("name", _RELATIVES)
def test_relatives_compute_the_same_in_stages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny_models._RECIPES, name, _RELATIVES[name])
    path = write_tiny_model(tmp_path / "model.gguf", name)
    assert difference(path, [(0, 1), (1, 4)], [(0, 2), (2, 3), (3, 4)]) == 0.0


def test_every_architecture_of_the_table_is_compared() -> None:
    assert ARCHITECTURES.keys() == {*TINY_ARCHITECTURES, *MIXTURES_WITH_DENSE_LAYERS, *_RELATIVES}


@pytest.mark.parametrize("name", MIXTURES_WITH_DENSE_LAYERS)
def test_leading_dense_layers_stay_dense(name: str, tmp_path: Path) -> None:
    path = write_mixture_model(tmp_path / "model.gguf", name)
    assert difference(path, *cuts_of(name, 5)) == 0.0


def test_draft_layers_are_left_out(tmp_path: Path) -> None:
    path = write_mixture_model(tmp_path / "model.gguf", "glm4moe", draft=1)
    assert GgufSource(path).description.layers == 5
    assert difference(path, [(0, 2), (2, 5)]) == 0.0


def test_a_window_pattern_of_the_file_is_kept(tmp_path: Path) -> None:
    path = write_tiny_model(
        tmp_path / "model.gguf", "gemma3", layers=6, extra={"attention.sliding_window_pattern": 3}
    )
    assert difference(path, [(0, 2), (2, 6)], [(0, 1), (1, 3), (3, 6)]) == 0.0


def test_olmo_with_windows(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", "olmo2", layers=6, extra={"attention.sliding_window": 12})
    assert difference(path, [(0, 2), (2, 6)], [(0, 3), (3, 5), (5, 6)]) == 0.0


def test_heads_by_layer_are_cut_with_the_layers(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", "llama", extra={"attention.head_count_kv": [2, 2, 2, 2]})
    source = GgufSource(path)
    stage = read_gguf(source.stage_file(1, 4))
    assert stage.value("llama.attention.head_count_kv") == [2, 2, 2]
    assert difference(path, [(0, 1), (1, 4)]) == 0.0


def test_the_tests_see_a_forgotten_window_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = table.Architecture("gemma3", embedding_scale=table.EmbeddingScale.SQRT_WIDTH)
    monkeypatch.setitem(ARCHITECTURES, "gemma3", without)
    path = write_tiny_model(tmp_path / "model.gguf", "gemma3", layers=8)
    assert difference(path, [(0, 3), (3, 8)]) > 0.1


# Where the layer count tells llama.cpp what the model is


@pytest.mark.parametrize(("name", "count"), [("gemma2", 46), ("gemma3", 62), ("exaone4", 64)])
def test_a_telling_layer_count_is_refused(name: str, count: int, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", name, layers=count, width=32, heads=2)
    with pytest.raises(ArchitectureError, match=f"{name} models of {count} layers cannot be split"):
        GgufSource(path).check_range(0, 23)
    longer = write_tiny_model(tmp_path / "longer.gguf", name, layers=count + 1, width=32, heads=2)
    with pytest.raises(ArchitectureError, match=f"a stage of {count} layers is not possible with {name}"):
        GgufSource(longer).stage_file(1, count + 1)
    assert difference(path, [(0, count)]) == 0.0


def test_cuts_between_the_possible_ones_are_refused(tmp_path: Path) -> None:
    source = GgufSource(write_tiny_model(tmp_path / "model.gguf", "smollm3", layers=8))
    assert source.description.cut_multiple == 4
    with pytest.raises(ArchitectureError, match=r"at every 4th layer only.* at 4 or 8 instead of 6"):
        source.stage_file(6, 8)


def test_a_stage_without_windows_is_refused_where_it_would_compute_otherwise(tmp_path: Path) -> None:
    source = GgufSource(write_tiny_model(tmp_path / "model.gguf", "cohere2"))
    with pytest.raises(ArchitectureError, match="layers 3-4 all see the whole context"):
        source.stage_file(3, 4)


# What is refused


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mamba", "recurrent state"),
        ("qwen3next", "recurrent state"),
        ("gemma3n", "look tokens up again"),
        ("bert", "encoder"),
        ("qwen2vl", "positions have several parts"),
        ("dream", "diffusion"),
        ("gpt2", "position embeddings"),
        ("baichuan", "layer count"),
        ("clip", "no language model"),
    ],
)
def test_refused_architectures_say_why_and_what_is_known(name: str, reason: str) -> None:
    with pytest.raises(ArchitectureError, match=f"'{name}' cannot be split.*{reason}.* Known: .*llama"):
        find_architecture(name)


def test_an_unknown_architecture_is_named(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lamma"))
    with pytest.raises(ArchitectureError, match=r"'lamma' is not known.* Known: .*gemma3.*qwen3moe"):
        GgufSource(path)


def test_every_refused_architecture_has_one_reason() -> None:
    names = [name for group in table._REASONS.values() for name in group]
    assert len(names) == len(set(names))
    assert not set(names) & ARCHITECTURES.keys()


def test_activations_of_experts_are_not_rounded() -> None:
    assert layer_metadata({}).activation_dtypes == ("float32", "float16")
    assert layer_metadata({"expert_count": values.uint32(0)}).activation_dtypes == ("float32", "float16")
    assert layer_metadata({"expert_count": values.uint32(8)}).activation_dtypes == ("float32",)


def layer_metadata(extra: dict[str, MetadataValue], name: str = "llama", blocks: int = 6) -> LayerMetadata:
    return LayerMetadata(find_architecture(name), {f"{name}.{key}": value for key, value in extra.items()}, blocks)


def test_an_array_that_is_not_known_is_refused() -> None:
    unknown = {"some.array": values.array(ValueType.UINT32, [1] * 6)}
    with pytest.raises(ArchitectureError, match=r"the array llama\.some\.array, of which"):
        layer_metadata(unknown)


def test_an_array_of_fixed_length_is_not_cut() -> None:
    sections = {"rope.dimension_sections": values.array(ValueType.INT32, [8, 8, 0, 0])}
    stage = layer_metadata(sections, blocks=4).of_stage(1, 2, 1)
    assert stage["llama.rope.dimension_sections"].decode() == [8, 8, 0, 0]


def test_an_array_of_another_length_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="has 5 elements, the model 6 layers"):
        layer_metadata({"feed_forward_length": values.array(ValueType.UINT32, [1] * 5)})


def test_a_value_that_llama_would_guess_from_the_layers_is_required() -> None:
    with pytest.raises(
        ArchitectureError, match=r"lacks the metadata minicpm\.residual_scale, minicpm\.logit_scale"
    ):
        layer_metadata({"embedding_scale": values.scalar(ValueType.FLOAT32, 12.0)}, "minicpm")


def test_a_model_of_draft_layers_only_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="6 draft layers among 6"):
        layer_metadata({"nextn_predict_layers": values.uint32(6)})


def test_a_tensor_that_is_not_known_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"blk.3.attn_norm.weight", b"position_embd_.weight_"))
    with pytest.raises(ArchitectureError, match=r"the tensor position_embd_"):
        GgufSource(path)


def test_a_missing_layer_is_named(tiny_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"blk.2.", b"blk.7."))
    with pytest.raises(ModelError, match="no tensors of the layer 2"):
        GgufSource(path)
