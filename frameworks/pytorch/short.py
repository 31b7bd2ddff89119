"""Short floating-point types: bfloat16, which NumPy gets from another library, and short products on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from deep5.core.processor import adds_bfloat16_in_float32

__all__ = ["from_numpy", "in_float32", "tensor", "through_float32"]


# What NumPy says of an element type that another library defines.
_REGISTERED = 2
_BYTES = {1: np.uint8, 2: np.uint16}


def from_numpy(array: np.ndarray) -> Any:
    """`torch.from_numpy`, also for the types that NumPy gets from another library."""
    if array.dtype.isbuiltin == _REGISTERED:
        return torch.from_numpy(array.view(_BYTES[array.itemsize])).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def tensor(array: np.ndarray) -> Any:
    """`torch.tensor`, which copies, also for the types that NumPy gets from another library."""
    return from_numpy(np.array(array, order="C"))


def through_float32(kind: ir.DataType | None, place: torch.device) -> bool:
    """Whether products of this type are computed in float32, from unconverted operands, and rounded at the end.

    On the host, torch's float16 kernels take 20 to 40 times as long as float32's on most processors, and sum the
    gradient of a convolution's weight in float16 over the whole batch. The bfloat16 kernels do the latter on processors
    without instructions for it.
    """
    if place.type != "cpu":
        return False
    return kind == ir.DataType.FLOAT16 or (kind == ir.DataType.BFLOAT16 and not adds_bfloat16_in_float32())


@functools.cache
def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """A product of a short type, computed in float32 and rounded once; its gradients likewise.

    Operands that are not floating-point, such as a mask, are unchanged.
    """

    @functools.wraps(function)
    def product(*operands: Any, **options: Any) -> Any:
        wide = [operand.float() if _is_floating(operand) else operand for operand in operands]
        return function(*wide, **options).to(operands[0].dtype)

    return product


def _is_floating(operand: Any) -> bool:
    return isinstance(operand, torch.Tensor) and operand.is_floating_point()
