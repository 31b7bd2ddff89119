"""`Kernel`: a compiled operator in one direction, for inputs of fixed element types, on any memory of the host.

What frameworks call is a C structure (`deep5/kernel.h`): the same one for all of them.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.arguments import THREADS
from deep5.compiler import load_library
from deep5.errors import OperatorError, ShapeError
from deep5.memo import remember
from deep5.operators.contract import name_of, spec_of, specs_of
from deep5.tensors import TensorSpec, numpy_dtype

if TYPE_CHECKING:
    from deep5.operators.operator import Operator

__all__ = [
    "ASK",
    "CODES",
    "INCLUDE",
    "MAX_TENSORS",
    "NAMES",
    "Kernel",
    "Plan",
    "Tensor",
    "check_arrays",
    "make_memory",
    "remembered",
]

INCLUDE = Path(__file__).parent / "include"
"""The folder of deep5's headers."""

MAX_TENSORS = 64
"""How many tensors a C++ function takes at most."""

make_memory: Callable[[tuple[int, ...], Any], np.ndarray] = np.empty
"""What makes the outputs on NumPy arrays; checks put a function here that watches the memory around them."""

_MAX_RANK = 16
_DONE, _FAILED = 0, 1

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
"""Element types as ONNX numbers them, by NumPy's names."""

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


class _Plan(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("itemsize", ctypes.c_int64 * MAX_TENSORS),
        ("tensors", Tensor * MAX_TENSORS),
    )


ASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Tensor), ctypes.POINTER(Tensor))


@functools.cache
def _python() -> tuple[Any, Any]:
    """The functions that call a kernel on Python's objects."""
    library = load_library((INCLUDE / "deep5" / "python.c").read_text(encoding="utf-8"), include=(INCLUDE,))
    loaded = ctypes.PyDLL(library._name)  # which holds the interpreter's lock, unlike the other kind
    arrays, addresses = loaded.deep5_call_arrays, loaded.deep5_call_addresses
    arrays.argtypes = (ctypes.c_void_p, ctypes.py_object)
    addresses.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return arrays, addresses


