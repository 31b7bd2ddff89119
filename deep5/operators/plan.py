"""`Plan`: a kernel for inputs of known shapes, run on NumPy arrays or on addresses.

The C structures of its tensors are defined in `deep5/kernel.h`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from deep5.core.compiler import load_library
from deep5.core.errors import OperatorError, ShapeError
from deep5.core.memo import remember
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.operators.contract import spec_of

__all__ = [
    "CODES",
    "INCLUDE",
    "MAX_TENSORS",
    "NAMES",
    "Bound",
    "Plan",
    "Tensor",
    "check_arrays",
    "make_memory",
    "remembered",
]

INCLUDE = Path(__file__).parent / "include"
"""The folder of deep5's headers."""

MAX_TENSORS = 64
"""Maximum number of tensors of a C++ function."""

make_memory: Callable[[tuple[int, ...], Any], np.ndarray] = np.empty
"""Allocates the outputs on NumPy arrays; checks replace it to guard the memory around them."""

_FAILED = 1

CODES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}
"""ONNX's numbers of element types, by NumPy name."""

NAMES = {number: name for name, number in CODES.items()}


class Tensor(ctypes.Structure):
    """`deep5_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class Bound(Protocol):
    """The compiled code that a plan runs; implemented by `Kernel`.

    Attributes:
        name: Name in messages.
        pointer: Address of its `deep5_kernel`.
        dtypes: Element types of the inputs, then of the outputs.
        strided: Which inputs may be strided.
    """

    name: str
    pointer: int
    dtypes: tuple[str, ...]
    strided: tuple[bool, ...]

    def fail(self) -> NoReturn:
        """Raise the error of this thread's last call."""
        ...


class _Plan(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("itemsize", ctypes.c_int64 * MAX_TENSORS),
        ("tensors", Tensor * MAX_TENSORS),
    )


@functools.cache
def _python() -> tuple[Any, Any]:
    """The functions that call a kernel on Python objects."""
    library = load_library((INCLUDE / "deep5" / "python.c").read_text(encoding="utf-8"), include=(INCLUDE,))
    loaded = ctypes.PyDLL(library._name, handle=library._handle)  # which keeps the GIL, unlike CDLL
    arrays, addresses = loaded.deep5_call_arrays, loaded.deep5_call_addresses
    arrays.argtypes = (ctypes.c_void_p, ctypes.py_object)
    addresses.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return arrays, addresses


