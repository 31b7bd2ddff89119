"""Operators on short floating-point types: computed in float32, and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.table import Call, Operator, Site

__all__ = ["in_float32", "is_short"]

_SHORT = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def is_short(node: ir.Node) -> bool:
    """Whether a node reads or returns floats shorter than float32."""
    return any(value is not None and value.dtype in _SHORT for value in (*node.inputs, *node.outputs))


def in_float32(operator: Operator) -> Operator:
    """An operator that converts its short inputs to float32, which is exact, and rounds its results at the end.

    So sums of any length are in float32, and a result is the short number nearest to float32's.

    Args:
        operator: The operator on float32.
    """

    def make(site: Site) -> Call:
        call = operator.make(site)
        return Call(_rounded(call.function, site.node, site.outputs), call.inputs)

    return Operator(make, refusal=operator.refusal)


def _rounded(function: Callable[..., Any], node: ir.Node, count: int) -> Callable[..., Any]:
    short = {kind.numpy() for kind in _SHORT}
    kinds = [value.dtype.numpy() if value.dtype in _SHORT else None for value in node.outputs[:count]]
    unknown = [value.dtype is None for value in node.outputs[:count]]

    def run(*values: Array) -> Any:
        found = function(*(value.astype(np.float32) if value.dtype in short else value for value in values))
        results = found if count > 1 else (found,)
        made = [
            np.asarray(result) if kind is None else np.asarray(result).astype(kind)
            for result, kind in zip(results, kinds, strict=True)
        ]
        if any(unknown):  # ONNX infers no type of some functions in a branch: theirs is that of the inputs
            given = next((value.dtype for value in values if value.dtype.kind in "fV"), None)
            for index, result in enumerate(made):
                if unknown[index] and given in short and result.dtype == np.float32:
                    made[index] = result.astype(given)
        return tuple(made) if count > 1 else made[0]

    return run
