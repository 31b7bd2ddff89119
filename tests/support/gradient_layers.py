"""Every product, convolution, pooling, normalization and loss with a gradient rule, in each framework's own API."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradient_table import Function, Row, drawn, number

__all__ = ["LAYERS"]


def channels_last(m: Any, x: Any) -> Any:
    """TensorFlow's order of an image's axes, on the host the only one."""
    return m.transpose(x, [0, *range(2, len(x.shape)), 1])


def channels_first(m: Any, y: Any) -> Any:
    rank = len(y.shape)
    return m.transpose(y, [0, rank - 1, *range(1, rank - 1)])


def gemm_row(a: tuple[int, ...], b: tuple[int, ...], *c: tuple[int, ...], alpha: float = 1.0, beta: float = 1.0) -> Row:
    """Of the shapes (3, 4) and (4, 5), each or its transpose."""
    flip_a, flip_b = int(a == (4, 3)), int(b == (5, 4))

    def turned(transposed: Function, matmul: Function) -> Function:
        def product(m: Any, a: Any, b: Any, c: Any = 0.0) -> Any:
            a, b = transposed(m, a) if flip_a else a, transposed(m, b) if flip_b else b
            return alpha * matmul(m, a, b) + beta * c

        return product

    return Row(
        (a, b, *c),
        lambda g, *values: g.op("Gemm", *values, alpha=alpha, beta=beta, transA=flip_a, transB=flip_b),
        turned(lambda m, x: m.t(x), lambda m, a, b: m.mm(a, b)),
        turned(lambda m, x: m.numpy.transpose(x), lambda m, a, b: m.lax.dot(a, b)),
        turned(lambda m, x: m.transpose(x), lambda m, a, b: m.matmul(a, b)),
    )


def matmul_row(a: tuple[int, ...], b: tuple[int, ...]) -> Row:
    def tensorflow(m: Any, a: Any, b: Any) -> Any:
        """TensorFlow's product takes no vectors."""
        rows, columns = len(a.shape) == 1, len(b.shape) == 1
        y = m.matmul(a[None] if rows else a, b[:, None] if columns else b)
        return m.squeeze(y, [axis for axis, gone in ((-2, rows), (-1, columns)) if gone]) if rows or columns else y

    return Row(
        (a, b),
        lambda g, a, b: g.op("MatMul", a, b),
        lambda m, a, b: m.matmul(a, b),
        lambda m, a, b: m.numpy.matmul(a, b),
        tensorflow,
    )


def conv_row(
    x: tuple[int, ...],
    w: tuple[int, ...],
    *,
    bias: bool = True,
    strides: list[int] | None = None,
    pads: list[int] | None = None,
    dilations: list[int] | None = None,
    group: int = 1,
) -> Row:
    rank = len(w) - 2
    steps, gaps, wide = strides or [1] * rank, dilations or [1] * rank, pads or [0] * 2 * rank
    sides = list(zip(wide[:rank], wide[rank:], strict=True))

    def added(y: Any, b: Any) -> Any:
        return y if b is None else y + b.reshape(-1, *[1] * rank)

    def pytorch(m: Any, x: Any, w: Any, b: Any = None) -> Any:
        x = m.nn.functional.pad(x, [width for side in sides[::-1] for width in side])
        return getattr(m.nn.functional, f"conv{rank}d")(x, w, b, steps, 0, gaps, group)

    def jax(m: Any, x: Any, w: Any, b: Any = None) -> Any:
        y = m.lax.conv_general_dilated(x, w, steps, sides, rhs_dilation=gaps, feature_group_count=group)
        return added(y, b)

    def tensorflow(m: Any, x: Any, w: Any, b: Any = None) -> Any:
        """On the host TensorFlow differentiates neither groups nor dilations: groups are separate convolutions, and
        dilated weights are ordinary ones with zeros between."""
        for axis, gap in enumerate(gaps, 2):
            places = np.zeros((w.shape[axis], gap * (w.shape[axis] - 1) + 1))
            places[np.arange(w.shape[axis]), gap * np.arange(w.shape[axis])] = 1.0
            back = [*range(axis), rank + 1, *range(axis, rank + 1)]  # the product puts that axis after the others
            w = m.transpose(m.tensordot(w, places, [[axis], [0]]), back) if gap > 1 else w
        x = channels_last(m, m.pad(x, [[0, 0], [0, 0], *sides]))
        w = m.transpose(w, [*range(2, rank + 2), 1, 0])
        parts = zip(m.split(x, group, -1), m.split(w, group, -1), strict=True)
        order = f"N{'DHW'[-rank:]}C"
        y = m.concat([m.nn.convolution(i, k, steps, "VALID", data_format=order) for i, k in parts], -1)
        return channels_first(m, y if b is None else m.nn.bias_add(y, b))

    return Row(
        (x, w, (w[0],)) if bias else (x, w),
        lambda g, *values: g.op("Conv", *values, strides=steps, pads=wide, dilations=gaps, group=group),
        pytorch,
        jax,
        tensorflow,
    )


