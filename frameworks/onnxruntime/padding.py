"""Windows that ONNX Runtime misplaces: SAME padding of dilated windows and of windows below their stride, and pools of
images that are smaller than their window.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from deep5.networks.draft import Draft
from deep5.networks.onnx.attributes import attribute
from deep5.networks.same_padding import is_same, kernel_of, same_pads, spatial_sizes, transposed_pads
from deep5.networks.window import Window

__all__ = ["PADDING", "has_gaps", "overhanging", "unpadded"]

_POOLS = {"AveragePool", "LpPool", "MaxPool"}


def unpadded(node: ir.Node) -> str | None:
    """Why a pool or a quantized convolution would fail or be wrong, and cannot be rewritten: its padding depends on
    sizes; else None.
    """
    if node.op_type not in PADDING or not _misread(node) or any(applies(node) for applies, _ in PADDING[node.op_type]):
        return None
    return (
        f"got auto_pad={attribute(node, 'auto_pad')!r} with a window of dilations {_dilations(node)} or below its "
        "strides, which ONNX Runtime pads otherwise; allowed: fixed sizes that need less padding than the kernel has"
    )


def overhanging(node: ir.Node) -> str | None:
    """Why a pool would have a window where it has none: ONNX Runtime rounds the size toward zero, ONNX's formula down.

    Its value depends on the optimizations, too. What sizes a run has is not known here.
    """
    if node.op_type not in _POOLS or is_same(node) or attribute(node, "ceil_mode", 0):
        return None
    kernel, sizes = kernel_of(node), spatial_sizes(node)
    if kernel is None or sizes is None or len(kernel) != len(sizes):
        return None
    window = Window.of(node, len(kernel))
    _, begins, ends = window.fit(sizes, kernel)
    for size, span, stride, *pads in zip(sizes, window.spans(kernel), window.strides, begins, ends, strict=True):
        if (size + sum(pads) - span) % stride and size + sum(pads) < span:
            return (
                f"got a window of {span} for {size + sum(pads)} elements, padding included, and ONNX Runtime counts it "
                f"where the strides are {list(window.strides)}; allowed: images that are as large as the window; "
                "remedy: a larger image, or padding"
            )
    return None


def _dilations(node: ir.Node) -> list[int]:
    return list(attribute(node, "dilations", (1,) * len(kernel_of(node) or ())))


def has_gaps(node: ir.Node) -> bool:
    """Whether a node has SAME padding of a window that is smaller than its stride."""
    kernel = kernel_of(node)
    if not is_same(node) or kernel is None:
        return False
    window = Window.of(node, len(kernel))
    return any(span < stride for span, stride in zip(window.spans(kernel), window.strides, strict=True))


def _misread(node: ir.Node) -> bool:
    """Whether a node has SAME padding of a window that is dilated or smaller than its stride, or of an LpPool before
    the image, where ONNX Runtime pads after it.
    """
    kernel = kernel_of(node)
    if not is_same(node) or kernel is None:
        return False
    before = node.op_type == "LpPool" and attribute(node, "auto_pad") == "SAME_LOWER"
    return before or has_gaps(node) or any(dilation != 1 for dilation in Window.of(node, len(kernel)).dilations)


def _known(node: ir.Node) -> bool:
    """Whether the padding is known, and what a pool accepts: less than the kernel."""
    pads, kernel = same_pads(node), kernel_of(node)
    if not _misread(node) or pads is None or kernel is None:
        return False
    return "Conv" in node.op_type or all(pad < size for pad, size in zip(pads, kernel * 2, strict=True))


def _write_pads(draft: Draft, node: ir.Node) -> None:
    draft.replace(*draft.same(node.inputs, auto_pad=None, pads=same_pads(node)))


def _pad_at_run_time(draft: Draft, node: ir.Node) -> None:
    """A Pad whose sizes are computed, as `Window.fit` does."""
    kernel, x = kernel_of(node), node.inputs[0]
    assert kernel is not None and x is not None and x.dtype is not None  # noqa: S101, PT018 - checked before
    window = Window.of(node, len(kernel))
    sizes = draft.op("Shape", x, start=2)
    strides, spans = (draft.constant(each, "int64") for each in (window.strides, window.spans(kernel)))
    one, two, zero, none = (draft.constant(each, "int64") for each in (1, 2, 0, [0, 0]))
    last = draft.op("Div", draft.op("Sub", sizes, one), strides)  # the number of windows but one
    total = draft.op("Sub", draft.op("Add", draft.op("Mul", last, strides), spans), sizes)
    total = draft.op("Max", total, zero)
    small = draft.op("Div", total, two)
    large = draft.op("Sub", total, small)
    sides = (small, large) if window.auto_pad == "SAME_UPPER" else (large, small)
    inputs = [x, draft.op("Concat", none, sides[0], none, sides[1], axis=0)]
    if node.op_type == "MaxPool":
        kind = x.dtype
        least = -np.inf if kind.is_floating_point() else np.iinfo(kind.numpy()).min
        inputs.append(draft.constant(least, kind))
    draft.replace(*draft.same([draft.op("Pad", *inputs), *node.inputs[1:]], auto_pad=None))


def _unknown(node: ir.Node) -> bool:
    return _misread(node) and len(node.outputs) == 1


def _small_transposed(node: ir.Node) -> bool:
    return is_same(node) and transposed_pads(node) is not None


def _write_transposed_pads(draft: Draft, node: ir.Node) -> None:
    draft.replace(*draft.same(node.inputs, **(transposed_pads(node) or {})))


_FIXED = [(_known, _write_pads)]
_ANY = [*_FIXED, (_unknown, _pad_at_run_time)]
PADDING = {
    "AveragePool": _FIXED,
    "Conv": _ANY,
    "ConvInteger": _FIXED,
    "ConvTranspose": [(_small_transposed, _write_transposed_pads)],
    "LpPool": _FIXED,
    "MaxPool": _ANY,
    "QLinearConv": _FIXED,
}
"""By operator: a test for the nodes to rewrite, and the rewrite."""
