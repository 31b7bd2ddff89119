"""Attributes that OpenVINO (2026.4) ignores or misreads, and that no other nodes replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.onnx.attributes import attribute

__all__ = ["misread"]

_REMEDY = "remedy: framework 'onnxruntime' or 'reference'"


def misread(node: ir.Node) -> str | None:
    """Why OpenVINO would compute a node as if an attribute had another value; else None."""
    if node.domain or node.op_type == "Constant":  # an empty one may stand for an omitted input
        return None
    if any(value.shape is not None and 0 in value.shape.dims for value in node.outputs):
        return f"its result has no elements, and OpenVINO gives one of another shape; allowed: elements; {_REMEDY}"
    check = _CHECKS.get(node.op_type)
    return None if check is None else check(node)


def _threshold(node: ir.Node) -> str | None:
    given = node.inputs[4] if len(node.inputs) > 4 else None
    least = None if given is None else constant_value(given)
    if least is not None and bool((least >= 0).all()):
        return None
    what = "no score_threshold" if given is None else "a score_threshold that is below 0 or computed"
    return f"got {what}, and OpenVINO leaves out scores below 0; allowed: a constant of 0 and more; {_REMEDY}"


def _resize(node: ir.Node) -> str | None:
    if attribute(node, "exclude_outside", 0) and attribute(node, "mode", "nearest") == "cubic":
        return f"got exclude_outside=1, which OpenVINO ignores; allowed: 0; {_REMEDY}"
    if not attribute(node, "antialias", 0) or _enlarges(node):
        return None
    return f"got antialias=1, which OpenVINO ignores; allowed: 0, or sizes that do not shrink; {_REMEDY}"


def _enlarges(node: ir.Node) -> bool:
    """Whether a resize is known not to shrink the image."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.shape is None:
        return False
    if len(node.inputs) == 3:
        scales = constant_value(node.inputs[2])
        return scales is not None and bool((scales >= 1).all())
    if y.shape is None:
        return False
    pairs = zip(x.shape, y.shape, strict=True)
    return all(new == old or (isinstance(old, int) and isinstance(new, int) and new >= old) for old, new in pairs)


def _padding(node: ir.Node) -> str | None:
    """Of known sizes the padding becomes another one, without `ceil_mode` or `auto_pad`."""
    if attribute(node, "auto_pad", "NOTSET") == "SAME_LOWER":
        return (
            "got auto_pad='SAME_LOWER', and OpenVINO pads images of unknown size at the end; allowed: 'SAME_UPPER', or "
            f"spatial dimensions of fixed size; {_REMEDY}"
        )
    if not attribute(node, "ceil_mode", 0) or not any(attribute(node, "pads", ())):
        return _order(node)
    return (
        "got ceil_mode=1 and pads, and OpenVINO keeps a window that starts in the padding, and counts what is beyond "
        f"it; allowed: spatial dimensions of fixed size, or one of the two 0; {_REMEDY}"
    )


def _order(node: ir.Node) -> str | None:
    if not attribute(node, "storage_order", 0) or len(node.outputs) == 1:
        return None
    return f"got storage_order=1, and OpenVINO counts indices by rows; allowed: 0; {_REMEDY}"


def _roi_align(node: ir.Node) -> str | None:
    if attribute(node, "mode", "avg") == "max":
        return f"got mode='max', and OpenVINO interpolates before it takes the largest; allowed: 'avg'; {_REMEDY}"
    if not attribute(node, "sampling_ratio", 0):
        return (
            f"got sampling_ratio=0, and OpenVINO rounds the number of samples otherwise; allowed: 1 and more; {_REMEDY}"
        )
    return None


def _axis(node: ir.Node) -> str | None:
    axis, x = node.inputs[2] if len(node.inputs) > 2 else None, node.inputs[0]
    known = np.array(-2) if axis is None else constant_value(axis)
    rank = None if x is None or x.shape is None else len(x.shape)
    if known is not None and (int(known) == 1 or (rank is not None and int(known) % rank == 1)):
        return None
    given = "an axis that is not constant" if known is None else f"the axis {int(known)}"
    return f"got {given}, and OpenVINO computes along axis 1; allowed: 1; remedy: a Transpose before and after"


def _incomplete(node: ir.Node) -> str | None:
    if not attribute(node, "ceil_mode", 0):
        return None
    return f"got ceil_mode=1, and OpenVINO counts what the last window has beyond the image; allowed: 0; {_REMEDY}"


def _repeats(node: ir.Node) -> str | None:
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    if kind is None or kind.itemsize != 1 or constant_value(node.inputs[1]) is not None:
        return None
    return f"got {kind.name} and computed repeats, which OpenVINO misreads; allowed: constant repeats; {_REMEDY}"


_CHECKS: Mapping[str, Callable[[ir.Node], str | None]] = {
    "AveragePool": _padding,
    "DFT": _axis,
    "LpPool": _incomplete,
    "MaxPool": _padding,
    "NonMaxSuppression": _threshold,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Tile": _repeats,
}
