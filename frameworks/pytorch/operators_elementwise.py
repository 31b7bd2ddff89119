"""More elementwise operators: trigonometry, bits, conversions, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.determinant import determinant
from deep5.frameworks.pytorch.table import kernel
from deep5.frameworks.pytorch.unsigned import logical_shift
from deep5.networks.kernels.images import check_bits

__all__ = ["converted"]

_UINT64 = torch.uint64


_BITS = "1.2 times at (2, 3, 8, 8)"
_CELU = "7.6 and 6.5 times at (32, 64), 1.9 and 2.0 at (16, 64, 56, 56), with alpha 0.5"
_SHIFT = "torch has no shifts of unsigned integers of more than eight bits"


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function, with a readable signature."""

    def own(*inputs: Any) -> Any:
        return function(*inputs)

    own.__name__ = function.__name__
    return own


kernel("Det")(_plain(determinant))


@kernel("Celu", override=_CELU)
def _celu(x: Any, *, alpha: float = 1.0) -> Any:
    return F.celu(x, alpha)


@kernel("BitShift", override=_SHIFT)
def _bit_shift(x: Any, bits: Any, *, direction: str, kind: Any) -> Any:
    wide, by = (value.view(torch.int64) if kind == _UINT64 else value.to(torch.int64) for value in (x, bits))
    if direction == "LEFT":
        shifted = torch.where((by < 0) | (by > 63), 0, wide << by.clamp(0, 63))
    elif kind.is_signed:  # sign bits move in; a negative distance is larger than all bits
        shifted = wide >> torch.where((by < 0) | (by > 63), 63, by)
    else:
        shifted = logical_shift(wide, by)
    return shifted.view(kind) if kind == _UINT64 else shifted.to(kind)


@kernel("BitCast", check_bits, override=_BITS)
def _bit_cast(x: Any, *, kind: Any) -> Any:
    x = x.byte() if x.dtype == torch.bool else x
    return x.view(torch.uint8) != 0 if kind == torch.bool else x.clone() if x.dtype == kind else x.view(kind)


_INTO_NARROW = {
    torch.float8_e4m3fn: (448.0, 464.0),
    torch.float8_e4m3fnuz: (240.0, 248.0),
    torch.float8_e5m2: (57344.0, 61440.0),
    torch.float8_e5m2fnuz: (57344.0, 61440.0),
}


def converted(x: Any, kind: Any, saturate: int = 1) -> Any:
    """A tensor converted to another element type, by ONNX's rules for values out of range of an eight-bit float.

    References:
        ONNX operator specification, Cast, table of conversions to eight-bit floats.
    """
    if kind not in _INTO_NARROW or x.dtype == kind:
        return x.to(kind)
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    largest, beyond = _INTO_NARROW[kind]
    if saturate:
        return wide.clamp(-largest, largest).to(kind)
    # The midpoint between the largest number and the next step beyond it rounds to even: away from the largest number.
    over = wide.abs() >= beyond if kind != torch.float8_e4m3fn else wide.abs() > beyond
    inside = wide.clamp(-largest, largest)
    if kind == torch.float8_e5m2:
        return torch.where(over, wide.sign() * float("inf"), inside).to(kind)
    return _poisoned(inside.to(kind), over, kind)


def _poisoned(narrow: Any, over: Any, kind: Any) -> Any:
    """The NaN of an eight-bit type for values that are too large."""
    bits = {torch.float8_e4m3fn: 0x7F}.get(kind, 0x80)
    return torch.where(over, bits, narrow.view(torch.uint8)).to(torch.uint8).view(kind)


@kernel("CastLike")
def _cast_like(x: Any, like: Any, *, saturate: int = 1, kind: Any) -> Any:
    return converted(x, kind, saturate)


@kernel("Range", eager=True)
def _range(start: Any, limit: Any, delta: Any) -> Any:
    first, end, step = (
        float(value.detach()) if value.dtype.is_floating_point else int(value) for value in (start, limit, delta)
    )
    count = max(math.ceil((end - first) / step) if isinstance(first, float) else -((first - end) // step), 0)
    if not start.dtype.is_floating_point:
        return torch.arange(count, device=start.device).mul_(step).add_(first).to(start.dtype)
    # For float32 and shorter types: values computed in float64, rounded once.
    places = torch.arange(count, dtype=torch.float64, device=start.device)
    return (start.reshape(()).double() + places * delta.reshape(()).double()).to(start.dtype)
