"""The shared options against what the engine takes."""

from __future__ import annotations

import dataclasses

import pytest

from longspan.cli.engine_options import EngineArguments
from longspan.cli.sampling_options import SamplingArguments
from longspan.engine import EngineOptions
from longspan.errors import UsageError
from longspan.ring.security import SecurityOptions


def test_without_arguments_the_engine_has_its_own_defaults() -> None:
    assert EngineArguments().options("demo") == EngineOptions(model="demo")


def test_every_argument_arrives() -> None:
    arguments = EngineArguments(
        splits="0-10,10-30",
        ring="192.0.2.1:7000, 192.0.2.2:7000",
        hold_first_stage=True,
        link_delay=25.0,
        activation_dtype="float16",
        slots=3,
        context=512,
        threads=5,
        library="libllama.so",
        proposer="draft",
        draft_model="small.gguf",
        mtp_head="head.safetensors",
        width=4,
        depth=3,
        mixing="off",
        cost_model="ema",
        trace="trace.jsonl",
        max_waiting=7,
        queue_timeout=1.5,
        heal_seconds=2.0,
        silence_seconds=4.0,
        keys="keys/coordinator",
        token_file="ring.token",
        pin=("ab" * 32,),
        insecure=True,
    )
    options = arguments.options("model.gguf")
    assert options == EngineOptions(
        model="model.gguf",
        stages=1,
        splits="0-10,10-30",
        ring=("192.0.2.1:7000", "192.0.2.2:7000"),
        hold_first_stage=True,
        link_delay_ms=25.0,
        slots=3,
        context=512,
        threads=5,
        activation_dtype="float16",
        library="libllama.so",
        proposer="draft",
        draft_model="small.gguf",
        mtp_head="head.safetensors",
        width=4,
        depth=3,
        mixing=False,
        cost_model="ema",
        trace="trace.jsonl",
        max_waiting=7,
        queue_timeout=1.5,
        heal_seconds=2.0,
        silence_seconds=4.0,
        security=SecurityOptions("keys/coordinator", "ring.token", ("ab" * 32,), True),
    )
    assert EngineArguments(stages=3).options("demo").stages == 3


def test_every_option_of_the_engine_can_be_given() -> None:
    renamed = {"link_delay_ms": "link_delay"}
    options = {renamed.get(field.name, field.name) for field in dataclasses.fields(EngineOptions)}
    arguments = {field.name for field in dataclasses.fields(EngineArguments)}
    assert options - {"model", "security"} == arguments - {"keys", "token_file", "pin", "insecure"}


def test_ring_and_stages_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="leave --stages away"):
        EngineArguments(ring="192.0.2.1:7000", stages=2).options("demo")


def test_sampling_arguments_become_a_request() -> None:
    arguments = SamplingArguments(temperature=0.8, top_k=40, top_p=0.9, min_p=0.1, seed=7, stop=("\n", "END"))
    request = arguments.request([1, 2], 64)
    assert (request.prompt, request.max_tokens, request.seed, request.stop) == ((1, 2), 64, 7, ("\n", "END"))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.8, 40, 0.9, 0.1)


def test_sampling_is_greedy_unless_said_otherwise() -> None:
    assert SamplingArguments().request([1], 1).sampling.greedy
