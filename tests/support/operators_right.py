"""Correct operators in Python, with valid inputs: no check may refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.errors import ShapeError

RNG = np.random.default_rng(0)
Specs = tuple[d5.TensorSpec, ...]


class IPow(d5.Operator):
    def __init__(self, power: int) -> None:
        self.power = power

    def specs(self, x: d5.TensorSpec) -> Specs:  # type: ignore[override]
        return (x,)

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return x**self.power

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self.power * inputs[0] ** (self.power - 1) * output_grads[0],)


class MatMul(d5.Operator):
    def specs(self, a: d5.TensorSpec, b: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
            raise ShapeError(f"MatMul: got {a} and {b}; allowed: (m, k) and (k, n)")
        return (d5.TensorSpec(shape=(a.shape[0], b.shape[1]), dtype=a.dtype),)

    def forward(self, a: Any, b: Any) -> Any:  # type: ignore[override]
        return a @ b

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (a, b), (dy,) = inputs, output_grads
        return dy @ b.T if needs[0] else None, a.T @ dy if needs[1] else None


class Softmax(IPow):
    def __init__(self) -> None:
        pass

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        xp = d5.array_namespace(x)
        powers = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return powers / xp.sum(powers, axis=-1, keepdims=True, dtype=x.dtype)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp, (y,), (dy,) = d5.array_namespace(*inputs), outputs, output_grads
        return (y * (dy - xp.sum(dy * y, axis=-1, keepdims=True, dtype=y.dtype)),)


class Sum(d5.Operator):
    def specs(self, x: d5.TensorSpec) -> Specs:  # type: ignore[override]
        return (d5.TensorSpec(shape=(), dtype=x.dtype),)

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return d5.array_namespace(x).sum(x, dtype=x.dtype)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (d5.array_namespace(*inputs).zeros_like(inputs[0]) + output_grads[0],)


class Polar(d5.Operator):
    def specs(self, x: d5.TensorSpec, y: d5.TensorSpec) -> Specs:  # type: ignore[override]
        return x, y

    def forward(self, x: Any, y: Any) -> Any:  # type: ignore[override]
        xp = d5.array_namespace(x, y)
        return xp.sqrt(x * x + y * y), xp.atan2(y, x)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, y), (radius, _), (by_radius, by_angle) = inputs, outputs, output_grads
        by_x = by_radius * x / radius - by_angle * y / (radius * radius)
        by_y = by_radius * y / radius + by_angle * x / (radius * radius)
        return by_x if needs[0] else None, by_y if needs[1] else None


class Unary(IPow):
    """A function of the array standard and its derivative, of x and y."""

    def __init__(self, name: str, derivative: Callable[[Any, Any], Any]) -> None:
        self.title, self.derivative = name, derivative

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return getattr(d5.array_namespace(x), self.title)(x)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self.derivative(inputs[0], outputs[0]) * output_grads[0],)


class LayerNorm(d5.Operator):
    def specs(self, x: d5.TensorSpec, w: d5.TensorSpec, b: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if not x.shape or w.shape != x.shape[-1:] or b.shape != w.shape:
            raise ShapeError(f"LayerNorm: got {x}, {w}, {b}; allowed: weights of the last axis")
        return (x,)

    def _normal(self, x: Any) -> tuple[Any, Any]:
        xp = d5.array_namespace(x)
        off = x - xp.mean(x, axis=-1, keepdims=True)
        scale = 1 / xp.sqrt(xp.mean(off * off, axis=-1, keepdims=True) + 1e-3)
        return off * scale, scale

    def forward(self, x: Any, w: Any, b: Any) -> Any:  # type: ignore[override]
        return self._normal(x)[0] * w + b

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, w, _), (dy,) = inputs, output_grads
        xp, (normal, scale), dn = d5.array_namespace(x), self._normal(x), dy * w
        mean = xp.mean(dn, axis=-1, keepdims=True) + normal * xp.mean(dn * normal, axis=-1, keepdims=True)
        axes = tuple(range(x.ndim - 1))
        by_w, by_b = (xp.sum(value, axis=axes, dtype=x.dtype) for value in (dy * normal, dy))
        return scale * (dn - mean), by_w, by_b


class Max(d5.Operator):
    def specs(self, x: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if not x.shape:
            raise ShapeError(f"Max: got {x}; allowed: at least one axis")
        return (d5.TensorSpec(shape=x.shape[:-1], dtype=x.dtype),)

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return d5.array_namespace(x).max(x, axis=-1)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp, (x,) = d5.array_namespace(*inputs), inputs
        first = xp.astype(x == outputs[0][..., None], x.dtype)
        return (first / xp.sum(first, axis=-1, keepdims=True, dtype=x.dtype) * output_grads[0][..., None],)


class Median(Max):
    """The upper one of the middle elements; at more than two equal ones it has no gradient."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return d5.array_namespace(x).sort(x, axis=-1)[..., x.shape[-1] // 2]


