"""Operators with weights, windows and statistics, and the losses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from deep5.frameworks.pytorch.composites import emit_of, on_torch
from deep5.frameworks.pytorch.operators_windows import around, convolution
from deep5.frameworks.pytorch.primitives import NO_LABEL
from deep5.frameworks.pytorch.table import (
    attribute,
    axis,
    call,
    extents,
    is_whole,
    kernel,
    number,
    operator,
    rank,
    spare,
    writer,
)
from deep5.networks.kernels.operators import COMPOSITES
from deep5.networks.kernels.reducing import check_space
from deep5.networks.kernels.windows import check_window
from deep5.networks.window import Window

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.emitter import Emitter

__all__: list[str] = []


@operator("Gemm")
def _gemm(emitter: Emitter, node: ir.Node) -> str:
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    a, b = emitter.name(node.inputs[0]), emitter.name(node.inputs[1])
    c = node.inputs[2] if len(node.inputs) > 2 else None
    trans_b = attribute(node, "transB", 0)
    a = f"{a}.t()" if attribute(node, "transA", 0) else a
    vector = c is None or (c.shape is not None and len(c.shape) == 1)
    if trans_b and vector and alpha == 1.0 and beta == 1.0:
        return f"{emitter.product(node, F.linear)}({a}, {b}, {emitter.name(c)})"
    b = f"{b}.t()" if trans_b else b
    if c is None:
        scaled = "" if alpha == 1.0 else f" * {number(alpha)}"
        return f"{emitter.product(node, torch.mm)}({a}, {b}){scaled}"
    factors = f"beta={number(beta)}, alpha={number(alpha)}"
    return f"{emitter.product(node, torch.addmm)}({emitter.name(c)}, {a}, {b}, {factors})"


def _window(node: ir.Node) -> Window | None:
    """The window with its sizes and its padding before and after each axis; None if torch's functions cannot take it.

    They take 1 to 3 axes, with sizes and padding that are known, and no negative padding.
    """
    axes = rank(node) - 2
    if axes not in (1, 2, 3):
        return None
    window = Window.of(node, axes)
    kernel = [size for size in window.kernel or extents(node, 1)[2:] if isinstance(size, int)]
    space = [extent for extent in extents(node)[2:] if isinstance(extent, int)]
    if len(kernel) < axes or (window.auto_pad.startswith("SAME") and len(space) < axes):
        return None
    begins, ends = window.begins, window.ends
    if window.auto_pad == "VALID":
        begins = ends = (0,) * axes
    elif window.auto_pad != "NOTSET":
        _, begins, ends = window.fit(tuple(space), tuple(kernel))
    if min(*begins, *ends) < 0:
        return None
    return replace(window, kernel=tuple(kernel), begins=begins, ends=ends, auto_pad="NOTSET")


def _even(window: Window) -> tuple[int, ...] | None:
    """The padding if it is the same on both sides, else None."""
    return window.begins if window.begins == window.ends else None


def _outside(window: Window) -> bool:
    """Whether the input must be padded first: torch only supports symmetric padding, up to half the window."""
    pads = _even(window)
    return pads is None or any(2 * pad > size for pad, size in zip(pads, window.kernel, strict=True))


def _around(window: Window) -> list[int]:
    return around([*zip(window.begins, window.ends, strict=True)])


def _padded(emitter: Emitter, node: ir.Node, window: Window, fill: float) -> str:
    """The padded input, for operators for which torch has no such padding."""
    x = emitter.name(node.inputs[0])
    return f"{emitter.function(F.pad)}({x}, {_around(window)}, 'constant', {number(fill)})"


_WRITE_CONVOLUTION = writer(convolution)
_WRITE_AVERAGE_POOL, _WRITE_LP_POOL, _WRITE_MAX_POOL = (
    emit_of(COMPOSITES[name]) for name in ("AveragePool", "LpPool", "MaxPool")
)
_MAX = "5.1 and 2.1 times at (2, 3, 8, 8), 1.8 and 2.9 at (8, 32, 28, 28)"
_LP = "3.7 and 2.0 times at (2, 3, 8, 8), 1.0 and 1.6 at (8, 64, 56, 56), with twice the peak memory"
_AVERAGE = "4.6 and 1.8 times at (2, 3, 8, 8), 1.8 and 1.7 at (8, 32, 28, 28)"


@operator("Conv", check_window, ranked=True)
def _conv(emitter: Emitter, node: ir.Node) -> str | None:
    if (window := _window(node)) is None:
        return _WRITE_CONVOLUTION(emitter, node)
    axes, pads, strides = len(window.kernel), _even(window), window.strides
    x = _padded(emitter, node, window, 0.0) if pads is None else emitter.name(node.inputs[0])
    if emitter.on_host and _few_taken(window, pads, extents(node)[1]):
        x, strides = f"{x}[:, :, {', '.join(f'::{step}' for step in strides)}]", (1,) * axes
    function = emitter.product(node, (F.conv1d, F.conv2d, F.conv3d)[axes - 1])
    weight, bias = emitter.name(node.inputs[1]), emitter.name(node.inputs[2] if len(node.inputs) > 2 else None)
    how = f"{strides}, {pads or (0,) * axes}, {window.dilations}, {attribute(node, 'group', 1)}"
    return f"{function}({x}, {weight}, {bias}, {how})"


# oneDNN's channel blocks have size 8 or 16, depending on the processor.
_BLOCK = 16


def _few_taken(window: Window, pads: tuple[int, ...] | None, channels: int | None) -> bool:
    """Whether windows of size one skip elements, with fewer channels than a oneDNN block.

    oneDNN writes the gradient of such a weight past the end of an array if channels come last in memory (oneDNN issue
    6035). Selecting the elements first gives the same result.
    """
    return (
        all(size == 1 for size in window.kernel)
        and any(step > 1 for step in window.strides)
        and not any(pads or ())  # none: padding is added before
        and (channels is None or channels < _BLOCK)
    )


def _pool_window(node: ir.Node) -> Window | None:
    """The window as torch's pooling supports it; None if it does not."""
    window = _window(node)
    # Padding that differs between the sides, or exceeds half the window, is added before: `ceil_mode` would see it.
    return None if window is None or (_outside(window) and window.ceil) else window


