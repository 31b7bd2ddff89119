"""Explicit padding instead of `auto_pad` SAME, for engines that read SAME otherwise than ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from deep5.networks.onnx.attributes import attribute
from deep5.networks.window import Window

__all__ = ["is_same", "kernel_of", "same_pads", "shaped_pads", "spatial_sizes", "transposed_pads"]


def is_same(node: ir.Node) -> bool:
    """Whether a node has SAME padding."""
    return str(attribute(node, "auto_pad", "NOTSET")).startswith("SAME")


def kernel_of(node: ir.Node) -> tuple[int, ...] | None:
    """The spatial sizes of the kernel of a convolution or pool, if known."""
    place = 3 if node.op_type == "QLinearConv" else 1
    weights = node.inputs[place] if len(node.inputs) > place else None
    given: Sequence[object] = tuple(attribute(node, "kernel_shape", ())) or _spatial(weights)
    return _known(given)


def spatial_sizes(node: ir.Node) -> tuple[int, ...] | None:
    """The spatial sizes of the first input, if known."""
    return _known(_spatial(node.inputs[0]))


def _spatial(value: ir.Value | None) -> Sequence[object]:
    return () if value is None or value.shape is None else tuple(value.shape)[2:]


def _known(sizes: Sequence[object]) -> tuple[int, ...] | None:
    """The sizes, if there are any and all are numbers."""
    known = tuple(size for size in sizes if isinstance(size, int))
    return known if known and len(known) == len(sizes) else None


def same_pads(node: ir.Node) -> list[int] | None:
    """The `pads` of a convolution or pool with SAME padding; None if they depend on unknown sizes."""
    kernel, sizes = kernel_of(node), spatial_sizes(node)
    if kernel is None:
        return None
    window = Window.of(node, len(kernel))
    if sizes is None:
        if any(stride != 1 for stride in window.strides):
            return None
        sizes = window.spans(kernel)  # any: with stride 1 the padding does not depend on it
    _, begins, ends = window.fit(sizes, kernel)
    return [*begins, *ends]


def transposed_pads(node: ir.Node) -> Mapping[str, list[int] | None] | None:
    """The attributes of a ConvTranspose that replace its SAME padding; None if the kernel is unknown, or it has an
    `output_shape`, which decides.

    Its result has the input's size times the stride, so the padding depends on no size. A kernel that is smaller than
    its stride needs more output instead of padding.

    References:
        ONNX, ConvTranspose-11: the equations of `total_padding`.
    """
    kernel = kernel_of(node)
    if kernel is None or attribute(node, "output_shape", ()):
        return None
    window = Window.of(node, len(kernel))
    more = [int(extra) for extra in attribute(node, "output_padding", (0,) * len(kernel))]
    begins, ends = [], []
    for axis, (span, stride) in enumerate(zip(window.spans(kernel), window.strides, strict=True)):
        total = max(span + more[axis] - stride, 0)
        more[axis] = max(more[axis], stride - span)
        begin = total // 2 if window.auto_pad == "SAME_UPPER" else total - total // 2
        begins.append(begin)
        ends.append(total - begin)
    return {"auto_pad": None, "pads": begins + ends, "output_padding": more}


def shaped_pads(node: ir.Node) -> Mapping[str, list[int] | None] | None:
    """The attributes of a ConvTranspose that replace its `output_shape`; None if sizes or the kernel are unknown.

    A result that is larger than what the kernel reaches needs more output instead of padding.

    References:
        ONNX, ConvTranspose-11: the equations of `total_padding`; without SAME_UPPER, an odd element is at the start.
    """
    kernel, sizes = kernel_of(node), spatial_sizes(node)
    if kernel is None or sizes is None:
        return None
    window = Window.of(node, len(kernel))
    more = [int(extra) for extra in attribute(node, "output_padding", (0,) * len(kernel))]
    goals = [int(size) for size in attribute(node, "output_shape")][-len(kernel) :]
    begins, ends = [], []
    for axis, (span, stride) in enumerate(zip(window.spans(kernel), window.strides, strict=True)):
        total = (sizes[axis] - 1) * stride + span + more[axis] - goals[axis]
        more[axis] += max(-total, 0)
        total = max(total, 0)
        begin = total // 2 if window.auto_pad == "SAME_UPPER" else total - total // 2
        begins.append(begin)
        ends.append(total - begin)
    return {"auto_pad": None, "output_shape": None, "pads": begins + ends, "output_padding": more}
