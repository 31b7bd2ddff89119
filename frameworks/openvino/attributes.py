"""Attributes that OpenVINO (2026.4) ignores or misreads, and that no other nodes replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from deep5.networks.constants import constant_value
from deep5.networks.kept_sizes import copied_axis
from deep5.networks.onnx.attributes import attribute
from deep5.networks.window import Window

__all__ = ["adds_before_rounding", "has_elements", "misread", "starts_outside"]

# Scales have about seven digits.
_PART = 1e-4
# The activations of recurrent layers that it has.
_FUNCTIONS = ("relu", "sigmoid", "tanh")
_REMEDY = "remedy: framework 'onnxruntime' or 'reference'"


def misread(node: ir.Node) -> str | None:
    """Why OpenVINO would compute a node as if an attribute had another value; else None."""
    if node.domain:
        return None
    given = node.op_type == "Constant" and not any(value.is_graph_output() for value in node.outputs)
    if given:  # an empty one may stand for an omitted input
        return None
    if not has_elements(node):
        return f"its result has no elements, and OpenVINO gives one of another shape; allowed: elements; {_REMEDY}"
    check = _CHECKS.get(node.op_type)
    return None if check is None else check(node)


def has_elements(node: ir.Node) -> bool:
    """Whether no result is known to have no elements."""
    return not any(value.shape is not None and 0 in value.shape.dims for value in node.outputs)


def _threshold(node: ir.Node) -> str | None:
    given = node.inputs[4] if len(node.inputs) > 4 else None
    least = None if given is None else constant_value(given)
    if least is not None and bool((least >= 0).all()):
        return None
    what = "no score_threshold" if given is None else "a score_threshold that is below 0 or computed"
    return f"got {what}, and OpenVINO leaves out scores below 0; allowed: a constant of 0 and more; {_REMEDY}"


def _resize(node: ir.Node) -> str | None:
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" and len(node.inputs) > 3:
        return f"got keep_aspect_ratio_policy={policy!r}, which OpenVINO ignores; allowed: 'stretch'; {_REMEDY}"
    if copied_axis(node) is not False:
        return (
            "got a scale that keeps the size of an axis and moves its coordinates, or may, and OpenVINO copies the "
            f"axis; allowed: scales of 1, and of 2 and more, or fixed sizes that change; {_REMEDY}"
        )
    if (part := _fraction(node)) is not None:
        return f"got {part}, which OpenVINO rounds where corners are aligned; allowed: sizes; {_REMEDY}"
    if attribute(node, "exclude_outside", 0) and attribute(node, "mode", "nearest") == "cubic":
        return f"got exclude_outside=1, which OpenVINO ignores; allowed: 0; {_REMEDY}"
    if not attribute(node, "antialias", 0) or _enlarges(node):
        return None
    return f"got antialias=1, which OpenVINO ignores; allowed: 0, or sizes that do not shrink; {_REMEDY}"


def _fraction(node: ir.Node) -> str | None:
    """The size of an axis with aligned corners that a scale does not make an integer, or may not."""
    x, scales = node.inputs[0], constant_value(node.inputs[2]) if len(node.inputs) == 3 else None
    if attribute(node, "coordinate_transformation_mode", "half_pixel") != "align_corners" or len(node.inputs) != 3:
        return None
    if scales is None or x is None or x.shape is None:
        return "computed scales"
    axes = attribute(node, "axes", range(len(x.shape)))
    for axis, scale in zip(axes, scales.tolist(), strict=False):
        size = x.shape[axis]
        goal = size * scale if isinstance(size, int) else scale
        if abs(goal - round(goal)) > _PART:
            return f"the size {size} times {scale:.6g}"
    return None


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
    if (refused := _order(node)) is not None:
        return refused
    if attribute(node, "auto_pad", "NOTSET") == "SAME_LOWER":
        return (
            "got auto_pad='SAME_LOWER', and OpenVINO pads images of unknown size at the end; allowed: 'SAME_UPPER', or "
            f"spatial dimensions of fixed size; {_REMEDY}"
        )
    if not attribute(node, "ceil_mode", 0) or not starts_outside(node):
        return None
    return (
        "got ceil_mode=1 with pads or strides above the kernel, and OpenVINO keeps a window that starts in the padding "
        "or after the image, and counts what is beyond it; allowed: spatial dimensions of fixed size, or ceil_mode=0; "
        f"{_REMEDY}"
    )


def starts_outside(node: ir.Node) -> bool:
    """Whether the last window of a pool with `ceil_mode` may start in the padding, or after the image."""
    kernel = attribute(node, "kernel_shape", ())
    window = Window.of(node, len(kernel))
    gaps = any(stride > span for stride, span in zip(window.strides, window.spans(window.kernel), strict=True))
    return any(window.begins + window.ends) or gaps


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


def _transform(node: ir.Node) -> str | None:
    axis, x = node.inputs[2] if len(node.inputs) > 2 else None, node.inputs[0]
    if x is None or x.shape is None or not isinstance(x.shape[-1], int):
        return (
            "got a last dimension of unknown size, which OpenVINO takes for that of complex numbers; allowed: 1 or 2; "
            f"{_REMEDY}"
        )
    known = np.array(-2) if axis is None else constant_value(axis)
    if known is not None and (int(known) == 1 or int(known) % len(x.shape) == 1):
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


def _recurrent(node: ir.Node) -> str | None:
    others = [str(name) for name in attribute(node, "activations", ()) if str(name).lower() not in _FUNCTIONS]
    if others:
        return f"got the activation {others[0]}, which OpenVINO does not have; allowed: {', '.join(_FUNCTIONS)}"
    if node.op_type != "LSTM":
        return None
    what = None
    if attribute(node, "clip") is not None:
        what = "clip, and OpenVINO does not clip the cell, which is the input of an activation as well"
    elif attribute(node, "input_forget", 0):
        what = "input_forget=1, which OpenVINO ignores"
    elif len(node.inputs) > 7 and node.inputs[7] is not None:
        what = "weights of peepholes, which OpenVINO ignores"
    return None if what is None else f"got {what}; allowed: none; {_REMEDY}"


def _cached(node: ir.Node) -> str | None:
    past = node.inputs[4] if len(node.inputs) > 4 else None
    if past is None or not attribute(node, "is_causal", 0):
        return None
    return (
        "got is_causal=1 and cached keys, which OpenVINO masks as if they were not there; allowed: one of the two; "
        f"{_REMEDY}"
    )


def _response(node: ir.Node) -> str | None:
    size = attribute(node, "size", 1)
    if size % 2:
        return None
    return f"got size={size}, and OpenVINO sums one channel less or more of an even number; allowed: odd; {_REMEDY}"


def _blocks(node: ir.Node) -> str | None:
    if attribute(node, "mode", "DCR") == "DCR":
        return None
    return f"got mode={attribute(node, 'mode')!r}, which OpenVINO ignores; allowed: 'DCR'; {_REMEDY}"


def _quantization(node: ir.Node) -> str | None:
    """Whether ties may be rounded otherwise, or a scale of several numbers belongs to an axis that it does not find."""
    if adds_before_rounding(node):
        return (
            "got a zero point that is odd or computed, and OpenVINO adds it before it rounds, which moves ties; "
            "allowed: even zero points, or inputs of known rank and results of 8 or 16 bits without block_size; "
            f"{_REMEDY}"
        )
    x, scale, axis = node.inputs[0], node.inputs[1], attribute(node, "axis", 1)
    known = None if scale is None else scale.shape
    single = known is not None and (len(known) == 0 or known.dims == (1,))
    if single or attribute(node, "block_size", 0) or (x is not None and x.shape is not None and _last(x, axis)):
        return None
    if x is not None and x.shape is not None and isinstance(x.shape[axis], int):
        return None
    return (
        f"got scales along axis {axis} of unknown size, which OpenVINO takes for those of the last axis; allowed: "
        f"fixed sizes, or the last axis; {_REMEDY}"
    )


def adds_before_rounding(node: ir.Node) -> bool:
    """Whether a quantization may round ties otherwise: OpenVINO rounds x / scale + zero point, ONNX x / scale.

    Not if the result is only dequantized again: OpenVINO runs the operators between by kernels of integers, four times
    as fast as what a rewrite gives (four convolutions of 32 channels: 2.96 and 12.2 ms), and like ONNX Runtime's own
    such kernels they round ties by one step otherwise.
    """
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is None or zero.dtype is None or not zero.dtype.is_integer():
        return False
    (result,) = node.outputs
    uses = [use.node.op_type for use in result.uses()]
    if uses and set(uses) == {"DequantizeLinear"} and not result.is_graph_output():
        return False
    known = constant_value(zero)
    return known is None or bool((known.astype(np.int64) % 2).any())


def _last(x: ir.Value, axis: int) -> bool:
    return x.shape is not None and axis % len(x.shape) == len(x.shape) - 1


def _shape(node: ir.Node) -> str | None:
    """Of known sizes the shape becomes a padding."""
    if not attribute(node, "output_shape", ()):
        return None
    return (
        "got output_shape, and OpenVINO pads otherwise for it; allowed: spatial dimensions of fixed size, or no "
        f"output_shape; {_REMEDY}"
    )


_CHECKS: Mapping[str, Callable[[ir.Node], str | None]] = {
    "Attention": _cached,
    "AveragePool": _padding,
    "ConvTranspose": _shape,
    "DFT": _transform,
    "LRN": _response,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "LpPool": _incomplete,
    "MaxPool": _padding,
    "NonMaxSuppression": _threshold,
    "QuantizeLinear": _quantization,
    "RNN": _recurrent,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "SpaceToDepth": _blocks,
    "Tile": _repeats,
}
