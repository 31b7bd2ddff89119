"""How a back-end computes each operator, and a hash of that code: `python operator_code.py FRAMEWORK`, as JSON.

Two commits whose hashes are equal run the same code for an operator, as far as functions of deep5 determine it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Code:
    """The functions of deep5 that a function reaches by its closure and its globals."""

    def __init__(self, primitives: object) -> None:
        self._primitives = primitives
        self._seen: set[int] = set()
        self._parts: set[str] = set()

    def add(self, value: Any) -> None:
        """Add a function, or what its closure holds; each of them once."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self.add(each)
        elif isinstance(value, FunctionType) and (value.__module__ or "").startswith("deep5."):
            self._function(value)
        elif isinstance(value, _PLAIN):
            self._parts.add(repr(value))
        elif isinstance(value, (tuple, list)):
            for each in value:
                self.add(each)

    def _function(self, function: FunctionType) -> None:
        self._parts.update(_texts(function.__code__))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                continue  # not assigned
        for name in _names(function.__code__):
            if name in function.__globals__:
                self.add(function.__globals__[name])
            self.add(getattr(type(self._primitives), name, None))

    def digest(self) -> str:
        """A hash of all that was added."""
        return hashlib.sha256("\n".join(sorted(self._parts)).encode()).hexdigest()[:16]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(code: CodeType) -> Iterator[str]:
    for each in _codes(code):
        yield from each.co_names


def _texts(code: CodeType) -> Iterator[str]:
    for each in _codes(code):
        plain = [constant for constant in each.co_consts if not isinstance(constant, CodeType)]
        yield f"{each.co_code.hex()} {each.co_names} {plain}"


def written(framework: str) -> dict[str, tuple[str, str]]:
    """By operator of the back-end's table: "composite", "override" or "native", and the hash of its code."""
    table = importlib.import_module(f"deep5.frameworks.{framework}.operators").OPERATORS
    composites, overrides, primitives = _shared(framework)
    found = {}
    for name, emit in table.items():
        how = "native" if name not in composites else "override" if name in overrides else "composite"
        code = Code(primitives)
        code.add(emit)
        found[name] = how, code.digest()
    return found


def _shared(framework: str) -> tuple[Mapping[str, Any], Mapping[str, str], object]:
    """The operators that are written once, those that the back-end overrides, and its primitives."""
    try:
        composites = importlib.import_module("deep5.networks.kernels.operators").COMPOSITES
        primitives = importlib.import_module(f"deep5.frameworks.{framework}.primitives").PRIMITIVES
    except ModuleNotFoundError:
        return {}, {}, None  # a commit without them
    return composites, importlib.import_module(f"deep5.frameworks.{framework}.table").OVERRIDES, primitives


if __name__ == "__main__":
    sys.stdout.write(json.dumps(written(sys.argv[1])))
