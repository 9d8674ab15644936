"""Training and measuring a head, from options to a result."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from longspan.errors import ModelError, UsageError
from longspan.model.mtp_head import check_belongs, find_head, read_head
from longspan.model.source import ModelSource
from longspan.train.held_out import Agreement, agreement
from longspan.train.network import HeadNetwork
from longspan.train.options import CARRIED, TrainingOptions
from longspan.train.setting import open_setting
from longspan.train.starting_head import starting_head
from longspan.train.texts import TextFolder
from longspan.train.training import Training
from longspan.train.vocabulary import fitted
from longspan.train.writer import Writer

_HELD_OUT = 0.1
"""Share of the time for writing the text that heads are measured on."""
_HELD_OUT_EVALUATION = 0.5
_FIRST_ROUND = 0.2
_HELD_OUT_ROWS = 128
_HELD_OUT_SALT = 0


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """What a run did.

    device: of training. base: what wrote. start, end: of the head that it began with, and of the one in the file:
    the best of all that were looked at. steps, tokens: trained. written_tokens, writing_seconds: of the model.
    loss: of the last step, nats a token. interrupted: the run was ended before its time.
    """

    head: str
    device: str
    base: str
    start: Agreement
    end: Agreement
    steps: int
    tokens: int
    written_tokens: int
    writing_seconds: float
    training_seconds: float
    loss: float
    interrupted: bool


def train_head(
    source: ModelSource, options: TrainingOptions, report: Callable[[str], None] = lambda text: None
) -> TrainingResult:
    """Train a head within the options' minutes, and write it.

    An interruption from the keyboard ends training; what was reached by then is kept. Raises ModelError when no
    head can be trained for the model or the head to resume is another model's, UsageError when `out` is there
    already, LongspanError when the disk is full.
    """
    begun = time.monotonic()
    deadline = begun + 60 * options.minutes
    resumed = _resumed(source, options)
    report("opening the model")
    with contextlib.ExitStack() as stack:
        setting = stack.enter_context(contextlib.closing(open_setting(source, options)))
        directory = options.texts or options.out.with_name(f"{options.out.name}.texts")
        held_out = TextFolder(directory / "held-out", source.digest, options.disk_bytes)
        folder = TextFolder(directory / "training", source.digest, options.disk_bytes)
        writer = Writer(setting, options.seed)
        box = deadline - begun
        if not held_out.rounds:
            report("writing text to measure on")
            writer.write(held_out, _HELD_OUT * box, salt=_HELD_OUT_SALT, most_rows=_HELD_OUT_ROWS)
        if not folder.rounds:
            report("writing text to train on")
            writer.write(folder, _FIRST_ROUND * box, salt=1)
        head = read_head(resumed) if resumed is not None else starting_head(source, options.seed, options.library)
        if resumed is None:
            report("choosing the tokens to draft")
            head = fitted(head, folder.rounds[0], setting.matrix, setting.rule)
        training = Training(
            setting,
            head,
            options.out,
            folder,
            held_out.rounds[0],
            resumed=resumed,
            seed=options.seed,
            report=report,
        )
        stack.callback(training.close)
        interrupted = False
        try:
            training.run(writer, deadline, begun, options.steps)
        except KeyboardInterrupt:
            interrupted = True
            training.finish()
        if options.texts is None and not interrupted:
            shutil.rmtree(directory, ignore_errors=True)
        return TrainingResult(
            head=str(options.out),
            device=str(setting.device),
            base=type(setting.base).__name__,
            start=training.start,
            end=training.best,
            steps=training.progress.steps,
            tokens=training.progress.tokens,
            written_tokens=writer.tokens,
            writing_seconds=writer.seconds,
            training_seconds=training.progress.seconds,
            loss=training.progress.loss,
            interrupted=interrupted,
        )


def measure_head(
    source: ModelSource, head: str, options: TrainingOptions, report: Callable[[str], None] = lambda text: None
) -> Agreement:
    """How often a head agrees with its model, over the whole vocabulary, on text that the model writes now.

    head: a file, or CARRIED. With `options.texts` the held-out text of that directory is used, or kept there. The
    writing takes half of the minutes at most. Raises ModelError when the head is another model's.
    """
    path = _head_file(source, head)
    measured = read_head(path)
    check_belongs(measured, source)
    report("opening the model")
    with contextlib.ExitStack() as stack:
        setting = stack.enter_context(contextlib.closing(open_setting(source, options)))
        directory = options.texts or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="longspan-texts-"))
        )
        folder = TextFolder(directory / "held-out", source.digest, options.disk_bytes)
        if not folder.rounds:
            report("writing text to measure on")
            writer = Writer(setting, options.seed)
            seconds = _HELD_OUT_EVALUATION * 60 * options.minutes
            writer.write(folder, seconds, salt=_HELD_OUT_SALT, most_rows=_HELD_OUT_ROWS)
        report("comparing")
        network = HeadNetwork(measured, setting.device)
        return agreement(network, setting.target(None), folder.rounds[0], setting.embedding)


def _resumed(source: ModelSource, options: TrainingOptions) -> Path | None:
    """The file to go on from, checked before anything takes time."""
    resumed = None
    if options.resume is not None:
        resumed = _head_file(source, options.resume)
        check_belongs(read_head(resumed), source)
    if options.out.exists() and (resumed is None or not resumed.samefile(options.out)):
        raise UsageError(
            f"{options.out} is there already. Go on training it with --resume {options.out}, remove it, or name "
            "another file with --out."
        )
    return resumed


def _head_file(source: ModelSource, head: str) -> Path:
    if head != CARRIED:
        return Path(head)
    found = find_head(source)
    if found is None:
        raise ModelError(f"Longspan carries no MTP head for {source.description.model_id}. Name a file.")
    return found
