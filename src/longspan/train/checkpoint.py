"""What an interrupted training goes on from: the weights as they are, and the optimiser's memory of them.

The head's own file holds the best weights so far; the state beside it, `HEAD.state`, the newest ones.
"""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from longspan.errors import LongspanError
from longspan.model.storage import atomic_file
from longspan.train.network import HeadNetwork

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclasses.dataclass(frozen=True)
class State:
    """steps: that were trained. moments: of the optimiser, by parameter and kind."""

    steps: int
    parameters: dict[str, np.ndarray]
    moments: dict[str, np.ndarray]


def state_path(head: Path) -> Path:
    """Where the state of a head's training lies."""
    return head.with_name(f"{head.name}.state")


def save_state(path: Path, network: HeadNetwork, optimizer: torch.optim.Optimizer, digest: str, steps: int) -> None:
    """Write the state of training. digest: of the head's file beside it.

    Raises LongspanError when the file cannot be written; an older one stays.
    """
    tensors = {f"parameter/{name}": value.detach().cpu().numpy() for name, value in network.parameters.items()}
    for name, value in network.parameters.items():
        for moment in _MOMENTS:
            if moment in optimizer.state.get(value, {}):
                tensors[f"{moment}/{name}"] = optimizer.state[value][moment].cpu().numpy()
    try:
        with atomic_file(path) as file:
            file.write(save(tensors, {"head_sha256": digest, "steps": str(steps)}))
    except OSError as error:
        advice = (
            "Free some space." if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Name another place with --out."
        )
        raise LongspanError(f"{path} cannot be written: {error.strerror or error}. {advice}") from error


def load_state(path: Path, digest: str) -> State | None:
    """The state that was saved beside a head with this digest; None when there is none, or it is another head's."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("head_sha256") != digest:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        steps = int(metadata["steps"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise LongspanError(
            f"{path} is damaged ({error}). Remove it: then training goes on from the head itself."
        ) from error
    parameters = {
        name.removeprefix("parameter/"): values for name, values in tensors.items() if name.startswith("parameter/")
    }
    return State(steps, parameters, {name: values for name, values in tensors.items() if name not in parameters})


def restore(state: State, network: HeadNetwork, optimizer: torch.optim.Optimizer) -> None:
    """Put a state into a network and its optimiser. Raises LongspanError when it is of another shape."""
    for name, value in network.parameters.items():
        saved = state.parameters.get(name)
        if saved is None or saved.shape != tuple(value.shape):
            raise LongspanError(f"the saved state does not fit this head: {name}. Remove it (HEAD.state).")
        with torch.no_grad():
            value.copy_(torch.from_numpy(saved))
        moments = {moment: state.moments.get(f"{moment}/{name}") for moment in _MOMENTS}
        if all(moment is not None for moment in moments.values()):
            optimizer.state[value] = {
                "step": torch.tensor(float(state.steps)),
                **{key: torch.from_numpy(moment).to(value.device) for key, moment in moments.items()},
            }