class Plan:
    """A kernel for inputs of known shapes.

    Attributes:
        outputs: Specifications of the outputs.
    """

    def __init__(self, kernel: Kernel, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.kernel, self.outputs = kernel, tuple(outputs)
        self._plan = _Plan(kernel=kernel.pointer)
        self._shapes = []
        for at, spec in enumerate((*inputs, *outputs)):
            shape = (ctypes.c_int64 * max(1, len(spec.shape)))(*map(int, spec.shape))
            self._shapes.append(shape)  # which the structure only points to
            dtype = kernel.dtypes[at]
            self._plan.itemsize[at] = np.dtype(dtype if dtype != "bfloat16" else "uint16").itemsize
            tensor = self._plan.tensors[at]
            tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
            tensor.rank, tensor.dtype = len(spec.shape), CODES[dtype]
        self._address = ctypes.addressof(self._plan)
        self._made = [(tuple(map(int, spec.shape)), numpy_dtype(spec.dtype)) for spec in outputs]
        self._arrays, self._addresses = _python()

    def on_arrays(self, inputs: tuple[Any, ...]) -> list[Any]:
        """The outputs, new NumPy arrays, of NumPy arrays of the plan's shapes and element types.

        Raises:
            OperatorError: The operator failed.
        """
        try:
            outputs = [make_memory(shape, dtype) for shape, dtype in self._made]
        except (MemoryError, ValueError) as error:
            told = ", ".join(map(str, self.outputs))
            raise OperatorError(f"{self.kernel.name}: there is no memory for its outputs, {told} ({error})") from error
        code = self._arrays(self._address, (*inputs, *outputs))
        if code:
            if code == _FAILED:
                self.kernel.fail()
            # Of other strides or another alignment, or of an element type that buffers do not know.
            copies = [np.require(value, requirements=("C", "A")) for value in inputs]
            self.on_addresses(tuple(_address(value) for value in (*copies, *outputs)))
        return outputs

    def on_addresses(self, addresses: tuple[int, ...], stream: int = 0) -> None:
        """Run on C-contiguous memory.

        Args:
            addresses: Of the inputs, then of the outputs.
            stream: The device's, for a kernel that runs there.

        Raises:
            OperatorError: The operator failed.
            ShapeError: Memory that is not aligned to its element type.
        """
        code = self._addresses(self._address, addresses, stream)
        if code == _FAILED:
            self.kernel.fail()
        if code:
            raise ShapeError(
                f"{self.kernel.name}: got memory that is not aligned to its element type; remedy: a copy of the array"
            )


class Kernel:
    """An operator in one direction; made by `CppOperator.kernel`.

    Args:
        operator: Says the shapes of the outputs: a `CppOperator`, or its `Backward`.
        library: Compiled.
        handle: The object in C++.
        direction: 0 forward, 1 backward.
        dtypes: Of the inputs.
        arguments: Of the C++ function, each as the number of an input or, behind those, of an output; -1: none.
        strided: Which inputs may be strided.

    Attributes:
        pointer: Address of the `deep5_kernel`; valid as long as this object.
        inputs: How many inputs it has.
        dtypes: Element types of the inputs, then of the outputs.
        strided: Which inputs may be strided.
    """

    def __init__(
        self,
        operator: Operator,
        library: Any,
        handle: Any,
        direction: int,
        dtypes: Sequence[str],
        made: Sequence[str],
        arguments: Sequence[int],
        strided: Sequence[bool],
    ) -> None:
        self._operator, self._library, self._handle = operator, library, handle
        self.name = name_of(operator)
        self.inputs, self.dtypes, self.strided = len(dtypes), (*dtypes, *made), tuple(strided)
        self._plans: dict[Any, Plan] = {}
        self._failure: Exception | None = None
        # A weak reference: the callback must not keep the kernel alive, nor the operator.
        own = weakref.ref(self)
        self._ask = ASK(lambda token, inputs, outputs: _answer(own(), inputs, outputs))
        codes = [CODES[dtype] for dtype in self.dtypes]
        self.pointer: int = library.deep5_bind(
            handle.address,
            direction,
            len(dtypes),
            len(made),
            (ctypes.c_int32 * len(codes))(*codes),
            (ctypes.c_int32 * max(1, len(dtypes)))(*map(int, strided)),
            len(arguments),
            (ctypes.c_int32 * max(1, len(arguments)))(*arguments),
            None,
            self._ask,
            THREADS.buffer_info()[0],
        )
        weakref.finalize(self, _unbind, library, self.pointer, handle)

    def __call__(self, *inputs: Any) -> list[Any]:
        """The outputs of NumPy arrays, as new ones; raises as `plan` and `Plan.on_arrays`."""
        try:
            plan = self._plans[tuple([(type(value), value.shape, value.dtype) for value in inputs])]
        except (KeyError, AttributeError, TypeError):
            plan = remembered(self._plans, self.name, inputs, self.plan)
        return plan.on_arrays(inputs)

    def plan(self, inputs: Sequence[TensorSpec]) -> Plan:
        """A plan for inputs of these shapes.

        Raises:
            ShapeError: Another number of inputs, another element type, or shapes that the operator does not take.
            OperatorError: Its specs says something that the C++ class does not.
        """
        dtypes = tuple(spec.dtype for spec in inputs)
        if dtypes != self.dtypes[: self.inputs]:
            raise ShapeError(
                f"{self.name}: got inputs of {', '.join(dtypes) or 'nothing'}; allowed: "
                f"{', '.join(self.dtypes[: self.inputs])}"
            )
        outputs = self._said(inputs)
        for spec in inputs:
            if len(spec.shape) > _MAX_RANK:
                raise ShapeError(f"{self.name}: got {len(spec.shape)} axes; allowed: at most {_MAX_RANK}")
        return Plan(self, inputs, outputs)

    def fail(self) -> None:
        """Raise what went wrong in this thread's last call.

        Raises:
            OperatorError: In any case.
        """
        raise OperatorError(f"{self.name} failed: {self._library.deep5_error().decode(errors='replace')}")

    @property
    def failure(self) -> Exception | None:
        """What `specs` raised when a framework asked for the shapes of outputs; None where all went well."""
        return self._failure

    def _said(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """The outputs as the operator's specs says them, held against what the C++ class writes."""
        outputs = specs_of(self._operator, inputs)
        if tuple(spec.dtype for spec in outputs) != self.dtypes[self.inputs :]:
            raise OperatorError(
                f"{self.name}: its specs says outputs of {', '.join(spec.dtype for spec in outputs)}, the C++ class "
                f"writes {', '.join(self.dtypes[self.inputs :])}"
            )
        for spec in outputs:
            if len(spec.shape) > _MAX_RANK:
                raise ShapeError(f"{self.name}: got {len(spec.shape)} axes; allowed: at most {_MAX_RANK}")
        return outputs

    def _shapes(self, inputs: Any, outputs: Any) -> None:
        """Answer a framework's question for the shapes of outputs."""
        specs = [
            TensorSpec(shape=tuple(inputs[at].shape[axis] for axis in range(inputs[at].rank)), dtype=self.dtypes[at])
            for at in range(self.inputs)
        ]
        for at, spec in enumerate(self._said(specs)):
            outputs[at].rank = len(spec.shape)
            for axis, extent in enumerate(spec.shape):
                outputs[at].shape[axis] = extent


def remembered(
    plans: dict[Any, Plan], name: str, inputs: Sequence[Any], make: Callable[[Sequence[TensorSpec]], Plan]
) -> Plan:
    """A new plan for inputs, kept among others, of which there are not too many.

    Args:
        plans: By kind, shape and element type of each input: not all that has the shape of an array is one.
        name: What messages call the operator.
        inputs: NumPy arrays, or NumPy's scalars, which are arrays of no axes.
        make: Gives the plan.

    Raises:
        ShapeError: One of them is something else.
    """
    arrays = [np.asarray(value) if isinstance(value, np.generic) else value for value in inputs]
    check_arrays(name, arrays)
    key = tuple([(type(value), value.shape, value.dtype) for value in inputs])
    return remember(plans, key, make([spec_of(value) for value in arrays]))


def check_arrays(name: str, inputs: Sequence[Any]) -> None:
    """Refuse what is no NumPy array of this machine's own numbers.

    Raises:
        ShapeError: The first such input of the operator `name`.
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


def _answer(kernel: Kernel | None, inputs: Any, outputs: Any) -> int:
    if kernel is None:
        return 1
    try:
        kernel._shapes(inputs, outputs)
    except Exception as error:  # a callback cannot raise; whoever called the framework is told
        kernel._failure = error
        return 1
    kernel._failure = None
    return 0


def _unbind(library: Any, pointer: int, handle: Any) -> None:
    # The handle is an argument so that the object in C++ outlives its kernels.
    library.deep5_unbind(pointer)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