def _average_inside(pool: Any, x: Any, pads: list[int], kernel: Any, strides: Any) -> Any:
    """The average without padded elements: the ratio of two averages over whole windows."""
    inside = F.pad(x.new_ones((1, 1, *x.shape[2:])), pads)
    return pool(F.pad(x, pads), kernel, strides) / pool(inside, kernel, strides)


@operator("AveragePool", check_space, ranked=True, override=_AVERAGE)
def _average_pool(emitter: Emitter, node: ir.Node) -> str | None:
    window = _pool_window(node)
    if window is None or any(step != 1 for step in window.dilations):
        return _WRITE_AVERAGE_POOL(emitter, node)
    pool = emitter.function((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(window.kernel) - 1])
    x, include = emitter.name(node.inputs[0]), bool(attribute(node, "count_include_pad", 0))
    moved = f"{window.kernel}, {window.strides}"
    if not _outside(window):
        # Without padding both variants are equal; torch takes 3 % less time if it need not clip windows to count.
        include = include or not (window.ceil or any(window.begins))
        return f"{pool}({x}, {moved}, {window.begins}, {window.ceil}, {include})"
    if include:
        return f"{pool}({_padded(emitter, node, window, 0.0)}, {moved})"
    return f"{emitter.function(_average_inside)}({pool}, {x}, {_around(window)}, {moved})"


def _norms(pool: Any, x: Any, p: int, kernel: Any, *how: Any) -> Any:
    """The p-norms of windows, whose gradient is 0 where all elements are 0."""
    total = pool(x * x if p == 2 else x.abs() ** p, kernel, *how) * math.prod(kernel)
    some = total > 0
    root = torch.where(some, total, 1.0)
    return torch.where(some, root.sqrt() if p == 2 else root ** (1 / p), total)


@operator("LpPool", check_window, ranked=True, override=_LP)
def _lp_pool(emitter: Emitter, node: ir.Node) -> str | None:
    window, kind = _window(node), None if node.inputs[0] is None else node.inputs[0].dtype
    special = window is None or _outside(window) or window.ceil or any(step != 1 for step in window.dilations)
    if window is None or special or kind not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return _WRITE_LP_POOL(emitter, node)
    pool = emitter.function((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(window.kernel) - 1])
    how = f"{attribute(node, 'p', 2)}, {window.kernel}, {window.strides}, {window.begins}"
    return f"{emitter.function(_norms)}({pool}, {emitter.name(node.inputs[0])}, {how})"


@operator("MaxPool", check_window, ranked=True, override=_MAX)
def _max_pool(emitter: Emitter, node: ir.Node) -> str | None:
    window, places = _pool_window(node), spare(node) is not None
    if window is None or is_whole(node.inputs[0]) or (places and not _gives_places(node, window)):
        return _WRITE_MAX_POOL(emitter, node)
    axes, outside = len(window.kernel), _outside(window)
    # The public functions dispatch on return_indices at every call; these are their targets.
    pool = emitter.function((torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[axes - 1])
    x = _padded(emitter, node, window, float("-inf")) if outside else emitter.name(node.inputs[0])
    pads = (0,) * axes if outside else window.begins
    how = f"{window.kernel}, {window.strides}, {pads}, {window.dilations}, {window.ceil}"
    if not places:
        return f"{pool}({x}, {how})"
    first, second = (emitter.name(value) if value.name else "_" for value in node.outputs)
    emitter.line(f"{first}, {second} = {emitter.function(_with_places)}({x}, {how})")
    return None


def _gives_places(node: ir.Node, window: Window) -> bool:
    """Whether torch's places of maxima are those in the input, in its order."""
    return not _outside(window) and not attribute(node, "storage_order", 0)


def _with_places(x: Any, *how: Any) -> tuple[Any, Any]:
    """The maxima, and their places in the whole tensor; torch's are those in a plane."""
    y, places = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3](x, *how, return_indices=True)
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *[1] * (x.ndim - 2))
    return y, places + planes * x[0, 0].numel()


