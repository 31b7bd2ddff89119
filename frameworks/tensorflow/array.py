"""`TensorFlowArray`: a tensor that behaves as an array of the standard, for operators written in Python.

A TensorFlow tensor has neither `.T` nor `.size`, and a symbolic batch dimension is None in its shape. The arrays exist
only during tracing: the graph contains none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from deep5.core.errors import ShapeError, Unsupported, brief
from deep5.frameworks.tensorflow.contract import described
from deep5.networks.tracing.extents import TracedExtent, product

__all__ = ["TensorFlowArray", "as_tensors", "extent_tensor"]

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "+": tf.add,
    "-": tf.subtract,
    "*": tf.multiply,
    "//": tf.math.floordiv,
    "%": tf.math.floormod,
}


def _forward(function: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(self.__array_namespace__(), function)(self, *others)


def _swapped(function: str) -> Callable[..., Any]:
    return lambda self, other: getattr(self.__array_namespace__(), function)(other, self)


def _held(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """A query of the array's values, which only eager calls can answer."""

    def ask(self: TensorFlowArray, *args: Any, **settings: Any) -> Any:
        if not isinstance(self.tensor, tf.__internal__.EagerTensor):
            raise Unsupported(
                f"it decides by what an array holds ({self!r}); allowed: what shapes and element types say; remedy: "
                "xp.where, or write it in C++"
            )
        return function(self.tensor, *args, **settings)

    return ask


