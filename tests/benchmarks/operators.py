"""Calls of operators of one element on each back-end, checks of gradients, and a matrix product of the zoo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from registry import register

_SOURCE = """
template <typename T> struct BenchmarkSquare : deep5::Operator {
  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] * x[i];
  }
  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y, deep5::Tensor<T> dx) {
    for (int64_t i = 0; i < x.size(); ++i) dx[i] = T(2) * x[i] * dy[i];
  }
};"""


def _cpp() -> Any:
    import deep5 as d5

    class BenchmarkSquare(d5.CppOperator):
        source = _SOURCE

        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return inputs

    return BenchmarkSquare()


def _python() -> Any:
    import deep5 as d5

    class PythonSquare(d5.Operator):
        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return inputs

        def forward(self, *inputs: Any) -> Any:
            return inputs[0] * inputs[0]

        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return (2 * inputs[0] * output_grads[0],)

    return PythonSquare()


_LANGUAGES = {"cpp": _cpp, "python": _python}


def _numpy(language: str) -> None:
    @register(f"numpy.operator_{language}", group="core")
    def setup(folder: Path) -> Callable[[], object]:
        import deep5 as d5

        call, x = d5.framework("reference").operator(_LANGUAGES[language]()), np.ones(1, np.float32)
        return lambda: call(x)


def _pytorch(language: str, *, gradient: bool) -> None:
    @register(f"pytorch.operator_{language}{'_gradient' if gradient else ''}", group="pytorch")
    def setup(folder: Path) -> Callable[[], object]:
        import torch

        import deep5 as d5

        call, x = d5.framework("pytorch").operator(_LANGUAGES[language]()), torch.ones(1, requires_grad=gradient)
        return lambda: call(x)


for _language in _LANGUAGES:
    _numpy(_language)
    _pytorch(_language, gradient=False)
    _pytorch(_language, gradient=True)


@register("jax.operator_cpp", group="jax")
def _jax(folder: Path) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    import deep5 as d5

    call, x = jax.jit(d5.framework("jax").operator(_cpp())), jnp.ones(1)
    return lambda: call(x)


@register("tensorflow.operator_cpp", group="tensorflow")
def _tensorflow(folder: Path) -> Callable[[], object]:
    import tensorflow as tf

    import deep5 as d5

    call = d5.framework("tensorflow").operator(_cpp())
    function = tf.function(call, autograph=False).get_concrete_function(tf.TensorSpec([1]))
    x = tf.ones(1)
    return lambda: function(x)


@register("tensorflow.operator_onnx", group="tensorflow")
def _multiplied(folder: Path) -> Callable[[], object]:
    import deep5 as d5
    from deep5.networks.onnx_operator import ONNXOperator

    executor = d5.framework("tensorflow").operator_executor(ONNXOperator("Mul"))
    x, y = executor.arrays(np.ones(3, np.float32), np.ones(3, np.float32))
    return lambda: executor.inference(x, y)


@register("onnxruntime.operator_cpp", group="onnxruntime")
def _onnxruntime(folder: Path) -> Callable[[], object]:
    import deep5 as d5

    executor = d5.framework("onnxruntime").operator_executor(_cpp())
    x = np.ones(1, np.float32)
    return lambda: executor.inference(x)


def _checked(language: str) -> None:
    @register(f"operators.gradient_check_{language}", group="core")
    def setup(folder: Path) -> Callable[[], object]:
        from deep5.operators.check import check_gradient

        operator, inputs = _LANGUAGES[language](), [np.random.default_rng(0).standard_normal((32, 32))]
        return lambda: check_gradient(operator, inputs)


_checked("cpp")
_checked("python")


@register("operators.blocked_product_256", group="core")
def _product(folder: Path) -> Callable[[], object]:
    from deep5.operators.zoo import MatMulBlocked

    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    operator = MatMulBlocked()
    return lambda: operator.forward(a, b)