class RootMeanSquareNorm(d5.Operator):
    """Of one element its gradient is all that remains of two terms of the size of 1 / x."""

    def specs(self, x: d5.TensorSpec, w: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if not x.shape or w.shape != x.shape[-1:]:
            raise ShapeError(f"RootMeanSquareNorm: got {x}, {w}; allowed: weights of the last axis")
        return (x,)

    def _size(self, x: Any) -> Any:
        xp = d5.array_namespace(x)
        return xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    def forward(self, x: Any, w: Any) -> Any:  # type: ignore[override]
        return x / self._size(x) * w

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, w), size = inputs, self._size(inputs[0])
        xp, dn = d5.array_namespace(x), output_grads[0] * w
        by_w = xp.sum(output_grads[0] * x / size, axis=tuple(range(x.ndim - 1)), dtype=x.dtype)
        return (dn - x * xp.mean(dn * x, axis=-1, keepdims=True) / size**2) / size, by_w


class Cosine(d5.Operator):
    """The cosine of the angle between vectors; of one element it is a sign, and its gradient what rounding leaves."""

    def specs(self, x: d5.TensorSpec, y: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if not x.shape or x.shape != y.shape:
            raise ShapeError(f"Cosine: got {x}, {y}; allowed: two of one shape with at least one axis")
        return (d5.TensorSpec(shape=x.shape[:-1], dtype=x.dtype),)

    def _lengths(self, x: Any, y: Any) -> list[Any]:
        xp = d5.array_namespace(x)
        return [xp.sqrt(xp.sum(each * each, axis=-1, keepdims=True, dtype=x.dtype)) for each in (x, y)]

    def forward(self, x: Any, y: Any) -> Any:  # type: ignore[override]
        first, second = self._lengths(x, y)
        return d5.array_namespace(x).sum(x / first * (y / second), axis=-1, dtype=x.dtype)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, y), cosine, dy = inputs, outputs[0][..., None], output_grads[0][..., None]
        first, second = self._lengths(x, y)
        return tuple(
            dy * (other / (first * second) - cosine * own / length**2)
            for own, other, length in ((x, y, first), (y, x, second))
        )


class ReLU(IPow):
    def __init__(self) -> None:
        pass

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        xp = d5.array_namespace(x)
        return xp.maximum(x, xp.zeros_like(x))

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp, (dy,) = d5.array_namespace(*inputs), output_grads
        return (xp.where(inputs[0] > 0, dy, xp.zeros_like(dy)),)


