"""The doctor: what it finds on this machine, and what it says about worse ones."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from longspan.cli import doctor
from longspan.cli.main import main
from longspan.observe.machine import LibraryFacts, Machine, describe_machine


@pytest.fixture(scope="module")
def machine() -> Machine:
    """This machine, with enough of everything, whatever is used of it just now."""
    return msgspec.structs.replace(
        describe_machine(), memory_available=8 << 30, cache_free=8 << 30, cache_writable=True, open_files=4096
    )


def test_a_good_machine_has_no_problem(machine: Machine) -> None:
    assert list(doctor.find_problems(machine)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_available": 200 << 20}, "only 200.0 MiB of memory"),
        ({"cache_free": 100 << 20}, "only 100.0 MiB of disk"),
        ({"cache_writable": False}, "cannot be written"),
        ({"open_files": 256}, "only 256 files"),
        ({"library": LibraryFacts(None, None, None, (), (), "xllamacpp is not installed")}, "not installed"),
    ],
)
def test_each_problem_is_named(machine: Machine, change: dict[str, object], message: str) -> None:
    found = list(doctor.find_problems(msgspec.structs.replace(machine, **change)))
    assert len(found) == 1
    assert message in found[0]


def test_no_limit_of_open_files_is_no_problem(machine: Machine) -> None:
    assert list(doctor.find_problems(msgspec.structs.replace(machine, open_files=None))) == []


def test_notes_name_what_is_slow(machine: Machine) -> None:
    slow = msgspec.structs.replace(
        machine,
        cores_logical=8,
        cores_usable=1.5,
        system="Debian, kernel 6, x86_64",
        library=msgspec.structs.replace(machine.library, features=("SSE3",)),
    )
    notes = list(doctor.find_notes(slow))
    assert any("1.5 of 8 cores" in note for note in notes)
    assert any("AVX2" in note for note in notes)


def test_the_page_and_the_json_agree(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert code == (1 if facts["problems"] else 0)
    assert main(["doctor"]) == code
    page = capsys.readouterr().out
    assert f"b{facts['library']['build']}" in page
    assert facts["library"]["path"] in page
    assert facts["processor"] in page


def test_the_cache_directory_is_the_one_that_models_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "not" / "there"))
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cache"] == str(tmp_path / "not" / "there")


def test_a_wrong_library_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = tmp_path / "libllama.so"
    library.write_bytes(b"not a library")
    assert main(["doctor", "--library", str(library)]) == 1
    page = capsys.readouterr().out
    assert f"wrong: cannot load the llama.cpp library {library}" in page
    assert "Traceback" not in page
