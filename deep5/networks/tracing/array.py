"""`TracedArray`: a value of a graph under construction that behaves like an array of the array API standard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported
from deep5.networks.tracing.extents import Shape, TracedExtent, product
from deep5.networks.tracing.indexing import selection

__all__ = ["Emitter", "TracedArray"]


class Emitter(Protocol):
    """The interface of the graph under construction that arrays require; implemented by `Trace`."""

    namespace: Any
    """The namespace of functions for its arrays."""
    nodes: list[ir.Node]
    """The created nodes, in order."""
    symbols: set[str]
    """Names that determine the dimensions of all inputs."""

    def emit(
        self, op_type: str, inputs: Sequence[TracedArray | ir.Value | None], dtype: Any, shape: Shape, **attributes: Any
    ) -> TracedArray:
        """The output of a new node."""
        ...

    def constant(self, array: Any) -> TracedArray:
        """An array with known values."""
        ...

    def number(self, extent: TracedExtent, dtype: Any) -> TracedArray:
        """A dimension as a rank-0 array of an element type."""
        ...

    def ints(self, numbers: Sequence[int]) -> ir.Value:
        """Integers as a vector."""
        ...

    def shape(self, shape: Sequence[int | TracedExtent]) -> ir.Value:
        """Dimensions as a vector."""
        ...


def _forward(function: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(self.trace.namespace, function)(self, *others)


def _swapped(function: str) -> Callable[..., Any]:
    return lambda self, other: getattr(self.trace.namespace, function)(other, self)


_ATTRIBUTES = ("T", "device", "dtype", "mT", "ndim", "shape", "size")
# Methods of NumPy's and PyTorch's arrays whose functions in the standard have other names.
_METHODS = {
    "cumsum": "cumulative_sum",
    "dot": "matmul",
    "flatten": "reshape",
    "mm": "matmul",
    "permute": "permute_dims",
    "ravel": "reshape",
    "to": "astype",
    "transpose": "permute_dims",
    "unsqueeze": "expand_dims",
    "view": "reshape",
}


class TracedArray:
    """An array with known shape and element type, but unknown values.

    Args:
        trace: The trace that contains its node.
        value: The value that it represents.
        shape: Dimensions; symbolic ones support arithmetic.
        dtype: NumPy element type.

    Raises:
        Unsupported: The operator's code requests its values.
    """

    # NumPy's arrays and numbers defer operations with a TracedArray to it.
    __array_ufunc__ = None
    # Equality is elementwise.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Emitter, value: ir.Value, shape: Shape, dtype: np.dtype[Any]) -> None:
        self.trace, self.value, self.shape, self.dtype = trace, value, shape, dtype

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The namespace of functions for it."""
        return self.trace.namespace

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int | TracedExtent:
        """Number of elements."""
        return product(self.shape)

    @property
    def device(self) -> str:
        """The device of the engine, which is not known while tracing."""
        return "cpu"

    def to_device(self, device: Any, /, *, stream: Any = None) -> TracedArray:
        """The array itself: the engine selects the device."""
        return self

    @property
    def mT(self) -> TracedArray:  # noqa: N802 - the standard's name
        """The last two axes swapped."""
        return self.trace.namespace.matrix_transpose(self)  # type: ignore[no-any-return]

    @property
    def T(self) -> TracedArray:  # noqa: N802 - the standard's name
        """The transposed matrix.

        Raises:
            Unsupported: The rank is not 2.
        """
        if self.ndim != 2:
            raise Unsupported(f".T of {self}; allowed: rank 2; remedy: .mT, or xp.permute_dims")
        return self.mT

    if not TYPE_CHECKING:  # with which type checkers would accept any attribute name

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error for an attribute outside the standard, and name the function that replaces it."""
            what = f"a traced array has no attribute {name!r}"
            if name.startswith("_"):
                raise AttributeError(what, name=name)  # attributes that libraries probe, and can do without
            function = _METHODS.get(name, name)
            more = "" if function == name else ", …"  # further arguments
            if function in dir(self.trace.namespace):
                remedy = f"xp.{function}(x{more}) instead of x.{name}({more and '…'}), with xp = d5.array_namespace(x)"
            else:
                remedy = "the functions of d5.array_namespace(x)"
            raise AttributeError(f"{what}; allowed: {', '.join(_ATTRIBUTES)}, operators; remedy: {remedy}", name=name)

    def __getitem__(self, key: Any) -> TracedArray:
        trace, selected = self.trace, selection(self.shape, key, self)
        x = self
        if selected.axes:
            given = [trace.shape(selected.starts), trace.shape(selected.stops)]
            given += [trace.ints(selected.axes), trace.ints(selected.steps)]
            x = trace.emit("Slice", [x, *given], x.dtype, selected.sliced)
        if selected.dropped:
            x = trace.emit("Squeeze", [x, trace.ints(selected.dropped)], x.dtype, selected.left)
        if selected.added:
            x = trace.emit("Unsqueeze", [x, trace.ints(selected.added)], x.dtype, selected.shape)
        return x

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise Unsupported("it writes into an array; allowed: new arrays; remedy: xp.where, or xp.concat")

    def _decides(self, *_: Any, **__: Any) -> NoReturn:
        raise Unsupported(
            f"it depends on the values of an array ({self}); allowed: decisions by shape or element type; remedy: "
            "xp.where, or write it in C++"
        )

    __bool__ = __int__ = __float__ = __complex__ = __index__ = _decides
    __array__ = __dlpack__ = __dlpack_device__ = item = tolist = _decides

    def __len__(self) -> int:
        if not self.shape or not isinstance(self.shape[0], int):
            raise Unsupported(f"len of {self}; allowed: arrays whose first dimension is fixed; remedy: x.shape[0]")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

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
    __neg__, __pos__, __abs__ = _forward("negative"), _forward("positive"), _forward("abs")
    __invert__ = _forward("bitwise_invert")
    __lt__, __le__ = _forward("less"), _forward("less_equal")
    __gt__, __ge__ = _forward("greater"), _forward("greater_equal")
    __eq__, __ne__ = _forward("equal"), _forward("not_equal")