def pool_row(op: str, x: Any, kernel: list[int], strides: list[int], pads: list[int] | None = None) -> Row:
    """Padding counts in a mean, and is less than everything in a maximum.

    Where elements tie, one receives all, the first in the window: in deep5, PyTorch, JAX and TensorFlow.
    """
    rank, highest = len(kernel), op == "MaxPool"
    wide = pads or [0] * 2 * rank
    sides = [(0, 0), (0, 0), *zip(wide[:rank], wide[rank:], strict=True)]
    options = {"pads": wide, **({} if highest else {"count_include_pad": 1})}
    name = f"{'max' if highest else 'avg'}_pool{rank}d"

    def jax(m: Any, x: Any) -> Any:
        window = ((1, 1, *kernel), (1, 1, *strides), sides)
        if highest:
            return m.lax.reduce_window(x, -np.inf, m.lax.max, *window)
        return m.lax.reduce_window(x, 0.0, m.lax.add, *window) / np.prod(kernel)

    def tensorflow(m: Any, x: Any) -> Any:
        x = channels_last(m, m.pad(x, sides, constant_values=x.dtype.min if highest else 0.0))
        y = getattr(m.nn, name)(x, kernel, strides, "VALID")
        return channels_first(m, y)

    return Row(
        (x,),
        lambda g, x: g.op(op, x, kernel_shape=kernel, strides=strides, **options),
        lambda m, x: getattr(m.nn.functional, name)(x, kernel, strides, wide[:rank]),
        jax,
        tensorflow,
    )


def global_row(x: tuple[int, ...]) -> Row:
    space = tuple(range(2, len(x)))
    return Row(
        (x,),
        lambda g, x: g.op("GlobalAveragePool", x),
        lambda m, x: m.mean(x, space, True),
        lambda m, x: m.numpy.mean(x, space, keepdims=True),
        lambda m, x: m.reduce_mean(x, space, True),
    )


def batch_row(x: tuple[int, ...], *, training: bool) -> Row:
    channels, axes, wide = x[1], (0, *range(2, len(x))), (-1, *[1] * (len(x) - 2))
    mean, variance, epsilon = np.linspace(-1, 1, channels), np.linspace(0.5, 2, channels), 2**-10

    def onnx(g: Any, x: Any, scale: Any, bias: Any) -> Any:
        attributes = {"training_mode": 1, "outputs": 3} if training else {}
        running = number(g, mean), number(g, variance)
        y = g.op("BatchNormalization", x, scale, bias, *running, epsilon=epsilon, **attributes)
        return y[0] if training else y

    def pytorch(m: Any, x: Any, scale: Any, bias: Any) -> Any:
        running = m.tensor(mean), m.tensor(variance)
        return m.nn.functional.batch_norm(x, *running, scale, bias, training=training, eps=epsilon)

    def jax(m: Any, x: Any, scale: Any, bias: Any) -> Any:
        statistics = {} if training else {"mean": mean.reshape(wide), "variance": variance.reshape(wide)}
        return m.nn.standardize(x, axes, epsilon=epsilon, **statistics) * scale.reshape(wide) + bias.reshape(wide)

    def tensorflow(m: Any, x: Any, scale: Any, bias: Any) -> Any:
        statistics = m.nn.moments(x, axes, keepdims=True) if training else (mean.reshape(wide), variance.reshape(wide))
        return m.nn.batch_normalization(x, *statistics, m.reshape(bias, wide), m.reshape(scale, wide), epsilon)

    return Row((x, (channels,), (channels,)), onnx, pytorch, jax, tensorflow)


