"""Operators that read or replace elements at indices: `Primitives.picked` and `Primitives.placed` define the bounds."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Call, Composite
from deep5.networks.nodes import fixed, outside, rank
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS", "check_reduction"]

_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _along(xp: Any, extent: Any, axis: int, rank: int) -> Any:
    """The indices along one of `rank` axes."""
    return xp.reshape(xp.arange(0, extent, dtype=xp.int64), tuple(-1 if at == axis else 1 for at in range(rank)))


def _gather(xp: Primitives, x: Array, indices: Array, *, axis: int = 0, checked: bool) -> Array:
    return xp.gathered(x, indices, axis % x.ndim, checked)


def _direct_gather(node: ir.Node) -> Call:
    """One slice, if the only index is known."""
    axis, indices = attribute(node, "axis", 0) % rank(node), fixed(node, 1)
    if indices is not None and not indices.shape:
        return Call("select", 1, (axis, int(indices)))
    return Call("gathered", 2, (axis, True))


def _grid(xp: Primitives, indices: Array, axis: int) -> tuple[Array, ...]:
    """The coordinates of all elements of an array of indices, with those indices along an axis."""
    rank = indices.ndim
    return tuple(
        indices if at == axis % rank else xp.table(_along, extent, at, rank, like=indices)
        for at, extent in enumerate(indices.shape)
    )


def _gather_elements(xp: Primitives, x: Array, indices: Array, *, axis: int = 0) -> Array:
    return xp.picked(x, _grid(xp, indices, axis))


def _scatter_elements(
    xp: Primitives, x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    return xp.placed(x, _grid(xp, indices, axis), updates, reduction)


def _gather_nd(xp: Primitives, x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """The elements, or slices, at the coordinates in the last axis of the indices."""
    rank = indices.ndim - 1
    batch = (xp.table(_along, x.shape[at], at, rank, like=indices) for at in range(batch_dims))
    return xp.picked(x, (*batch, *(indices[..., at] for at in range(indices.shape[-1]))))


def _scatter_nd(xp: Primitives, x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    return xp.placed(x, tuple(indices[..., at] for at in range(indices.shape[-1])), updates, reduction)


def _tensor_scatter(
    xp: Primitives, past: Array, update: Array, starts: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> Array:
    """Each sample's update along an axis, from the sample's start; beyond the end at the beginning if circular."""
    axis %= past.ndim
    places = xp.table(_along, update.shape[axis], 1, 2, like=past)
    places = places if starts is None else places + starts[:, None]
    places = places % past.shape[axis] if mode == "circular" else places
    samples = xp.table(_along, past.shape[0], 0, 2, like=past)
    past, update = (xp.moveaxis(value, axis, 1) for value in (past, update))
    return xp.moveaxis(xp.placed(past, (samples, places), update, "none"), 1, axis)


def check_reduction(node: ir.Node) -> str | None:
    """Why a node that scatters cannot run."""
    chosen = attribute(node, "reduction", "none")
    return None if chosen in _REDUCTIONS else f"reduction={chosen}; allowed: {', '.join(_REDUCTIONS)}"


OPERATORS = {
    "Gather": Composite(function=_gather, check=outside, direct=_direct_gather, bounded=1),
    "GatherElements": Composite(function=_gather_elements, bounded=1),
    "GatherND": Composite(function=_gather_nd, bounded=1),
    "ScatterElements": Composite(function=_scatter_elements, check=check_reduction, bounded=1),
    "ScatterND": Composite(function=_scatter_nd, check=check_reduction, bounded=1),
    "TensorScatter": Composite(function=_tensor_scatter, bounded=2),
}
