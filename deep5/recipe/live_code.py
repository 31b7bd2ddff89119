"""Hashes of code without a file, as in a notebook: its source, and the values of the names that it uses."""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Mapping
from typing import Any

from deep5.core.canonical import canonical
from deep5.core.errors import Deep5Error
from deep5.core.own_files import file_of, is_own_module
from deep5.core.python_source import parse, source_of, syntax_hash
from deep5.recipe.own_code import Code

__all__ = ["add_live"]


def add_live(code: Code, component: Any, seen: set[int] | None = None) -> None:
    """Add a class or function of an interactive session, and what it uses.

    Args:
        code: Receives the hashes.
        component: The class or function.
        seen: Identities of the objects that were added.
    """
    seen = set() if seen is None else seen
    if id(component) in seen:
        return
    seen.add(id(component))
    try:
        source = source_of(component)
    except (OSError, TypeError):
        return  # refused where the component itself is hashed
    module = sys.modules.get(component.__module__)
    scope: Mapping[str, Any] = getattr(component, "__globals__", None) or vars(module or types)
    values = {}
    for name in sorted(_names(source)):
        if name in scope and not hasattr(builtins, name):
            values[name] = _value(code, scope[name], seen)
    text = json.dumps([component.__qualname__, syntax_hash(source), values], sort_keys=True, default=str)
    code.parts.add(hashlib.sha256(text.encode()).hexdigest())


def _names(source: str) -> set[str]:
    try:
        tree = parse(textwrap.dedent(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _value(code: Code, value: Any, seen: set[int]) -> Any:
    if isinstance(value, types.ModuleType):
        if is_own_module(value.__name__) and (file := file_of(value)) is not None:
            code.add_module(value.__name__, file, "")
        return value.__name__
    if isinstance(value, type) or inspect.isroutine(value):
        name = str(value.__module__)
        if is_own_module(name):
            if (file := file_of(sys.modules.get(name))) is not None:
                code.add_module(name, file, "")
            else:
                add_live(code, value, seen)
        return f"{name}:{value.__qualname__}"
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    try:
        return canonical(value)
    except Deep5Error:
        kind = type(value)
        own = vars(value) if is_own_module(kind.__module__) and hasattr(value, "__dict__") else {}
        return [kind.__qualname__, {name: _value(code, inner, seen) for name, inner in own.items()}]
