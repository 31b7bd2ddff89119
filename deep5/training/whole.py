"""Evaluates rules that depend on shapes in NumPy: parameter by parameter, each as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deep5.training.chunked import array_at, run_phase
from deep5.training.emit_c import TOTALS, Phase
from deep5.training.trace import TracedRule

__all__ = ["run_whole"]


def run_whole(
    name: str,
    phases: Sequence[Phase | None],
    rules: Sequence[TracedRule],
    *,
    given: Sequence[Mapping[str, float]],
    memory: Mapping[str, np.ndarray],
    state: Mapping[str, Sequence[np.ndarray]],
    shapes: Sequence[tuple[int, ...]],
    scalars: Sequence[str],
    per_tensor: bool,
    dtype: str,
) -> None:
    """One pass over all parameters in place.

    Args:
        name: The pass.
        phases: It for each parameter; None where the rule has none, and the parameter itself counts.
        rules: The traced rule of each parameter.
        given: Values of hyperparameters, inputs and pipeline numbers for each group.
        memory: The kernel's memory by the names of the C structure.
        state: The arrays of each state, one per parameter, flat.
        shapes: Shape of each parameter.
        scalars: Names of the states of shape (), in the order of their memory.
        per_tensor: Whether sums run over each parameter instead of over all.
        dtype: Element type of the parameters.
    """
    if name == "sums":
        memory["sums"][...] = 0.0
    if name in TOTALS:
        memory["totals"][TOTALS.index(name)] = 0.0
    for tensor, (phase, traced, shape) in enumerate(zip(phases, rules, shapes, strict=True)):
        size = int(np.prod(shape, dtype=np.int64))
        arrays = {
            key: array.reshape(shape)
            for key in ("grad", "param", "live")
            if (array := array_at(memory[key][tensor], size, dtype)) is not None
        }
        if phase is None:
            if name in ("prepare", "evaluate"):
                arrays["live"][...] = arrays["param"]
            continue
        row, own = memory["sums"][tensor if per_tensor else 0], memory["scalar_state"][tensor]
        for key in traced.arrays:
            arrays[f"state:{key}"] = state[key][tensor].reshape(traced.states[key].dimensions or ())
        known = {**given[int(memory["group"][tensor])]}
        known |= {f"state:{key}": own[scalars.index(key)] for key in traced.scalars}
        known |= {f"sum:{key}": row[index] for index, key in enumerate(traced.sums)} if name != "sums" else {}
        known |= {f"total:{key}": memory["totals"][index] for index, key in enumerate(TOTALS)}
        roots = {**phase.elements, **{f"scalar:{key}": root for key, root in phase.new_scalars.items()}}
        for destination, value in run_phase(roots, known, arrays, dtype, own=True).items():
            kind, _, key = destination.partition(":")
            if kind == "total":
                terms = np.square(value, dtype=np.float64) if key == "norm" else np.asarray(value, np.float64)
                memory["totals"][TOTALS.index(key)] += np.sum(terms)
            elif kind == "sum":
                row[list(traced.sums).index(key)] += np.sum(value, dtype=np.float64)
            elif kind == "scalar":
                own[scalars.index(key)] = value
            else:
                arrays[destination][...] = value
