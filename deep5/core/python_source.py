"""Python source as a tree and as text, in one thread at a time; numbers as source text."""

from __future__ import annotations

import ast
import inspect
import math
import threading
from typing import Any, Literal, overload

__all__ = ["number", "parse", "source_of"]

# Until 3.11.7 all threads of CPython count in one place how deep a tree is that is being made. Where a collection of
# garbage lets another thread in, which makes one as well, the first fails with a SystemError
# (https://github.com/python/cpython/issues/106905). Ranks that are threads read their recipes side by side.
_ONE = threading.RLock()


@overload
def parse(source: str | bytes) -> ast.Module: ...
@overload
def parse(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...
def parse(source: str | bytes, mode: str = "exec") -> ast.AST:
    """`ast.parse`; raises SyntaxError and, for zero bytes in the source, ValueError or SyntaxError, as it does."""
    with _ONE:
        return ast.parse(source, mode=mode)


def source_of(component: Any) -> str:
    """`inspect.getsource`, which makes a tree to find a class; raises OSError and TypeError as it does."""
    with _ONE:
        return inspect.getsource(component)


def number(value: float) -> str:
    """A number as source text; infinities and NaN have no literal."""
    return repr(value) if math.isfinite(value) else f"float('{value}')"
