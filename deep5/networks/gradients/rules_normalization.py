"""Gradients of normalization."""

from __future__ import annotations

import math

import onnx_ir as ir

from deep5.networks.gradients.backward import Backward, Gradients, Rule, extents, operands, refuse
from deep5.networks.gradients.batch_normalization import (
    channel_wide,
    normalized_axes,
    split_batch_normalization,
)
from deep5.networks.onnx.attributes import attribute
from deep5.networks.over_ranks import RANKS, is_over_ranks, is_training

__all__ = ["RULES"]


def _batch_normalization(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = scale c r + bias, c = x - mean, r = 1 / sqrt(variance + epsilon): dbias = sum dy, dscale = r sum dy c.

    Evaluation: dx = scale r dy. Training, over m elements per channel, with the mean and variance of the batch:
    dx = scale r (dy - dbias / m - c r dscale / m).

    References:
        ONNX, BatchNormalization-15. Ioffe and Szegedy, Batch normalization, ICML 2015, section 3; the sum over the
        batch is written out.
    """
    x, scale, bias, mean, variance = operands(node, 5)
    dy = grads[0]
    if any(gradient is not None for gradient in grads[1:]):
        raise refuse(node, "the loss depends on its running statistics; allowed: only its first output")
    training = is_training(node)
    if training:
        mean, variance = split_batch_normalization(b, node)
    statistics = (training and b.wants(x)) or b.wants(scale)
    epsilon = b.like(attribute(node, "epsilon", 1e-5), x)
    r = b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, epsilon)))
    axes = b.ints(*normalized_axes(x))
    dbias = dscale = dx = None
    if b.wants(bias) or (training and b.wants(x)):
        dbias = b.op("ReduceSum", dy, axes, keepdims=0)
    if statistics:
        centred = b.op("Sub", x, channel_wide(b, x, mean))
        dscale = b.op("Mul", r, b.op("ReduceSum", b.op("Mul", dy, centred), axes, keepdims=0))
    if b.wants(x):
        dx = b.op("Mul", dy, channel_wide(b, x, b.op("Mul", scale, r)))
        if training:
            count, sums = _count(b, x), (dbias, dscale)
            if is_over_ranks(node):
                count, sums = _over_ranks(b, mean, dbias, dscale)
            dx = b.op("Sub", dx, _through_statistics(b, x, node, r, count, sums))
    return [dx, dscale, dbias, None, None]


def _through_statistics(
    b: Backward, x: ir.Value, node: ir.Node, r: ir.Value, count: ir.Value, sums: tuple[ir.Value | None, ir.Value | None]
) -> ir.Value:
    """scale r / m (c r dscale + dbias), written as a batch normalization of x: one pass over memory, like the forward
    pass.

    m is `count`; `sums` are dbias and dscale.
    """
    scale, (dbias, dscale) = node.inputs[1], sums
    factor = b.op("Div", b.op("Mul", scale, r), count)
    slope, offset = b.op("Mul", factor, dscale), b.op("Mul", factor, dbias)
    return b.op(
        "BatchNormalization", x, slope, offset, *node.inputs[3:5], epsilon=float(attribute(node, "epsilon", 1e-5))
    )


def _over_ranks(
    b: Backward, mean: ir.Value, dbias: ir.Value | None, dscale: ir.Value | None
) -> tuple[ir.Value, tuple[ir.Value | None, ir.Value | None]]:
    """Number of elements per channel in the batch of all ranks, and the sums over it."""
    moments = mean.producer()
    sums = b.ops("GradientSums", 2, dbias, dscale, domain=RANKS)
    for value in sums:
        value.shape, value.type = mean.shape, mean.type
    assert moments is not None  # noqa: S101 - `split_batch_normalization` has just written it
    return moments.outputs[2], (sums[0], sums[1])


def _count(b: Backward, x: ir.Value) -> ir.Value:
    """Number of elements per channel, in the element type of x."""
    axes = [extents(x)[axis] for axis in normalized_axes(x)]
    fixed = [extent for extent in axes if isinstance(extent, int)]
    if len(fixed) == len(axes):
        return b.like(float(math.prod(fixed)), x)
    channels = b.op("Shape", x, start=1, end=2)
    return b.op("Cast", b.op("Div", b.op("Size", x), channels), to=x.dtype)


def _layer_normalization(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = scale n + bias, n = (x - mean) r, statistics over the axes from `axis` on: with g = scale dy,
    dx = r (g - mean(g) - n mean(g n)), dscale = sum dy n, dbias = sum dy.

    References:
        ONNX, LayerNormalization-17. Ba, Kiros and Hinton, Layer normalization, arXiv:1607.06450, equation 4.
    """
    x, scale = operands(node, 2)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    dy, shape = grads[0], extents(x)
    first = attribute(node, "axis", -1) % len(shape)
    axes = b.ints(*range(first, len(shape)))
    if x.dtype == ir.DataType.FLOAT:
        kept = ir.Shape([1 if axis >= first else extent for axis, extent in enumerate(x.shape or ())])
        mean, r = (b.output(node, index, kept, x.dtype) for index in (1, 2))
        n = b.op("Mul", b.op("Sub", x, mean), r)
    else:  # ONNX returns the statistics in float32, which is too inaccurate for a float64 network
        centred = b.op("Sub", x, b.op("ReduceMean", x, axes, keepdims=1))
        variance = b.op("ReduceMean", b.op("Mul", centred, centred), axes, keepdims=1)
        epsilon = b.like(attribute(node, "epsilon", 1e-5), x)
        r = b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, epsilon)))
        n = b.op("Mul", centred, r)
    dx = dscale = dbias = None
    further = _by_statistics(b, x, (n, r), axes, (*grads[1:], None, None)[:2])
    if dy is None:
        return [further, None if not b.wants(scale) else b.zeros(scale), *([] if bias is None else [b.zeros(bias)])]
    if b.wants(scale):
        dscale = b.unbroadcast(b.op("Mul", dy, n), shape, scale)
    if bias is not None and b.wants(bias):
        dbias = b.unbroadcast(dy, shape, bias)
    if b.wants(x):
        g = b.op("Mul", dy, scale)
        along = b.op("ReduceMean", b.op("Mul", g, n), axes, keepdims=1)
        less = b.op("Sub", b.op("Sub", g, b.op("ReduceMean", g, axes, keepdims=1)), b.op("Mul", n, along))
        dx = b.op("Mul", less, r)
        dx = dx if further is None else b.op("Add", dx, further)
    return [dx, dscale, dbias][: len(node.inputs)]


