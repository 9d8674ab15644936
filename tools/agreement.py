"""`longspan bench serve` and a load client that is not ours, against one server, A B B A: do they say the same?

    python -m tools.agreement aiperf --program other-venv/bin/aiperf --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct
    python -m tools.agreement guidellm --program other-venv/bin/guidellm --tokenizer FOLDER --json

Both ask for chat completions in a closed loop of two users: prompts of about 64 tokens, answers of a fixed length.
With aiperf both clients ask the same questions; each pass begins them with a number of its own, so that no answer
starts from another pass's cache. guidellm makes up its own.
--serve gives the options of `longspan serve`. Prints each pass, and for each figure the ratio of ours to theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from longspan.bench.child_server import child_server
from longspan.bench.load.datasets import DatasetOrder, load_prompts
from longspan.bench.paired import paired

CONCURRENCY = 2
PROMPT_TOKENS = 64
FIGURES = ("throughput", "tpot_ms", "ttft_ms", "e2el_ms")


class Plan(NamedTuple):
    """What is asked. program, tokenizer: of the other client."""

    client: str
    program: str
    tokenizer: str
    model: str
    serve: tuple[str, ...]
    requests: int
    tokens: int
    rounds: int


def questions(plan: Plan, number: int) -> list[str]:
    """Of pass `number`, those for the warm-up behind the measured ones."""
    order = DatasetOrder(name="synthetic-medium", count=plan.requests + CONCURRENCY, input_tokens=PROMPT_TOKENS)
    return [f"{number}: {text}" for prompt in load_prompts(order) for text in prompt.turns]


def write_lines(path: Path, entries: Iterable[dict[str, Any]]) -> str:
    """JSON lines; returns the path."""
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return str(path)


def ours(plan: Plan, url: str, model: str, folder: Path, number: int) -> dict[str, float]:
    """One pass of `longspan bench serve`."""
    asked = [{"question_id": place, "turns": [text]} for place, text in enumerate(questions(plan, number))]
    answer = run(
        [
            *(sys.executable, "-m", "longspan", "bench", "serve", "--base-url", url, "--model", model),
            *("--dataset-name", "mt-bench", "--dataset-path", write_lines(folder / "ours.jsonl", asked)),
            *("--num-prompts", str(plan.requests), "--max-concurrency", str(CONCURRENCY)),
            *("--output-len", str(plan.tokens), "--ignore-eos", "--num-warmups", str(CONCURRENCY), "--json"),
        ],
        folder,
    )
    found = json.loads(answer)
    return {
        "throughput": found["output_throughput"],
        **{f"{name}_ms": found[f"mean_{name}_ms"] for name in ("tpot", "ttft", "e2el")},
    }


def aiperf(plan: Plan, url: str, model: str, folder: Path, number: int) -> dict[str, float]:
    """One pass of aiperf."""
    asked = [{"text": text} for text in questions(plan, number)]
    run(
        [
            *(plan.program, "profile", "-m", model, "--url", url, "--endpoint-type", "chat", "--streaming"),
            *("--concurrency", str(CONCURRENCY), "--request-count", str(plan.requests)),
            *("--warmup-request-count", str(CONCURRENCY), "--custom-dataset-type", "single_turn"),
            *("--input-file", write_lines(folder / "theirs.jsonl", asked)),
            *("--extra-inputs", f"max_tokens:{plan.tokens}", "--extra-inputs", "ignore_eos:true"),
            *("--extra-inputs", f"min_tokens:{plan.tokens}", "--extra-inputs", "temperature:0"),
            *("--tokenizer", plan.tokenizer, "--use-server-token-count"),
            *("--output-artifact-dir", str(folder), "--ui", "none"),
        ],
        folder,
    )
    found = json.loads(next(folder.rglob("profile_export_aiperf.json")).read_bytes())
    names = {
        "throughput": "output_token_throughput",
        "tpot_ms": "inter_token_latency",
        "ttft_ms": "time_to_first_token",
        "e2el_ms": "request_latency",
    }
    return {name: found[theirs]["avg"] for name, theirs in names.items()}


def guidellm(plan: Plan, url: str, model: str, folder: Path, number: int) -> dict[str, float]:
    """One pass of guidellm."""
    path = folder / "guidellm.json"
    run(
        [
            *(plan.program, "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={url},model={model},request_format=/v1/chat/completions"),
            *("--profile", f"kind=concurrent,streams={CONCURRENCY}"),
            *("--constraint", f"kind=max_requests,count={plan.requests}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={plan.tokens}"),
            *("--tokenizer", f"kind=huggingface_auto,model={plan.tokenizer}"),
            *("--output", f"kind=json,path={path}"),
        ],
        folder,
    )
    metrics = json.loads(path.read_bytes())["benchmarks"][0]["metrics"]

    def mean(name: str) -> float:
        return float(metrics[name]["successful"]["mean"])

    return {
        "throughput": mean("output_tokens_per_second"),
        "tpot_ms": mean("inter_token_latency_ms"),
        "ttft_ms": mean("time_to_first_token_ms"),
        "e2el_ms": 1000 * mean("request_latency"),
    }


CLIENTS: dict[str, Callable[[Plan, str, str, Path, int], dict[str, float]]] = {
    "aiperf": aiperf,
    "guidellm": guidellm,
}


def run(arguments: Sequence[str], folder: Path) -> bytes:
    """Standard output of a program. Raises SystemExit with what it said when it fails."""
    done = subprocess.run(arguments, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        raise SystemExit(f"{Path(arguments[0]).name} ended with exit code {done.returncode}: {said[-2000:]}")
    return done.stdout


async def compare(plan: Plan) -> dict[str, Any]:
    """All rounds on one server."""
    passes: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    clients = (ours, CLIENTS[plan.client])
    arguments = ["-m", "longspan", "serve", plan.model, "--port", "0", "--quiet", *plan.serve]
    async with child_server(arguments) as url, httpx.AsyncClient(base_url=url) as client:
        model = str((await client.get("/v1/models")).json()["data"][0]["id"])
        for number in range(plan.rounds):
            for place, index in enumerate((0, 1, 1, 0)):
                with tempfile.TemporaryDirectory() as folder:
                    found = await asyncio.to_thread(
                        clients[index], plan, url, model, Path(folder), 4 * number + place
                    )
                passes[index].append(found)
                name = plan.client if index else "ours"
                sys.stderr.write(f"round {number + 1}, {name}: {found}\n")
        metrics = (await client.get("/metrics")).text
    judged = {name: paired([one[name] for one in passes[0]], [one[name] for one in passes[1]]) for name in FIGURES}
    return {
        "client": plan.client,
        "rows": [
            {"figure": name, "ours": row.a, "theirs": row.b, "ratio": row.ratio, "noise": row.noise}
            for name, row in judged.items()
        ],
        "speculation": [line for line in metrics.splitlines() if line.startswith("vllm:spec_decode_num_a")],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.agreement")
    parser.add_argument("client", choices=sorted(CLIENTS))
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--serve", default="--threads 1 --slots 2 --context 512 --proposer none")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    plan = Plan(
        options.client,
        str(Path(options.program).absolute()),
        options.tokenizer,
        options.model,
        tuple(options.serve.split()),
        options.requests,
        options.tokens,
        options.rounds,
    )
    found = asyncio.run(compare(plan))
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for row in found["rows"]:
        print(f"{row['figure']:<12} ours / {plan.client}: {row['ratio']:.3f} (noise {row['noise']:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
