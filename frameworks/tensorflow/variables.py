"""Live parameters: `tf.Variable`s in the axis order that the kernels prefer, and their views in ONNX's order."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from deep5.frameworks.tensorflow.memory import shared
from deep5.frameworks.tensorflow.order import Order, between, onnx_order

__all__ = ["Live", "View"]


class Live:
    """A parameter or buffer.

    Convolution weights are stored transposed (space, in, out). Transposing at every step instead doubles the forward
    time of a convolution over 512 channels at batch size 1, and adds a third at batch size 16.

    Args:
        initial: Its value: an array in ONNX's axis order, or a tensor in the variable's order.
        order: The variable's axis order.
        trainable: Whether it is a parameter.
        name: Name of the variable.

    Attributes:
        variable: The `tf.Variable`.
        order: As given.
    """

    def __init__(self, initial: Any, order: Order, *, trainable: bool, name: str) -> None:
        self.order, self._plain = order, order == onnx_order(len(order))
        self._from, self._to = between(order, onnx_order(len(order))), between(onnx_order(len(order)), order)
        value = initial if isinstance(initial, tf.Tensor) else self.packed(initial)
        value = shared(value) if isinstance(value, np.ndarray) and value.size else value
        self.variable: Any = tf.Variable(value, trainable=trainable, name=name)

    def packed(self, array: np.ndarray) -> np.ndarray:
        """Converts an array from ONNX's axis order to the variable's."""
        return array if self._plain else np.ascontiguousarray(array.transpose(self._to))

    def to_variable(self, tensor: Any) -> Any:
        """Converts a tensor from ONNX's axis order to the variable's."""
        return tensor if self._plain else tf.transpose(tensor, self._to)

    def to_onnx(self, tensor: Any) -> Any:
        """Converts a tensor from the variable's axis order to ONNX's."""
        return tensor if self._plain else tf.transpose(tensor, self._from)

    def numpy(self, tensor: Any = None) -> np.ndarray:
        """A tensor in the variable's axis order, or the variable's value, as a new array in ONNX's order."""
        array: np.ndarray = (self.variable if tensor is None else tensor).numpy()
        return array if self._plain else np.ascontiguousarray(array.transpose(self._from))

    def assign(self, array: np.ndarray) -> None:
        """Copy an array in ONNX's axis order to the variable."""
        self.variable.assign(self.packed(array), read_value=False)

    def native(self) -> Any:
        """The entry of `parameters`: the variable itself if it has ONNX's axis order, else a view of it."""
        return self.variable if self._plain else View(self)


class View:
    """A view in ONNX's axis order of a variable with another order: reads and assignments go to the variable.

    TensorFlow accepts it wherever it accepts a tensor.
    """

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def dtype(self) -> Any:
        """The dtype, a `tf.DType`."""
        return self._live.variable.dtype

    @property
    def shape(self) -> Any:
        """The shape in ONNX's axis order, a `tf.TensorShape`."""
        lies = self._live.variable.shape
        return tf.TensorShape([lies[axis] for axis in between(self._live.order, onnx_order(len(lies)))])

    def read_value(self) -> Any:
        """The value as a tensor."""
        return self._live.to_onnx(self._live.variable.read_value())

    def assign(self, value: Any) -> None:
        """Assign a new value to the variable."""
        self._live.variable.assign(self._live.to_variable(tf.convert_to_tensor(value)), read_value=False)

    def assign_add(self, value: Any) -> None:
        """Add to the variable."""
        self._live.variable.assign_add(self._live.to_variable(tf.convert_to_tensor(value)), read_value=False)

    def assign_sub(self, value: Any) -> None:
        """Subtract from the variable."""
        self._live.variable.assign_sub(self._live.to_variable(tf.convert_to_tensor(value)), read_value=False)

    def numpy(self) -> np.ndarray:
        """The value as a new array."""
        return self._live.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._live.numpy()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"<view of a tf.Variable, shape={self.shape}, dtype={self.dtype.name}>"


def _tensor(view: View, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
    value = view.read_value()
    return value if dtype is None else tf.convert_to_tensor(value, dtype=dtype)


tf.register_tensor_conversion_function(View, _tensor)
