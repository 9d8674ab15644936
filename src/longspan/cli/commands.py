"""Every command: its name, where its function stands, and one line about it.

Nothing is imported here: `longspan --help` needs only the lines, and a command's module is loaded when it runs.
The function's docstring is what `longspan COMMAND --help` shows.
"""

from __future__ import annotations

from typing import NamedTuple

SERVE = "Serve a model"
ASK = "Ask a model"
FILES = "Model files"
CHECK = "Check and measure"

GROUPS = (SERVE, ASK, FILES, CHECK)
"""Headings of the help page, in the order in which they stand there."""


class Command(NamedTuple):
    """One command. `name` may have two words ("bench ring"); `target` is "module:function"."""

    name: str
    target: str
    group: str
    summary: str


class Family(NamedTuple):
    """The first word of commands of two words."""

    name: str
    group: str
    summary: str


FAMILIES: tuple[Family, ...] = (
    Family("bench", CHECK, "measure what things cost on this machine"),
    Family("ring", SERVE, "the ring of a server that runs"),
    Family("keys", SERVE, "certificates and tokens of a ring over several machines"),
    Family("trace", CHECK, "what a run did"),
    Family("lab", CHECK, "run the real planner in virtual time"),
)

COMMANDS: tuple[Command, ...] = (
    Command("demo", "longspan.cli.demo:demo", SERVE, "see it answer, split over processes with slow links"),
    Command("serve", "longspan.cli.serve:serve", SERVE, "serve a model over the OpenAI API"),
    Command("plan", "longspan.cli.plan:plan", SERVE, "who gets which layers, and how fast that will be"),
    Command("stage", "longspan.cli.stage:stage", SERVE, "hold some layers for a coordinator elsewhere"),
    Command("up", "longspan.cli.up:up", SERVE, "start the stages of a ring elsewhere, by SSH or Ray"),
    Command("ring show", "longspan.cli.ring:ring_show", SERVE, "stages of a server, and who has joined"),
    Command("ring remove", "longspan.cli.ring:ring_remove", SERVE, "send a stage that has joined away"),
    Command("keys init", "longspan.cli.keys:keys_init", SERVE, "make an authority and a certificate for each node"),
    Command("keys add", "longspan.cli.keys:keys_add", SERVE, "make or renew the certificate of one node"),
    Command("keys show", "longspan.cli.keys:keys_show", SERVE, "names, fingerprints and ends of certificates"),
    Command("keys token", "longspan.cli.keys:keys_token", SERVE, "make a secret that all nodes share"),
    Command("complete", "longspan.cli.complete:complete", ASK, "continue one prompt and stop"),
    Command("chat", "longspan.cli.chat:chat", ASK, "talk to it in this terminal"),
    Command("pull", "longspan.cli.pull:pull", FILES, "fetch a model into the cache"),
    Command("split", "longspan.cli.split:split", FILES, "write a model as a package with a file for every layer"),
    Command("train-mtp", "longspan.cli.train_mtp:train_mtp", FILES, "train a head that drafts for a model"),
    Command("top", "longspan.cli.top:top", CHECK, "watch a server: the dashboard in a terminal"),
    Command("doctor", "longspan.cli.doctor:doctor", CHECK, "what this machine has, and what is wrong with it"),
    Command("certify", "longspan.cli.certify:certify", CHECK, "is the split model the whole one, bit by bit?"),
    Command("bench serve", "longspan.cli.bench_serve:bench_serve", CHECK, "load on any OpenAI endpoint"),
    Command("bench compare", "longspan.cli.bench_compare:bench_compare", CHECK, "does a change count? A B B A"),
    Command("bench ring", "longspan.cli.bench_ring:bench_ring", CHECK, "what the ring costs"),
    Command(
        "bench concurrency",
        "longspan.cli.bench_concurrency:bench_concurrency",
        CHECK,
        "throughput beside llama.cpp's own server",
    ),
    Command(
        "bench interference",
        "longspan.cli.bench_interference:bench_interference",
        CHECK,
        "what long prompts do to streams that decode",
    ),
    Command("bench api", "longspan.cli.bench_api:bench_api", CHECK, "what the API adds to a token"),
    Command("bench viewers", "longspan.cli.bench_viewers:bench_viewers", CHECK, "what an open dashboard costs"),
    Command("bench peers", "longspan.cli.bench_peers:bench_peers", CHECK, "side by side with other servers"),
    Command("bench profile", "longspan.cli.bench_profile:bench_profile", CHECK, "where a token's time goes"),
    Command("bench wan", "longspan.cli.bench_wan:bench_wan", CHECK, "what speculation brings over distance"),
    Command("bench heal", "longspan.cli.bench_heal:bench_heal", CHECK, "what the loss of a stage costs"),
    Command("bench planner", "longspan.cli.bench_planner:bench_planner", CHECK, "what a plan costs"),
    Command("bench plan", "longspan.cli.bench_plan:bench_plan", CHECK, "how well placing predicts a ring"),
    Command("bench cost", "longspan.cli.bench_cost:bench_cost", CHECK, "how well the cost models predict"),
    Command("trace report", "longspan.cli.trace_report:trace_report", CHECK, "what stages and links did in a run"),
    Command("lab list", "longspan.cli.lab:lab_list", CHECK, "the scenarios and policies there are"),
    Command("lab run", "longspan.cli.lab:lab_run", CHECK, "run a scenario under policies, and compare them"),
    Command("lab ring", "longspan.cli.lab_ring:lab_ring", CHECK, "compare the lab's ring with a real one"),
)
