"""Operators under `torch.compile`: one function that torch keeps in its graph and calls while tracing it."""

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
    """A function of tensors that torch.compile treats as one step, and into which AOTAutograd traces.

    torch keeps functions in its graphs forever. It sees the same function for every operator, which looks up the
    operator by a string key: the key is unique across operators and processes, so that torch never reuses a cached
    graph for another operator.

    Args:
        run: Takes tensors, returns a tuple of tensors; only the returned function keeps it alive.
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
            "the operator of this graph was freed; remedy: keep the result of framework.operator(…) with the graph"
        )
    return run(*inputs)


torch.compiler.allow_in_graph(_in_graph)
_RUNS: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
