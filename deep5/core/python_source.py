"""Python source as a syntax tree and as text, in one thread at a time; numbers as source text."""

from __future__ import annotations

import ast
import inspect
import math
import threading
from typing import Any, Literal, overload

__all__ = ["number", "parse", "source_of"]

# Before CPython 3.11.7, all threads share one counter for the depth of the tree under construction. If garbage
# collection switches to another thread that also builds a tree, the first fails with a SystemError
# (https://github.com/python/cpython/issues/106905). Ranks that are threads read their recipes concurrently.
_ONE = threading.RLock()


@overload
def parse(source: str | bytes) -> ast.Module: ...
@overload
def parse(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...
def parse(source: str | bytes, mode: str = "exec") -> ast.AST:
    """`ast.parse`; raises the same errors: SyntaxError and, for zero bytes in the source, ValueError or SyntaxError."""
    with _ONE:
        return ast.parse(source, mode=mode)


def source_of(component: Any) -> str:
    """`inspect.getsource`, which builds a tree to find a class; also raises OSError and TypeError."""
    with _ONE:
        return inspect.getsource(component)


def number(value: float) -> str:
    """A number as source text; infinities and NaN have no literal."""
    return repr(value) if math.isfinite(value) else f"float('{value}')"
