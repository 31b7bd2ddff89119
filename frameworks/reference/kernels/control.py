"""What runs the graphs inside a node: branches, loops, scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import NetworkError

__all__ = ["branch", "loop", "over_lists", "placed", "scan"]

Body = Callable[..., tuple[Any, ...]]


def branch(then: Body, other: Body, condition: np.ndarray, *around: Any) -> tuple[Any, ...]:
    """The results of one of two graphs."""
    return then(*around) if truth(condition) else other(*around)


def truth(condition: np.ndarray) -> bool:
    """A condition of one element as a bool.

    Raises:
        NetworkError: It has another number of elements.
    """
    if np.size(condition) != 1:
        raise NetworkError(f"a condition has the shape {np.shape(condition)}; allowed: one element")
    return bool(np.reshape(condition, ()))


def placed(function: Callable[..., Any], places: Sequence[int | None], count: int, *values: Any) -> Any:
    """Call a function with None for inputs that a node leaves out.

    Args:
        function: Takes every input, then what it captures.
        places: Of every input the number among the values, None where it is left out.
        count: How many values are inputs; the others are captured.
        values: What the node was given.
    """
    return function(*(None if place is None else values[place] for place in places), *values[count:])


def loop(body: Body, trips: Any, condition: Any, *values: Any, state: int, empty: Sequence[np.ndarray]) -> list[Any]:
    """ONNX's Loop: `body(step, condition, *state, *around)` gives the condition, the new state and what is stacked.

    Args:
        body: The graph inside.
        trips: The most iterations; None: no limit.
        condition: Whether it starts; None: it does.
        values: The state, then what is around the loop.
        state: How many values the state has.
        empty: What no iterations are stacked to, an array an output.
    """
    now, around = list(values[:state]), values[state:]
    stacked: list[list[Any]] = [[] for _ in empty]
    most = None if trips is None else int(np.reshape(trips, ()))
    going, step = condition is None or truth(condition), 0
    while going and (most is None or step < most):
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
    """ONNX's Scan (opset 9 and newer): `body(*state, *slices, *around)` gives the new state and what is stacked.

    Args:
        body: The graph inside.
        values: The state, the arrays that are scanned, then what is around.
        state: How many values the state has.
        axes: The axis along which each array is scanned.
        backward: 1 where it is scanned from its end.
        into: The axis along which each result is stacked.
        reverse: 1 where it is stacked from its end.
        empty: What no steps are stacked to, with the axis of the steps in front.

    Raises:
        NetworkError: Arrays of different lengths.
    """
    now, scanned = list(values[:state]), values[state : state + len(axes)]
    around = values[state + len(axes) :]
    arrays = [np.moveaxis(array, axis, 0) for array, axis in zip(scanned, axes, strict=True)]
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise NetworkError(f"a Scan over arrays of the lengths {sorted(lengths)}; allowed: one length for all")
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
    """ONNX's SequenceMap: the body for every element of the first list, and of the others that are lists.

    Args:
        body: The graph inside.
        count: How many values are inputs; the others are around the node.
        values: The inputs and what is around.
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