def _by_statistics(
    b: Backward, x: ir.Value, known: tuple[ir.Value, ir.Value], axes: ir.Value, grads: Gradients
) -> ir.Value | None:
    """Contribution to dx of the gradients of mean and r = 1 / sqrt(variance + epsilon): (dmean - n r^2 dr) / m.

    n is the normalized x; None if the loss depends on neither.
    """
    (n, r), total = known, None
    for index, gradient in enumerate(grads):
        if gradient is None:
            continue
        part = gradient
        if x.dtype == ir.DataType.DOUBLE:
            part = b.op("Cast", gradient, to=x.dtype)
        if index:
            part = b.op("Neg", b.op("Mul", n, b.op("Mul", part, b.op("Mul", r, r))))
        total = part if total is None else b.op("Add", total, part)
    if total is None:
        return None
    count = b.op("ReduceProd", b.op("Gather", b.shape(x), axes), keepdims=0)
    return b.op("Expand", b.op("Div", total, b.op("Cast", count, to=x.dtype)), b.shape(x))


def _instance_normalization(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = scale n + bias, n = (x - mean) r, statistics over space: with g = scale dy,
    dx = r (g - mean(g) - n mean(g n)).

    dscale and dbias, one entry per channel, sum dy n and dy over batch and space.

    References:
        ONNX, InstanceNormalization-6. Ulyanov, Vedaldi and Lempitsky, Instance normalization, arXiv:1607.08022,
        equation 2.
    """
    (x, scale, bias), dy = operands(node, 3), grads[0]
    rank = len(extents(x))
    axes, batch = b.ints(*range(2, rank)), b.ints(0, *range(2, rank))
    centred = b.op("Sub", x, b.op("ReduceMean", x, axes, keepdims=1))
    variance = b.op("ReduceMean", b.op("Mul", centred, centred), axes, keepdims=1)
    epsilon = b.like(attribute(node, "epsilon", 1e-5), x)
    r = b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, epsilon)))
    n = b.op("Mul", centred, r)
    dx = dscale = dbias = None
    if b.wants(scale):
        dscale = b.op("ReduceSum", b.op("Mul", dy, n), batch, keepdims=0)
    if b.wants(bias):
        dbias = b.op("ReduceSum", dy, batch, keepdims=0)
    if b.wants(x):
        g = b.op("Mul", dy, channel_wide(b, x, scale))
        along = b.op("ReduceMean", b.op("Mul", g, n), axes, keepdims=1)
        less = b.op("Sub", b.op("Sub", g, b.op("ReduceMean", g, axes, keepdims=1)), b.op("Mul", n, along))
        dx = b.op("Mul", less, r)
    return [dx, dscale, dbias]


def _mean_variance_normalization(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = c / d, c = x - mean, d = s + 1e-9, s the standard deviation:
    dx = g - mean(g) - c mean(g c) / (s d), g = dy / d.

    The last term is 0 where s = 0; differentiating ONNX's function body would give NaN there.

    References:
        ONNX, MeanVarianceNormalization-13, and its function body: 1e-9.
    """
    (x,) = operands(node, 1)
    axes = b.ints(*attribute(node, "axes", (0, 2, 3)))
    c = b.op("Sub", x, b.op("ReduceMean", x, axes, keepdims=1))
    s = b.op("Sqrt", b.op("ReduceMean", b.op("Mul", c, c), axes, keepdims=1))
    d, zero = b.op("Add", s, b.like(1e-9, x)), b.like(0.0, x)
    g = b.op("Div", grads[0], d)
    along = b.op("ReduceMean", b.op("Mul", g, c), axes, keepdims=1)
    flat = b.op("Equal", s, zero)
    slope = b.op("Where", flat, zero, b.op("Div", along, b.op("Mul", b.op("Where", flat, b.like(1.0, x), s), d)))
    return [b.op("Sub", b.op("Sub", g, b.op("ReduceMean", g, axes, keepdims=1)), b.op("Mul", c, slope))]


def _lp_normalization(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x / n, n the norm along an axis: dx = (dy - y sum(dy y)) / n, with sign(x) in place of the first y for p = 1.

    0 where n = 0, as y is 0 there.

    References:
        ONNX, LpNormalization-1.
    """
    (x,), y, p = operands(node, 1), node.outputs[0], attribute(node, "p", 2)
    if p not in (1, 2):
        raise refuse(node, f"got p={p}; allowed: 1, 2")
    axis, zero = b.ints(attribute(node, "axis", -1)), b.like(0.0, x)
    norm = b.op(f"ReduceL{p}", x, axis, keepdims=1)
    none = b.op("Equal", norm, zero)
    along = b.op("ReduceSum", b.op("Where", none, zero, b.op("Mul", grads[0], y)), axis, keepdims=1)
    less = b.op("Sub", grads[0], b.op("Mul", y if p == 2 else b.op("Sign", x), along))
    return [b.op("Where", none, zero, b.op("Div", less, b.op("Where", none, b.like(1.0, x), norm)))]


def _local_response_normalization(b: Backward, node: ir.Node, grads: Gradients) -> Gradients:
    """y = x s^-beta, s = bias + alpha / size sum of x^2 over `size` channels around each:
    dx = dy s^-beta - 2 alpha beta / size x (sum of dy x s^(-beta - 1) over the channels that include this one).

    References:
        ONNX, LRN-13. Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural networks,
        NeurIPS 2012, section 3.3.
    """
    (x,), dy = operands(node, 1), grads[0]
    size = attribute(node, "size")
    alpha, beta = attribute(node, "alpha", 1e-4), attribute(node, "beta", 0.75)
    before, after = (size - 1) // 2, size // 2
    mean = _channel_mean(b, b.op("Mul", x, x), x, size, (before, after))
    scale = b.op("Add", b.op("Mul", mean, b.like(alpha, x)), b.like(attribute(node, "bias", 1.0), x))
    power = b.op("Pow", scale, b.like(-beta, x))
    direct = b.op("Mul", dy, power)
    # The channels that include this one: the same window, mirrored.
    seen = _channel_mean(b, b.op("Div", b.op("Mul", direct, x), scale), x, size, (after, before))
    return [b.op("Sub", direct, b.op("Mul", b.op("Mul", x, seen), b.like(2.0 * alpha * beta, x)))]


def _channel_mean(b: Backward, value: ir.Value, x: ir.Value, size: int, pads: tuple[int, int]) -> ir.Value:
    """The sum over `size` channels around each, divided by `size`; channels outside count as zero."""
    rows = b.op(
        "Reshape",
        value,
        b.op(
            "Concat", b.op("Shape", x, start=0, end=1), b.ints(1), b.op("Shape", x, start=1, end=2), b.ints(-1), axis=0
        ),
    )
    mean = b.op(
        "AveragePool",
        rows,
        kernel_shape=[size, 1],
        strides=[1, 1],
        pads=[pads[0], 0, pads[1], 0],
        count_include_pad=1,
    )
    return b.op("Reshape", mean, b.shape(x))


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "LRN": _local_response_normalization,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
}
