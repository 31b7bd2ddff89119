"""`CppOperator`: an operator written in C++ against deep5's header, compiled on first use."""

from __future__ import annotations

import ctypes
import inspect
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deep5.compiler import CPP, CUDA, Language, load_library
from deep5.errors import OperatorError, ShapeError, Unsupported, UsageError, brief
from deep5.operators.backward import Backward
from deep5.operators.contract import is_floating, name_of, spec_of
from deep5.operators.kernel import ASK, CODES, INCLUDE, NAMES, Kernel, Plan, check_arrays
from deep5.operators.operator import Operator
from deep5.tensors import Array

__all__ = ["CppOperator"]

_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "deep5::float16",
    "bfloat16": "deep5::bfloat16",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_COUNTERS = 64
_LOCK = threading.RLock()
_REMEMBERED = 256


class CppOperator(Operator):
    """An operator whose arithmetic is a C++ class template; see `deep5/operator.h`.

    A subclass says where the source is and what the outputs are (`specs`). The element type that the class is made for
    is that of the first floating-point input, or of the first input where there is none. Each is compiled when it is
    first asked for, with `-O3 -march=native` and OpenMP, and kept in the cache folder.

    Args:
        attributes: The arguments of the C++ constructor, in their order: whole numbers (`int64_t`), numbers
            (`double`), truth values (`bool`), texts (`std::string`), and lists of whole numbers or of numbers
            (`std::vector`).

    Attributes:
        source: The C++ file, relative to the file of the subclass, or the source itself (a text of several lines).
        cuda: The same in CUDA, for graphics processors.
        template: Name of the C++ class template; the subclass's own where it is empty.

    >>> class Scale(CppOperator):
    ...     source = '''
    ...     template <typename T>
    ...     struct Scale : deep5::Operator {
    ...       T factor;
    ...       explicit Scale(double factor) : factor(factor) {}
    ...       void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    ...         for (int64_t i = 0; i < x.size(); ++i) y[i] = factor * x[i];
    ...       }
    ...     };'''
    ...     def __init__(self, factor): super().__init__(factor=float(factor))
    ...     def specs(self, x): return (x,)
    >>> Scale(3).forward(np.array([1.0, 2.0]))
    array([3., 6.])
    """

    source: ClassVar[str] = ""
    cuda: ClassVar[str] = ""
    template: ClassVar[str] = ""

    def __init__(self, **attributes: Any) -> None:
        self.attributes = {name: _checked(type(self).__name__, name, value) for name, value in attributes.items()}
        self._objects: dict[tuple[str, str], _Object] = {}
        self._kernels: dict[Any, Kernel] = {}
        # Of the forward pass on NumPy arrays, by their shapes and element types: one look a call.
        self._plans: dict[Any, Plan] = {}

    def forward(self, *inputs: Array) -> Any:
        """The outputs of NumPy arrays.

        Raises:
            ShapeError: Inputs that the operator does not take.
            OperatorError: It does not compile, or failed.
        """
        try:
            plan = self._plans[tuple([(value.shape, value.dtype) for value in inputs])]
        except (KeyError, AttributeError, TypeError):
            plan = self._remember(inputs)
        outputs = plan.on_arrays(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def backward(
        self,
        output_grads: Sequence[Array | None],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        needs: Sequence[bool],
    ) -> Sequence[Array | None]:
        """The gradients of NumPy arrays; see `Operator.backward`."""
        needs = tuple(bool(need) for need in needs)
        kernel = self.kernel(tuple(str(value.dtype) for value in inputs), needs=needs)
        given = [
            gradient if gradient is not None else np.zeros_like(value)
            for gradient, value in zip(output_grads, outputs, strict=True)
            if is_floating(str(value.dtype))
        ]
        found = iter(kernel(*given, *inputs, *outputs))
        return tuple(next(found) if needed else None for needed in needs)

    def kernel(self, dtypes: Sequence[str], *, needs: Sequence[bool] | None = None, device: str = "cpu") -> Kernel:
        """What frameworks call, compiled where it was not yet.

        Args:
            dtypes: Element types of the operator's inputs, as NumPy names them.
            needs: Which inputs want a gradient, for the backward pass; None: the forward pass.
            device: `"cpu"` or `"cuda"`.

        Returns:
            The kernel. A backward one has the inputs and outputs that `Backward` says.

        Raises:
            OperatorError: It does not compile, has no `backward`, or its functions do not take what `specs` says.
            Unsupported: There is no source for the device.
        """
        key = (tuple(dtypes), None if needs is None else tuple(needs), device)
        kernel = self._kernels.get(key)
        if kernel is None:
            with _LOCK:  # threads that come at once share one object in C++
                kernel = self._kernels.get(key)
                if kernel is None:
                    kernel = self._kernels[key] = self._bind(*key)
        return kernel

    @property
    def differentiable(self) -> bool:
        """Whether the source has a `backward`; looked up in the text, without compiling it."""
        return "backward" in self.text()

    def report(self) -> dict[str, float]:
        """What the C++ code reported since the last call, by counter, added up."""
        total: dict[str, float] = {}
        for made in self._objects.values():
            names, values = (ctypes.c_char_p * _COUNTERS)(), (ctypes.c_double * _COUNTERS)()
            count = made.library.deep5_report(made.address, names, values, _COUNTERS)
            if count > _COUNTERS:
                raise OperatorError(f"{name_of(self)} reports {count} counters; allowed: at most {_COUNTERS}")
            for name, value in zip(names[:count], values[:count], strict=True):
                key = (name or b"").decode(errors="replace")
                total[key] = total.get(key, 0.0) + value
        return total

    def text(self, device: str = "cpu") -> str:
        """The source.

        Raises:
            Unsupported: There is none for the device.
            OperatorError: Its file cannot be read.
        """
        source = self.source if device == "cpu" else self.cuda
        if not source:
            what = "source" if device == "cpu" else "cuda"
            raise Unsupported(
                f"{name_of(self)} has no {what}, so it does not run on {device}; allowed: a file or a text"
            )
        return _text(type(self), source)

    def _remember(self, inputs: Sequence[Any]) -> Plan:
        check_arrays(name_of(self), inputs)
        plan = self.kernel(tuple(str(value.dtype) for value in inputs)).plan([spec_of(value) for value in inputs])
        if len(self._plans) >= _REMEMBERED:
            self._plans.clear()
        self._plans[tuple([(value.shape, value.dtype) for value in inputs])] = plan
        return plan

    def _bind(self, dtypes: tuple[str, ...], needs: tuple[bool, ...] | None, device: str) -> Kernel:
        name = name_of(self)
        for dtype in dtypes:
            if dtype not in CODES:
                raise ShapeError(f"{name}: got an input of {dtype}; allowed: {', '.join(CODES)}")
        element = next((dtype for dtype in dtypes if is_floating(dtype)), dtypes[0] if dtypes else "float32")
        made = self._object(element, device)
        forward = made.arguments(0)
        inputs, outputs = [entry for entry in forward if entry.constant], [e for e in forward if not e.constant]
        if forward != [*inputs, *outputs] or not outputs:
            raise OperatorError(
                f"{name}: forward takes ({_signature(forward)}); allowed: inputs (Tensor<const T>), then at least one "
                "output (Tensor<T>)"
            )
        if tuple(entry.dtype for entry in inputs) != dtypes:
            raise ShapeError(
                f"{name}: got inputs of {', '.join(dtypes) or 'nothing'}; allowed, as its C++ forward takes them: "
                f"{', '.join(entry.dtype for entry in inputs)}"
            )
        if needs is None:
            return Kernel(
                self,
                made.library,
                made,
                0,
                dtypes,
                [entry.dtype for entry in outputs],
                range(len(forward)),
                [entry.strided for entry in inputs],
            )
        floating = [is_floating(entry.dtype) for entry in outputs]
        arguments = made.arguments(1)
        if not arguments:
            raise OperatorError(f"{name} has no backward in C++; remedy: write one, or ask for no gradient")
        grads = [entry.dtype for entry in outputs if is_floating(entry.dtype)]
        given = [*grads, *dtypes, *(entry.dtype for entry in outputs)]
        wanted = [dtype for dtype in dtypes if is_floating(dtype)]
        expected = [(dtype, True) for dtype in given] + [(dtype, False) for dtype in wanted]
        if [(entry.dtype, entry.constant) for entry in arguments] != expected:
            raise OperatorError(
                f"{name}: backward takes ({_signature(arguments)}); allowed: gradients by the floating-point outputs, "
                f"inputs, outputs, then the gradients to write, ({_listed(expected)})"
            )
        places, at = list(range(len(given))), len(given)
        for dtype, needed in zip(dtypes, needs, strict=True):
            if is_floating(dtype):
                places.append(at if needed else -1)
                at += int(needed)
        return Kernel(
            Backward(self, needs, floating),
            made.library,
            made,
            1,
            given,
            [dtype for dtype, needed in zip(dtypes, needs, strict=True) if needed],
            places,
            [entry.strided for entry in arguments[: len(given)]],
        )

    def _object(self, element: str, device: str) -> _Object:
        if (element, device) not in self._objects:
            self._objects[element, device] = _Object(self, element, device)
        return self._objects[element, device]


class _Argument:
    """A tensor that a C++ function takes."""

    def __init__(self, code: int) -> None:
        self.dtype = NAMES[code & 0xFF]
        self.constant, self.strided = bool(code & 1 << 8), bool(code & 1 << 9)


class _Object:
    """The object in C++, for one element type and device."""

    def __init__(self, operator: CppOperator, element: str, device: str) -> None:
        name, kind = name_of(operator), type(operator)
        language: Language = CPP if device == "cpu" else CUDA
        source = operator.source if device == "cpu" else operator.cuda
        path = _path(kind, source)
        types = ", ".join(_attribute_type(value) for value in operator.attributes.values())
        template = operator.template or kind.__name__
        text = (
            f'#include <deep5/operator.h>\n#line 1 "{path or name}"\n{operator.text(device)}\n'
            f'#line 1 "deep5\'s part of {name}"\n'
            f"using Element = {_TYPES[element]};\nusing Operator = {template}<Element>;\n"
            f"DEEP5_LIBRARY(Operator{', ' if types else ''}{types})\n"
        )
        folders = (INCLUDE, *([path.parent] if path else ()))
        what = f"the operator {name} for {element}"
        try:
            self.library = load_library(text, language, what=what, include=folders)
        except OperatorError:
            raise
        except Exception as error:
            raise OperatorError(str(error)) from error
        self._declare()
        given = (_Attribute * max(1, len(operator.attributes)))()
        kept = [_fill(entry, value) for entry, value in zip(given, operator.attributes.values(), strict=False)]
        self.address = self.library.deep5_create(given)
        del kept
        if not self.address:
            raise OperatorError(
                f"{name}: its C++ constructor failed: {self.library.deep5_error().decode(errors='replace')}"
            )
        weakref.finalize(self, self.library.deep5_destroy, self.address)

    def arguments(self, direction: int) -> list[_Argument]:
        """Of `forward` (0) or `backward` (1); empty where there is none."""
        codes, count = (ctypes.c_int32 * 64)(), ctypes.c_int32()
        self.library.deep5_describe(direction, codes, ctypes.byref(count))
        return [_Argument(code) for code in codes[: max(count.value, 0)]]

    def _declare(self) -> None:
        library, pointer, whole = self.library, ctypes.c_void_p, ctypes.c_int32
        library.deep5_create.argtypes, library.deep5_create.restype = (pointer,), pointer
        library.deep5_destroy.argtypes, library.deep5_destroy.restype = (pointer,), None
        library.deep5_describe.argtypes, library.deep5_describe.restype = (ctypes.c_int, pointer, pointer), None
        library.deep5_error.argtypes, library.deep5_error.restype = (), ctypes.c_char_p
        library.deep5_report.argtypes = (pointer, pointer, pointer, ctypes.c_int)
        library.deep5_bind.argtypes = (
            *(pointer, ctypes.c_int, whole, whole, pointer, pointer, whole, pointer, pointer),
            *(ASK, pointer),
        )
        library.deep5_bind.restype = pointer
        library.deep5_unbind.argtypes, library.deep5_unbind.restype = (pointer,), None


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("length", ctypes.c_int32),
        ("whole", ctypes.c_int64),
        ("number", ctypes.c_double),
        ("data", ctypes.c_void_p),
    )


