"""Two real servers against each other, one at a time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from longspan.bench.compare import comparison
from longspan.bench.compare.arm import Arm, build_of, read_arm
from longspan.bench.compare.build import Build, this_build
from longspan.bench.compare.comparison import Comparison, Pass, Rounds, Workload, differing_answers
from longspan.bench.compare.contention import Contention, contention
from longspan.bench.compare.gate import DEFAULT_GATE
from longspan.bench.load.answer import LoadAnswer
from longspan.bench.load.datasets import DatasetOrder
from longspan.cli.main import main
from longspan.errors import LongspanError, UsageError
from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """Exit code of a comparison of two arms, and where its files are."""
    folder = tmp_path_factory.mktemp("compare")
    model = folder / "tiny.gguf"
    write_tiny_model(model, "llama", weight_type="Q8_0")
    arms = []
    for name in ("plain", "other"):
        arm = folder / f"{name}.toml"
        options = ["--threads", "1", "--slots", "4", "--context", "128", "--proposer", "none"]
        lines = [f'name = "{name}"', f'model = "{model}"', f"serve = {json.dumps(options)}", "[environment]"]
        arm.write_text("\n".join([*lines, f'{CACHE_VARIABLE} = "{folder / "cache"}"']), encoding="utf-8")
        arms.append(str(arm))
    gate = folder / "gate.toml"
    gate.write_text('[[require]]\nmetric = "output_throughput"\nleast_change = 99.0\n', encoding="utf-8")
    out = folder / "results" / "found"
    build = asyncio.run(build_of(read_arm(Path(arms[0]))))

    async def unchanged(arm: Arm) -> Build:
        """Whoever edits the source while the tests run shall not fail this one."""
        return build

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "build_of", unchanged)
        patch.setenv(CACHE_VARIABLE, str(folder / "cache"))
        code = main(
            [
                *("bench", "compare", *arms, "--rounds", "1", "--requests", "6", "--concurrency", "3"),
                *("--input-len", "6", "--output-len", "12", "--gate", str(gate), "--out", str(out)),
            ]
        )
    return code, out


def test_a_comparison_keeps_every_request_and_says_what_it_ran_on(compared: tuple[int, Path]) -> None:
    _, out = compared
    found = msgspec.json.decode(out.with_suffix(".json").read_bytes(), type=Comparison)
    assert [(one.arm, one.round) for one in found.passes] == [("A", 0), ("B", 0), ("B", 0), ("A", 0)]
    for one in found.passes:
        assert [answer.output_tokens for answer in one.answers] == [12] * 6
        assert one.contention.most_sequences > 1
    assert found.identical and found.contended and not found.differing
    assert "output_throughput" in {row.metric for row in found.verdicts}
    assert found.builds[0] == found.builds[1]
    assert found.builds[0].libraries == this_build().libraries
    assert found.digests[0] == found.digests[1] != ""
    assert found.machine.cores_usable > 0


def test_a_gate_that_is_not_passed_is_an_exit_code(compared: tuple[int, Path]) -> None:
    code, out = compared
    assert code == 1
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert "**The gate is not passed**" in text
    assert "the same texts in all passes" in text
    assert "| output_throughput | higher |" in text
    assert f"({out.name}.png)" in text
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


ANSWERS = (
    LoadAnswer(due=0.0, sent=0.0, chunks=(0.5, 1.0), text="a"),
    LoadAnswer(due=0.0, sent=0.5, chunks=(1.5,), text="b"),
)


def test_requests_one_after_the_other_prove_no_contention() -> None:
    alone = contention(ANSWERS, ())
    assert alone.concurrency == pytest.approx(2 / 1.5)
    assert not alone.proven(2)  # no iteration held two sequences
    assert alone.proven(1)
    assert Contention(1.9, 10, 5, 1, 2).proven(2)
    assert not Contention(0.9, 10, 5, 1, 2).proven(2)


def test_answers_that_differ_are_numbered() -> None:
    other = (ANSWERS[0], msgspec.structs.replace(ANSWERS[1], text="c"))
    idle = contention((), ())
    assert differing_answers([Pass("A", 0, {}, idle, ANSWERS), Pass("B", 0, {}, idle, other)]) == (1,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 1", "cannot be used"),
        ('name = "x"\nserv = []', "cannot be used"),
        ('name = "x"\nserve = ["--port=1"]', "does that itself"),
    ],
)
def test_a_damaged_arm_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "arm.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_arm(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_arm(tmp_path / "none.toml")


def test_an_interpreter_without_longspan_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arm = tmp_path / "arm.toml"
    arm.write_text('name = "x"\npython = "/bin/false"\n', encoding="utf-8")
    assert main(["bench", "compare", str(arm), str(arm), "--json"]) == 1
    assert "does not run Longspan" in capsys.readouterr().err


async def test_a_source_that_changes_meanwhile_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = iter([this_build()] * 2 + [msgspec.structs.replace(this_build(), digest="other")] * 2)

    async def changing(arm: Arm) -> Build:
        return next(builds)

    monkeypatch.setattr(comparison, "build_of", changing)
    arms = (Arm("a"), Arm("b"))
    workload = Workload(dataset=DatasetOrder(name="synthetic-low"), rounds=0)
    with pytest.raises(LongspanError, match="the source changed"):
        await Rounds(arms, workload, lambda text: None).compare(DEFAULT_GATE)


def test_the_build_says_what_it_is() -> None:
    build = this_build()
    assert len(build.digest) == 64
    assert json.loads(msgspec.json.encode(build))["libraries"]["numpy"]