def layer_row(x: tuple[int, ...], axis: int, *, bias: bool = True) -> Row:
    first, epsilon = axis % len(x), 2**-10
    axes, normalized = tuple(range(first, len(x))), x[first:]

    def jax(m: Any, x: Any, scale: Any, bias: Any = 0.0) -> Any:
        return m.nn.standardize(x, axes, epsilon=epsilon) * scale + bias

    def tensorflow(m: Any, x: Any, scale: Any, bias: Any = None) -> Any:
        return m.nn.batch_normalization(x, *m.nn.moments(x, axes, keepdims=True), bias, scale, epsilon)

    return Row(
        (x, normalized, normalized) if bias else (x, normalized),
        lambda g, *values: g.op("LayerNormalization", *values, axis=axis, epsilon=epsilon),
        lambda m, x, scale, bias=None: m.nn.functional.layer_norm(x, normalized, scale, bias, epsilon),
        jax,
        tensorflow,
    )


def local_row(x: tuple[int, ...], size: int) -> Row:
    """PyTorch adds the larger half of an even size before a channel, ONNX after it."""
    alpha, beta, bias, before = 0.25, 0.75, 1.5, (size - 1) // 2

    def jax(m: Any, x: Any) -> Any:
        around = [(0, 0), (before, size // 2), *[(0, 0)] * (x.ndim - 2)]
        padded = m.numpy.pad(x * x, around)
        total = sum(padded[:, at : at + x.shape[1]] for at in range(size))
        return x / (bias + alpha / size * total) ** beta

    def tensorflow(m: Any, x: Any) -> Any:
        padded = m.pad(x * x, [[0, 0], [before, size // 2], *[[0, 0]] * (len(x.shape) - 2)])
        total = m.add_n([padded[:, at : at + x.shape[1]] for at in range(size)])
        return x / (bias + alpha / size * total) ** beta

    return Row(
        (x,),
        lambda g, x: g.op("LRN", x, size=size, alpha=alpha, beta=beta, bias=bias),
        (lambda m, x: m.nn.functional.local_response_norm(x, size, alpha, beta, bias)) if size % 2 else None,
        jax,
        tensorflow,
    )


def loss_row(op: str, x: tuple[int, ...], reduction: str, *, weighted: bool = False, ignored: int | None = None) -> Row:
    """Labels of every class, some of them ignored; JAX and TensorFlow get explicit weights."""
    space = (x[0], *x[2:])
    label = np.arange(np.prod(space)).reshape(space) % x[1]
    hidden = np.zeros(space, bool)
    if ignored is not None:
        hidden.reshape(-1)[::3] = True
    asked = np.where(hidden, ignored if ignored is not None else 0, label)
    # Labels equal to `ignore_index` do not count, even if it is a class.
    hidden = hidden if ignored is None else asked == ignored
    weights = drawn(6, x[1]) if weighted else None
    counts = np.where(hidden, 0.0, 1.0 if weights is None else weights[label])
    entropy = op == "SoftmaxCrossEntropyLoss"
    divisor = counts.sum() if reduction == "mean" else 1.0

    def onnx(g: Any, x: Any) -> Any:
        rest = [] if weights is None else [number(g, weights)]
        attributes = {} if ignored is None else {"ignore_index": ignored}
        return g.op(op, x, number(g, asked), *rest, reduction=reduction, **attributes)

    def pytorch(m: Any, x: Any) -> Any:
        options = {} if ignored is None else {"ignore_index": ignored}
        weight = None if weights is None else m.tensor(weights)
        function = m.nn.functional.cross_entropy if entropy else m.nn.functional.nll_loss
        return function(x, m.tensor(asked), weight=weight, reduction=reduction, **options)

    def jax(m: Any, x: Any) -> Any:
        scores = m.nn.log_softmax(x, 1) if entropy else x
        each = -counts * m.numpy.take_along_axis(scores, label[:, None], 1)[:, 0]
        return each if reduction == "none" else m.numpy.sum(each) / divisor

    def tensorflow(m: Any, x: Any) -> Any:
        last = channels_last(m, x)
        if entropy:
            each = counts * m.nn.sparse_softmax_cross_entropy_with_logits(label, last)
        else:
            each = -counts * m.gather(last, label, batch_dims=label.ndim)
        return each if reduction == "none" else m.reduce_sum(each) / divisor

    return Row((x,), onnx, pytorch, jax, tensorflow)


def loss_rows(op: str) -> list[Row]:
    return [
        loss_row(op, (6, 5), "mean"),
        loss_row(op, (6, 5), "none", weighted=True),
        loss_row(op, (6, 5), "mean", weighted=True, ignored=1),
        loss_row(op, (3, 4, 2, 2), "sum", ignored=-7),
        loss_row(op, (3, 4, 2, 2), "mean", weighted=True, ignored=-7),
    ]


FLAT = np.zeros((1, 2, 4, 4))

LAYERS: dict[str, list[Row]] = {
    "AveragePool": [
        pool_row("AveragePool", (2, 3, 6, 4), [2, 2], [2, 2]),
        pool_row("AveragePool", (2, 2, 7, 7), [3, 2], [2, 1]),
        pool_row("AveragePool", (1, 2, 6, 6), [3, 3], [2, 2], [1, 1, 1, 1]),
        pool_row("AveragePool", (2, 3, 8), [3], [2]),
    ],
    "BatchNormalization": [
        batch_row(x, training=training) for training in (False, True) for x in ((6, 3), (4, 3, 5), (3, 2, 4, 3))
    ],
    "Conv": [
        conv_row((2, 3, 7, 6), (4, 3, 3, 2)),
        conv_row((2, 3, 7, 6), (4, 3, 3, 2), bias=False, pads=[1, 2, 0, 1]),
        conv_row((1, 2, 9, 8), (3, 2, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
        conv_row((2, 2, 10, 9), (3, 2, 2, 3), strides=[2, 2], dilations=[2, 1]),
        conv_row((2, 4, 6, 7), (6, 2, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], group=2),
        conv_row((2, 3, 6, 7), (6, 1, 3, 3), group=3),
        conv_row((2, 3, 11), (4, 3, 4), strides=[2], pads=[2, 1]),
        conv_row((1, 2, 5, 4, 6), (2, 2, 2, 2, 3), pads=[0, 1, 1, 0, 1, 0]),
    ],
    "Gemm": [
        gemm_row((3, 4), (4, 5)),
        gemm_row((4, 3), (4, 5), (5,), alpha=0.5, beta=1.5),
        gemm_row((3, 4), (5, 4), (3, 1), alpha=0.5, beta=1.5),
        gemm_row((4, 3), (5, 4), (), beta=0.25),
    ],
    "GlobalAveragePool": [global_row((2, 3, 4, 5)), global_row((2, 3, 4)), global_row((1, 2, 3, 2, 2))],
    "LRN": [
        local_row((2, 5, 3, 2), 3),
        local_row((2, 3, 4, 1), 5),
        local_row((2, 5, 3, 2), 4),
        local_row((3, 4, 6), 1),
    ],
    "LayerNormalization": [layer_row((4, 3, 5), -1), layer_row((4, 3, 5), 1), layer_row((4, 6), 0, bias=False)],
    "MatMul": [
        matmul_row((3, 4), (4, 5)),
        matmul_row((4,), (4,)),
        matmul_row((4,), (2, 4, 5)),
        matmul_row((2, 3, 4), (4,)),
        matmul_row((2, 3, 4), (4, 5)),
        matmul_row((2, 1, 3, 4), (6, 4, 5)),
    ],
    "MaxPool": [
        pool_row("MaxPool", (2, 3, 6, 4), [2, 2], [2, 2]),
        pool_row("MaxPool", (2, 2, 7, 7), [3, 3], [2, 2], [1, 1, 1, 1]),
        pool_row("MaxPool", (2, 2, 7, 6), [3, 2], [1, 2]),
        pool_row("MaxPool", (2, 3, 9), [3], [2]),
        pool_row("MaxPool", FLAT, [2, 2], [2, 2]),
        pool_row("MaxPool", FLAT, [2, 2], [1, 1]),
    ],
    "NegativeLogLikelihoodLoss": loss_rows("NegativeLogLikelihoodLoss"),
    "SoftmaxCrossEntropyLoss": loss_rows("SoftmaxCrossEntropyLoss"),
}