class Plan:
    """A kernel for inputs of known shapes.

    Args:
        kernel: The kernel.
        inputs: Specifications of the inputs.
        outputs: Specifications of the outputs.
        strides: Strides of each input in elements, for runs on addresses; C-contiguous if None or missing.

    Attributes:
        outputs: Specifications of the outputs.
    """

    def __init__(
        self,
        kernel: Bound,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        strides: Sequence[tuple[int, ...] | None] = (),
    ) -> None:
        self.kernel, self.outputs, self._inputs = kernel, tuple(outputs), tuple(inputs)
        self._of_strides: dict[tuple[tuple[int, ...] | None, ...], Plan] = {}
        self._plan = _Plan(kernel=kernel.pointer)
        self._held = []  # objects that the structure points to
        for at, spec in enumerate((*inputs, *outputs)):
            shape = (ctypes.c_int64 * max(1, len(spec.shape)))(*map(int, spec.shape))
            self._held.append(shape)
            dtype = kernel.dtypes[at]
            self._plan.itemsize[at] = np.dtype(dtype if dtype != "bfloat16" else "uint16").itemsize
            tensor = self._plan.tensors[at]
            tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
            tensor.rank, tensor.dtype = len(spec.shape), CODES[dtype]
        for at, steps in enumerate(strides):
            if steps is not None:
                kept = (ctypes.c_int64 * max(1, len(steps)))(*steps)
                self._held.append(kept)
                self._plan.tensors[at].strides = ctypes.cast(kept, ctypes.POINTER(ctypes.c_int64))
        self._address = ctypes.addressof(self._plan)
        self._made = [(tuple(map(int, spec.shape)), numpy_dtype(spec.dtype)) for spec in outputs]
        self._arrays, self._addresses = _python()

    def on_arrays(self, inputs: tuple[Any, ...]) -> list[Any]:
        """The outputs, as new NumPy arrays, for NumPy arrays of the plan's shapes and element types.

        Raises:
            OperatorError: The operator failed.
        """
        try:
            outputs = [make_memory(shape, dtype) for shape, dtype in self._made]
        except (MemoryError, ValueError) as error:
            shapes = ", ".join(map(str, self.outputs))
            raise OperatorError(
                f"{self.kernel.name}: there is no memory for its outputs, {shapes} ({error})"
            ) from error
        code = self._arrays(self._address, (*inputs, *outputs))
        if code:
            if code == _FAILED:
                self.kernel.fail()
            # Other strides or alignment, or an element type without buffer support.
            copies = [np.require(value, requirements=("C", "A")) for value in inputs]
            self.on_addresses(tuple(_address(value) for value in (*copies, *outputs)))
        return outputs

    def of_strides(self, strides: tuple[tuple[int, ...] | None, ...]) -> Plan:
        """The same plan for memory with other strides.

        Args:
            strides: Strides of each input in elements; None: C-contiguous, as required for inputs that the kernel does
                not accept strided.
        """
        found = self._of_strides.get(strides)
        if found is None:
            found = remember(self._of_strides, strides, Plan(self.kernel, self._inputs, self.outputs, strides))
        return found

    def on_addresses(self, addresses: tuple[int, ...], stream: int = 0) -> None:
        """Run on memory with the plan's layout: C-contiguous, except for inputs with strides.

        Args:
            addresses: Addresses of the inputs, then of the outputs.
            stream: The device's stream, for a kernel that runs there.

        Raises:
            OperatorError: The operator failed.
            ShapeError: An address is not aligned to its element type.
        """
        code = self._addresses(self._address, addresses, stream)
        if code == _FAILED:
            self.kernel.fail()
        if code:
            raise ShapeError(
                f"{self.kernel.name}: got memory that is not aligned to its element type; remedy: a copy of the array"
            )


def remembered(
    plans: dict[Any, Plan], name: str, inputs: Sequence[Any], make: Callable[[Sequence[TensorSpec]], Plan]
) -> Plan:
    """Make a plan for inputs, and store it in a bounded cache.

    Args:
        plans: The cache, by kind, shape and element type of each input: not every object with a shape is an array.
        name: Name of the operator in messages.
        inputs: NumPy arrays, or NumPy scalars, which are rank-0 arrays.
        make: Creates the plan.

    Raises:
        ShapeError: An input is of another type.
    """
    arrays = [np.asarray(value) if isinstance(value, np.generic) else value for value in inputs]
    check_arrays(name, arrays)
    key = tuple([(type(value), value.shape, value.dtype) for value in inputs])
    return remember(plans, key, make([spec_of(value) for value in arrays]))


def check_arrays(name: str, inputs: Sequence[Any]) -> None:
    """Check that inputs are NumPy arrays in native byte order.

    Raises:
        ShapeError: For the first invalid input of the operator `name`.
    """
    for number, value in enumerate(inputs):
        if not isinstance(value, np.ndarray):
            raise ShapeError(
                f"{name}: got {type(value).__name__} as input {number}; allowed: a NumPy array; remedy: "
                "d5.framework(NAME).operator(…) for a framework's own arrays"
            )
        if isinstance(value, np.ma.MaskedArray):
            raise ShapeError(
                f"{name}: got a masked array as input {number}, whose mask would be lost; remedy: array.filled(value)"
            )
        if not value.dtype.isnative:
            raise ShapeError(
                f"{name}: got input {number} in the byte order of another machine ({value.dtype}); remedy: "
                "array.astype(array.dtype.newbyteorder('='))"
            )


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
