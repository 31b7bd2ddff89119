"""Convolution and transposed convolution over any number of spatial axes, each as one matrix product."""

from __future__ import annotations

import math

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.memory import Array, Scratch, batch_last, channels_last, strided
from deep5.frameworks.reference.window import Window

__all__ = ["column_to_image", "convolution", "transposed_convolution"]


def convolution(
    x: Array, w: Array, bias: Array | None = None, *, window: Window, group: int = 1, scratch: Scratch
) -> Array:
    """ONNX Conv: y[n, m, o] = bias[m] + sum over c, k of w[m, c, k] x[n, c, stride o + dilation k - begin].

    The windows are copied into columns (im2col), and the product with the weights is one GEMM.

    Args:
        x: (N, C, *space).
        w: (M, C / group, *kernel), the dtype of x.
        bias: (M,), or None.
        window: Strides, dilations and padding.
        group: Number of channel groups.
        scratch: The buffer for the columns.

    Returns:
        (N, M, *output), the dtype of x.

    References:
        Chellapilla, Puri and Simard, High performance convolutional neural networks for document processing, 2006.
    """
    kernel = w.shape[2:]
    output, begins, ends = window.fit(x.shape[2:], kernel)
    if min(output, default=0) < 0:
        raise ShapeError(f"Conv: a window of {kernel} does not fit into {x.shape[2:]}; expected padding, or more of it")
    # Choose the column order with the longer contiguous runs in the copy.
    run_batch = x.shape[0] * (output[-1] if window.strides[-1] == 1 else 1)
    run_channels = x.shape[1] * (kernel[-1] if window.dilations[-1] == 1 else 1)
    if group > 1 or run_batch >= run_channels:
        y = _by_batch(batch_last(x, begins, ends), w, output, window, group=group, scratch=scratch)
        if bias is not None:
            y += bias.reshape(-1, *[1] * (y.ndim - 1))
        return y.transpose(y.ndim - 1, *range(y.ndim - 1))
    y = _by_channels(channels_last(x, begins, ends), w, output, window, scratch)
    if bias is not None:
        y += bias
    return y.transpose(0, y.ndim - 1, *range(1, y.ndim - 1))


