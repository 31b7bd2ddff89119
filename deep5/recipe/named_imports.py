"""Modules that code imports by a string: `import_module("helper")`, in each way in which it is usually written."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator

__all__ = ["named_imports"]

# By function, the position of its argument with the package that a relative name starts from.
_IMPORTERS = {"import_module": 1, "__import__": None, "run_module": None, "find_spec": 1, "resolve_name": 1}
_NAMES = ("name", "mod_name", "fullname")
# Positions of two arguments of __import__.
_FROM, _LEVEL = 3, 4
# Of an expression that may be more strings than these, none counts.
_MOST = 256


def named_imports(statements: Iterable[ast.AST], package: str) -> set[str]:
    """The names of modules that statements import by a string; some may be names within a module.

    Follows other names of the importing functions, and names that stand for strings. A string that a function computes
    is not known.

    Args:
        statements: The statements of a file.
        package: The package that relative imports start from.
    """
    nodes = [node for statement in statements for node in ast.walk(statement)]
    found = _Names(nodes, package)
    return {name for node in nodes if isinstance(node, ast.Call) for name in found.of_call(node)}


class _Names:
    """What names stand for in a file: importing functions, and strings."""

    def __init__(self, nodes: list[ast.AST], package: str) -> None:
        self._importers: dict[str, str] = {name: name for name in _IMPORTERS}
        self._values: dict[str, list[ast.expr]] = {}
        self._package = package
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name in _IMPORTERS and alias.asname:
                        self._importers[alias.asname] = alias.name
            for name, value in _bound(node):
                if (function := self._importer(value)) is not None:
                    self._importers[name] = function
                self._values.setdefault(name, []).append(value)

    def of_call(self, call: ast.Call) -> Iterator[str]:
        """The modules that a call imports."""
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        if (function := self._importer(call.func)) is not None:
            first = [*call.args[:1], *(keywords[name] for name in _NAMES if name in keywords)]
            rest = call.args
        else:
            # The function as an argument, as of functools.partial or map.
            given = [self._importer(argument) for argument in call.args]
            place, function = next(((at, name) for at, name in enumerate(given) if name is not None), (0, None))
            if function is None:
                return
            first = rest = call.args[place + 1 :]
        names = {name for node in first for name in self._strings(node)}
        for name in names:
            yield from self._resolved(name, function, rest, keywords)

    def _resolved(
        self, name: str, function: str, given: list[ast.expr], keywords: dict[str, ast.expr]
    ) -> Iterator[str]:
        position = _IMPORTERS[function]
        level = keywords.get("level", given[_LEVEL] if len(given) > _LEVEL else None)
        if function == "__import__" and isinstance(level, ast.Constant) and type(level.value) is int:
            name = "." * level.value + name
        packages = {self._package}
        stated = keywords.get("package", given[position] if position is not None and len(given) > position else None)
        if stated is not None:
            packages |= self._strings(stated)
        for package in packages if name.startswith(".") else {""}:
            try:
                base = importlib.util.resolve_name(name, package).partition(":")[0]
            except (ImportError, ValueError):
                continue
            yield base
            if function == "__import__":
                listed = keywords.get("fromlist", given[_FROM] if len(given) > _FROM else None)
                yield from (f"{base}.{one}" for one in (self._strings(listed) if listed is not None else ()))

    def _importer(self, node: ast.expr) -> str | None:
        """The importing function that an expression is or wraps, or None."""
        if isinstance(node, ast.Call):  # such as functools.partial(import_module, …), getattr(importlib, "…")
            return next((name for name in map(self._importer, node.args) if name is not None), None)
        if isinstance(node, ast.Constant):
            return self._importers.get(node.value) if isinstance(node.value, str) else None
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        return self._importers.get(name)

    def _strings(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> set[str]:
        """The strings that an expression may be."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        if isinstance(node, ast.Name):
            if node.id in ("__package__", "__name__"):  # of a package's own file, these are the same
                return {self._package}
            values = [] if node.id in seen else self._values.get(node.id, [])
            return self._any(values, seen | {node.id})
        if isinstance(node, ast.Attribute):
            return {self._package} if node.attr == "parent" else set()
        if isinstance(node, (ast.JoinedStr, ast.BinOp)):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
            made = {""}
            for part in parts:
                ends = self._strings(part.value if isinstance(part, ast.FormattedValue) else part, seen)
                made = {start + end for start in made for end in ends} if len(made) * len(ends) <= _MOST else set()
            return made
        inner: list[ast.expr] = []
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            inner = node.elts
        elif isinstance(node, ast.Dict):
            inner = [*(key for key in node.keys if key is not None), *node.values]
        elif isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr)):
            inner = [node.value]
        elif isinstance(node, ast.IfExp):
            inner = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            inner = node.values
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = [node.func.value, *node.args]  # TABLE.get("kind", "helper")
        return self._any(inner, seen)

    def _any(self, nodes: Iterable[ast.expr], seen: frozenset[str]) -> set[str]:
        found = {text for node in nodes for text in self._strings(node, seen)}
        return found if len(found) <= _MOST else set()


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that a node binds, each with an expression whose value, or items, it may be."""
    targets: list[ast.expr] = []
    value: ast.expr | None = None
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        targets, value = [node.target], node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        targets, value = [node.target], node.iter
    elif isinstance(node, ast.arguments):
        positional = [*node.posonlyargs, *node.args]
        pairs = [*zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True)]
        pairs += [(one, own) for one, own in zip(node.kwonlyargs, node.kw_defaults, strict=True) if own is not None]
        yield from ((argument.arg, default) for argument, default in pairs)
    for target in targets if value is not None else ():
        for inner in ast.walk(target):
            if isinstance(inner, (ast.Name, ast.Attribute)) and value is not None:
                yield (inner.id if isinstance(inner, ast.Name) else inner.attr), value
