"""Hashes of the user's own code: of the part of a file that components depend on, and of every module it imports."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from deep5.core.own_files import file_of, is_own_file
from deep5.core.python_source import parse, syntax_hash, syntax_hash_of
from deep5.recipe.effects import is_type_checking
from deep5.recipe.named_imports import named_imports
from deep5.recipe.opened_files import not_noting
from deep5.recipe.slices import reached

__all__ = ["Code", "imports_own"]


class Code:
    """The code that components of a recipe depend on.

    Attributes:
        modules: SHA-256 of each imported module of the user's, by name, without comments, formatting and docstrings.
        parts: SHA-256 of the parts of files in which components are defined.
        files: The files of the modules, resolved.
        located: The file of each module, by name.
        lines: By file of `parts`, the first and last lines of the statements that count.
    """

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.parts: set[str] = set()
        self.files: set[str] = set()
        self.located: dict[str, str] = {}
        self.lines: dict[str, list[tuple[int, int]]] = {}

    def add_part(self, file: str, source: bytes, names: Iterable[str] | None, package: str = "") -> None:
        """Add the part of a file that defines components, and the modules that it imports.

        Args:
            file: The file.
            source: Its content.
            names: The names of the components in it; None: the whole file.
            package: The package that relative imports start from.
        """
        folder = str(Path(file).resolve().parent)
        try:
            body = parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.parts.add(hashlib.sha256(source).hexdigest())
            return
        statements = body if names is None else reached(body, names, functools.partial(_source, folder=folder))
        self.parts.add(syntax_hash_of(statements))
        self._add_statements(file, statements, package)

    def add_changes(self, file: str, source: bytes) -> None:
        """Add the part of a recipe's file that changes what components in other files compute."""
        try:
            body = parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        folder = str(Path(file).resolve().parent)
        statements = reached(body, None, functools.partial(_source, folder=folder))
        if statements:
            self.parts.add(syntax_hash_of(statements))
            self._add_statements(file, statements, "")

    def _add_statements(self, file: str, statements: Sequence[ast.stmt], package: str) -> None:
        self.lines.setdefault(os.path.realpath(file), []).extend(
            (statement.lineno, statement.end_lineno or statement.lineno) for statement in statements
        )
        self._follow(statements, package, str(Path(file).resolve().parent))

    def add_module(self, name: str, file: str, folder: str) -> None:
        """Add a module, the packages that it is in, and the modules that it imports.

        Args:
            name: Its name.
            file: Its file.
            folder: The folder of the recipe, from which modules are imported.
        """
        if name in self.modules:
            return
        try:
            source = Path(file).read_bytes()
        except OSError:
            return
        self.files.add(os.path.realpath(file))
        self.located[name] = file
        self.modules[name] = syntax_hash(source) if file.endswith(".py") else hashlib.sha256(source).hexdigest()
        package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
        if file.endswith(".py"):
            try:
                body = parse(source).body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return
            self._follow(body, package, folder)
        if package and package != name:
            self.add_named(package, folder)

    def _follow(self, statements: Sequence[ast.stmt], package: str, folder: str) -> None:
        for name in (*_imports(statements, package), *sorted(named_imports(statements, package))):
            self.add_named(name, folder)

    def add_named(self, name: str, folder: str) -> None:
        """Add a module by name, and what it imports; a name that is none of the user's modules adds nothing."""
        if _is_others(name):
            return
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            own = ".".join(parts[:depth])
            if own not in self.modules and (file := _located(own, folder)) is not None:
                self.add_module(own, file, folder)


def imports_own(statements: Iterable[ast.AST], folder: str) -> bool:
    """Whether statements import a module of the user's, wherever in them.

    Args:
        statements: The body of a recipe's file.
        folder: The folder of the recipe, from which modules are imported.
    """
    names = {name.partition(".")[0] for name in _imports(statements, "")}
    return any(not _is_others(name) and _found(name, folder) is not None for name in names if name)


def _imports(statements: Iterable[ast.AST], package: str) -> Iterator[str]:
    """The names of the modules that statements import, wherever in them; some may be names within a module."""
    for statement in statements:
        if is_type_checking(statement):
            continue
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                try:
                    base = importlib.util.resolve_name("." * statement.level + base, package)
                except ImportError:
                    continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in statement.names if alias.name != "*")
        yield from _imports(ast.iter_child_nodes(statement), package)


def _is_others(name: str) -> bool:
    # Not by the names of the standard library: a file beside the recipe comes before most of its modules.
    return name.partition(".")[0] in ("deep5", "__main__", *sys.builtin_module_names)


def _source(name: str, folder: str) -> bytes | None:
    """The source of a module of the user's; None for other modules."""
    if _is_others(name) or (file := _located(name, folder)) is None:
        return None
    try:
        with not_noting():
            return Path(file).read_bytes()
    except OSError:
        return b""


def _located(name: str, folder: str) -> str | None:
    """The file of a module of the user's, loaded or not; None if there is none."""
    if (module := sys.modules.get(name)) is not None:
        file = file_of(module)
        return file if file is not None and is_own_file(os.path.realpath(file)) else None
    return _found(name, folder)


def _found(name: str, folder: str) -> str | None:
    """The file from which a module of the user's would be imported; None if there is none."""
    spec = _spec(name, folder)
    file = spec.origin if spec is not None and spec.has_location else None
    return file if file is not None and Path(file).is_file() and is_own_file(os.path.realpath(file)) else None


def _spec(name: str, folder: str) -> ModuleSpec | None:
    """Where a module would be imported from; its packages are not imported for it."""
    parent = name.rpartition(".")[0]
    if not parent:
        places: Sequence[str] | None = [folder, *sys.path]
    elif (module := sys.modules.get(parent)) is not None:
        places = list(getattr(module, "__path__", ()))
    else:
        found = _spec(parent, folder)
        places = None if found is None else list(found.submodule_search_locations or ())
    if not places:
        return None
    try:
        return PathFinder.find_spec(name, places)
    except (ImportError, ValueError, AttributeError):
        return None
