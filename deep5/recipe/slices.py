"""The statements of a recipe's file that its fixed components depend on: the rest may change.

A file holds FIXED next to MUTABLE and METRICS, and code for each. The hash of the fixed part covers what its components
reach: their definitions, the names that these use, the statements that set or change those, and statements with effects
that no name shows, such as `sys.path.insert(...)`.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["is_type_checking", "reached"]

_PARTS = {"FIXED", "MUTABLE", "METRICS", "SIZES"}
# A function that is called by one of these may use any name of its file.
_ANY_NAME = {"globals", "locals", "vars", "eval", "exec"}
# Calls without an effect on what a component computes.
_SHOWS = {"print", "warn", "filterwarnings", "simplefilter"}


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """A statement of the file.

    Attributes:
        statement: The statement.
        binds: Names that it sets or changes.
        uses: Names of the file that it uses.
        acts: Whether it may have an effect that no name shows.
    """

    statement: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]
    acts: bool


def reached(body: Sequence[ast.stmt], names: Iterable[str]) -> list[ast.stmt]:
    """The statements of a file that definitions in it depend on, in their order.

    Args:
        body: The file's statements.
        names: The names that are defined; if one of them is not, all statements except the recipe's parts count.
    """
    statements = [statement for statement in body if not _is_left_out(statement)]
    imported = {name for statement in statements for name in _imported(statement)}
    units = [_unit(statement, imported) for statement in statements]
    bound = {name for unit in units for name in unit.binds}
    used = {name for unit in units for name in unit.uses}
    needed, taken = set(names), [_acts(unit, used) for unit in units]
    everything = not needed <= bound
    while not everything:
        more = {name for unit, own in zip(units, taken, strict=True) if own for name in unit.uses}
        everything = bool(more & _ANY_NAME)
        needed |= more
        now = [own or bool(unit.binds & needed) for unit, own in zip(units, taken, strict=True)]
        if now == taken:
            break
        taken = now
    if everything:
        taken = [not unit.binds or not unit.binds <= _PARTS for unit in units]
    return [unit.statement for unit, own in zip(units, taken, strict=True) if own]


def _acts(unit: _Unit, used: set[str]) -> bool:
    """Whether a statement counts although no name leads to it."""
    if isinstance(unit.statement, (ast.Import, ast.ImportFrom)):
        # An import for its effect: nothing uses the name.
        return unit.acts or not unit.binds & used
    return unit.acts


def is_type_checking(statement: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`, whose body does not run."""
    if not isinstance(statement, ast.If):
        return False
    test = statement.test
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _is_left_out(statement: ast.stmt) -> bool:
    """Whether a statement does nothing while the file is loaded as a recipe."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return True
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return True
    if not isinstance(statement, ast.If):
        return isinstance(statement, ast.Pass)
    if is_type_checking(statement) and not statement.orelse:
        return True
    test = statement.test
    return (
        isinstance(test, ast.Compare)
        and any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))
        and any(isinstance(node, ast.Constant) and node.value == "__main__" for node in ast.walk(test))
        and not statement.orelse
    )


def _imported(statement: ast.stmt) -> Iterator[str]:
    for node in _own_nodes(statement):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _unit(statement: ast.stmt, imported: set[str]) -> _Unit:
    binds: set[str] = set()
    acts = isinstance(statement, (ast.Assert, ast.Raise))
    for node in _own_nodes(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            binds.add(node.id)
        elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            binds.add(_root(node) or "")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            binds.add(node.name)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            binds.update([node.name] if node.name else [])
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            binds.update(alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*")
            acts = acts or any(alias.name == "*" for alias in node.names)
        elif isinstance(node, ast.Expr):
            changed, effect = _called(node.value, imported)
            binds.update(changed)
            acts = acts or effect
    # A function may set a name of the file.
    binds.update(name for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names)
    return _Unit(
        statement=statement, binds=frozenset(binds - {""}), uses=frozenset(_uses(statement)), acts=acts or "" in binds
    )


def _called(value: ast.expr, imported: set[str]) -> tuple[set[str], bool]:
    """The names that an expression statement changes, and whether it may have another effect."""
    if isinstance(value, ast.Constant):
        return set(), False
    if not isinstance(value, ast.Call):
        return set(), True
    called = value.func
    last = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if last in _SHOWS:
        return set(), False
    if isinstance(called, ast.Attribute) and (root := _root(called)) and root not in imported:
        return {root}, False  # a method of an object of this file, such as PARTS.update(...)
    return set(), True


def _root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement outside of functions, classes and lambdas, whose bodies have their own names."""
    yield statement
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    for node in ast.iter_child_nodes(statement):
        if not is_type_checking(node):
            yield from _own_nodes(node)


def _uses(statement: ast.stmt) -> set[str]:
    """The names that a statement looks up in its file."""
    try:
        table = symtable.symtable(ast.unparse(statement), "<statement>", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    found = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    tables = list(table.get_children())
    while tables:
        inner = tables.pop()
        tables += inner.get_children()
        found |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global()}
    # A change in place also uses the name.
    if isinstance(statement, ast.AugAssign) and (root := _root(statement.target)):
        found.add(root)
    return {name for name in found if name in _ANY_NAME or not hasattr(builtins, name)}
