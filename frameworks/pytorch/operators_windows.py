"""Convolutions with any padding, and columns folded by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.short import in_float32
from deep5.networks.window import Window

__all__ = ["around", "convolution", "transposed_convolution"]

_CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
_TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def around(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Padding of the last axes as `F.pad` requires it, beginning with the last one."""
    return [extent for pair in reversed(pairs) for extent in pair]


def _kernel(functions: dict[int, Any], x: Any) -> Any:
    short = x.device.type == "cpu" and x.dtype in (torch.float16, torch.bfloat16)
    return in_float32(functions[x.ndim]) if short else functions[x.ndim]


def convolution(x: Any, weight: Any, bias: Any = None, *, window: Window, group: int = 1) -> Any:
    """ONNX's Conv with 1 to 3 spatial axes."""
    _, begins, ends = window.fit(tuple(x.shape[2:]), tuple(weight.shape[2:]))
    even = begins == ends and min(begins) >= 0
    x = x if even else F.pad(x, around([*zip(begins, ends, strict=True)]))
    function = _kernel(_CONVOLUTIONS, x)
    return function(x, weight, bias, window.strides, begins if even else 0, window.dilations, group)


def transposed_convolution(
    x: Any,
    weight: Any,
    bias: Any,
    window: Window,
    group: int,
    removed: Sequence[tuple[int, int]],
    more: tuple[int, ...],
) -> Any:
    """As in `Primitives`."""
    function = _kernel(_TRANSPOSED, x)
    # torch's output padding is smaller than the stride, and it removes the same from both sides.
    even = all(begin == end >= 0 for begin, end in removed) and all(map(int.__lt__, more, window.strides))
    if even:
        pads = tuple(begin for begin, _ in removed)
        return function(x, weight, bias, window.strides, pads, more, group, window.dilations)
    y = function(x, weight, None, window.strides, 0, 0, group, window.dilations)
    y = F.pad(y, around([(-begin, own - end) for (begin, end), own in zip(removed, more, strict=True)]))
    return y if bias is None else y + bias.reshape(-1, *[1] * len(more))
