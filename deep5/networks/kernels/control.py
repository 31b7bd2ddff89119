"""Control flow: branches, loops and scans over subgraphs, which run in Python with known values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from deep5.core.errors import NetworkError
from deep5.core.time_limit import check_count, check_iterations, check_length, current_limit
from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite

__all__ = ["OPERATORS"]

Body = Callable[..., Sequence[Any]]
"""A subgraph: from its inputs to its outputs."""
Kinds = Sequence[tuple[Sequence[int], Any]]
"""The shape and element type of each output of a subgraph; unknown sizes are 0."""


def _truth(xp: Primitives, condition: Array) -> bool:
    if math.prod(condition.shape) != 1:
        raise NetworkError(f"a condition has the shape {tuple(condition.shape)}; allowed: one element")
    return bool(xp.number(condition))


def _if(xp: Primitives, condition: Array, *, then_branch: Body, else_branch: Body, outputs: int) -> tuple[Any, ...]:
    return tuple(then_branch() if _truth(xp, condition) else else_branch())


def _stacked(xp: Primitives, rows: Sequence[Array], kinds: Kinds, axes: Sequence[int], place: Any) -> list[Array]:
    """One output per element of `kinds`, from the outputs of each iteration."""
    made = []
    for at, ((shape, kind), axis) in enumerate(zip(kinds, axes, strict=True)):
        if rows:
            made.append(xp.stack([row[at] for row in rows], axis=axis))
        else:
            made.append(xp.moveaxis(xp.zeros((0, *shape), dtype=kind, device=place), 0, axis))
    return made


def _loop(
    xp: Primitives,
    trips: Array | None,
    condition: Array | None = None,
    *state: Any,
    body: Body,
    counted: bool,
    kinds: Kinds,
    outputs: int,
    place: Any,
) -> tuple[Any, ...]:
    """`body(step, condition, *state)` returns the condition, the new state and the values to stack."""
    most = math.inf if trips is None else xp.number(trips)
    step, rows, count, limit = 0, [], len(state), current_limit()
    stacked = kinds[1 + count :]
    if counted and trips is not None:
        check_count(int(most), limit, "Loop")
    going = condition is None or _truth(xp, condition)
    while going and step < most:
        check_iterations(step, limit, "Loop")
        numbers = (xp.full((), step, dtype=xp.int64, device=place), xp.full((), True, dtype=xp.bool, device=place))
        more, *found = body(*numbers, *state)
        going, state, step = _truth(xp, more), tuple(found[:count]), step + 1
        if stacked:
            rows.append(found[count:])
    return (*state, *_stacked(xp, rows, stacked, (0,) * len(stacked), place))


def _scan(
    xp: Primitives,
    *inputs: Array,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    kinds: Kinds,
    outputs: int,
    place: Any,
) -> tuple[Array, ...]:
    """`body(*state, *slices)` returns the new state and the values to stack."""
    count = len(inputs) - num_scan_inputs
    state, scanned = inputs[:count], inputs[count:]
    axes, back = scan_input_axes or (0,) * len(scanned), scan_input_directions or (0,) * len(scanned)
    lengths = {array.shape[axis] for array, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise NetworkError(f"a Scan over tensors of the lengths {sorted(lengths)}; allowed: one length for all")
    check_length(max(lengths), "Scan")
    slices = [xp.unstack(array, axis=axis) for array, axis in zip(scanned, axes, strict=True)]
    slices = [parts[::-1] if flip else parts for parts, flip in zip(slices, back, strict=True)]
    rows = []
    for parts in zip(*slices, strict=True):
        found = body(*state, *parts)
        state = tuple(found[:count])
        rows.append(found[count:])
    stacked = kinds[count:]
    into, reverse = scan_output_axes or (0,) * len(stacked), scan_output_directions or (0,) * len(stacked)
    made = _stacked(xp, rows, stacked, into, place)
    ends = (xp.flip(y, axis=axis) if flip else y for y, axis, flip in zip(made, into, reverse, strict=True))
    return (*state, *ends)


OPERATORS = {
    "If": Composite(function=_if, on_host=True),
    "Loop": Composite(function=_loop, on_host=True),
    "Scan": Composite(function=_scan, on_host=True),
}
