"""What the statements of a file set and change when they run: names, and objects by another name or in a function.

It errs on the side of too much: a statement that may change an object counts as one that changes it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from deep5.core.own_files import is_standard

__all__ = ["PARTS", "Effects", "Scope", "executed", "is_type_checking", "root_of"]

PARTS = frozenset({"FIXED", "MUTABLE", "METRICS", "SIZES"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef
# Calls without an effect on what a component computes.
_SHOWS = {"print", "warn", "filterwarnings", "simplefilter"}
# Built-in functions that change their first argument, and those that may run or set anything.
_CHANGE_THEIR_ARGUMENT = {"setattr", "delattr", "next", "vars"}
_DO_ANYTHING = {"exec", "eval", "globals", "locals", "__import__"}
# Methods of containers, strings, paths and arrays that change nothing.
_READ = {
    *("get", "items", "keys", "values", "copy", "count", "index", "item", "any", "all"),
    *("format", "join", "split", "rsplit", "strip", "lstrip", "rstrip", "lower", "upper", "title", "replace"),
    *("startswith", "endswith", "encode", "decode", "partition", "rpartition", "zfill"),
    *("read_text", "read_bytes", "exists", "is_file", "is_dir", "glob", "resolve", "absolute", "as_posix"),
    *("with_name", "with_suffix", "astype", "mean", "sum", "max", "min", "std", "reshape", "ravel", "tolist"),
}


@dataclass(kw_only=True)
class Effects:
    """What code does when it runs.

    Attributes:
        sets: Names that it binds.
        changes: Names whose objects it may change.
        acts: Whether it may have an effect that no name shows.
    """

    sets: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    acts: bool = False


@dataclass(kw_only=True)
class _Body:
    """What a function does when it is called: names that it changes, whether arguments too, and what it calls."""

    changes: set[str] = field(default_factory=set)
    arguments: bool = False
    calls: set[str] = field(default_factory=set)


class Scope:
    """The names of a file.

    Args:
        body: Its statements.
        own_source: Gives the source of a module of the user's by its name, b"" for a relative name; None for others.
    """

    def __init__(self, body: Sequence[ast.stmt], own_source: Callable[[str], bytes | None]) -> None:
        self.imports: dict[str, str] = {}
        self._own: dict[str, bytes] = {}
        self._functions: dict[str, list[_Body]] = {}
        self._classes: dict[str, list[ast.ClassDef]] = {}
        self._aliases: dict[str, set[str]] = {}
        self._constants: dict[str, list[ast.expr | None]] = {}
        nodes = [node for statement in body for node in ast.walk(statement)]
        for statement in body:
            for node in executed(statement):
                self._import(node, own_source)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._classes.setdefault(node.name, []).append(node)
        methods = {id(each) for found in self._classes.values() for kind in found for each in kind.body}
        for statement in body:
            self._bind(statement)
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(self._body(node, id(node) in methods))
                self._aliases.setdefault(node.name, set()).update(self._kept(_names(node)))
        for name, found in self._classes.items():
            self._aliases.setdefault(name, set()).update(*(self._kept(_names(kind)) for kind in found))

    def is_own(self, name: str) -> bool:
        """Whether a name is imported from a module of the user's."""
        return name in self._own

    def is_of_library(self, name: str) -> bool:
        """Whether a name is imported from the standard library or deep5: no import of these has an effect."""
        module = self.imports[name]
        return name not in self._own and (is_standard(module) or module.partition(".")[0] == "deep5")

    def effects(self, statement: ast.stmt, *, is_program: bool = False) -> Effects:
        """What a statement of the file does.

        Args:
            statement: The statement.
            is_program: Whether it is the program of a file, whose calls of other packages, such as a run, do not count.
        """
        found = Effects()
        parts, inner, alone = _only_parts(statement), _inner_names(statement), set[int]()
        for node in executed(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                found.sets.update({node.id} if id(node) not in inner else ())
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.sets.update({node.name} if id(node) not in inner else ())
                for decorator in node.decorator_list:
                    # A registry of another package: whatever names the object reaches it there.
                    found.acts |= "register" in ast.unparse(decorator) and root_of(decorator) in self.imports
                    self._call(found, decorator, [], is_alone=False)
                if isinstance(node, ast.ClassDef):
                    self._subclass(found, node)
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
                found.sets.update([node.name] if node.name else [])
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found.sets.update(_bound(alias) for alias in node.names if alias.name != "*")
                found.acts |= any(alias.name == "*" for alias in node.names)
            elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                self._change(found, node)
            elif isinstance(node, ast.Expr):
                found.acts |= not isinstance(node.value, ast.Constant | ast.Call)
                if isinstance(node.value, ast.Call):
                    alone.add(id(node.value))
            elif isinstance(node, ast.Assert | ast.Raise):
                found.acts = True
            elif isinstance(node, ast.Call) and not parts:
                if is_program and root_of(node.func) in self.imports:
                    continue
                arguments = [*node.args, *(each.value for each in node.keywords)]
                self._call(found, node.func, arguments, is_alone=id(node) in alone)
        # A function may set a name of the file.
        found.sets |= {name for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names}
        found.changes = self._reached(found.changes)
        found.acts &= not is_program
        return found

    def _import(self, node: ast.AST, own_source: Callable[[str], bytes | None]) -> None:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            return
        for alias in node.names:
            relative = isinstance(node, ast.ImportFrom) and bool(node.level)
            module = alias.name if isinstance(node, ast.Import) else node.module or ""
            source = b"" if relative else own_source(module)
            self.imports[_bound(alias)] = module
            if source is not None:
                self._own[_bound(alias)] = source

    def _bind(self, statement: ast.stmt) -> None:
        """Note what the names that a statement binds may refer to."""
        for node in executed(statement):
            targets: list[ast.expr] = []
            value: ast.expr | None = None
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
                targets, value = [node.target], node.value
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                targets, value = [node.target], node.iter
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                targets, value = [node.optional_vars], node.context_expr
            elif isinstance(node, ast.Match):
                targets, value = [ast.Name(name) for name in _captures(node)], node.subject
            for name in {each for target in targets for each in _names(target)}:
                self._constants.setdefault(name, []).append(value if isinstance(node, ast.Assign) else None)
                if value is not None and name not in PARTS:
                    self._aliases.setdefault(name, set()).update(self._referred(value))

    def _kept(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are no modules or parts of other packages, which a function uses anyway."""
        return {name for name in names if name not in self.imports or name in self._own}

    def _referred(self, value: ast.expr) -> set[str]:
        """The names whose objects a value may be, or contain."""
        if isinstance(value, ast.Call) and (root := root_of(value.func)) in self.imports and root not in self._own:
            # A new object of another package, which may keep its arguments.
            inner = [*value.args, *(each.value for each in value.keywords)]
            return {name for each in inner for name in self._referred(each)}
        if isinstance(value, ast.Name):
            return {value.id}
        return {name for each in ast.iter_child_nodes(value) for name in self._referred_in(each)}

    def _referred_in(self, node: ast.AST) -> set[str]:
        if isinstance(node, ast.expr):
            return self._referred(node)
        return {name for each in ast.iter_child_nodes(node) for name in self._referred_in(each)}

    def _reached(self, names: Iterable[str]) -> set[str]:
        """The names, and those whose objects they may refer to."""
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [] if name in PARTS else self._aliases.get(name, ())
        return found

    def _change(self, found: Effects, target: ast.expr) -> None:
        root = root_of(target)
        if root is None or root in _DO_ANYTHING or (root in self.imports and root not in self._own):
            found.acts = True
        if root is not None:
            found.changes |= {root, *self._siblings(root)}

    def _siblings(self, name: str) -> set[str]:
        """The names that are imported from the same module of the user's."""
        return {other for other in self._own if name in self._own and self.imports[other] == self.imports[name]}

    def _call(self, found: Effects, called: ast.expr, arguments: Sequence[ast.expr], *, is_alone: bool) -> None:
        """Add what a call does.

        Args:
            found: Receives it.
            called: The function that is called.
            arguments: The arguments.
            is_alone: Whether the call is a statement, made for its effect.
        """
        if isinstance(called, ast.Call):  # such as a decorator with arguments
            arguments = [*arguments, *called.args, *(each.value for each in called.keywords)]
            return self._call(found, called.func, arguments, is_alone=is_alone)
        given = {name for each in arguments for name in self._referred(each) if not self._is_constant(name)}
        root, last = root_of(called), called.attr if isinstance(called, ast.Attribute) else ""
        last = last or (called.id if isinstance(called, ast.Name) else "")
        if last in _SHOWS and last not in self._functions:
            return None
        is_method = isinstance(called, ast.Attribute) and root is not None and root not in self.imports
        found.acts |= (is_alone and not is_method) or last in _DO_ANYTHING or (last == "vars" and not arguments)
        if root in self._own:
            found.changes |= self._siblings(root) | given
        elif last in _CHANGE_THEIR_ARGUMENT:
            found.changes |= given
        elif root in self.imports:
            found.changes |= {name for name in given if name not in self._functions and name not in self._classes}
        else:
            if is_method and last not in _READ and root is not None:
                found.changes.add(root)
            body = self._called({last} if last else {root or ""})
            found.changes |= body.changes | (given if body.arguments else set())
        return None

    def _is_constant(self, name: str, depth: int = 0) -> bool:
        """Whether a name only ever is a number, text or tuple, which nothing changes."""
        values = self._constants.get(name, [])
        return bool(values) and all(
            value is not None and depth < 20 and self._is_immutable(value, depth) for value in values
        )

    def _is_immutable(self, value: ast.AST, depth: int) -> bool:
        if isinstance(value, ast.Name):
            return self._is_constant(value.id, depth + 1)
        if isinstance(value, ast.operator | ast.unaryop | ast.expr_context):
            return True
        kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.JoinedStr, ast.FormattedValue)
        return isinstance(value, kinds) and all(self._is_immutable(x, depth) for x in ast.iter_child_nodes(value))

    def _subclass(self, found: Effects, kind: ast.ClassDef) -> None:
        """Add what the creation of a class does: `__init_subclass__` of its bases, and its metaclass."""
        for base in [*kind.bases, *(each.value for each in kind.keywords)]:
            name = root_of(base) or ""
            if name in self._own:
                source = self._own[name]
                if not source or b"__init_subclass__" in source or b"metaclass" in source:
                    found.changes |= self._siblings(name)
                    found.acts = True
            elif name in self._classes and self._has_hook(name, set()):
                found.changes |= {name} | self._called({name}).changes

    def _has_hook(self, name: str, seen: set[str]) -> bool:
        if name in seen:
            return False
        kinds = self._classes.get(name, [])
        names = {each.name for kind in kinds for each in kind.body if isinstance(each, _Function)}
        bases = {root_of(each) or "" for kind in kinds for each in kind.bases}
        return (
            bool({"__init_subclass__", "__new__", "__prepare__", "__set_name__"} & names)
            or any(kind.keywords for kind in kinds)
            or "type" in bases
            or any(self._has_hook(base, seen | {name}) for base in bases)
        )

    def _called(self, names: set[str]) -> _Body:
        """What functions and methods of these names, and what they call, do; a class: what all of its methods do."""
        found, seen, waiting = _Body(), set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for body in self._functions.get(name, ()):
                found.changes |= body.changes
                found.arguments |= body.arguments
                waiting += body.calls
            for kind in self._classes.get(name, ()):
                waiting += [each.name for each in kind.body if isinstance(each, _Function)]
                waiting += [root_of(each) or "" for each in kind.bases]
        return found

    def _body(self, function: _Function, is_method: bool) -> _Body:
        found, inner = _Body(), [node for statement in function.body for node in ast.walk(statement)]
        given = [each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)]
        known = {name for node in inner if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        local: dict[str, set[str]] = {name: {name} for name in given}
        stored = {x.id for x in inner if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)} - known
        for node in inner:
            if isinstance(node, ast.Assign | ast.NamedExpr | ast.For | ast.withitem | ast.comprehension):
                names = _names(node) & stored
                for name in names:
                    local.setdefault(name, set()).update(_names(node) - {name})
        changed: set[str] = set(known)
        for node in inner:
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                changed.add(root_of(node) or "")
            elif isinstance(node, ast.Call):
                root, func = root_of(node.func), node.func
                last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
                found.calls.add(last)
                if isinstance(func, ast.Attribute) and root not in self.imports and last not in _READ:
                    changed.add(root or "")
                if last in _CHANGE_THEIR_ARGUMENT and node.args:
                    changed |= _names(node.args[0])
        myself = {given[0]} if is_method and given else set()
        seen: set[str] = set()
        waiting = list(changed - myself)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in local:
                found.arguments |= name in given and name not in myself
                waiting += local[name] - myself
            else:
                found.changes.add(name)
        found.changes -= {""}
        return found


