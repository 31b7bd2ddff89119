"""Third implementations: PyTorch, SciPy, or the formula of the specification written in NumPy, all in float64.

Each takes a drawn case and returns its outputs. They share no code with deep5.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from drawn_answers import Case

__all__ = ["THIRDS", "resized", "softmax", "third"]

Outputs = Sequence[Any]


def wide(value: Any) -> Any:
    if value is None or value.dtype.kind in "iubOUS":
        return value
    return value.astype(np.float64)


def inputs(case: Case, count: int) -> list[Any]:
    """The inputs of the node in float64; None for those left out."""
    given = [wide(each) if not isinstance(each, list) else each for each in case.drawn.inputs]
    return [*given, *[None] * (count - len(given))]


def rows(x: np.ndarray, function: Callable[[np.ndarray], np.ndarray], axis: int, since: int) -> np.ndarray:
    """A function along an axis; before opset 13, of the rows of the input as a matrix that begins at the axis."""
    if since >= 13:
        return np.moveaxis(function(np.moveaxis(x, axis, -1)), -1, axis)
    axis = axis % x.ndim
    flat = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    return function(flat).reshape(x.shape)


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True, initial=-np.inf)
    if not x.size:
        return shifted
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def first_largest(x: np.ndarray) -> np.ndarray:
    found = np.zeros_like(x)
    if x.size:
        np.put_along_axis(found, x.argmax(-1)[..., None], 1.0, -1)
    return found


def softmax(case: Case) -> Outputs:
    (x,) = inputs(case, 1)
    axis = case.attribute("axis", -1 if case.since >= 13 else 1)
    function = {"LogSoftmax": log_softmax, "Hardmax": first_largest}.get(
        case.operator, lambda x: np.exp(log_softmax(x))
    )
    return [rows(x, function, axis, case.since)]


def branch(case: Case) -> Outputs:
    """The bodies that the draw of If makes: a softmax from dimension 1 on, if any, and a new first dimension."""
    import onnx

    body = case.attribute("then_branch" if bool(case.drawn.inputs[0]) else "else_branch")
    start = next(a.t for node in body.node if node.op_type == "Constant" for a in node.attribute if a.t.dims)
    x = onnx.numpy_helper.to_array(start).astype(np.float64)
    if any(node.op_type == "Softmax" for node in body.node):
        x = rows(x, lambda x: np.exp(log_softmax(x)), 1, case.opset)
    return [x[None]]


def loop(case: Case) -> Outputs:
    """The body that the draw of Loop makes: the state grows by the sum of its softmax."""
    count, go, state = inputs(case, 3)
    sums = []
    for _ in range(int(count) if bool(go) else 0):
        total = rows(state, lambda x: np.exp(log_softmax(x)), 1, case.opset).sum()
        state = state + total
        sums.append(total)
    return [state, np.array(sums)]


def batch_norm(case: Case) -> Outputs:
    x, scale, bias, mean, var = inputs(case, 5)
    if case.drawn.training:
        axes = (0, *range(2, x.ndim))
        mean, var = x.mean(axes), x.var(axes)
    shape = [1, *scale.shape, *[1] * (x.ndim - 1 - scale.ndim)]
    scale, bias, mean, var = (each.reshape(shape) for each in (scale, bias, mean, var))
    return [(x - mean) / np.sqrt(var + float(np.float32(case.attribute("epsilon", 1e-5)))) * scale + bias]


def largest(case: Case) -> Outputs:
    x = case.drawn.inputs[0]
    return [x.max(tuple(range(2, x.ndim)), keepdims=True)]


def lp_normalization(case: Case) -> Outputs:
    (x,) = inputs(case, 1)
    axis, p = case.attribute("axis", -1), case.attribute("p", 2)
    norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return [np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)]


def response(case: Case) -> Outputs:
    (x,) = inputs(case, 1)
    size, channels = case.attribute("size"), x.shape[1]
    alpha, beta, bias = (
        float(np.float32(case.attribute(*each))) for each in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    total = np.zeros_like(x)
    for c in range(channels):
        begin, end = max(0, c - math.floor((size - 1) / 2)), min(channels - 1, c + math.ceil((size - 1) / 2))
        total[:, c] = (x[:, begin : end + 1] ** 2).sum(1)
    return [x / (bias + alpha / size * total) ** beta]


def reduction(case: Case) -> Outputs:
    x = case.drawn.inputs[0]
    axes = case.attribute("axes") if case.array(1) is None else case.array(1).tolist()
    if axes is None or not len(axes):
        axes = [] if case.attribute("noop_with_empty_axes", 0) else list(range(x.ndim))
    along, keep = tuple(axis % x.ndim for axis in axes), bool(case.attribute("keepdims", 1))
    name, y = case.operator.removeprefix("Reduce"), x.astype(np.float64) if x.dtype.kind in "fV" else x
    if name in ("Max", "Min") and x.dtype.kind != "b":
        kinds = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
        ends = (-np.inf, np.inf) if kinds is None else (kinds.min, kinds.max)
        function = np.maximum if name == "Max" else np.minimum
        return [function.reduce(y, axis=along, keepdims=keep, initial=ends[name == "Min"])]
    if name in ("Max", "Min"):
        return [np.any(x, along, keepdims=keep) if name == "Max" else np.all(x, along, keepdims=keep)]
    kept = {"axis": along, "keepdims": keep}
    if name == "Prod":
        return [np.prod(y, **kept)]
    if name == "Mean":
        return [np.sum(y, **kept) / math.prod(x.shape[axis] for axis in along)]
    if name in ("L1", "L2"):
        return [np.sum(np.abs(y), **kept) if name == "L1" else np.sqrt(np.sum(y * y, **kept))]
    if name == "SumSquare":
        return [np.sum(y * y, **kept)]
    if name == "LogSumExp":
        return [np.log(np.sum(np.exp(y), **kept))]
    return [np.log(np.sum(y, **kept)) if name == "LogSum" else np.sum(y, **kept)]


def transform(case: Case) -> Outputs:
    x, length, axis = inputs(case, 3)
    where = case.attribute("axis", 1) if case.since < 20 else -2 if axis is None else int(axis)
    z = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
    where %= x.ndim
    count = None if length is None else int(length)
    found = np.fft.ifft(z, count, where) if case.attribute("inverse", 0) else np.fft.fft(z, count, where)
    if case.attribute("onesided", 0):
        found = np.take(found, range(found.shape[where] // 2 + 1), where)
    return [np.stack([found.real, found.imag], -1)]


def short_time(case: Case) -> Outputs:
    signal, step, window, length = inputs(case, 4)
    x, step, size = signal[..., 0], int(step), int(length) if length is not None else len(window)
    frames = [x[:, at : at + size] * window for at in range(0, x.shape[1] - size + 1, step)]
    found = np.fft.fft(np.stack(frames, 1))
    if case.attribute("onesided", 1):
        found = found[..., : size // 2 + 1]
    return [np.stack([found.real, found.imag], -1)]


def inserted(case: Case) -> Outputs:
    items, x, place = (*case.drawn.inputs, None)[:3]
    found = list(items)
    found.insert(len(found) if place is None else int(place) + (len(found) if int(place) < 0 else 0), x)
    return [found]


def shape_of(case: Case) -> Outputs:
    x = case.drawn.inputs[0]
    start, end = case.attribute("start", 0), case.attribute("end")
    return [np.array(x.shape[start : x.ndim if end is None else end], np.int64)]


def slices(case: Case) -> Outputs:
    x, starts, ends, axes, steps = [*case.drawn.inputs, *[None] * 4][:5]
    if starts is None:
        starts, ends, axes = (case.attribute(name) for name in ("starts", "ends", "axes"))
    axes = range(len(starts)) if axes is None else axes
    strides = [1] * len(starts) if steps is None else [int(step) for step in steps]
    for start, end, axis, step in zip(starts, ends, axes, strides, strict=True):
        size = x.shape[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first = min(max(int(start) + (size if start < 0 else 0), 0), high)
        last = min(max(int(end) + (size if end < 0 else 0), low), size if step > 0 else size - 1)
        if case.since == 10 and step < 0 and end >= 2**31 - 1:
            last = -1  # there INT_MAX is the end of a dimension in either direction
        x = np.take(x, range(first, last, step), int(axis))
    return [x]


def unsqueeze(case: Case) -> Outputs:
    x, axes = [*case.drawn.inputs, None][:2]
    return [np.expand_dims(x, tuple(int(axis) for axis in (case.attribute("axes") if axes is None else axes)))]


def gather(case: Case) -> Outputs:
    x, indices = case.drawn.inputs
    return [np.take(x, indices, case.attribute("axis", 0))]


def erf(case: Case) -> Outputs:
    from scipy import special

    return [special.erf(inputs(case, 1)[0])]


def gelu(case: Case) -> Outputs:
    from scipy import special

    (x,) = inputs(case, 1)
    if case.attribute("approximate", "none") == "tanh":
        return [x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))]
    return [x / 2 * (1 + special.erf(x / math.sqrt(2)))]


def hard_swish(case: Case) -> Outputs:
    import torch

    return [torch.nn.functional.hardswish(torch.tensor(inputs(case, 1)[0])).numpy()]


def affine_grid(case: Case) -> Outputs:
    import torch

    theta, size = inputs(case, 2)
    align = bool(case.attribute("align_corners", 0))
    return [torch.nn.functional.affine_grid(torch.tensor(theta), size.tolist(), align_corners=align).numpy()]


def grid_sample(case: Case) -> Outputs:
    import torch

    x, grid = inputs(case, 2)
    mode = (
        case.attribute("mode", "bilinear")
        .replace("linear", "bilinear")
        .replace("bibi", "bi")
        .replace("cubic", "bicubic")
    )
    mode = mode.replace("bibi", "bi")
    settings = {"mode": mode, "padding_mode": case.attribute("padding_mode", "zeros")}
    align = bool(case.attribute("align_corners", 0))
    if mode == "nearest" and settings["padding_mode"] == "reflection":
        return [nearest_reflected(x, grid, align)]
    return [
        torch.nn.functional.grid_sample(torch.tensor(x), torch.tensor(grid), align_corners=align, **settings).numpy()
    ]


def nearest_reflected(x: np.ndarray, grid: np.ndarray, align: bool) -> np.ndarray:
    """The nearest index is reflected, as in ONNX's function; torch reflects the position, then rounds it."""
    places = []
    for size, position in zip(x.shape[2:], np.moveaxis(grid, -1, 0)[::-1], strict=True):
        at = np.rint((position + 1) / 2 * (size - 1) if align else ((position + 1) * size - 1) / 2).astype(np.int64)
        period = max(2 * (size - 1), 1) if align else 2 * size
        at %= period
        places.append(np.minimum(at, period - at if align else period - 1 - at))
    number = np.arange(len(x)).reshape(-1, *[1] * (grid.ndim - 2))
    return np.asarray(np.moveaxis(x[(number, slice(None), *places)], -1, 1))


