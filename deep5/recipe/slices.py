"""The statements of a recipe's file that its fixed components depend on: the rest may change.

A file holds FIXED next to MUTABLE and METRICS, and code for each. The hash of the fixed part covers what its components
reach: their definitions, the names that these use, the statements that set or change those, and statements with effects
that no name shows, such as `sys.path.insert(...)`.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from deep5.recipe.effects import PARTS, Scope, is_type_checking, root_of

__all__ = ["reached"]

# A function that is called by one of these may use any name of its file.
_ANY_NAME = {"globals", "locals", "vars", "eval", "exec"}


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """A statement of the file.

    Attributes:
        statement: The statement.
        binds: Names that it sets or changes.
        changes: Names whose objects it may change.
        uses: Names of the file that it uses.
        acts: Whether it may have an effect that no name shows.
    """

    statement: ast.stmt
    binds: frozenset[str]
    changes: frozenset[str]
    uses: frozenset[str]
    acts: bool


def reached(
    body: Sequence[ast.stmt], names: Iterable[str] | None, own_source: Callable[[str], bytes | None]
) -> list[ast.stmt]:
    """The statements of a file that definitions depend on, in their order.

    Args:
        body: The file's statements.
        names: The names that are defined in it; if one of them is not, all statements except the recipe's parts count.
            None: definitions of other files; what changes modules of the user's counts, and what acts on anything.
        own_source: Gives the source of a module of the user's by its name; None for other modules.
    """
    statements = [statement for statement in body if not _is_left_out(statement)]
    scope = Scope(statements, own_source)
    units = [_unit(statement, scope) for statement in statements]
    bound = {name for unit in units for name in unit.binds}
    used = {name for unit in units for name in unit.uses}
    library = {name for name in scope.imports if scope.is_of_library(name)}
    if names is None:
        own = {name for name in scope.imports if scope.is_own(name)}
        needed, taken = set[str](), [_acts(unit, used, library) or bool(unit.changes & own) for unit in units]
    else:
        needed, taken = set(names), [_acts(unit, used, library) for unit in units]
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
        taken = [not unit.binds or not unit.binds <= PARTS for unit in units]
    return [unit.statement for unit, own in zip(units, taken, strict=True) if own]


def _acts(unit: _Unit, used: set[str], library: set[str]) -> bool:
    """Whether a statement counts although no name leads to it."""
    if isinstance(unit.statement, (ast.Import, ast.ImportFrom)):
        # An import for its effect: nothing uses the name.
        return unit.acts or not (unit.binds & used or unit.binds <= library)
    return unit.acts


def _is_left_out(statement: ast.stmt) -> bool:
    """Whether a statement does nothing while the file is loaded."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return True
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return True
    return isinstance(statement, ast.Pass) or is_type_checking(statement)


def _is_program(statement: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__":`, which runs only where the file is started as a program.

    What it sets or changes counts; that it runs a recipe does not.
    """
    if not isinstance(statement, ast.If) or statement.orelse or not isinstance(statement.test, ast.Compare):
        return False
    sides = [statement.test.left, *statement.test.comparators]
    return (
        [type(each) for each in statement.test.ops] == [ast.Eq]
        and any(isinstance(each, ast.Name) and each.id == "__name__" for each in sides)
        and any(isinstance(each, ast.Constant) and each.value == "__main__" for each in sides)
    )


def _unit(statement: ast.stmt, scope: Scope) -> _Unit:
    found = scope.effects(statement, is_program=_is_program(statement))
    return _Unit(
        statement=statement,
        binds=frozenset(found.sets | found.changes),
        changes=frozenset(found.changes),
        uses=frozenset(_uses(statement)),
        acts=found.acts,
    )


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
    if isinstance(statement, ast.AugAssign) and (root := root_of(statement.target)):
        found.add(root)
    return {name for name in found if name in _ANY_NAME or not hasattr(builtins, name)}
