"""The sides of the operator recipes: one element through an operator of deep5, and without it.

Each function returns a function without arguments that makes `steps` calls and returns when they are finished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import deep5 as d5

__all__ = [
    "cpp_by_numpy",
    "cpp_in_jax",
    "cpp_in_onnxruntime",
    "cpp_in_pytorch",
    "cpp_in_pytorch_with_gradient",
    "cpp_in_tensorflow",
    "nothing",
    "python_by_deep5",
    "python_by_hand",
    "square_in_tensorflow",
]

Work = Callable[[], object]
_DOMAIN = "deep5.overhead"


@d5.register_operator("Square", domain=_DOMAIN)
class Square(d5.CppOperator):
    """x², in C++."""

    source = """
    template <typename T>
    struct Square : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] * x[i];
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < x.size(); ++i) dx[i] = 2 * x[i] * dy[i];
      }
    };
    """

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        """The output has the input's spec."""
        return inputs


class PythonSquare(d5.Operator):
    """x², in Python."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        """The output has the input's spec."""
        return inputs

    def forward(self, *inputs: Any) -> Any:
        """x²."""
        return inputs[0] * inputs[0]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        """2 x."""
        return (2 * inputs[0] * output_grads[0],)


def _repeated(call: Callable[[Any], object], argument: Any, steps: int) -> Work:
    def work() -> None:
        for _ in range(steps):
            call(argument)

    return work


def _one() -> np.ndarray:
    return np.ones(1, np.float32)


def nothing(*, steps: int) -> Work:
    """The call of an empty function."""
    return _repeated(lambda x: None, None, steps)


def python_by_deep5(*, steps: int) -> Work:
    """The operator as a network of the reference calls it."""
    return _repeated(d5.framework("reference").operator(PythonSquare()), _one(), steps)


def python_by_hand(*, steps: int) -> Work:
    """Only its arithmetic."""
    return _repeated(lambda x: x * x, _one(), steps)


def cpp_by_numpy(*, steps: int) -> Work:
    """The operator on a NumPy array."""
    return _repeated(Square().forward, _one(), steps)


def cpp_in_pytorch(*, steps: int) -> Work:
    """The operator on a tensor, forward, without gradients."""
    import torch

    return _repeated(d5.framework("pytorch").operator(Square()), torch.ones(1), steps)


def cpp_in_pytorch_with_gradient(*, steps: int) -> Work:
    """The operator on a tensor, forward, recorded for a backward pass."""
    import torch

    return _repeated(d5.framework("pytorch").operator(Square()), torch.ones(1, requires_grad=True), steps)


def cpp_in_onnxruntime(*, steps: int) -> Work:
    """A session of ONNX Runtime whose only node is the operator, with bound memory."""
    from onnxruntime import OrtValue

    executor: Any = d5.framework("onnxruntime").executor(_network())
    program = executor._forward(training=False).run
    binding = program.session.io_binding()
    x, y = (OrtValue.ortvalue_from_numpy(_one()) for _ in range(2))
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)

    def work() -> None:
        # The kernel lives as long as `program`.
        run = program.session.run_with_iobinding
        for _ in range(steps):
            run(binding)

    return work


def cpp_in_jax(*, steps: int) -> Work:
    """The operator in a function compiled by JAX."""
    import jax

    function, x = jax.jit(d5.framework("jax").operator(Square())), jax.numpy.ones(1)

    def work() -> None:
        for _ in range(steps):
            made = function(x)
        made.block_until_ready()

    return work


def cpp_in_tensorflow(*, steps: int) -> Work:
    """The operator in a traced function."""
    return _concrete(d5.framework("tensorflow").operator(Square()), steps)


def square_in_tensorflow(*, steps: int) -> Work:
    """TensorFlow's own operator in a traced function."""
    import tensorflow as tf

    # Not the function itself: its argument `name` makes calls of the traced function twice as slow.
    return _concrete(lambda x: tf.square(x), steps)  # noqa: PLW0108 - as above


def _concrete(call: Callable[[Any], Any], steps: int) -> Work:
    import tensorflow as tf

    function = tf.function(call, input_signature=[tf.TensorSpec((1,), tf.float32)], autograph=False)
    return _repeated(function.get_concrete_function(), tf.ones((1,)), steps)


def _network() -> d5.Network:
    build = d5.NetworkBuilder("square")
    return build.network({"y": build.op("Square", build.input("x", (1,)), domain=_DOMAIN)})