def mean_variance(case: Case) -> Outputs:
    (x,) = inputs(case, 1)
    axes = tuple(case.attribute("axes", [0, 2, 3]))
    return [(x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)]


def one_hot(case: Case) -> Outputs:
    indices, depth, values = case.drawn.inputs
    depth, axis = int(np.ravel(depth)[0]), case.attribute("axis", -1)
    place = indices.astype(np.int64)
    inside = (place >= -depth) & (place < depth)
    hot = (np.arange(depth) == (place % depth)[..., None]) & inside[..., None]
    return [np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)]


# Geometry of windows, of the specification of the pools and convolutions.


def geometry(
    case: Case, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, padding at the start, and the output's sizes."""
    count = len(sizes)
    strides, dilations = case.attribute("strides", [1] * count), case.attribute("dilations", [1] * count)
    pads, auto = case.attribute("pads", [0] * 2 * count), case.attribute("auto_pad", "NOTSET")
    starts, goals = [], []
    for i, size in enumerate(sizes):
        extent = (kernel[i] - 1) * dilations[i] + 1
        if auto.startswith("SAME"):
            goal = -(-size // strides[i])
            total = max(0, (goal - 1) * strides[i] + extent - size)
            starts.append(total // 2 if auto == "SAME_UPPER" else -(-total // 2))
        else:
            left, right = (0, 0) if auto == "VALID" else (pads[i], pads[i + count])
            room = size + left + right - extent
            goal = (-(-room // strides[i]) if case.attribute("ceil_mode", 0) else room // strides[i]) + 1
            if case.attribute("ceil_mode", 0) and (goal - 1) * strides[i] >= size + left:
                goal -= 1  # a window that begins in the padding after the end is left out
            starts.append(left)
        goals.append(goal)
    return strides, dilations, starts, goals


def pool(case: Case) -> Outputs:
    (x,) = inputs(case, 1)
    kernel, sizes = case.attribute("kernel_shape"), x.shape[2:]
    strides, dilations, starts, goals = geometry(case, sizes, kernel)
    count = len(sizes)
    ends = case.attribute("pads", [0] * 2 * count)[count:]
    auto = case.attribute("auto_pad", "NOTSET")
    y, places = np.zeros((*x.shape[:2], *goals)), np.zeros((*x.shape[:2], *goals), np.int64)
    whole = np.arange(math.prod(x.shape)).reshape(x.shape)
    if case.attribute("storage_order", 0):
        per = math.prod(sizes)
        order = np.arange(per).reshape(sizes[::-1]).transpose()
        whole = (np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * count) * per) + order
    for at in np.ndindex(*goals):
        taps, padded = [], 1
        for i in range(count):
            first = at[i] * strides[i] - starts[i]
            line = [first + tap * dilations[i] for tap in range(kernel[i])]
            taps.append([place for place in line if 0 <= place < sizes[i]])
            last = sizes[i] + (ends[i] if auto == "NOTSET" else 10**6)
            padded *= sum(place < last for place in line)
        window = x[(slice(None), slice(None), *np.ix_(*taps))].reshape(*x.shape[:2], -1)
        where = (slice(None), slice(None), *at)
        if case.operator == "MaxPool":
            y[where] = window.max(-1)
            ids = whole[(slice(None), slice(None), *np.ix_(*taps))].reshape(*x.shape[:2], -1)
            places[where] = np.take_along_axis(ids, window.argmax(-1)[..., None], -1)[..., 0]
        elif case.operator == "LpPool":
            p = case.attribute("p", 2)
            y[where] = (np.abs(window) ** p).sum(-1) ** (1 / p)
        else:
            y[where] = window.sum(-1) / (padded if case.attribute("count_include_pad", 0) else window.shape[-1])
    return [y, places][: case.drawn.outputs]


def convolved(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A convolution of numbers from which zero points are subtracted; padding is 0, and at least 0."""
    kernel, sizes, group = w.shape[2:], x.shape[2:], case.attribute("group", 1)
    strides, dilations, starts, goals = geometry(case, sizes, kernel)
    count = len(sizes)
    spans = [(goals[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 for i in range(count)]
    room = [(starts[i], max(0, spans[i] - starts[i] - sizes[i])) for i in range(count)]
    x = np.pad(x, [(0, 0), (0, 0), *room]).reshape(
        x.shape[0], group, -1, *[sum(room[i]) + sizes[i] for i in range(count)]
    )
    weights = w.reshape(group, -1, *w.shape[1:])
    y = np.zeros((x.shape[0], group, weights.shape[1], *goals), np.result_type(x, w))
    for tap in np.ndindex(*kernel):
        where = tuple(
            slice(tap[i] * dilations[i], tap[i] * dilations[i] + (goals[i] - 1) * strides[i] + 1, strides[i])
            for i in range(count)
        )
        part = x[(slice(None), slice(None), slice(None), *where)]
        y += np.einsum("ngi...,goi->ngo...", part, weights[(..., *tap)])
    return y.reshape(y.shape[0], -1, *goals)


def channels(value: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A scale or zero point of one axis, in the shape of an array of a rank."""
    return value.reshape(-1, *[1] * (rank - 1 - axis)) if value.ndim == 1 else value


def convolution(case: Case) -> Outputs:
    if case.operator == "Conv":
        x, w, b = inputs(case, 3)
    else:
        quantized, b = case.operator == "QLinearConv", None
        if quantized:
            x, scale, zero, w, factor, point, step, shift, b = inputs(case, 9)
        else:
            x, w, zero, point = inputs(case, 4)
        x = x.astype(np.int64) - (0 if zero is None else channels(zero.astype(np.int64), 1, x.ndim))
        w = w.astype(np.int64) - (0 if point is None else channels(point.astype(np.int64), 0, w.ndim))
    y = convolved(case, x, w)
    y = y if b is None else y + b.reshape(1, -1, *[1] * (y.ndim - 2))
    if case.operator == "QLinearConv":
        ends = np.iinfo(shift.dtype)
        y = np.rint(y * (scale * channels(factor, 1, y.ndim) / step)) + shift
        return [np.clip(y, ends.min, ends.max)]
    return [y]


def quantized_product(case: Case) -> Outputs:
    """Products and sums in 64-bit integers; zero points and scales of rows, columns, or everything."""
    if case.operator == "MatMulInteger":
        a, b, zero, point = inputs(case, 4)
    else:
        a, scale, zero, b, factor, point, step, shift = inputs(case, 8)

    def of_rows(value: np.ndarray) -> np.ndarray:
        return value[:, None] if value.ndim == 1 else value

    a = a.astype(np.int64) - (0 if zero is None else of_rows(zero.astype(np.int64)))
    y = a @ (b.astype(np.int64) - (0 if point is None else point.astype(np.int64)))
    if case.operator == "MatMulInteger":
        return [y]
    ends = np.iinfo(shift.dtype)
    return [np.clip(np.rint(y * (of_rows(scale) * factor / step)) + shift, ends.min, ends.max)]


def product(case: Case) -> Outputs:
    return [np.matmul(*inputs(case, 2))]


def transposed(case: Case) -> Outputs | None:
    x, w, b = inputs(case, 3)
    kernel, sizes, group = w.shape[2:], x.shape[2:], case.attribute("group", 1)
    count = len(sizes)
    ones = [1] * count
    strides, dilations = case.attribute("strides", ones), case.attribute("dilations", ones)
    extra, auto = case.attribute("output_padding", [0] * count), case.attribute("auto_pad", "NOTSET")
    pads = case.attribute("pads", [0] * 2 * count)
    full = [strides[i] * (sizes[i] - 1) + (kernel[i] - 1) * dilations[i] + 1 for i in range(count)]
    per = w.shape[1]
    y = np.zeros((x.shape[0], per * group, *full))
    xs = x.reshape(x.shape[0], group, -1, *sizes)
    ws = w.reshape(group, -1, *w.shape[1:])
    for tap in np.ndindex(*kernel):
        part = np.einsum("ngi...,gio->ngo...", xs, ws[(..., *tap)]).reshape(x.shape[0], per * group, *sizes)
        where = tuple(
            slice(tap[i] * dilations[i], tap[i] * dilations[i] + strides[i] * (sizes[i] - 1) + 1, strides[i])
            for i in range(count)
        )
        y[(slice(None), slice(None), *where)] += part
    goal_shape = case.attribute("output_shape")
    for i in range(count):
        if goal_shape is not None or auto.startswith("SAME"):
            goal = goal_shape[i] if goal_shape is not None else sizes[i] * strides[i]
            total = full[i] + extra[i] - goal
            # Padding is at least 0: elements that are missing are at the end.
            total = max(total, 0)
            start = total // 2 if auto == "SAME_UPPER" else total - total // 2
        else:
            start, end = (0, 0) if auto == "VALID" else (pads[i], pads[i + count])
            goal = full[i] + extra[i] - start - end
        room = [(0, 0)] * y.ndim
        room[2 + i] = (max(0, -start), max(0, start + goal - full[i]))
        y = np.pad(y, room)
        y = np.take(y, range(start + max(0, -start), start + max(0, -start) + goal), 2 + i)
    return [y if b is None else y + b.reshape(1, -1, *ones)]


# Recurrent layers, from their equations.


def activation(name: str, alphas: list[float], betas: list[float]) -> Callable[[np.ndarray], np.ndarray]:
    def taken(given: list[float], default: float) -> float:
        return float(np.float32(given.pop(0))) if given else float(np.float32(default))

    plain: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "Relu": lambda x: np.maximum(x, 0),
        "Tanh": np.tanh,
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "Softsign": lambda x: x / (1 + np.abs(x)),
        "Softplus": lambda x: np.logaddexp(x, 0),
    }
    if name in plain:
        return plain[name]
    a = taken(alphas, {"HardSigmoid": 0.2, "LeakyRelu": 0.01}.get(name, 1.0))
    if name in ("LeakyRelu", "ThresholdedRelu", "Elu"):
        return {
            "LeakyRelu": lambda x: np.where(x >= 0, x, a * x),
            "ThresholdedRelu": lambda x: np.where(x >= a, x, 0),
            "Elu": lambda x: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
        }[name]
    b = taken(betas, {"ScaledTanh": 1.0, "HardSigmoid": 0.5}.get(name, 0.0))
    return {
        "Affine": lambda x: a * x + b,
        "ScaledTanh": lambda x: a * np.tanh(b * x),
        "HardSigmoid": lambda x: np.minimum(np.maximum(a * x + b, 0), 1),
    }[name]


def recurrent(case: Case) -> Outputs:
    x, w, r, bias, lengths, h0, c0, peep = inputs(case, 8)
    kind = case.operator
    if case.attribute("layout", 0):
        x = x.swapaxes(0, 1)
        h0, c0 = (None if each is None else each.swapaxes(0, 1) for each in (h0, c0))
    steps, batch, _ = x.shape
    ways, size = r.shape[0], r.shape[2]
    names = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[kind]
    chosen = case.attribute("activations", names * ways)
    alphas, betas = (list(case.attribute(f"activation_{each}", [])) for each in ("alpha", "beta"))
    plain = [activation(name, alphas, betas) for name in chosen]
    clip = case.attribute("clip")

    def clipped(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        bound = math.inf if clip is None else float(np.float32(clip))
        return lambda z: function(np.clip(z, -bound, bound))

    functions = [clipped(each) for each in plain]
    y = np.zeros((steps, ways, batch, size))
    ends, cells = np.zeros((2, ways, batch, size))
    for way in range(ways):
        f, *more = functions[len(names) * way : len(names) * (way + 1)]
        wb, rb = (0.0, 0.0) if bias is None else np.split(bias[way], 2)
        ps = (0.0, 0.0, 0.0) if peep is None else np.split(peep[way], 3)
        for n in range(batch):
            count = steps if lengths is None else int(lengths[n])
            h = np.zeros(size) if h0 is None else h0[way, n]
            c = np.zeros(size) if c0 is None else c0[way, n]
            back = way == 1 or case.attribute("direction", "forward") == "reverse"
            for t in reversed(range(count)) if back else range(count):
                if kind == "RNN":
                    h = f(w[way] @ x[t, n] + r[way] @ h + wb + rb)
                elif kind == "GRU":
                    wz, wr, wh = np.split(w[way] @ x[t, n] + wb, 3)
                    rz, rr, rh = np.split(r[way], 3)
                    bz, br, bh = np.split(np.broadcast_to(rb, 3 * size), 3)
                    z, reset = f(wz + rz @ h + bz), f(wr + rr @ h + br)
                    inner = reset * (rh @ h + bh) if case.attribute("linear_before_reset", 0) else rh @ (reset * h) + bh
                    h = (1 - z) * more[0](wh + inner) + z * h
                else:
                    i, o, g, k = np.split(w[way] @ x[t, n] + r[way] @ h + wb + rb, 4)
                    i = f(i + ps[0] * c)
                    g = 1 - i if case.attribute("input_forget", 0) else f(g + ps[2] * c)
                    c = g * c + i * more[0](k)
                    h = f(o + ps[1] * c) * more[1](c)
                y[t, way, n] = h
            ends[way, n], cells[way, n] = h, c
    if case.attribute("layout", 0):
        y, ends, cells = y.transpose(2, 0, 1, 3), ends.swapaxes(0, 1), cells.swapaxes(0, 1)
    return [y, ends, cells][: case.drawn.outputs]


# Resize, from the formulas of its coordinates and filters.


class Axis(NamedTuple):
    """A dimension that is resized.

    Attributes:
        axis: Which one.
        size: Its size.
        goal: Its new size.
        ratio: The scale.
        by_scale: Whether the scale is given, and not the size.
        places: The coordinate in the input of each new element.
        cropped: Whether coordinates outside the input have the extrapolation value.
    """

    axis: int
    size: int
    goal: int
    ratio: float
    by_scale: bool
    places: list[float]
    cropped: bool


def resized(case: Case) -> list[Axis]:
    """The dimensions that a Resize or Upsample changes."""
    x, roi, scales, sizes = inputs(case, 4)
    if case.operator == "Upsample" or case.since < 11:
        scales = roi if roi is not None else np.array(case.attribute("scales"), np.float32)
        roi = sizes = None
    rank = x.ndim
    scales = None if scales is None or not scales.size else scales
    axes = [axis % rank for axis in case.attribute("axes", range(rank))]
    policy = case.attribute("keep_aspect_ratio_policy", "stretch")
    rule = case.attribute("coordinate_transformation_mode", "asymmetric" if case.since < 11 else "half_pixel")
    ratios = None
    if scales is None:
        ratios = [int(size) / x.shape[axis] for size, axis in zip(sizes, axes, strict=True)]
        if policy != "stretch":
            ratios = [(min if policy == "not_larger" else max)(ratios)] * len(axes)
    found = []
    for index, axis in enumerate(axes):
        size = x.shape[axis]
        ratio = float(scales[index]) if ratios is None else ratios[index]
        low, high = 0.0, 1.0
        if roi is not None and roi.size and rule == "tf_crop_and_resize":
            low, high = float(roi[index]), float(roi[index + len(axes)])
        if scales is not None:
            goal = math.floor(np.float32(size) * np.float32(ratio))
        else:
            goal = int(sizes[index]) if policy == "stretch" else math.floor(ratio * size + 0.5)
        places = [_place(rule, at, size, goal, ratio, low, high) for at in range(goal)]
        found.append(Axis(axis, size, goal, ratio, scales is not None, places, rule == "tf_crop_and_resize"))
    return found


def _place(rule: str, at: int, size: int, goal: int, ratio: float, low: float, high: float) -> float:
    """The coordinate in the input of a new element."""
    if rule == "half_pixel":
        return (at + 0.5) / ratio - 0.5
    if rule == "half_pixel_symmetric":
        return size / 2 * (1 - goal / (ratio * size)) + (at + 0.5) / ratio - 0.5
    if rule == "pytorch_half_pixel":
        return (at + 0.5) / ratio - 0.5 if goal > 1 else 0.0
    if rule == "align_corners":
        return at * (size - 1) / (ratio * size - 1) if ratio * size != 1 else 0.0
    if rule == "tf_half_pixel_for_nn":
        return (at + 0.5) / ratio
    if rule == "tf_crop_and_resize":
        step = (high - low) * (size - 1) / (goal - 1) if goal > 1 else 0.0
        return low * (size - 1) + at * step if goal > 1 else 0.5 * (low + high) * (size - 1)
    return at / ratio


def resize(case: Case) -> Outputs:
    x = y = inputs(case, 1)[0]
    outside = np.zeros((1,) * x.ndim, bool)
    for axis, size, goal, ratio, _, places, cropped in resized(case):
        weights = np.array([line(case, place, size, ratio, case.since < 11) for place in places]).reshape(goal, size)
        y = np.moveaxis(np.tensordot(weights, np.moveaxis(y, axis, 0), 1), 0, axis)
        gone = [cropped and not -1e-9 <= place <= size - 1 + 1e-9 for place in places]
        shape = [1] * x.ndim
        shape[axis] = goal
        outside = outside | np.array(gone, bool).reshape(shape)
    return [np.where(outside, float(np.float32(case.attribute("extrapolation_value", 0.0))), y)]


def line(case: Case, place: float, size: int, ratio: float, old: bool) -> np.ndarray:
    """The weights of an axis' elements for one output coordinate."""
    weights = np.zeros(size)
    mode = case.attribute("mode", "nearest")
    if mode == "nearest":
        rule = case.attribute("nearest_mode", "round_prefer_floor")
        if old:
            rule = "ceil" if ratio < 1 else "floor"
        middle = round(2 * place) / 2
        if abs(place - middle) <= 2.0**-22 * max(1.0, abs(place)):
            place = middle  # scales are float32: positions so close to a tie are one
        found = {
            "floor": math.floor(place),
            "ceil": math.ceil(place),
            "round_prefer_floor": math.ceil(place - 0.5),
            "round_prefer_ceil": math.floor(place + 0.5),
        }[rule]
        weights[min(max(found, 0), size - 1)] = 1
        return weights
    a = float(np.float32(case.attribute("cubic_coeff_a", -0.75)))
    reach = 1 if mode == "linear" else 2
    stretch = min(ratio, 1.0) if case.attribute("antialias", 0) else 1.0

    def kernel(t: float) -> float:
        t = abs(t)
        if mode == "linear":
            return max(0.0, 1 - t)
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0

    first, last = math.floor(place - reach / stretch), math.ceil(place + reach / stretch)
    taps = [(each, kernel((each - place) * stretch)) for each in range(first, last + 1)]
    if case.attribute("exclude_outside", 0):
        taps = [(each, weight) for each, weight in taps if 0 <= each < size]
    total = math.fsum(weight for _, weight in taps)
    for each, weight in taps:
        weights[min(max(each, 0), size - 1)] += weight / total
    return weights


def region_align(case: Case) -> Outputs:
    x, rois, batches = inputs(case, 3)
    height, width = case.attribute("output_height", 1), case.attribute("output_width", 1)
    ratio, scale = case.attribute("sampling_ratio", 0), float(np.float32(case.attribute("spatial_scale", 1.0)))
    half = case.attribute("coordinate_transformation_mode", "half_pixel" if case.since >= 16 else "output_half_pixel")
    shift = 0.5 if half == "half_pixel" else 0.0
    y = np.zeros((len(rois), x.shape[1], height, width))
    for index, (x1, y1, x2, y2) in enumerate(rois * scale - shift):
        w, h = x2 - x1, y2 - y1
        if half != "half_pixel":
            w, h = max(w, 1.0), max(h, 1.0)
        counts = [ratio or math.ceil(h / height), ratio or math.ceil(w / width)]
        for i, j in itertools.product(range(height), range(width)):
            values = []
            for a, b in itertools.product(range(counts[0]), range(counts[1])):
                row = y1 + (i + (a + 0.5) / counts[0]) * h / height
                column = x1 + (j + (b + 0.5) / counts[1]) * w / width
                values.append(bilinear(x[batches[index]], row, column, case.attribute("mode", "avg") == "max"))
            points = np.array(values).reshape(-1, x.shape[1])
            if len(points):
                y[index, :, i, j] = points.max(0) if case.attribute("mode", "avg") == "max" else points.mean(0)
    return [y]


def bilinear(image: np.ndarray, row: float, column: float, most: bool) -> np.ndarray:
    """A point of an image; with `most` the largest of the four weighted corners, as ONNX's test vector has it."""
    h, w = image.shape[1:]
    if row < -1 or row > h or column < -1 or column > w:
        return np.zeros(image.shape[0])
    row, column = max(row, 0.0), max(column, 0.0)
    top, left = min(int(row), h - 1), min(int(column), w - 1)
    row, column = min(row, h - 1), min(column, w - 1)
    bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
    u, v = row - top, column - left
    sides = ((top, 1 - u), (bottom, u)), ((left, 1 - v), (right, v))
    parts = [wr * wc * image[:, r, c] for (r, wr), (c, wc) in itertools.product(*sides)]
    return np.max(parts, 0) if most else np.sum(parts, 0)


def deformed(case: Case) -> Outputs:
    x, w, offset, b, mask = inputs(case, 5)
    n, _, h, width = x.shape
    kernel, taps = w.shape[2:], w.shape[2] * w.shape[3]
    group, fields = case.attribute("group", 1), case.attribute("offset_group", 1)
    strides, dilations = case.attribute("strides", [1, 1]), case.attribute("dilations", [1, 1])
    pads = case.attribute("pads", [0] * 4)
    rows_, columns = offset.shape[2:]
    offset = offset.reshape(n, fields, taps, 2, rows_, columns)
    mask = np.ones((n, fields, taps, rows_, columns)) if mask is None else mask.reshape(n, fields, taps, rows_, columns)
    per = x.shape[1] // fields
    samples = np.zeros((n, x.shape[1], taps, rows_, columns))
    for at in np.ndindex(n, fields, taps, rows_, columns):
        batch, field, tap, i, j = at
        row = i * strides[0] - pads[0] + (tap // kernel[1]) * dilations[0] + offset[batch, field, tap, 0, i, j]
        column = j * strides[1] - pads[1] + (tap % kernel[1]) * dilations[1] + offset[batch, field, tap, 1, i, j]
        found = 0.0
        top, left = math.floor(row), math.floor(column)
        for r, c in itertools.product((top, top + 1), (left, left + 1)):
            if 0 <= r < h and 0 <= c < width:
                weight = (1 - abs(row - r)) * (1 - abs(column - c))
                found = found + weight * x[batch, field * per : (field + 1) * per, r, c]
        samples[batch, field * per : (field + 1) * per, tap, i, j] = found * mask[at]
    parts = samples.reshape(n, group, -1, taps, rows_, columns)
    weights = w.reshape(group, -1, w.shape[1], taps)
    y = np.einsum("ngctij,goct->ngoij", parts, weights).reshape(n, -1, rows_, columns)
    return [y if b is None else y + b.reshape(1, -1, 1, 1)]


def padded(case: Case) -> Outputs | None:
    x, pads, value, axes = [*case.drawn.inputs, *[None] * 3][:4]
    mode = case.attribute("mode", "constant")
    if case.since < 11:
        pads, value = np.array(case.attribute("pads")), np.array(np.float32(case.attribute("value", 0.0)), x.dtype)
    if value is None:
        value = np.array("" if x.dtype.kind == "O" else 0, x.dtype)
    widths = np.zeros((x.ndim, 2), int)
    for at, axis in enumerate(range(x.ndim) if axes is None else axes):
        widths[axis] = pads[at], pads[at + len(pads) // 2]
    kept = x[
        tuple(slice(max(0, -left), size + min(0, right)) for (left, right), size in zip(widths, x.shape, strict=True))
    ]
    grown = np.maximum(widths, 0)
    if mode == "constant":
        return [np.pad(kept, grown, constant_values=value[()] if value.ndim == 0 else value.ravel()[0])]
    return [np.pad(kept, grown, mode=mode)]


def loss(case: Case) -> Outputs:
    x, labels, weight = inputs(case, 3)
    scores = np.moveaxis(x, 1, -1)
    if case.operator == "SoftmaxCrossEntropyLoss":
        scores = log_softmax(scores)
    ignored, depth = case.attribute("ignore_index"), x.shape[1]
    counts = np.ones(labels.shape) if ignored is None else (labels != ignored).astype(float)
    place = np.where(counts > 0, labels, 0)
    factors = counts * (1.0 if weight is None else weight[place])
    each = -factors * np.take_along_axis(scores, place[..., None] % depth, -1)[..., 0]
    how = case.attribute("reduction", "mean")
    total = each if how == "none" else each.sum() / (factors.sum() if how == "mean" else 1)
    return [total, np.moveaxis(scores, -1, 1)][: case.drawn.outputs]


def columns(case: Case) -> Outputs:
    x, image, block = inputs(case, 3)
    count, kernel = len(block), [int(size) for size in block]
    ones = [1] * count
    strides, dilations = case.attribute("strides", ones), case.attribute("dilations", ones)
    pads = case.attribute("pads", [0] * 2 * count)
    full = [int(image[i]) + pads[i] + pads[count + i] for i in range(count)]
    steps = [(full[i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(count)]
    parts = x.reshape(x.shape[0], -1, *kernel, *steps)
    y = np.zeros((x.shape[0], parts.shape[1], *full))
    for tap in np.ndindex(*kernel):
        where = tuple(
            slice(tap[i] * dilations[i], tap[i] * dilations[i] + strides[i] * (steps[i] - 1) + 1, strides[i])
            for i in range(count)
        )
        y[(slice(None), slice(None), *where)] += parts[(slice(None), slice(None), *tap)]
    kept = tuple(slice(pads[i], pads[i] + int(image[i])) for i in range(count))
    return [y[(slice(None), slice(None), *kept)]]


def unique(case: Case) -> Outputs:
    x, axis = case.drawn.inputs[0], case.attribute("axis")
    keys = [(each,) for each in x.ravel().tolist()]
    if axis is not None:
        keys = [tuple(np.ravel(part).tolist()) for part in np.moveaxis(x, axis, 0)]
    first: dict[tuple[Any, ...], int] = {}
    for place, key in enumerate(keys):
        first.setdefault(key, place)
    order = sorted(first) if case.attribute("sorted", 1) else list(first)
    at = np.array([first[key] for key in order], np.int64)
    y = x.ravel()[at] if axis is None else np.take(x, at, axis)
    back = np.array([order.index(key) for key in keys], np.int64)
    return [y, at, back, np.bincount(back, minlength=len(order)).astype(np.int64)]


def global_power(case: Case) -> Outputs:
    (x,) = inputs(case, 1)
    p = case.attribute("p", 2)
    return [(np.abs(x) ** p).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)]


def attention(case: Case) -> Outputs | None:
    q, k, v, mask, past_k, past_v, lengths = inputs(case, 7)
    if lengths is not None:
        return None
    flat = q.ndim == 3
    if flat:
        heads, kv = case.attribute("q_num_heads"), case.attribute("kv_num_heads")
        q, k, v = (
            each.reshape(*each.shape[:2], count, -1).swapaxes(1, 2) for each, count in ((q, heads), (k, kv), (v, kv))
        )
    if past_k is not None:
        k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    before = 0 if past_k is None else past_k.shape[2]
    presents, per = [k, v], q.shape[1] // k.shape[1]
    k, v = np.repeat(k, per, 1), np.repeat(v, per, 1)
    scale = case.attribute("scale")
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else float(np.float32(scale)))
    softcap = case.attribute("softcap", 0.0)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if case.attribute("is_causal", 0):
        rows_ = np.arange(scores.shape[-2])[:, None] + before
        scores = np.where(np.arange(scores.shape[-1]) <= rows_, scores, -np.inf)
    y = np.exp(log_softmax(scores)) @ v
    if flat:
        y = y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)
    return [y, *presents][: case.drawn.outputs]


THIRDS: dict[str, Callable[[Case], Outputs | None]] = {
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), softmax),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), pool),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), convolution),
    **dict.fromkeys(("MatMulInteger", "QLinearMatMul"), quantized_product),
    **dict.fromkeys(("Resize", "Upsample"), resize),
    **{
        f"Reduce{name}": reduction
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
    "AffineGrid": affine_grid,
    "Attention": attention,
    "BatchNormalization": batch_norm,
    "Col2Im": columns,
    "ConvTranspose": transposed,
    "DeformConv": deformed,
    "DFT": transform,
    "Erf": erf,
    "Gather": gather,
    "Gelu": gelu,
    "GlobalLpPool": global_power,
    "GlobalMaxPool": largest,
    "GridSample": grid_sample,
    "HardSwish": hard_swish,
    "If": branch,
    "LRN": response,
    "Loop": loop,
    "LpNormalization": lp_normalization,
    "MatMul": product,
    "MeanVarianceNormalization": mean_variance,
    "NegativeLogLikelihoodLoss": loss,
    "OneHot": one_hot,
    "Pad": padded,
    "SoftmaxCrossEntropyLoss": loss,
    "RoiAlign": region_align,
    "STFT": short_time,
    "SequenceInsert": inserted,
    "Shape": shape_of,
    "Slice": slices,
    "Unique": unique,
    "Unsqueeze": unsqueeze,
}


def third(case: Case) -> Outputs | None:
    """The outputs of a third implementation, in float64; None where there is none."""
    function = THIRDS.get(case.operator)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return None if function is None else function(case)
    except (NotImplementedError, RuntimeError):  # PyTorch has no such function
        return None
