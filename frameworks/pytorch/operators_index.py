"""Elements at indices along an axis, and the largest elements."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.table import kernel
from deep5.networks.kernels.gathering import check_reduction
from deep5.networks.kernels.unfolding import unpooled_space

__all__ = ["gathered", "scattered", "top_k"]

_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
_SCATTER = "products: 1.9 and 1.3 times at (4, 6), 1.7 and 1.2 at (512, 512); maxima: 1.7 and 1.3 times, 1.4 and 1.4"


_GATHER = "1.0 and 1.1 times at (8, 16), 1.3 and 1.1 at (2048, 512)"
_HARDMAX = "1.7 and 2.4 times at (8, 16), 1.0 and 1.3 at (2048, 512)"
_UNPOOL = "1.2 and 1.2 times at (1, 2, 4, 4), 1.3 times at (8, 32, 28, 28)"
_TRILU = "3.1 and 1.3 times at (8, 16), 3.8 and 1.5 at (2048, 512)"


_VECTORS = (torch.float32, torch.float64)


def gathered(x: Any, indices: Any, axis: int, checked: bool) -> Any:
    """As in `Primitives`."""
    extent = x.shape[axis]
    if axis == 0 and x.ndim == 2 and x.dtype in _VECTORS:
        # The gradient of this one accumulates rows, several times faster than that of indexing.
        return F.embedding(torch.where(indices < 0, indices + extent, indices), x)
    flat = torch.where(indices < 0, indices + extent, indices).reshape(-1)
    if torch.compiler.is_compiling():  # compiled code would add the size to negative indices a second time
        flat = torch.where(flat < 0, extent, flat)
    return x.index_select(axis, flat).reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _from_first(indices: Any, extent: int) -> Any:
    """Nonnegative indices."""
    indices = indices.long()
    return torch.where(indices < 0, indices + extent, indices)


@kernel("GatherElements", override=_GATHER)
def _gather_elements(x: Any, indices: Any, *, axis: int = 0) -> Any:
    return x.gather(axis, _from_first(indices, x.shape[axis]))


@kernel("Hardmax", override=_HARDMAX)
def _hardmax(x: Any, *, axis: int = -1) -> Any:
    return torch.zeros_like(x).scatter_(axis, x.argmax(axis, True), 1.0)


@kernel("MaxUnpool", settings=(2,), override=_UNPOOL)
def _max_unpool(
    x: Any, places: Any, shape: Any = None, *, kernel_shape: Any, pads: Any = None, strides: Any = None
) -> Any:
    space = unpooled_space(x.shape[2:], kernel_shape, pads, strides)
    whole = (*x.shape[:2], *space)
    y = x.new_zeros(math.prod(whole)).scatter(0, places.reshape(-1), x.reshape(-1)).reshape(whole)
    more = [] if shape is None else [goal - extent for goal, extent in zip(shape[2:], space, strict=True)]
    return F.pad(y, [extent for each in reversed(more) for extent in (0, each)]) if more else y


@kernel("Trilu", settings=(1,), override=_TRILU)
def _trilu(x: Any, diagonal: Any = None, *, upper: int = 1) -> Any:
    offset = diagonal[0] if isinstance(diagonal, list) else diagonal or 0
    return x.triu(offset) if upper else x.tril(offset)


@kernel("ScatterElements", check_reduction, override=_SCATTER)
def _scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none") -> Any:
    places = _from_first(indices, x.shape[axis])
    return x.scatter(axis, places, updates) if reduction == "none" else scattered(x, axis, places, updates, reduction)


def scattered(x: Any, along: int, indices: Any, updates: Any, reduction: str) -> Any:
    """x with updates combined at indices along an axis, by ONNX's reduction."""
    if x.dtype == torch.bool:
        return scattered(x.byte(), along, indices, updates.byte(), reduction).bool()
    if x.dtype in (torch.float16, torch.bfloat16) and reduction == "mul":
        return x.float().scatter_reduce(along, indices, updates.float(), "prod").to(x.dtype)
    return x.scatter_reduce(along, indices, updates, _REDUCE[reduction])


# torch's top k specifies neither which of several equal elements it selects nor their order; ONNX selects those with
# the lowest indices, like a stable sort. For 64 rows of 1000 numbers, selecting 5 and checking for ties takes 0.15 ms,
# sorting 3 ms or more; for few numbers, or if most are selected, sorting is faster.
_MANY = 4096
_FEW = 4


def top_k(x: Any, count: int, axis: int, largest: bool) -> tuple[Any, Any]:
    """The largest or smallest elements along an axis in order, and their indices."""
    # Reading values breaks a compiled graph, and makes the host wait for a GPU.
    looking = x.device.type == "cpu" and not torch.compiler.is_compiling()
    if looking and x.numel() >= _MANY and 0 < _FEW * count <= x.shape[axis]:
        places = _selected(x.detach(), count, axis, largest)
        if places is not None:
            return x.gather(axis, places), places
    values, indices = x.sort(dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


def _selected(x: Any, count: int, axis: int, largest: bool) -> Any:
    """Indices of the first elements of a sorted axis; None if the last equals an excluded element, or one is NaN."""
    values, places = torch.topk(x, count, axis, largest, False)
    edge = values.amin(axis, True) if largest else values.amax(axis, True)
    reached = x >= edge if largest else x <= edge
    if not bool((reached.sum(axis) == count).all()):
        return None
    places = places.sort(axis).values
    order = x.gather(axis, places).sort(dim=axis, descending=largest, stable=True).indices
    return places.gather(axis, order)
