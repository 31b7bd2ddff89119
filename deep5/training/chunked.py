"""Evaluates the expressions of a traced rule in NumPy: the kernel's computation without a compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deep5.training.emit_c import TOTALS, Phase
from deep5.training.expression import OPERATIONS, Expr, topological
from deep5.training.shaped import SHAPED
from deep5.training.trace import TracedRule

__all__ = ["array_at", "run_chunks", "run_phase"]


def run_chunks(
    phase: Phase,
    traced: TracedRule,
    *,
    given: Sequence[Mapping[str, float]],
    memory: Mapping[str, np.ndarray],
    state: Mapping[str, Sequence[np.ndarray]],
    sizes: Sequence[int],
    per_tensor: bool,
    dtype: str,
    chunk: int,
) -> None:
    """One pass over all parameters in place: the equivalent of the C function of that name.

    Args:
        phase: The pass.
        traced: The phase's rule.
        given: Values of hyperparameters, inputs and pipeline numbers for each group.
        memory: The kernel's memory by the names of the C structure.
        state: The arrays of each state, one per parameter.
        sizes: Elements of each parameter.
        per_tensor: Whether sums run over each parameter instead of over all.
        dtype: Element type of the parameters.
        chunk: Elements per chunk.
    """
    if phase.name == "sums":
        memory["sums"][...] = 0.0
    total = TOTALS.index(phase.name) if phase.name in TOTALS else None
    if total is not None:
        memory["totals"][total] = 0.0
    for tensor, size in enumerate(sizes):
        row, own = memory["sums"][tensor if per_tensor else 0], memory["scalar_state"][tensor]
        known = {
            **given[int(memory["group"][tensor])],
            **{f"state:{name}": own[index] for index, name in enumerate(traced.scalars)},
        }
        if phase.name != "sums":
            known |= {f"sum:{name}": row[index] for index, name in enumerate(traced.sums)}
        known |= {f"total:{name}": memory["totals"][index] for index, name in enumerate(TOTALS)}
        arrays = {name: array_at(memory[name][tensor], size, dtype) for name in ("grad", "param", "live")}
        arrays |= {f"state:{name}": views[tensor] for name, views in state.items()}
        for begin in range(0, size, chunk):
            part = {name: array[begin : begin + chunk] for name, array in arrays.items() if array is not None}
            found = run_phase(phase.elements, known, part, dtype)
            # A value that is only passed through is the memory itself, which another root may overwrite first.
            found |= {
                name: found[name].copy() for name, root in phase.elements.items() if root.op == "load" and name in part
            }
            for destination, value in found.items():
                if destination.startswith(("sum:", "total:")):
                    # A constant in a sum counts once per element.
                    terms = np.broadcast_to(value, (min(chunk, size - begin),))
                if destination == "total:norm":
                    memory["totals"][total] += np.sum(np.square(terms, dtype=np.float64))
                elif total is not None:
                    memory["totals"][total] += np.sum(terms, dtype=np.float64)
                elif destination.startswith("sum:"):
                    row[list(traced.sums).index(destination[4:])] += np.sum(terms, dtype=np.float64)
                else:
                    part[destination][...] = value
        for name, value in run_phase(phase.new_scalars, known, {}, "float64").items():
            own[traced.scalars.index(name)] = value


def run_phase(
    roots: Mapping[str, Expr],
    scalars: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    dtype: str,
    *,
    own: bool = False,
) -> dict[str, Any]:
    """Evaluate expressions on one chunk.

    Args:
        roots: What to evaluate, by name.
        scalars: Values of the scalar inputs, in float64.
        arrays: Values of the array leaves, all of one shape.
        dtype: Element type; scalars are rounded to it when combined with an array, as in the C kernel.
        own: Whether results are copied that may be the memory of a leaf, which the caller overwrites.

    Returns:
        The values by name; float64 for scalar roots.
    """
    values: dict[int, Any] = {}
    element = np.dtype(dtype).type
    order = topological(roots.values())
    # The intermediate results of a product of large matrices are large: each is dropped after its last use.
    kept = {root.serial for root in roots.values()}
    last = {arg.serial: index for index, node in enumerate(order) for arg in node.args if isinstance(arg, Expr)}

    def operand(arg: Expr, user: Expr) -> Any:
        value = values[arg.serial]
        return element(value) if user.element and not arg.element and not arg.boolean else value

    with np.errstate(all="ignore"):
        for index, node in enumerate(order):
            operands = [operand(arg, node) if isinstance(arg, Expr) else arg for arg in node.args]
            if node.op == "const":
                value: Any = np.float64(node.args[0])
            elif node.op == "input":
                value = np.float64(scalars[node.args[0]])
            elif node.op == "load":
                value = arrays[node.args[0]]
            elif node.op == "broadcast":
                value = (
                    operands[0] if node.dimensions is None else np.broadcast_to(element(operands[0]), node.dimensions)
                )
            elif node.op == "eye":
                rows, columns, diagonal = node.args
                value = np.eye(rows, columns, k=diagonal, dtype=element)
            elif node.op == "item":
                value = np.float64(operands[0])
            elif node.op in SHAPED:
                value = SHAPED[node.op](np, *operands)
            else:
                value = OPERATIONS[node.op][3](*operands)
            values[node.serial] = value
            for arg in node.args:
                if isinstance(arg, Expr) and last[arg.serial] == index and arg.serial not in kept:
                    values.pop(arg.serial, None)
    found = {name: values[root.serial] for name, root in roots.items()}
    if own:
        found = {name: value if np.asarray(value).flags.owndata else np.array(value) for name, value in found.items()}
    return found


def array_at(address: int, size: int, dtype: str) -> np.ndarray | None:
    """The flat array at an address; None if there is none."""
    if not address:
        return None
    memory: Any = (ctypes.c_byte * (size * np.dtype(dtype).itemsize)).from_address(int(address))
    return np.ndarray((size,), dtype=dtype, buffer=memory)
