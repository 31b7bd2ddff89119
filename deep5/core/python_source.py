"""Python source as a syntax tree and as text, in one thread at a time; numbers as source text."""

from __future__ import annotations

import ast
import hashlib
import inspect
import math
import textwrap
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Literal, overload

__all__ = ["number", "parse", "parse_in_turn", "source_of", "syntax_hash", "syntax_hash_of"]

# In CPython 3.11 (seen in 3.11.7), all threads share one counter for the depth of the tree under construction. If
# garbage collection switches to another thread that also builds a tree, the first fails with a SystemError
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


def parse_in_turn() -> None:
    """From now on, `ast.parse` builds one tree at a time in this process, for whichever library calls it.

    Threads that run user code call it before they start: NumPy reads the header of an .npz entry with
    `ast.literal_eval`, PyTorch parses its own functions while it is imported, and `inspect.signature` parses the
    signatures of built-in functions.
    """
    # `ast.parse` finds this name in its module before the built-in function.
    vars(ast)["compile"] = _compile


def _compile(*source: Any, **options: Any) -> Any:
    with _ONE:
        return compile(*source, **options)


def source_of(component: Any) -> str:
    """`inspect.getsource`, which builds a tree to find a class; also raises OSError and TypeError."""
    with _ONE:
        return inspect.getsource(component)


def number(value: float) -> str:
    """A number as source text; infinities and NaN have no literal."""
    return repr(value) if math.isfinite(value) else f"float('{value}')"


def syntax_hash(source: str | bytes) -> str:
    """SHA-256 of Python source without its comments, formatting and docstrings; of the bytes if it does not parse.

    The same on every version of Python that parses the source.

    >>> syntax_hash("def f(x):\\n  return x+1  # one") == syntax_hash("def f(x):\\n    'Add.'\\n    return (x + 1)")
    True
    >>> syntax_hash("x = 1") == syntax_hash("x = 1.0")
    False
    """
    try:
        text = textwrap.dedent(source) if isinstance(source, str) else source
        return syntax_hash_of(parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return hashlib.sha256(source.encode() if isinstance(source, str) else source).hexdigest()


def syntax_hash_of(statements: Iterable[ast.stmt]) -> str:
    """SHA-256 of statements, as for `syntax_hash`."""
    digest = hashlib.sha256()
    for statement in statements:
        for piece in _pieces(statement):
            digest.update(piece.encode("utf-8", "surrogatepass"))
            digest.update(b"\0")
    return digest.hexdigest()


def _pieces(node: Any) -> Iterator[str]:
    """The tree as strings. `ast.dump` differs between versions of Python: new fields are empty in older code, and
    empty fields are left out here."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring or another constant without effect
    if isinstance(node, ast.Constant):
        yield f"{type(node.value).__name__} {node.value!r}"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value is None or value == [] or name in ("ctx", "kind", "type_comment"):
                continue
            yield f".{name}"
            yield from _pieces(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in node:
            # The value of a missing key in {**mapping} is None.
            yield from _pieces(item) if item is not None else ("None",)
        yield "]"
    else:
        yield repr(node)
