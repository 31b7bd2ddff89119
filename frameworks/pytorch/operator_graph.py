"""Operators under `torch.compile`: one function that torch leaves in its graph and calls when it traces that."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable
from typing import Any

import torch

from deep5.core.errors import OperatorError

__all__ = ["compilable"]

Outputs = tuple[Any, ...]
Run = Callable[..., Outputs]


def compilable(run: Run) -> Run:
    """A function of tensors which torch.compile takes as one step, and whose insides AOTAutograd traces.

    Torch keeps the functions that it has met in a graph for ever. It meets the same one for every operator, which
    finds the operator under a text: one that no other operator has, in this process or another, so that no graph which
    torch has kept is taken for that of another operator.

    Args:
        run: Takes tensors, gives a tuple of them; kept alive by what is returned, and by nothing else.
    """
    key = secrets.token_hex(8)
    _RUNS[key] = run
    compiling = torch.compiler.is_compiling

    def custom(*inputs: Any) -> Outputs:
        return _in_graph(key, *inputs) if compiling() else run(*inputs)

    return custom


def _in_graph(key: str, *inputs: Any) -> Outputs:
    run = _RUNS.get(key)
    if run is None:
        raise OperatorError(
            "the operator of this graph is gone; remedy: keep what framework.operator(…) gave for as long as the graph"
        )
    return run(*inputs)


torch.compiler.allow_in_graph(_in_graph)
_RUNS: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
