"""Waiting until the arrays in a result are computed: frameworks return before their work is done."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["finish"]


def finish(value: Any) -> None:
    """Return when the arrays in a value are computed; frameworks that are not loaded are not loaded for it.

    Args:
        value: An array of any framework, a container of arrays, or anything else, which is left as it is.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return
    if isinstance(value, Mapping):
        for inner in value.values():
            finish(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            finish(inner)
    elif hasattr(value, "block_until_ready"):
        value.block_until_ready()
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        if value.is_cuda:
            torch.cuda.synchronize(value.device)
    elif "GPU" in str(getattr(value, "device", "")) and callable(getattr(value, "numpy", None)):
        value.numpy()  # TensorFlow waits only for what is read
