"""The training of a head: distillation against its model, within a box of time."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from longspan.errors import LongspanError
from longspan.model.mtp_head import MtpHead, read_head, write_head
from longspan.train.batches import Batches
from longspan.train.checkpoint import load_state, restore, save_state, state_path
from longspan.train.held_out import Agreement, agreement
from longspan.train.network import HeadNetwork
from longspan.train.setting import Setting
from longspan.train.target import Target
from longspan.train.texts import TextFolder, Texts
from longspan.train.writer import Writer

DEPTH_WEIGHTS = (1.0, 0.8, 0.6)
"""Of the drafts that are unrolled."""
_RATE, _RATE_RESUMED = 1.2e-3, 7e-4
_TOKENS_OF_A_STEP = 48 * 640
"""Of the recipe that the rates come from; smaller steps take smaller rates."""
_TOKENS_OF_A_STEP_CPU = 4 * 256
_WARM_UP = 0.04
"""Share of the time in which the rate grows to its full size."""
_CLIP = 1.0
_WRITING = 0.3
"""Share of the time that goes into writing."""
_LAST_WRITING = 0.7
"""After this share of the time nothing new is written."""
_ROUND = 0.15
"""Share of the time that one round of writing may take."""
_CHECKPOINT_SECONDS = 30.0
_DEARNESS = 12.0
"""A look at the held-out text comes at the earliest after so many times what the last one took."""


@dataclasses.dataclass
class Progress:
    """How far a run is. loss: newest, in nats a token, over the unrolled drafts."""

    steps: int = 0
    tokens: int = 0
    loss: float = math.nan
    seconds: float = 0.0


class Training:
    """One run. best: agreement of the head in the file. start: of the one that it began with."""

    def __init__(
        self,
        setting: Setting,
        head: MtpHead,
        out: Path,
        folder: TextFolder,
        held_out: Texts,
        *,
        resumed: Path | None,
        seed: int,
        report: Callable[[str], None],
    ) -> None:
        """resumed: the file that `head` was read from; its training goes on where its state says."""
        self._setting = setting
        self._out = out
        self._folder = folder
        self._held_out = held_out
        self._report = report
        self._network = HeadNetwork(head, setting.device)
        cuda = setting.device.type == "cuda"
        self._target: Target = setting.target(None if cuda else head.draft_vocabulary)
        per_step = _TOKENS_OF_A_STEP if cuda else _TOKENS_OF_A_STEP_CPU
        self._texts = self._texts_of_a_step(per_step // setting.length)
        share = self._texts * setting.length / _TOKENS_OF_A_STEP
        self._rate = _RATE * share**0.25 if resumed is None else _RATE_RESUMED * share**0.5
        self._optimizer = torch.optim.AdamW(
            list(self._network.parameters.values()), lr=self._rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self.progress = Progress()
        self._batches = Batches(folder, setting.embedding, setting.device, self._texts, seed)
        self.start = self.best = self._measured()
        if resumed is not None:
            state = load_state(state_path(resumed), head.digest)
            if state is not None:
                restore(state, self._network, self._optimizer)
                self.progress.steps = state.steps
        self._saved_digest = self._write_head(head)
        self._saved_at = self._looked_at = time.monotonic()
        self._look_seconds = 0.0

    def run(self, writer: Writer, deadline: float, begun: float, most_steps: int | None) -> None:
        """Train until `deadline` (of time.monotonic), writing more text now and then; then keep the better head.

        begun: when the box of time was opened. Raises LongspanError when something cannot be written.
        """
        first_step, started = self.progress.steps, time.monotonic()
        while time.monotonic() < deadline - self._look_seconds:
            if most_steps is not None and self.progress.steps - first_step >= most_steps:
                break
            now = time.monotonic()
            passed = (now - begun) / (deadline - begun)
            if passed < _LAST_WRITING and writer.seconds < _WRITING * (now - begun):
                self._report(f"writing, {writer.tokens} tokens so far")
                self._batches.pause()
                writer.write(self._folder, _ROUND * (deadline - begun), salt=1)
                continue
            self._step(self._rate * _shape((now - started) / max(1e-9, deadline - started)))
            self._look_after()
        self.finish()

    def finish(self) -> None:
        """Look at the held-out text once more, and keep the head if it is the best one yet."""
        self._look()
        self._save_state()

    def close(self) -> None:
        """End the reading of texts."""
        self._batches.close()

    def _step(self, rate: float) -> None:
        batch = self._batches.take()
        started = time.monotonic()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        depth = len(DEPTH_WEIGHTS)
        with torch.autocast("cuda", torch.bfloat16, enabled=self._setting.device.type == "cuda"):
            states = self._network.unroll(batch.embeddings, batch.hidden, depth)
            loss = self._target.distillation(states, batch.hidden, batch.depth_weights(DEPTH_WEIGHTS))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self._network.parameters.values()), _CLIP)
        self._optimizer.step()
        progress = self.progress
        progress.steps += 1
        progress.tokens += batch.weights.numel()
        if progress.steps % 10 == 1 or self._setting.device.type == "cpu":  # a GPU would have to be waited for
            progress.loss = float(loss.detach())
            if not math.isfinite(progress.loss):
                raise LongspanError(
                    f"training diverged in step {progress.steps}; the best head so far is in {self._out}."
                )
            self._report(f"step {progress.steps}, loss {progress.loss:.3f}, depth 1 {self.best.by_depth[0]:.3f}")
        progress.seconds += time.monotonic() - started

    def _look_after(self) -> None:
        now = time.monotonic()
        if now - self._saved_at < _CHECKPOINT_SECONDS:
            return
        if now - self._looked_at >= _DEARNESS * self._look_seconds:
            self._look()
        self._save_state()

    def _look(self) -> None:
        found = self._measured()
        if found.better_than(self.best):
            self.best = found
            self._saved_digest = self._write_head(self._network.head())

    def _measured(self) -> Agreement:
        started = time.monotonic()
        found = agreement(self._network, self._target, self._held_out, self._setting.embedding)
        self._looked_at = time.monotonic()
        self._look_seconds = self._looked_at - started
        return found

    def _write_head(self, head: MtpHead) -> str:
        """Write the head's file; gives its digest."""
        notes = {
            "trained_by": "longspan train-mtp",
            "agreement": ",".join(f"{part:.4f}" for part in self.best.by_depth),
        }
        write_head(head, self._out, notes)
        return read_head(self._out).digest

    def _save_state(self) -> None:
        save_state(state_path(self._out), self._network, self._optimizer, self._saved_digest, self.progress.steps)
        self._saved_at = time.monotonic()

    def _texts_of_a_step(self, wanted: int) -> int:
        """Fewer than wanted where the GPU has no room for the attention of so many."""
        if self._setting.device.type != "cuda":
            return max(1, wanted)
        head, length = self._network.head(), self._setting.length
        wide = length * 4 * (3 * len(head.block["ffn_gate.weight"]) + 20 * head.width)
        one = len(DEPTH_WEIGHTS) * (3 * 4 * head.head_count * length**2 + wide)
        free, _ = torch.cuda.mem_get_info(self._setting.device)
        return max(1, min(wanted, int(0.5 * free) // one))


def _shape(passed: float) -> float:
    """Share of the full learning rate after this share of the time: up in a line, down along a cosine."""
    if passed < _WARM_UP:
        return max(0.02, passed / _WARM_UP)
    return 0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, (passed - _WARM_UP) / (1.0 - _WARM_UP))))