class TensorFlowArray:
    """A tensor as an array of the standard, in eager calls and during tracing.

    TensorFlow functions accept it as its tensor.

    Args:
        tensor: The tensor.
        namespace: The functions that accept it.

    Raises:
        Unsupported: Code branches on its values, or on an unknown dimension, during tracing.
    """

    # NumPy arrays, numbers and tensors defer binary operations to this class.
    __array_ufunc__ = None
    __array_priority__ = 1000
    # Equality is element-wise.
    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("_namespace", "_shape", "tensor")

    def __init__(self, tensor: Any, namespace: Any) -> None:
        self.tensor, self._namespace = tensor, namespace
        self._shape: tuple[int | TracedExtent, ...] | None = None

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions that accept the array."""
        return self._namespace

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """The tensor, for TensorFlow functions."""
        return tf.convert_to_tensor(self.tensor, dtype=dtype, name=name)

    @property
    def dtype(self) -> Any:
        """The TensorFlow dtype."""
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int | TracedExtent, ...]:
        """The dimensions. Code can compute with dimensions that are unknown before the graph runs, but cannot branch on
        them.

        Raises:
            Unsupported: The rank is unknown.
        """
        if self._shape is None:
            self._shape = self._extents()
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        rank = self.tensor.shape.rank
        return len(self.shape) if rank is None else int(rank)

    @property
    def size(self) -> int | TracedExtent:
        """Number of elements."""
        return product(self.shape)

    @property
    def device(self) -> str:
        """The device, as TensorFlow names it; empty if the graph decides."""
        return self.tensor.device or ""

    def to_device(self, device: Any, /, *, stream: Any = None) -> TensorFlowArray:
        """The array itself: the caller of the operator chooses the device."""
        return self

    @property
    def mT(self) -> TensorFlowArray:  # noqa: N802 - the standard's name
        """The last two axes swapped."""
        return self.__array_namespace__().matrix_transpose(self)  # type: ignore[no-any-return]

    @property
    def T(self) -> TensorFlowArray:  # noqa: N802 - the standard's name
        """The transposed matrix.

        Raises:
            Unsupported: The array is not a matrix.
        """
        if self.ndim != 2:
            raise Unsupported(f".T of {_said(self.tensor)}; allowed: two axes; remedy: .mT, or xp.permute_dims")
        return self.mT

    def __getitem__(self, key: Any) -> TensorFlowArray:
        return TensorFlowArray(
            self.tensor[tuple(self._keys(key if isinstance(key, tuple) else (key,)))], self._namespace
        )

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise Unsupported("it writes into an array; allowed: new arrays; remedy: xp.where, or xp.concat")

    def __len__(self) -> int:
        if not self.shape or not isinstance(self.shape[0], int):
            raise Unsupported(
                f"len of {_said(self.tensor)}; allowed: arrays whose first dimension is fixed; remedy: x.shape[0]"
            )
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        return repr(self.tensor) if isinstance(self.tensor, tf.__internal__.EagerTensor) else _said(self.tensor)

    __bool__, __int__, __float__ = _held(bool), _held(int), _held(float)
    __index__, __array__ = _held(lambda x: x.__index__()), _held(lambda x, *dtype, **settings: x.__array__(*dtype))

    __add__, __radd__ = _forward("add"), _swapped("add")
    __sub__, __rsub__ = _forward("subtract"), _swapped("subtract")
    __mul__, __rmul__ = _forward("multiply"), _swapped("multiply")
    __truediv__, __rtruediv__ = _forward("divide"), _swapped("divide")
    __floordiv__, __rfloordiv__ = _forward("floor_divide"), _swapped("floor_divide")
    __mod__, __rmod__ = _forward("remainder"), _swapped("remainder")
    __pow__, __rpow__ = _forward("pow"), _swapped("pow")
    __matmul__, __rmatmul__ = _forward("matmul"), _swapped("matmul")
    __and__, __rand__ = _forward("bitwise_and"), _swapped("bitwise_and")
    __or__, __ror__ = _forward("bitwise_or"), _swapped("bitwise_or")
    __xor__, __rxor__ = _forward("bitwise_xor"), _swapped("bitwise_xor")
    __lshift__, __rlshift__ = _forward("bitwise_left_shift"), _swapped("bitwise_left_shift")
    __rshift__, __rrshift__ = _forward("bitwise_right_shift"), _swapped("bitwise_right_shift")
    __neg__, __pos__, __abs__ = _forward("negative"), _forward("positive"), _forward("abs")
    __invert__ = _forward("bitwise_invert")
    __lt__, __le__ = _forward("less"), _forward("less_equal")
    __gt__, __ge__ = _forward("greater"), _forward("greater_equal")
    __eq__, __ne__ = _forward("equal"), _forward("not_equal")

    def _extents(self) -> tuple[int | TracedExtent, ...]:
        if self.tensor.shape.rank is None:
            raise Unsupported(
                f"it requires the shape of {_said(self.tensor)}; allowed: tensors of known rank; "
                "remedy: an input_signature with the rank"
            )
        listed = self.tensor.shape.as_list()
        shapes: dict[Any, Any] = {}  # one shape tensor per array, graph and dtype

        def extent(axis: int) -> Callable[[Any], Any]:
            def calculate(dtype: Any) -> Any:
                if dtype not in shapes:
                    shapes[dtype] = tf.shape(self.tensor, out_type=dtype)
                return shapes[dtype][axis]

            return calculate

        # A name stands for one dimension: two with the same name count as equal. A captured tensor may belong to
        # another graph.
        here = self.tensor.graph is tf.compat.v1.get_default_graph() if None in listed else True
        name = f"{self.tensor.name}" + ("" if here else f"@{id(self.tensor.graph)}") if None in listed else ""
        return tuple(
            each if each is not None else TracedExtent(f"{name}.shape[{axis}]", ("", extent(axis)))
            for axis, each in enumerate(listed)
        )

    def _keys(self, keys: tuple[Any, ...]) -> list[Any]:
        """Indices in the form that TensorFlow accepts.

        Raises:
            Unsupported: An array, or another index outside the standard's basic indexing.
            ShapeError: Too many indices, or one out of range.
        """
        taken = sum(each is not None and each is not Ellipsis for each in keys)
        if taken > self.ndim or sum(each is Ellipsis for each in keys) > 1:
            raise ShapeError(
                f"got {taken} indices for {_said(self.tensor)}; allowed: at most {self.ndim}, and one ellipsis"
            )
        axis, made = 0, list[Any]()
        for each in keys:
            if each is Ellipsis:
                axis += self.ndim - taken
            elif each is not None:
                self._check_index(each, axis)
                axis += 1
            bounds = (each.start, each.stop, each.step) if isinstance(each, slice) else None
            made.append(as_tensors(each) if bounds is None else slice(*map(as_tensors, bounds)))
        return made

    def _check_index(self, key: Any, axis: int) -> None:
        if isinstance(key, slice):
            bounds = (key.start, key.stop, key.step)
            if not all(each is None or _whole(each) for each in bounds) or _is_zero(key.step):
                raise Unsupported(f"it slices by {brief(key)}; allowed: integers and sizes, with a step other than 0")
            return
        if not _whole(key):
            raise Unsupported(
                f"it indexes with {brief(key)}; allowed: integers, slices, None, ...; remedy: xp.take, xp.where"
            )
        extent = self.tensor.shape[axis]
        if isinstance(key, (int, np.integer)) and extent is not None and not -extent <= key < extent:
            raise ShapeError(
                f"got the index {key} for {_said(self.tensor)}; allowed: {-extent} to {extent - 1} on axis {axis}"
            )


def as_tensors(value: Any) -> Any:
    """Replaces arrays by their tensors, and dimensions by int32 tensors, TensorFlow's default for shapes."""
    if isinstance(value, TensorFlowArray):
        return value.tensor
    if isinstance(value, TracedExtent):
        return extent_tensor(value, tf.int32)
    return type(value)(map(as_tensors, value)) if type(value) in (tuple, list) else value


def extent_tensor(extent: int | TracedExtent, dtype: Any) -> Any:
    """The operations that compute a dimension, as a scalar tensor.

    Args:
        extent: A dimension of an array of the graph being traced.
        dtype: `tf.int32` or `tf.int64`; a product of dimensions may need the latter.
    """
    if not isinstance(extent, TracedExtent):
        return tf.constant(extent, dtype)
    sign, *parts = extent.tree
    if not sign:
        return parts[0](dtype)
    left, right = (extent_tensor(part, dtype) for part in parts)
    return _SIGNS[sign](left, right)


def _whole(key: Any) -> bool:
    """Whether the key is valid as an integer index."""
    if isinstance(key, TensorFlowArray):
        return bool(key.tensor.shape.rank == 0 and key.dtype in (tf.int16, tf.int32, tf.int64))
    return isinstance(key, (int, np.integer, TracedExtent)) and not isinstance(key, bool)


def _is_zero(step: Any) -> bool:
    return isinstance(step, (int, np.integer)) and step == 0


def _said(tensor: Any) -> str:
    return str(described(tensor) or f"{tensor.dtype.name} of a rank that is not known")
