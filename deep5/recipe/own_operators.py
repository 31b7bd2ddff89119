"""The C++ files of operators that a recipe's own code defines."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deep5.core.own_files import file_of
from deep5.core.python_source import parse
from deep5.recipe.own_code import Code

__all__ = ["files_of_operator", "files_of_operators"]


def files_of_operator(component: Any) -> set[str]:
    """The C++ sources of an operator and the files that they include; empty for other components."""
    from deep5.operators.cpp import CppOperator
    from deep5.operators.cpp_library import source_path
    from deep5.operators.included_files import included_files

    found: set[str] = set()
    if not (isinstance(component, type) and issubclass(component, CppOperator)):
        return found
    for source in (component.source, component.cuda):
        path = source_path(component, source) if source else None
        text = str(source)
        if path is not None:
            if not path.is_file():
                continue
            found.add(str(path))
            text = path.read_text(encoding="utf-8", errors="replace")
        found |= {str(file) for file in included_files(text, path)}
    return found


def files_of_operators(code: Code) -> set[str]:
    """The same of all operators that the code defines; a network names them, without their sources."""
    cpp: Any = sys.modules.get("deep5.operators.cpp")
    found: set[str] = set()
    kinds: list[type] = [] if cpp is None else list(_kinds(cpp.CppOperator))
    for kind in kinds:
        module = sys.modules.get(kind.__module__)
        file = file_of(module)
        if module is None or file is None or not _is_current(kind, module):
            continue
        place = os.path.realpath(file)
        if place in code.files or (place in code.lines and _counts(kind, place, code.lines[place])):
            found |= files_of_operator(kind)
    return found


def _kinds(base: type) -> Iterator[type]:
    below: list[type] = base.__subclasses__()
    for kind in below:
        yield kind
        yield from _kinds(kind)


def _is_current(kind: type, module: types.ModuleType) -> bool:
    """Whether a class is that of the loaded module: the class of a file that was loaded again may still exist."""
    scopes = [own.__globals__ for own in vars(kind).values() if isinstance(own, types.FunctionType)]
    if scopes:
        return any(scope is vars(module) for scope in scopes)
    return getattr(module, kind.__qualname__, None) is kind


def _counts(kind: type, file: str, spans: list[tuple[int, int]]) -> bool:
    """Whether the statement that defines a class is one of those that count."""
    name = kind.__qualname__.partition(".")[0]
    try:
        body = parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    lines = [statement.lineno for statement in body if getattr(statement, "name", None) == name]
    return not lines or any(first <= line <= last for line in lines for first, last in spans)
