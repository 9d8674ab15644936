"""`longspan bench serve`: load on any OpenAI endpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from longspan.cli.engine_options import AtLeastOne
from longspan.cli.output import format_table, print_facts, print_json, write_result
from longspan.cli.progress import CountBar
from longspan.errors import UsageError

if TYPE_CHECKING:
    from longspan.bench.load.order import LoadOrder

Positive = Annotated[float, Parameter(validator=Number(gt=0))]
Dataset = Literal[
    "synthetic-low",
    "synthetic-medium",
    "synthetic-high",
    "humaneval",
    "mt-bench",
    "spec-bench",
    "speed-bench",
    "agent",
    "sharegpt",
    "mooncake",
    "azure",
    "burstgpt",
]

PROMPTS = Group("Prompts", sort_key=0)
ARRIVALS = Group("Arrivals", sort_key=1)
RESULT = Group("Result", sort_key=2)


def bench_serve(
    *,
    base_url: str = "http://127.0.0.1:8080",
    model: str = "",
    backend: Literal["openai", "openai-chat"] = "openai-chat",
    api_key: Annotated[str, Parameter(env_var="OPENAI_API_KEY")] = "",
    dataset_name: Annotated[Dataset, Parameter(group=PROMPTS)] = "synthetic-high",
    dataset_path: Annotated[Path | None, Parameter(group=PROMPTS)] = None,
    category: Annotated[tuple[str, ...], Parameter(group=PROMPTS)] = (),
    num_prompts: Annotated[AtLeastOne, Parameter(group=PROMPTS)] = 100,
    input_len: Annotated[AtLeastOne, Parameter(group=PROMPTS)] = 256,
    output_len: Annotated[AtLeastOne, Parameter(group=PROMPTS)] = 128,
    ignore_eos: Annotated[bool, Parameter(group=PROMPTS)] = False,
    temperature: Annotated[float, Parameter(group=PROMPTS, validator=Number(gte=0))] = 0.0,
    extra_body: Annotated[str, Parameter(group=PROMPTS)] = "{}",
    seed: Annotated[int, Parameter(group=PROMPTS)] = 0,
    request_rate: Annotated[Positive, Parameter(group=ARRIVALS)] = math.inf,
    burstiness: Annotated[Positive, Parameter(group=ARRIVALS)] = 1.0,
    max_concurrency: Annotated[AtLeastOne | None, Parameter(group=ARRIVALS)] = None,
    ramp_up_strategy: Annotated[Literal["linear", "exponential"] | None, Parameter(group=ARRIVALS)] = None,
    ramp_up_start_rps: Annotated[Positive, Parameter(group=ARRIVALS)] = 1.0,
    ramp_up_end_rps: Annotated[Positive, Parameter(group=ARRIVALS)] = 10.0,
    speed: Annotated[Positive, Parameter(group=ARRIVALS)] = 1.0,
    num_warmups: Annotated[int, Parameter(group=ARRIVALS, validator=Number(gte=0))] = 1,
    goodput: Annotated[tuple[str, ...], Parameter(group=RESULT)] = (),
    save_result: Annotated[bool, Parameter(group=RESULT)] = False,
    result_dir: Annotated[Path, Parameter(group=RESULT)] = Path(),
    html: Annotated[Path | None, Parameter(group=RESULT)] = None,
    json: Annotated[bool, Parameter(group=RESULT)] = False,
) -> int:
    """Put load on a server that speaks OpenAI's API, and measure how it answers.

    Without a rate all requests are sent at once, or with --max-concurrency as a closed loop of so many users. A
    trace (mooncake, azure, burstgpt) brings its own times and lengths. Options and result are those of vLLM's
    `bench serve`. Exit code 1 when a request failed.

    For example:

        longspan bench serve --base-url http://127.0.0.1:8080 --num-prompts 50 --max-concurrency 8
        longspan bench serve --dataset-name humaneval --request-rate 4 --goodput "ttft:500 tpot:50"
        longspan bench serve --dataset-name mooncake --dataset-path trace.jsonl --speed 10 --html load.html

    Parameters
    ----------
    base_url
        The server, without /v1.
    model
        The model to ask for (default: the first that the server lists).
    backend
        openai: completions; openai-chat: chat completions.
    api_key
        Sent as a bearer token.
    dataset_name
        Where prompts come from. synthetic-low repeats itself, -high cannot be guessed.
    dataset_path
        The file (or folder of question files) of the data set; humaneval, mt-bench and
        agent (recorded conversations of coding agents) are found in their packages.
    category
        Only prompts of this category; may be given again.
    num_prompts
        Conversations; those with several turns make several requests.
    input_len
        Tokens of a synthetic prompt, about.
    output_len
        Most tokens of an answer, where the data set does not say.
    ignore_eos
        Ask for answers of exactly that length; not every server knows the field.
    temperature
        Of sampling.
    extra_body
        More fields of every request, as a JSON object.
    seed
        Of prompts and arrivals.
    request_rate
        Requests a second (default: all at once).
    burstiness
        Of their gaps: 1 is a Poisson process, less comes in bursts, more is even.
    max_concurrency
        Most requests at once.
    ramp_up_strategy
        Let the rate grow from --ramp-up-start-rps to --ramp-up-end-rps over the requests.
    ramp_up_start_rps
        Rate at the start of a ramp.
    ramp_up_end_rps
        Rate at its end.
    speed
        Replay a trace so many times faster.
    num_warmups
        Requests before the measurement.
    goodput
        Count requests that met these goals in ms: "ttft:200 tpot:50 e2el:5000".
    save_result
        Write the JSON to a file named as vLLM names it.
    result_dir
        Where to.
    html
        Write a page with tables and a picture to this file.
    json
        Print the result as JSON.
    """
    import asyncio

    from longspan.bench.load.arrivals import Ramp
    from longspan.bench.load.datasets import DatasetOrder
    from longspan.bench.load.endpoint import Sampling
    from longspan.bench.load.goodput import parse_goals
    from longspan.bench.load.html_report import html_report
    from longspan.bench.load.order import LoadOrder, carry_out

    order = LoadOrder(
        base_url=base_url,
        backend=backend,
        model=model,
        api_key=api_key,
        dataset=DatasetOrder(
            name=dataset_name,
            path=dataset_path,
            count=num_prompts,
            input_tokens=input_len,
            categories=category,
            speed=speed,
            seed=seed,
        ),
        sampling=Sampling(
            max_tokens=output_len, temperature=temperature, ignore_eos=ignore_eos, extra=_fields(extra_body)
        ),
        request_rate=request_rate,
        burstiness=burstiness,
        ramp=None if ramp_up_strategy is None else Ramp(ramp_up_strategy, ramp_up_start_rps, ramp_up_end_rps),
        max_concurrency=max_concurrency,
        warmups=num_warmups,
        goals=parse_goals(goodput),
        seed=seed,
    )
    bar = CountBar("requests", _requests(order))
    try:
        load = asyncio.run(carry_out(order, lambda answer: bar.advance(answer.error or f"{answer.latency:.1f} s")))
    finally:
        bar.finish()
    if save_result:
        path = result_dir / load.name
        write_result(path, load.json())
    if html is not None:
        write_result(html, html_report(load.result, load.answers).encode())
    if json:
        print_json(load.result)
    else:
        _print(load.result)
        if save_result:
            print(f"\nwritten to {path}")
    return 1 if load.result["failed"] else 0


def _requests(order: LoadOrder) -> int:
    from longspan.bench.load.datasets import load_prompts

    return sum(len(prompt.turns) for prompt in load_prompts(order.dataset))


def _fields(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"--extra-body {text!r} is not a JSON object: {error}") from error


def _print(result: dict[str, Any]) -> None:
    from longspan.bench.load.html_report import LATENCIES, STATISTICS

    failed = [error for error in result["errors"] if error]
    good = result["request_goodput"]
    print_facts(
        [
            ("requests", f"{result['completed']} of {result['num_prompts']} in {result['duration']:.2f} s"),
            ("failed", f"{len(failed)}" + (f", the first: {failed[0][:200]}" if failed else "")),
            ("tokens", f"{result['total_input_tokens']:,} in, {result['total_output_tokens']:,} out"),
            ("requests a second", f"{result['request_throughput']:.3f}"),
            *([("of them good", f"{good:.3f}")] if good is not None else []),
            (
                "tokens a second",
                f"{result['output_throughput']:.2f} out, {result['total_token_throughput']:.2f} all",
            ),
            ("tokens a chunk", f"{result['tokens_per_chunk']:.2f}"),
            ("most at once", str(result["max_concurrent_requests"])),
            *_acceptance(result),
        ]
    )
    rows = [
        (name, *(f"{result[f'{statistic}_{name}_ms']:.1f}" for statistic in STATISTICS)) for name, _ in LATENCIES
    ]
    print("\n" + format_table(("ms", *STATISTICS), rows))
    if len(result["categories"]) > 1:
        headings = ("category", "requests", "tokens", "ttft ms", "tpot ms", "gap ms", "longest", "tokens/chunk")
        found = [
            (
                name,
                row.requests,
                row.output_tokens,
                f"{row.ttft_ms:.1f}",
                row.tpot_ms,
                row.itl_ms,
                f"{row.longest_gap_ms:.1f}",
                row.tokens_per_chunk,
            )
            for name, row in result["categories"].items()
        ]
        print("\n" + format_table(headings, found))


def _acceptance(result: dict[str, Any]) -> list[tuple[str, str]]:
    rate = result.get("spec_decode_acceptance_rate")
    if rate is None:
        return []
    length = result["spec_decode_acceptance_length"]
    return [
        ("drafts", f"{rate:.1f} % of {result['spec_decode_draft_tokens']} accepted, {length:.2f} tokens a window")
    ]
