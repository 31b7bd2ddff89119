"""The expressions of a traced rule in NumPy: what a kernel computes, where there is no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.training.trace import OPERATIONS, Expr, topological

__all__ = ["run_phase"]


def run_phase(
    roots: Mapping[str, Expr], scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray], dtype: str
) -> dict[str, Any]:
    """Evaluate expressions on one chunk.

    Args:
        roots: What to evaluate, by name.
        scalars: Values of the scalar inputs, in float64.
        arrays: Values of the array leaves, all of one shape.
        dtype: Element type; scalars are rounded to it where they meet an array, as the C kernel does.

    Returns:
        The values by name, in float64 where a root is a scalar.
    """
    values: dict[int, Any] = {}
    element = np.dtype(dtype).type

    def operand(arg: Expr, user: Expr) -> Any:
        value = values[arg.serial]
        return element(value) if user.element and not arg.element and not arg.boolean else value

    with np.errstate(all="ignore"):
        for node in topological(roots.values()):
            if node.op == "const":
                value: Any = np.float64(node.args[0])
            elif node.op == "input":
                value = np.float64(scalars[node.args[0]])
            elif node.op == "load":
                value = arrays[node.args[0]]
            elif node.op == "broadcast":
                value = operand(node.args[0], node)
            else:
                value = OPERATIONS[node.op][3](*(operand(arg, node) for arg in node.args))
            values[node.serial] = value
    return {name: values[root.serial] for name, root in roots.items()}
