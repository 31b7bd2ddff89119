"""Operators for the suites over back-ends: each in Python and in C++, and some that break their contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.errors import ShapeError
from deep5.networks import Network, NetworkBuilder

__all__ = [
    "DOMAIN",
    "THIRTEEN",
    "Broken",
    "CppMixed",
    "CppPow",
    "InPlace",
    "NoBackward",
    "PyMixed",
    "PyPow",
    "batch",
    "draw",
    "mixed",
    "mixed_values",
    "normal",
    "power",
    "powers",
]

DOMAIN = "test.backends"
THIRTEEN = r"CppPow failed: thirteen is \[not\]; taken\nat all"
"""The error of `CppPow`, as a pattern."""


def draw(*shape: int, dtype: Any = "float32", seed: int = 0) -> np.ndarray:
    """Numbers between 1/2 and 3/2, of both signs."""
    rng = np.random.default_rng(seed)
    return np.asarray((rng.random(shape) + 0.5) * rng.choice([-1, 1], shape)).astype(dtype)


@d5.register_operator("PyPow", domain=DOMAIN)
class PyPow(d5.Operator):
    """x to an integer power."""

    def __init__(self, power: int = 2) -> None:
        self.power = int(power)

    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        if len(x.shape) > 4:
            raise ShapeError(f"{type(self).__name__}: got {x}; allowed: at most 4 axes")
        return (x,)

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] ** self.power

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self.power * inputs[0] ** (self.power - 1) * output_grads[0],)


@d5.register_operator("CppPow", domain=DOMAIN)
class CppPow(d5.CppOperator):
    """As `PyPow`; refuses to compute with 13 elements, and reports how many it computed."""

    template = "CppPow"
    source = r"""
    template <typename T>
    struct CppPow : deep5::Operator {
      int64_t power;
      explicit CppPow(int64_t power) : power(power) {}
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        if (x.size() == 13) throw std::runtime_error("thirteen is [not]; taken\nat all");
        for (int64_t i = 0; i < x.size(); ++i) y[i] = deep5::power(x[i], power);
        report("elements", static_cast<double>(x.size()));
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < x.size(); ++i)
          dx[i] = static_cast<T>(static_cast<T>(power) * deep5::power(x[i], power - 1) * dy[i]);
      }
    };"""

    def __init__(self, power: int = 2) -> None:
        super().__init__(power=int(power))

    specs = PyPow.specs


@d5.register_operator("CppMixed", domain=DOMAIN)
class CppMixed(d5.CppOperator):
    """(x [n, k], w [k], first int64 [1]) -> x * w, n + first (int64 [1]) and 2 w; reports which gradients it made."""

    source = """
    template <typename T>
    struct CppMixed : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> w, deep5::Tensor<const int64_t> first,
                   deep5::Tensor<T> product, deep5::Tensor<int64_t> rows, deep5::Tensor<T> twice) {
        for (int64_t i = 0; i < x.size(); ++i) product[i] = x[i] * w[i % x.shape(1)];
        rows[0] = x.shape(0) + first[0];
        for (int64_t i = 0; i < w.size(); ++i) twice[i] = w[i] + w[i];
      }
      void backward(deep5::Tensor<const T> dproduct, deep5::Tensor<const T> dtwice, deep5::Tensor<const T> x,
                    deep5::Tensor<const T> w, deep5::Tensor<const int64_t> first, deep5::Tensor<const T> product,
                    deep5::Tensor<const int64_t> rows, deep5::Tensor<const T> twice, deep5::Tensor<T> dx,
                    deep5::Tensor<T> dw) {
        if (dx) {
          report("by x", 1);
          for (int64_t i = 0; i < x.size(); ++i) dx[i] = dproduct[i] * w[i % x.shape(1)];
        }
        if (dw) {
          report("by w", 1);
          for (int64_t j = 0; j < w.size(); ++j) {
            dw[j] = dtwice[j] + dtwice[j];
            for (int64_t i = 0; i < x.shape(0); ++i) dw[j] += dproduct[i * w.size() + j] * x[i * w.size() + j];
          }
        }
      }
    };"""

    def specs(self, x: Any, w: Any, first: Any) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        if len(x.shape) != 2 or x.shape[1:] != w.shape:
            raise ShapeError(f"{type(self).__name__}: got {x} and {w}; allowed: a matrix and a row")
        return x, d5.TensorSpec(shape=(1,), dtype="int64"), w


@d5.register_operator("PyMixed", domain=DOMAIN)
class PyMixed(d5.Operator):
    """As `CppMixed`."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, ...]] = []

    specs = CppMixed.specs

    def forward(self, *inputs: Any) -> Any:
        (x, w, first), xp = inputs, d5.array_namespace(inputs[0])
        return x * w, xp.zeros(1, dtype=xp.int64) + x.shape[0] + first, w + w

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, w, _), (product, rows, twice), xp = inputs, output_grads, d5.array_namespace(inputs[0])
        assert rows is None
        assert not needs[2]
        self.asked.append(tuple(map(bool, needs)))
        by_w = xp.sum(product * x, axis=0) + 2 * twice
        return product * w if needs[0] else None, by_w if needs[1] else None, None

    def report(self) -> dict[str, float]:
        found = {f"by {name}": float(sum(a[n] for a in self.asked)) for n, name in enumerate("xw")}
        self.asked = []
        return {name: value for name, value in found.items() if value}


