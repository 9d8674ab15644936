"""How other load clients are asked and read. They are no part of the tests: stand-ins write what these write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from longspan.model.storage import CACHE_VARIABLE
from tests.tiny_models import write_tiny_model
from tools import agreement

AIPERF = """\
#!{python}
import json, pathlib, sys
options = dict(zip(sys.argv[1:], sys.argv[2:]))
assert options["--concurrency"] == "2" and options["--request-count"] == "4", options
folder = pathlib.Path(options["--output-artifact-dir"])
asked = [json.loads(line)["text"] for line in pathlib.Path(options["--input-file"]).open()]
assert len(set(asked)) == 6 and len({{text.partition(":")[0] for text in asked}}) == 1, asked
names = ("output_token_throughput", "inter_token_latency", "time_to_first_token", "request_latency")
figures = {{name: {{"avg": float(number + 1)}} for number, name in enumerate(names)}}
(folder / "profile_export_aiperf.json").write_text(json.dumps(figures))
"""

GUIDELLM = """\
#!{python}
import json, sys
options = dict(zip(sys.argv[1:], sys.argv[2:]))
assert "count=4" in options["--constraint"] and "output_tokens=6" in options["--data"], options
names = ("output_tokens_per_second", "inter_token_latency_ms", "time_to_first_token_ms", "request_latency")
metrics = {{name: {{"successful": {{"mean": float(number + 1)}}}} for number, name in enumerate(names)}}
path = options["--output"].partition("path=")[2]
open(path, "w").write(json.dumps({{"benchmarks": [{{"metrics": metrics}}]}}))
"""


def program(folder: Path, text: str) -> str:
    path = folder / "program"
    path.write_text(text.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_both_clients_are_asked_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama", weight_type="Q8_0")
    arguments = ["aiperf", "--program", program(tmp_path, AIPERF), "--tokenizer", "x", "--model", str(model)]
    assert agreement.main([*arguments, "--requests", "4", "--tokens", "6", "--rounds", "1", "--json"]) == 0
    rows = {row["figure"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == list(agreement.FIGURES)
    assert rows["throughput"]["theirs"] == [1.0, 1.0] and rows["e2el_ms"]["theirs"] == [4.0, 4.0]
    assert all(value > 0 for row in rows.values() for value in row["ours"])
    assert rows["tpot_ms"]["ratio"] == pytest.approx(sum(rows["tpot_ms"]["ours"]) / 4.0)


def test_guidellm_is_read(tmp_path: Path) -> None:
    plan = agreement.Plan("guidellm", program(tmp_path, GUIDELLM), "x", "m", (), 4, 6, 1)
    found = agreement.guidellm(plan, "http://127.0.0.1:9", "m", tmp_path, 0)
    assert found == {"throughput": 1.0, "tpot_ms": 2.0, "ttft_ms": 3.0, "e2el_ms": 4000.0}


def test_a_client_that_fails_is_told(tmp_path: Path) -> None:
    plan = agreement.Plan(
        "aiperf", program(tmp_path, "#!/bin/sh\necho no tokenizer\nexit 3\n"), "x", "m", (), 4, 6, 1
    )
    with pytest.raises(SystemExit, match="exit code 3: no tokenizer"):
        agreement.aiperf(plan, "http://127.0.0.1:9", "m", tmp_path, 0)
