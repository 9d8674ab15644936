"""Pictures of results, with matplotlib where it is installed (the extra `pictures`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longspan.errors import LongspanError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty picture, in inches. Raises UsageError when matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "a picture needs matplotlib, which is not installed: pip install 'longspan[pictures]'"
        ) from error
    # Without pyplot: no window system is looked for, and nothing is global.
    return Figure(figsize=(width, height), layout="constrained")


def save_picture(figure: Figure, path: Path) -> None:
    """Write a picture; the kind of file follows from its name. Raises LongspanError when that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise LongspanError(f"the picture {path} cannot be written: {error}") from error
