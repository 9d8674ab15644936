"""PyTorch is an extra: whoever trains asks here first, before a module of this room that imports it."""

from __future__ import annotations

import importlib.util

from longspan.errors import RuntimeUnavailableError


def require_torch() -> None:
    """Raise RuntimeUnavailableError, with what to install, when there is no PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise RuntimeUnavailableError(
            "training needs PyTorch, which is not installed. Install it: pip install 'longspan[train]'"
        )