def power(kind: str, exponent: int = 3) -> d5.Operator:
    """`PyPow` or `CppPow`."""
    return PyPow(exponent) if kind == "Py" else CppPow(exponent)


def mixed(kind: str) -> Any:
    """`PyMixed` or `CppMixed`."""
    return PyMixed() if kind == "Py" else CppMixed()


def mixed_values(dtype: str = "float64") -> list[np.ndarray]:
    """Inputs of `mixed`."""
    return [draw(4, 3, dtype=dtype), draw(3, dtype=dtype, seed=1), np.array([10])]


class Broken(PyPow):
    """A square with methods replaced by functions of its input."""

    def __init__(
        self,
        forward: Callable[..., Any] | None = None,
        backward: Callable[..., Any] | None = None,
        specs: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(2)
        self._own = forward, backward, specs

    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        own: tuple[d5.TensorSpec, ...] = super().specs(x) if self._own[2] is None else self._own[2](x)
        return own

    def forward(self, *inputs: Any) -> Any:
        return super().forward(*inputs) if self._own[0] is None else self._own[0](*inputs)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        own = self._own[1]
        return super().backward(output_grads, inputs, outputs, needs) if own is None else own(inputs[0])


@d5.register_operator("NoBackward", domain=DOMAIN)
class NoBackward(d5.CppOperator):
    """x + 1, without a backward pass."""

    source = """
    template <typename T>
    struct NoBackward : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] + T(1);
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs


@d5.register_operator("InPlace", domain=DOMAIN)
class InPlace(d5.Operator):
    """Twice x, which writes to an argument of one of its methods."""

    def __init__(self, method: str = "forward") -> None:
        self.method = method

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs

    def forward(self, *inputs: Any) -> Any:
        return self._twice("forward", inputs[0], inputs[0])

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self._twice("backward", outputs[0], output_grads[0]),)

    def _twice(self, method: str, written: Any, value: Any) -> Any:
        if self.method == method:
            written += 1
        return value * 2


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def powers(op: str, width: int = 3, dtype: str = "float32") -> Network:
    """y = (x w)^3 and loss = mean(y^2); the power is an operator of this name, or consists of ONNX nodes."""
    build = NetworkBuilder("powers", dtype=dtype)
    h = build.op("MatMul", build.input("x", ("N", 4)), build.parameter("w", (4, width), normal))
    y = build.op("Mul", build.op("Mul", h, h), h) if op == "Mul" else build.op(op, h, domain=DOMAIN, power=3)
    return build.network({"y": y, "loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)})


def batch(rows: int, dtype: str = "float32", seed: int = 7) -> dict[str, np.ndarray]:
    return {"x": draw(rows, 4, dtype=dtype, seed=seed) / 2}