class Gather(d5.Operator):
    def specs(self, x: d5.TensorSpec, rows: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if len(x.shape) != 2 or len(rows.shape) != 1:
            raise ShapeError(f"Gather: got {x} and {rows}; allowed: two axes and one")
        return (d5.TensorSpec(shape=(rows.shape[0], x.shape[1]), dtype=x.dtype),)

    def forward(self, x: Any, rows: Any) -> Any:  # type: ignore[override]
        return d5.array_namespace(x, rows).take(x, rows, axis=0)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        x, rows = inputs
        xp = d5.array_namespace(x, rows)
        taken = xp.astype(xp.arange(x.shape[0], dtype=rows.dtype)[:, None] == rows[None, :], x.dtype)
        return taken @ output_grads[0], None


class Conv(d5.Operator):
    """Images and filters of several channels, without padding, by shifted sums."""

    def specs(self, x: d5.TensorSpec, w: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if len(x.shape) != 4 or len(w.shape) != 4 or x.shape[1] != w.shape[1]:
            raise ShapeError(f"Conv: got {x} and {w}; allowed: four axes each, and the same channels")
        extents = [max(int(a) - int(b) + 1, 0) for a, b in zip(x.shape[2:], w.shape[2:], strict=True)]
        return (d5.TensorSpec(shape=(x.shape[0], w.shape[0], *extents), dtype=x.dtype),)

    def _parts(self, x: Any, w: Any) -> Any:
        height, width = (x.shape[axis] - w.shape[axis] + 1 for axis in (2, 3))
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                yield i, j, (slice(None), slice(None), slice(i, i + height), slice(j, j + width))

    def forward(self, x: Any, w: Any) -> Any:  # type: ignore[override]
        xp, (out,) = d5.array_namespace(x, w), self.specs(*(d5.TensorSpec(shape=v.shape) for v in (x, w)))
        y = xp.zeros(out.shape, dtype=x.dtype)
        for i, j, part in self._parts(x, w):
            y = y + xp.sum(x[part][:, None, ...] * w[None, :, :, i, j, None, None], axis=2, dtype=x.dtype)
        return y

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, w), (dy,) = inputs, output_grads
        xp = d5.array_namespace(x, w)
        dx, dw = xp.zeros_like(x), xp.zeros_like(w)
        for i, j, part in self._parts(x, w):
            dx[part] += xp.sum(dy[:, :, None, ...] * w[None, :, :, i, j, None, None], axis=1, dtype=x.dtype)
            dw[:, :, i, j] = xp.sum(dy[:, :, None, ...] * x[part][:, None, ...], axis=(0, 3, 4), dtype=x.dtype)
        return dx, dw


class SquaresAndPlaces(Max):
    """Sums of squares, and the position of the largest element: an output that has no gradient."""

    def specs(self, x: d5.TensorSpec) -> Specs:
        (out,) = super().specs(x)
        return out, d5.TensorSpec(shape=out.shape, dtype="int64")

    def forward(self, x: Any) -> Any:
        xp = d5.array_namespace(x)
        return xp.sum(x * x, axis=-1, dtype=x.dtype), xp.argmax(x, axis=-1)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * inputs[0] * output_grads[0][..., None],)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def constant(seed: int, *shape: int) -> np.ndarray:
    """Normal numbers independent of earlier draws: for modules that draw when they load."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,kcij->nkhw", windows, w)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


LOG = Unary("log", lambda x, y: 1 / x)
TANH = Unary("tanh", lambda x, y: 1 - y * y)

RIGHT: dict[str, tuple[d5.Operator, list[np.ndarray], Callable[..., Any] | None]] = {
    "power": (IPow(3), [normal(3, 4)], lambda x: x * x * x),
    "high power": (IPow(7), [normal(5)], None),
    "matrix product": (MatMul(), [normal(5, 7), normal(7, 4)], lambda a, b: a @ b),
    "large matrix product": (MatMul(), [normal(64, 200), normal(200, 30)], None),
    "softmax": (Softmax(), [normal(4, 6)], _softmax),
    "steep softmax": (Softmax(), [normal(32, 50) * 3], None),
    "sum": (Sum(), [normal(6, 5)], lambda x: x.sum()),
    "large sum": (Sum(), [normal(60, 50)], None),
    "polar": (Polar(), [normal(3, 5), normal(3, 5)], lambda x, y: (np.hypot(x, y), np.arctan2(y, x))),
    "logarithm": (LOG, [np.abs(normal(4, 4))], np.log),
    "large logarithm": (LOG, [np.abs(normal(40, 40))], None),
    "saturated tanh": (TANH, [normal(32, 32) * 3], np.tanh),
    "tanh in float64": (TANH, [RNG.standard_normal(8) * 3], np.tanh),
    "no axes": (TANH, [np.array(0.3)], np.tanh),
    "no elements": (TANH, [np.zeros((0, 3))], np.tanh),
    "float16": (TANH, [normal(3, 4).astype(np.float16)], np.tanh),
    "layer norm": (LayerNorm(), [normal(3, 8), normal(8), normal(8)], None),
    "large layer norm": (LayerNorm(), [normal(30, 20) + 5, normal(20), normal(20)], None),
    "maximum": (Max(), [normal(5, 6)], lambda x: x.max(-1)),
    "median": (Median(), [normal(4, 7)], None),
    "large median": (Median(), [normal(30, 20)], None),
    "root mean square norm": (RootMeanSquareNorm(), [normal(5, 8), normal(8)], None),
    "cosine": (Cosine(), [normal(4, 6), normal(4, 6)], None),
    "relu": (ReLU(), [normal(32, 32)], lambda x: np.maximum(x, 0)),
    "relu at zero": (ReLU(), [np.round(normal(5, 5))], lambda x: np.maximum(x, 0)),
    "large relu at zero": (ReLU(), [np.round(normal(50, 50))], None),
    "rows by number": (Gather(), [normal(5, 3), np.array([0, 4, 1, 1])], lambda x, rows: x[rows]),
    "convolution": (Conv(), [normal(2, 3, 6, 5), normal(4, 3, 3, 2)], _conv),
    "two kinds of outputs": (
        SquaresAndPlaces(),
        [normal(4, 5)],
        lambda x: ((x * x).sum(-1), x.argmax(-1)),
    ),
}