def executed(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that run with it: those of a class too, but not those of a function's body."""
    yield statement
    if isinstance(statement, ast.Lambda):
        children: Iterable[ast.AST] = [statement.args]
    elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        children = [*statement.decorator_list, statement.args]
    else:
        children = ast.iter_child_nodes(statement)
    for node in children:
        if not is_type_checking(node):
            yield from executed(node)


def is_type_checking(statement: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:` without else, whose body does not run."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    test = statement.test
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def root_of(node: ast.AST) -> str | None:
    """The name that an expression such as `a.b[0].c()` starts from; None if it starts from no name."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _inner_names(statement: ast.stmt) -> set[int]:
    """Identities of what sets names in a class's body or a comprehension, which are no names of the file."""
    kinds = ast.ClassDef | ast.comprehension
    inner = (each for kind in executed(statement) if isinstance(kind, kinds) for each in _of_scope(kind))
    return {id(each) for node in inner for each in executed(node)}


def _of_scope(kind: ast.ClassDef | ast.comprehension) -> Sequence[ast.AST]:
    return kind.body if isinstance(kind, ast.ClassDef) else [kind.target]


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _captures(node: ast.Match) -> list[str]:
    kinds = ast.MatchAs | ast.MatchStar
    return [each.name for each in ast.walk(node) if isinstance(each, kinds) and each.name]


def _only_parts(statement: ast.stmt) -> bool:
    """Whether a statement only sets parts of a recipe: what they are made of may change their objects."""
    if isinstance(statement, ast.Assign):
        return all(root_of(target) in PARTS for target in statement.targets)
    return isinstance(statement, ast.AnnAssign | ast.AugAssign) and root_of(statement.target) in PARTS
