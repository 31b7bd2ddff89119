"""Operators that move elements, and operators that return or create shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.table import kernel, operator
from deep5.networks.constants import constant_value

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__: list[str] = []


def _check_constant(node: ir.Node) -> str | None:
    return "a value that is no dense tensor" if constant_value(node.outputs[0]) is None else None


@operator("Constant", _check_constant)
def _constant(emitter: Emitter, node: ir.Node) -> None:
    """Does nothing: readers bind the constant."""


@operator("Identity")
def _identity(emitter: Emitter, node: ir.Node) -> str:
    return emitter.name(node.inputs[0])


@kernel("CenterCropPad", settings=(1,))
def _center_crop_pad(x: Any, shape: list[int], *, axes: Any = None) -> Any:
    pads = [0] * 2 * x.ndim
    for along, goal in zip(range(x.ndim) if axes is None else axes, shape, strict=True):
        along %= x.ndim  # noqa: PLW2901
        extra = goal - x.shape[along]
        if extra < 0:
            x = x.narrow(along, -extra // 2, goal)
        else:
            place = 2 * (x.ndim - 1 - along)
            pads[place], pads[place + 1] = extra // 2, extra - extra // 2
    return F.pad(x, pads) if any(pads) else x
