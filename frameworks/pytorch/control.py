"""Runs the subgraphs of a node: branches, loops, scans. The subgraphs are functions of generated source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from deep5.core.errors import NetworkError
from deep5.core.time_limit import check_count, check_iterations, check_length, current_limit

__all__ = ["branch", "loop", "over_lists", "scan"]

Body = Callable[..., tuple[Any, ...]]


def branch(condition: Any, then: Body, other: Body) -> tuple[Any, ...]:
    """ONNX's If: the results of one of two subgraphs."""
    return then() if _truth(condition) else other()


def loop(
    body: Body, trips: Any, condition: Any, *state: Any, empty: Sequence[Any], place: Any, counted: bool
) -> list[Any]:
    """ONNX's Loop: `body(step, condition, *state)` returns the condition, the new state and the values to stack.

    Args:
        body: The subgraph.
        trips: Maximum number of iterations, one element; None: no limit.
        condition: Whether to start, one element; None: yes.
        state: Values passed from one iteration to the next.
        empty: Shape and element type of the stacked result of zero iterations, a pair per output.
        place: The device.
        counted: Whether only the number of iterations ends the loop.
    """
    now, stacked = list(state), [list[Any]() for _ in empty]
    most, step, limit = None if trips is None else int(trips), 0, current_limit()
    going = torch.tensor(True, device=place) if condition is None else condition
    if counted and most is not None:
        check_count(most, limit, "Loop")
    while _truth(going) and (most is None or step < most):
        check_iterations(step, limit, "Loop")
        going, *results = body(torch.tensor(step, device=place), going, *now)
        now = results[: len(state)]
        for kept, value in zip(stacked, results[len(state) :], strict=True):
            kept.append(value)
        step += 1
    return [*now, *(_stacked(kept, none, 0, place) for kept, none in zip(stacked, empty, strict=True))]


def scan(
    body: Body,
    *values: Any,
    axes: Sequence[int],
    backward: Sequence[int],
    into: Sequence[int],
    reverse: Sequence[int],
    empty: Sequence[Any],
    place: Any,
) -> list[Any]:
    """ONNX's Scan (opset 9 and newer): `body(*state, *slices)` returns the new state and the values to stack.

    Args:
        body: The subgraph.
        values: The state, then the tensors to scan.
        axes: The axis along which each tensor is scanned.
        backward: 1 to scan from the end.
        into: The axis along which each result is stacked.
        reverse: 1 to stack from the end.
        empty: As for `loop`.
        place: The device.

    Raises:
        NetworkError: The tensors have different lengths.
    """
    state = len(values) - len(axes)
    now, scanned = list(values[:state]), values[state:]
    lengths = {tensor.shape[axis] for tensor, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise NetworkError(f"a Scan over tensors of the lengths {sorted(lengths)}; allowed: one length for all")
    check_length(max(lengths), "Scan")
    slices = [tensor.unbind(axis) for tensor, axis in zip(scanned, axes, strict=True)]
    slices = [parts[::-1] if flip else parts for parts, flip in zip(slices, backward, strict=True)]
    stacked: list[list[Any]] = [[] for _ in empty]
    for row in zip(*slices, strict=True):
        results = body(*now, *row)
        now = list(results[:state])
        for kept, value in zip(stacked, results[state:], strict=True):
            kept.append(value)
    ends = [kept[::-1] if flip else kept for kept, flip in zip(stacked, reverse, strict=True)]
    return [*now, *(_stacked(kept, none, axis, place) for kept, none, axis in zip(ends, empty, into, strict=True))]


def over_lists(body: Body, *inputs: Any, count: int) -> list[list[Any]]:
    """ONNX's SequenceMap: the body for every element of the first list and of all other lists.

    Args:
        body: The subgraph.
        inputs: Lists, and tensors.
        count: Number of lists in the result.
    """
    rows = [
        body(*(value[number] if isinstance(value, list) else value for value in inputs))
        for number in range(len(inputs[0]))
    ]
    return [[row[column] for row in rows] for column in range(count)]


def _stacked(kept: list[Any], empty: Any, axis: int, place: Any) -> Any:
    if kept:
        return torch.stack(kept, axis)
    shape, dtype = empty
    none = torch.empty((0, *shape), dtype=dtype, device=place)
    return none.movedim(0, axis)


def _truth(condition: Any) -> bool:
    if condition.numel() != 1:
        raise NetworkError(f"a condition has the shape {tuple(condition.shape)}; allowed: one element")
    return bool(condition)
