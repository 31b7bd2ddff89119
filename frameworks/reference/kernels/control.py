"""Operators with subgraphs: branches, loops, scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import NetworkError
from deep5.core.time_limit import check_count, check_iterations, check_length, current_limit

__all__ = ["branch", "loop", "over_lists", "placed", "scan"]

Body = Callable[..., tuple[Any, ...]]


def branch(then: Body, other: Body, condition: np.ndarray, *around: Any) -> tuple[Any, ...]:
    """The results of one of two subgraphs."""
    return then(*around) if truth(condition) else other(*around)


def truth(condition: np.ndarray) -> bool:
    """A one-element condition as a bool.

    Raises:
        NetworkError: It does not have one element.
    """
    if np.size(condition) != 1:
        raise NetworkError(f"a condition has the shape {np.shape(condition)}; allowed: one element")
    return bool(np.reshape(condition, ()))


def placed(function: Callable[..., Any], places: Sequence[int | None], count: int, *values: Any) -> Any:
    """Call a function with None for omitted inputs of a node.

    Args:
        function: Takes all inputs, then the captured values.
        places: For every input its index among the values, None if omitted.
        count: The number of inputs among the values; the others are captured.
        values: The arguments of the node.
    """
    return function(*(None if place is None else values[place] for place in places), *values[count:])


def loop(
    body: Body, trips: Any, condition: Any, *values: Any, state: int, empty: Sequence[np.ndarray], counted: bool
) -> list[Any]:
    """ONNX's Loop: `body(step, condition, *state, *around)` returns the condition, the new state and values to stack.

    Args:
        body: The subgraph.
        trips: The maximum number of iterations; None: no limit.
        condition: Whether to run the first iteration; None: yes.
        values: The state, then the captured values.
        state: The number of state values.
        empty: The stacked results of zero iterations, one array per output.
        counted: Whether only the number of iterations ends the loop.
    """
    now, around = list(values[:state]), values[state:]
    stacked: list[list[Any]] = [[] for _ in empty]
    most = None if trips is None else int(np.reshape(trips, ()))
    going, step, limit = condition is None or truth(condition), 0, current_limit()
    if counted and most is not None:
        check_count(most, limit, "Loop")
    while going and (most is None or step < most):
        check_iterations(step, limit, "Loop")
        again, *results = body(np.array(step, np.int64), np.array(going), *now, *around)
        going, now = truth(again), results[:state]
        for kept, value in zip(stacked, results[state:], strict=True):
            kept.append(value)
        step += 1
    return [*now, *(_stacked(kept, none, 0) for kept, none in zip(stacked, empty, strict=True))]


def scan(
    body: Body,
    *values: Any,
    state: int,
    axes: Sequence[int],
    backward: Sequence[int],
    into: Sequence[int],
    reverse: Sequence[int],
    empty: Sequence[np.ndarray],
) -> list[Any]:
    """ONNX's Scan (opset 9 and newer): `body(*state, *slices, *around)` returns the new state and values to stack.

    Args:
        body: The subgraph.
        values: The state, the scanned arrays, then the captured values.
        state: The number of state values.
        axes: The scan axis of each array.
        backward: 1 for arrays that are scanned from the end.
        into: The stacking axis of each result.
        reverse: 1 for results that are stacked from the end.
        empty: The stacked results of zero steps, with the step axis first.

    Raises:
        NetworkError: The arrays have different lengths.
    """
    now, scanned = list(values[:state]), values[state : state + len(axes)]
    around = values[state + len(axes) :]
    arrays = [np.moveaxis(array, axis, 0) for array, axis in zip(scanned, axes, strict=True)]
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise NetworkError(f"a Scan over arrays of the lengths {sorted(lengths)}; allowed: one length for all")
    check_length(max(lengths), "Scan")
    arrays = [array[::-1] if flip else array for array, flip in zip(arrays, backward, strict=True)]
    stacked: list[list[Any]] = [[] for _ in empty]
    for step in range(lengths.pop()):
        results = body(*now, *(array[step] for array in arrays), *around)
        now = list(results[:state])
        for kept, value in zip(stacked, results[state:], strict=True):
            kept.append(value)
    ends = [kept[::-1] if flip else kept for kept, flip in zip(stacked, reverse, strict=True)]
    return [*now, *(_stacked(kept, none, axis) for kept, none, axis in zip(ends, empty, into, strict=True))]


def over_lists(body: Body, count: int, *values: Any) -> list[list[Any]]:
    """ONNX's SequenceMap: the body applied to every element of the first list, and of the others that are lists.

    Args:
        body: The subgraph.
        count: The number of inputs among the values; the others are captured.
        values: The inputs and the captured values.
    """
    inputs, around = values[:count], values[count:]
    first = inputs[0]
    rows = [
        body(*(value[number] if isinstance(value, list) else value for value in inputs), *around)
        for number in range(len(first))
    ]
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(count)]


def _stacked(kept: list[Any], empty: np.ndarray, axis: int) -> Any:
    if kept:
        return np.stack(kept, axis)
    return np.moveaxis(empty, 0, axis)
