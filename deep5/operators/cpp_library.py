"""The library of a C++ operator: its class for one element type, compiled and loaded, and its description."""

from __future__ import annotations

import ctypes
import inspect
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.compiler import CPP, CUDA, CompilerRefusal, load_library
from deep5.core.errors import Deep5Error, OperatorError, Unsupported
from deep5.operators.cpp_attributes import given_attributes
from deep5.operators.kernel import ASK
from deep5.operators.plan import INCLUDE, MAX_TENSORS, NAMES

__all__ = ["BOUNDS", "ELEMENTS", "Argument", "Library", "Made", "Source", "source_path"]

ELEMENTS = {
    "float32": "float",
    "float64": "double",
    "float16": "deep5::float16",
    "bfloat16": "deep5::bfloat16",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""C++ element types by NumPy name."""

BOUNDS = [0]
"""Exit status of compiled code at an index out of bounds; 0: without index checks."""

_COUNTERS = 64
_ERROR = re.compile(r"^(?P<file>.*?)[:(](?P<line>\d+)[:)].*?\berror\b", re.MULTILINE)
_OWN = re.compile(r"error\b.*?\bdeep5: (?P<text>.*?)[\"\s]*$", re.MULTILINE)


class Argument:
    """A tensor argument of a C++ function."""

    def __init__(self, code: int) -> None:
        self.dtype = NAMES[code & 0xFF]
        self.constant, self.strided = bool(code & 1 << 8), bool(code & 1 << 9)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A C++ class template.

    Attributes:
        name: Name of the operator in messages.
        template: Name of the class template.
        text: The source.
        path: Its file; None if there is none.
        attributes: Names of the constructor's arguments.
    """

    name: str
    template: str
    text: str
    path: Path | None
    attributes: tuple[str, ...]


class Library:
    """A C++ class for one element type and device.

    Args:
        source: The source for the device.
        element: The element type of the class.
        device: `"cpu"` or `"cuda"`.

    Attributes:
        functions: The exported functions.
        has_backward: Whether the class has a `backward`.

    Raises:
        OperatorError: It does not compile, or the class is not a valid operator class.
    """

    def __init__(self, source: Source, element: str, device: str) -> None:
        self.name, self._template = source.name, source.template
        path, count = source.path, len(source.attributes)
        self._source, self._end = _quoted(str(path or self.name)), _quoted(f"deep5's part of {self.name}")
        wrong = (
            f"the class has no public constructor, or several, for the {count} attributes "
            f"({', '.join(source.attributes)}); allowed: one of so many numbers, strings and vectors of numbers"
        )
        program = (
            f"{f'#define DEEP5_BOUNDS {BOUNDS[0]}' if BOUNDS[0] else ''}\n"
            f'#include <deep5/library.h>\n#line 1 "{self._source}"\n{source.text}\n#line 1 "{self._end}"\n'
            f"using deep5_class = {self._template}<{ELEMENTS[element]}>;\n"
            f'static_assert(deep5::library::takes<deep5_class, {count}>, "deep5: {wrong}");\n'
            f"DEEP5_LIBRARY(deep5_class, {count})\n"
        )
        folders = (INCLUDE, *([path.parent] if path else ()))
        what = f"the operator {self.name} for {element}"
        try:
            self.functions = load_library(program, CPP if device == "cpu" else CUDA, what=what, include=folders)
        except CompilerRefusal as error:
            raise OperatorError(self._reported(error)) from error
        except Deep5Error as error:
            raise OperatorError(str(error)) from error
        _declare(self.functions)
        self.has_backward: bool = self.functions.deep5_describe(1, (ctypes.c_int32 * MAX_TENSORS)()) >= 0

    def arguments(self, function: str) -> list[Argument]:
        """The arguments of `forward` or `backward`; empty if the function does not exist.

        Raises:
            Unsupported: There are too many tensors.
        """
        codes = (ctypes.c_int32 * MAX_TENSORS)()
        count = self.functions.deep5_describe(["forward", "backward"].index(function), codes)
        if count > MAX_TENSORS:
            raise Unsupported(f"{self.name}: {function} takes {count} tensors; allowed: at most {MAX_TENSORS}")
        return [Argument(code) for code in codes[: max(count, 0)]]

    def _reported(self, error: CompilerRefusal) -> str:
        """The compiler's output: all of it if it concerns the user's lines, else only the relevant part."""
        first, own = _ERROR.search(error.output), _OWN.search(error.output)
        if first is not None and (first["file"], first["line"]) == (self._end, "1"):
            return (
                f"{self.name}: its C++ source has no class template {self._template!r} of one element type; allowed: "
                f"template <typename T> class {self._template}; remedy: rename one of them, or name the template in "
                'the Python class, template = "…"'
            )
        if first is not None and own is not None and first["file"].startswith((self._end, str(INCLUDE))):
            return f"{self.name}: {own['text']}"
        return str(error)


class Made:
    """An object of a C++ class.

    Args:
        library: The class.
        attributes: The constructor's arguments by name.

    Raises:
        OperatorError: The constructor threw.
    """

    def __init__(self, library: Library, attributes: Mapping[str, Any]) -> None:
        self.library = library
        functions = library.functions
        given, kept = given_attributes(attributes)
        self.address = functions.deep5_create(given)
        del kept
        if not self.address:
            raise OperatorError(
                f"{library.name}: its C++ constructor failed: {functions.deep5_error().decode(errors='replace')}"
            )
        weakref.finalize(self, functions.deep5_destroy, self.address)

    def report(self) -> dict[str, float]:
        """The counters by name; resets them.

        Raises:
            OperatorError: There are too many.
        """
        names, values = (ctypes.c_char_p * _COUNTERS)(), (ctypes.c_double * _COUNTERS)()
        count = self.library.functions.deep5_report(self.address, names, values, _COUNTERS)
        if count > _COUNTERS:
            raise OperatorError(f"{self.library.name} reports {count} counters; allowed: at most {_COUNTERS}")
        return {
            (name or b"").decode(errors="replace"): value
            for name, value in zip(names[:count], values[:count], strict=True)
        }


def source_path(kind: type, source: str | Path) -> Path | None:
    """The file of a source, next to the class's own file; None if it is the source itself.

    >>> source_path(object, "struct A {};") is None
    True
    """
    if isinstance(source, str) and re.search("[{;\n]", source):
        return None
    home = next((base for base in kind.__mro__ if source in (vars(base).get("source"), vars(base).get("cuda"))), kind)
    try:
        folder = Path(inspect.getfile(home)).parent
    except (TypeError, OSError):  # a class defined interactively
        folder = Path.cwd()
    return (folder / source).resolve()


def _quoted(text: str) -> str:
    """A string escaped for a C++ string literal."""
    return " ".join(text.splitlines()).replace("\\", "\\\\").replace('"', '\\"')


def _declare(functions: ctypes.CDLL) -> None:
    pointer, whole = ctypes.c_void_p, ctypes.c_int32
    functions.deep5_create.argtypes, functions.deep5_create.restype = (pointer,), pointer
    functions.deep5_destroy.argtypes, functions.deep5_destroy.restype = (pointer,), None
    functions.deep5_describe.argtypes, functions.deep5_describe.restype = (ctypes.c_int, pointer), whole
    functions.deep5_error.argtypes, functions.deep5_error.restype = (), ctypes.c_char_p
    functions.deep5_report.argtypes = (pointer, pointer, pointer, ctypes.c_int)
    functions.deep5_bind.argtypes = (
        *(pointer, ctypes.c_int, whole, whole, pointer, pointer, whole, pointer, pointer),
        *(ASK, pointer),
    )
    functions.deep5_bind.restype = pointer
    functions.deep5_unbind.argtypes, functions.deep5_unbind.restype = (pointer,), None