def _by_batch(x: Array, w: Array, output: tuple[int, ...], window: Window, *, group: int, scratch: Scratch) -> Array:
    """(C, *space, N) -> (M, *output, N): weights (M, C K) times columns (C K, O N)."""
    kernel, (channels, n) = w.shape[2:], (x.shape[0], x.shape[-1])
    rows, columns = channels * math.prod(kernel), math.prod(output) * n
    if rows == channels and output == x.shape[1:-1] and set(window.strides) == {1}:
        cols = x.reshape(rows, columns)  # a one-element kernel needs no copy
    else:
        steps = x.strides
        windows = strided(
            x,
            (channels, *kernel, *output, n),
            (
                steps[0],
                *(d * s for d, s in zip(window.dilations, steps[1:-1], strict=True)),
                *(t * s for t, s in zip(window.strides, steps[1:-1], strict=True)),
                steps[-1],
            ),
        )
        cols = scratch.take(windows.shape, x.dtype)
        np.copyto(cols, windows)
        cols = cols.reshape(rows, columns)
    m = w.shape[0]
    y: Array
    if group == 1:
        y = np.matmul(w.reshape(m, rows), cols)
    else:
        y = np.matmul(w.reshape(group, m // group, rows // group), cols.reshape(group, rows // group, columns))
    return y.reshape(m, *output, n)


def _by_channels(x: Array, w: Array, output: tuple[int, ...], window: Window, scratch: Scratch) -> Array:
    """(N, *space, C) -> (N, *output, M): columns (N O, K C) times weights (K C, M)."""
    kernel, (n, channels) = w.shape[2:], (x.shape[0], x.shape[-1])
    steps = x.strides
    windows = strided(
        x,
        (n, *output, *kernel, channels),
        (
            steps[0],
            *(t * s for t, s in zip(window.strides, steps[1:-1], strict=True)),
            *(d * s for d, s in zip(window.dilations, steps[1:-1], strict=True)),
            steps[-1],
        ),
    )
    cols = scratch.take(windows.shape, x.dtype)
    np.copyto(cols, windows)
    cols = cols.reshape(n * math.prod(output), math.prod(kernel) * channels)
    weights = w.transpose(0, *range(2, w.ndim), 1).reshape(w.shape[0], cols.shape[1])
    y: Array = np.matmul(cols, weights.T)
    return y.reshape(n, *output, w.shape[0])


def transposed_convolution(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    window: Window,
    output_padding: tuple[int, ...],
    output_shape: tuple[int, ...] | None = None,
    group: int = 1,
    scratch: Scratch,
) -> Array:
    """ONNX ConvTranspose, the adjoint of `convolution`: columns by one GEMM, then added into place (col2im).

    Args:
        x: (N, C, *space).
        w: (C, M / group, *kernel), the dtype of x.
        bias: (M,), or None.
        window: Strides, dilations and padding of the convolution that this is the adjoint of.
        output_padding: Sizes added at the end, one per spatial axis.
        output_shape: The spatial sizes of the result, which define the padding; None: the window or `auto_pad` defines
            it.
        group: Number of channel groups.
        scratch: The buffer for the columns.

    Returns:
        (N, M, *output), output = stride (space - 1) + span - padding + output_padding; the dtype of x.

    References:
        ONNX, ConvTranspose-11: padding for given output sizes. If it is odd, the larger part is at the end with
        SAME_UPPER, and at the beginning otherwise.
    """
    rank, kernel = x.ndim - 2, w.shape[2:]
    none = (0,) * rank
    source = batch_last(x, none, none)
    channels, *space, n = source.shape
    m = w.shape[1] * group
    rows = m * math.prod(kernel) // group
    cols = scratch.take((group, rows, math.prod(space) * n), x.dtype)
    weights = w.reshape(group, channels // group, rows).transpose(0, 2, 1)
    if group == 1:  # two matrices go to BLAS directly
        np.matmul(weights[0], source.reshape(channels, -1), out=cols[0])
    else:
        np.matmul(weights, source.reshape(group, channels // group, -1), out=cols)
    cols = cols.reshape(m, *kernel, *space, n)

    full = [
        t * (s - 1) + span + extra
        for t, s, span, extra in zip(window.strides, space, window.spans(kernel), output_padding, strict=True)
    ]
    same = window.auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if output_shape is None and same:
        output_shape = tuple(s * t for s, t in zip(space, window.strides, strict=True))
    if output_shape is not None:
        totals = [max(f - o, 0) for f, o in zip(full, output_shape, strict=True)]
        begins = tuple(total // 2 if window.auto_pad == "SAME_UPPER" else total - total // 2 for total in totals)
        output = tuple(output_shape)
    else:
        begins = none if window.auto_pad == "VALID" else window.begins
        ends = none if window.auto_pad == "VALID" else window.ends
        output = tuple(f - begin - end for f, begin, end in zip(full, begins, ends, strict=True))
    if min(output, default=0) < 0:
        raise ShapeError(f"ConvTranspose: got pads beyond the result, of {full}; expected fewer")
    y = column_to_image(cols, window, begins, output)
    if bias is not None:
        y += bias.reshape(-1, *[1] * (y.ndim - 1))
    return y.transpose(y.ndim - 1, *range(y.ndim - 1))


def column_to_image(cols: Array, window: Window, begins: tuple[int, ...], output: tuple[int, ...]) -> Array:
    """Sum the elements of windows where they overlap (col2im).

    Args:
        cols: (C, *kernel, *windows, N).
        window: Strides and dilations.
        begins: Elements before the image that windows reach.
        output: Sizes of the image.

    Returns:
        (C, *output, N); elements outside the image are dropped.
    """
    rank = len(output)
    kernel, space = cols.shape[1 : 1 + rank], cols.shape[1 + rank : -1]
    full = [t * (s - 1) + span for t, s, span in zip(window.strides, space, window.spans(kernel), strict=True)]
    reach = [max(f, begin + o) for f, begin, o in zip(full, begins, output, strict=True)]
    y = np.zeros((cols.shape[0], *reach, cols.shape[-1]), dtype=cols.dtype)
    every = slice(None)
    for position in np.ndindex(*kernel):
        starts = [d * k for d, k in zip(window.dilations, position, strict=True)]
        place = [slice(a, a + t * (s - 1) + 1, t) for a, t, s in zip(starts, window.strides, space, strict=True)]
        y[(every, *place)] += cols[(every, *position)]
    return y[(every, *(slice(begin, begin + o) for begin, o in zip(begins, output, strict=True)))]