def _check_batch_norm(node: ir.Node) -> str | None:
    return None if attribute(node, "training_mode", 0) else spare(node)


def _batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


def _batch_norm_in_training(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    """ONNX's batch normalization, and the batch statistics for `RunningStatistics`.

    The running statistics do not change, except if torch compiles: then they change in place.
    """
    y, batch_mean, inverse = torch.native_batch_norm(x, scale, bias, None, None, True, 0.0, epsilon)
    if torch.compiler.is_compiling():  # which fuses this with its neighbors
        with torch.no_grad():
            mean.mul_(momentum).add_(batch_mean, alpha=1 - momentum)
            variance.mul_(momentum).add_(inverse.pow(-2).sub_(epsilon).clamp_(min=0), alpha=1 - momentum)
    return y, batch_mean, inverse


@operator("BatchNormalization", _check_batch_norm)
def _batch_normalization(emitter: Emitter, node: ir.Node) -> str | None:
    momentum, epsilon = number(attribute(node, "momentum", 0.9)), number(attribute(node, "epsilon", 1e-5))
    if not attribute(node, "training_mode", 0):
        return call(emitter, node, _batch_norm, epsilon)
    inputs = ", ".join(emitter.name(value) for value in node.inputs)
    outputs = ", ".join(emitter.name(value) for value in node.outputs)
    function = emitter.function(emitter.batch_norm or _batch_norm_in_training)
    emitter.line(f"{outputs} = {function}({inputs}, {momentum}, {epsilon})")
    return None


_LAYER_NORM = "6.0 and 3.9 times at (8, 64), 3.6 and 8.3 at (2048, 512)"


@operator("LayerNormalization", spare, ranked=True, override=_LAYER_NORM)
def _layer_normalization(emitter: Emitter, node: ir.Node) -> str | None:
    shape, count = extents(node)[axis(node, -1) :], len(node.inputs)
    if None in shape or any(extents(node, at) != shape for at in range(1, count) if node.inputs[at] is not None):
        return emit_of(COMPOSITES["LayerNormalization"])(emitter, node)
    x, *weights = (emitter.name(value) for value in node.inputs)
    scale, bias = (*weights, "None")[:2]
    epsilon = number(attribute(node, "epsilon", 1e-5))
    return f"{emitter.function(F.layer_norm)}({x}, {tuple(shape)}, {scale}, {bias}, {epsilon})"


_ENTROPY = "1.7 and 1.5 times at (8, 10), 1.5 and 1.1 at (256, 1000)"
_LIKELIHOOD = "1.7 and 1.5 times at (8, 10), 1.8 and 1.2 at (256, 1000); with ignored labels 3.7 and 2.2, 4.0 and 1.4"


@operator("SoftmaxCrossEntropyLoss", override=_ENTROPY)
def _cross_entropy(emitter: Emitter, node: ir.Node) -> str | None:
    loss = _loss(emitter, node, F.cross_entropy)
    if spare(node) is None:
        return loss
    first, second = (emitter.name(value) if value.name else "_" for value in node.outputs)
    emitter.line(f"{first}, {second} = {loss}, {emitter.function(F.log_softmax)}({emitter.name(node.inputs[0])}, 1)")
    return None


@operator("NegativeLogLikelihoodLoss", override=_LIKELIHOOD)
def _negative_log_likelihood(emitter: Emitter, node: ir.Node) -> str:
    return _loss(emitter, node, F.nll_loss)


def _loss(emitter: Emitter, node: ir.Node, function: Any) -> str:
    x, label, *weight = (emitter.name(value) for value in node.inputs)
    if node.inputs[1].dtype is not ir.DataType.INT64:  # type: ignore[union-attr]
        label = f"{label}.long()"
    ignore = attribute(node, "ignore_index", NO_LABEL)
    options = [f"weight={weight[0]}"] if weight else []
    options.append(f"ignore_index={ignore}")
    reduction = attribute(node, "reduction", "mean")
    options.append(f"reduction={_REDUCTIONS[reduction]}")
    return f"{emitter.function(function)}({x}, {label}, {', '.join(options)})"


_REDUCTIONS = {"mean": "'mean'", "none": "'none'", "sum": "'sum'"}


_FOLD = "2.7 and 1.3 times at (2, 27, 36), 1.4 and 2.6 at (8, 288, 676)"
_col2im = on_torch(COMPOSITES["Col2Im"])


@kernel("Col2Im", settings=(1, 2), override=_FOLD)
def _folded(
    x: Any, image: list[int], block: list[int], *, dilations: Any = None, pads: Any = None, strides: Any = None
) -> Any:
    if len(image) != 2:
        return _col2im(x, image, block, dilations=dilations, pads=pads, strides=strides)
    if not pads or pads[:2] == pads[2:]:
        return F.fold(x, image, block, dilations or 1, pads[:2] if pads else 0, strides or 1)
    top, left, bottom, right = pads
    rows, columns = image
    y = F.fold(x, (rows + top + bottom, columns + left + right), block, dilations or 1, 0, strides or 1)
    return y[:, :, top : top + rows, left : left + columns]