def _fill(entry: Any, value: Any) -> Any:
    """Write an attribute; returns what has to be kept until it was read."""
    if isinstance(value, (bool, int)):
        entry.whole = int(value)
        return None
    if isinstance(value, float):
        entry.number = value
        return None
    if isinstance(value, str):
        kept: Any = ctypes.create_string_buffer(value.encode())
        entry.length = len(value.encode())
    else:
        kind = ctypes.c_double if any(isinstance(number, float) for number in value) else ctypes.c_int64
        kept = (kind * max(1, len(value)))(*value)
        entry.length = len(value)
    entry.data = ctypes.cast(kept, ctypes.c_void_p)
    return kept


def _checked(operator: str, name: str, value: Any) -> Any:
    """An attribute as C++ takes it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, float, str)):
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise UsageError(f"{operator}: got {name}={value}; allowed: whole numbers of 64 bits")
        return value
    if isinstance(value, (list, tuple, np.ndarray)):
        numbers = tuple(number.item() if isinstance(number, np.generic) else number for number in value)
        if all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers):
            floating = any(isinstance(number, float) for number in numbers)
            return tuple(map(float, numbers)) if floating else numbers
    raise UsageError(
        f"{operator}: got {name}={brief(value)}; allowed: a whole number, a number, a truth value, a text, or a list "
        "of numbers"
    )


def _attribute_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64_t"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "std::string"
    return "std::vector<double>" if any(isinstance(n, float) for n in value) else "std::vector<int64_t>"


def _signature(arguments: Sequence[_Argument]) -> str:
    return _listed([(entry.dtype, entry.constant) for entry in arguments])


def _listed(arguments: Sequence[tuple[str, bool]]) -> str:
    return ", ".join(f"{'const ' if constant else ''}{_TYPES[dtype]}" for dtype, constant in arguments)


def _path(kind: type, source: str) -> Path | None:
    """The file of a source; None where it is the source itself."""
    if "\n" in source:
        return None
    home = next((base for base in kind.__mro__ if source in (vars(base).get("source"), vars(base).get("cuda"))), kind)
    try:
        folder = Path(inspect.getfile(home)).parent
    except (TypeError, OSError):  # a class that was typed in
        folder = Path.cwd()
    return (folder / source).resolve()


def _text(kind: type, source: str) -> str:
    path = _path(kind, source)
    if path is None:
        return source
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(
            f"{kind.__name__}: the C++ source {path} cannot be read ({error}); allowed: a file beside the class, or "
            "the source itself"
        ) from error
