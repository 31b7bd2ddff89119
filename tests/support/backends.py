"""The back-ends as the shared suites use them: making arrays, reading them, differentiating, tracing.

A back-end imports its framework at first use, so that a run of one loads no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import deep5 as d5

__all__ = ["BACKENDS", "COMPUTING", "ENGINES", "EPS", "Backend", "dtype_of", "many", "parametrized"]

# Relative errors: twice the cost of one rounding and of computing with a few such numbers.
EPS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-14}

Function = Callable[..., Any]
Arrays = tuple[Any, ...]


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy element type of a name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def many(made: Any) -> Arrays:
    """The outputs of an operator as a tuple: a single output comes without one."""
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


class Backend:
    """One back-end, or one of its modes.

    Attributes:
        name: Its name in `d5.framework`.
        floats: Element types in which operators in C++ run.
        python_floats: Element types in which operators in Python run.
        kinds: Operators it runs in a network: in Python, in C++.
        array: The name of its arrays in messages.
    """

    name = ""
    floats: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
    python_floats: tuple[str, ...] = floats
    kinds: tuple[str, ...] = ("Py", "Cpp")
    array = "a NumPy array"

    @property
    def framework(self) -> Any:
        """The back-end of deep5."""
        return d5.framework(self.name)

    def native(self, value: Any) -> Any:
        """A framework array with the value's element type."""
        return np.asarray(value)

    def numpy(self, value: Any) -> np.ndarray:
        """A NumPy array of the same element type."""
        return np.asarray(value)

    def traced(self, function: Function) -> Function:
        """The function as the framework traces or compiles it."""
        return function

    def dtype(self, value: Any) -> str:
        """The name of an array's element type."""
        return self.numpy(value).dtype.name

    def finished(self, run: Function) -> Any:
        """The outcome of a call once it has completed: a failure may occur in another thread."""
        return run()

    def pulled(self, function: Function, inputs: Sequence[Any], grads: Sequence[Any]) -> tuple[Arrays, Arrays]:
        """Outputs, and gradients by all floating-point inputs, by the framework's own differentiation.

        Args:
            function: Gives one array or several.
            inputs: Native arrays.
            grads: Gradients by the outputs, native; None for an output that nothing uses.
        """
        raise NotImplementedError


class _JAX(Backend):
    name, array = "jax", "an array of JAX"

    def native(self, value: Any) -> Any:
        import jax

        with jax.enable_x64(True):
            return jax.numpy.array(value)

    def traced(self, function: Function) -> Function:
        import jax

        run: Function = jax.jit(function)
        return run

    def finished(self, run: Function) -> Any:
        import jax

        return jax.block_until_ready(run())

    def pulled(self, function: Function, inputs: Sequence[Any], grads: Sequence[Any]) -> tuple[Arrays, Arrays]:
        import jax

        outputs, pull = jax.vjp(lambda *given: many(function(*given)), *inputs)
        with jax.enable_x64(True):
            given = tuple(
                np.zeros(value.shape, jax.dtypes.float0)
                if not jax.numpy.issubdtype(value.dtype, jax.numpy.floating)
                else jax.numpy.zeros_like(value)
                if gradient is None
                else gradient
                for gradient, value in zip(grads, outputs, strict=True)
            )
        found = pull(given)
        return outputs, tuple(None if gradient.dtype == jax.dtypes.float0 else gradient for gradient in found)


class _PyTorch(Backend):
    name, array = "pytorch", r"a torch\.Tensor"

    def native(self, value: Any) -> Any:
        import torch

        value = np.array(value)
        if value.dtype.name == "bfloat16":
            return torch.from_numpy(value.astype("float32")).bfloat16()
        return torch.from_numpy(value)

    def numpy(self, value: Any) -> np.ndarray:
        import torch

        value = value.detach()
        return value.float().numpy().astype(ml_dtypes.bfloat16) if value.dtype is torch.bfloat16 else value.numpy()

    def pulled(self, function: Function, inputs: Sequence[Any], grads: Sequence[Any]) -> tuple[Arrays, Arrays]:
        import torch

        leaves = [value.detach().requires_grad_(value.is_floating_point()) for value in inputs]
        outputs = many(function(*leaves))
        used = [(value, gradient) for value, gradient in zip(outputs, grads, strict=True) if gradient is not None]
        torch.autograd.backward([value for value, _ in used], [gradient for _, gradient in used])
        return outputs, tuple(leaf.grad for leaf in leaves)


class _Compiled(_PyTorch):
    name = "pytorch:compiled"

    def traced(self, function: Function) -> Function:
        import torch

        from deep5.frameworks.pytorch.compiled import Compiler

        Compiler()  # loads inductor as deep5 does: torch warns of its own use
        run: Function = torch.compile(function, fullgraph=True, dynamic=True)
        return run


class _TensorFlow(Backend):
    name, array = "tensorflow", "a tensor"

    def native(self, value: Any) -> Any:
        _ = self.framework  # deep5 keeps TensorFlow's start-up reports off the screen
        import tensorflow as tf

        return tf.constant(np.asarray(value))

    def numpy(self, value: Any) -> np.ndarray:
        found: np.ndarray = value.numpy()
        return np.asarray(found)

    def traced(self, function: Function) -> Function:
        _ = self.framework
        import tensorflow as tf

        run: Function = tf.function(function, autograph=False)
        return run

    def pulled(self, function: Function, inputs: Sequence[Any], grads: Sequence[Any]) -> tuple[Arrays, Arrays]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch([value for value in inputs if value.dtype.is_floating])
            outputs = many(function(*inputs))
        used = [(value, gradient) for value, gradient in zip(outputs, grads, strict=True) if gradient is not None]
        targets, given = [value for value, _ in used], [gradient for _, gradient in used]
        return outputs, tuple(tape.gradient(targets, list(inputs), output_gradients=given))


class _XLA(_TensorFlow):
    name, kinds = "tensorflow:xla", ("Py",)


class _Reference(Backend):
    name = "reference"


class _ONNXRuntime(Backend):
    name, python_floats = "onnxruntime", ("float32", "float64")


class _OpenVINO(Backend):
    name, floats, python_floats = "openvino", ("float32",), ("float32",)


BACKENDS: dict[str, Backend] = {
    made.name: made
    for made in (_JAX(), _PyTorch(), _Compiled(), _TensorFlow(), _XLA(), _Reference(), _ONNXRuntime(), _OpenVINO())
}
"""All back-ends and modes, by name."""
# Frameworks whose own differentiation reaches an operator, and engines that pass it NumPy arrays.
COMPUTING, ENGINES = ("jax", "pytorch", "tensorflow"), ("reference", "onnxruntime", "openvino")


def parametrized(*names: str, daily: bool = False, slow: Sequence[str] = ()) -> pytest.MarkDecorator:
    """A case for each back-end, as the argument `backend`.

    Args:
        names: The back-ends.
        daily: Whether all cases belong to the daily suite, however many the function has.
        slow: Back-ends whose cases run only in the complete suite.
    """

    def marks(name: str) -> list[pytest.MarkDecorator]:
        return [pytest.mark.slow] if name in slow else [pytest.mark.daily] if daily else []

    return pytest.mark.parametrize(
        "backend", [pytest.param(BACKENDS[name], id=name, marks=marks(name)) for name in names]
    )
