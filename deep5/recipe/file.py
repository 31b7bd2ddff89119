"""Python files that define recipes: run once, with every failure reported in one line."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import traceback
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeGuard

from deep5.core.errors import Deep5Error, MissingDependency, RecipeError, brief, contained, described, suggestion
from deep5.core.own_files import is_own_file
from deep5.core.python_source import parse
from deep5.core.synonyms import nearest
from deep5.recipe.opened_files import forget_opened_by, noting
from deep5.recipe.own_code import imports_own
from deep5.recipe.own_modules import importable
from deep5.recipe.wrong_call import wrong_call

__all__ = ["named_in_file", "read_recipe_file"]

_PARTS = ("FIXED", "MUTABLE", "METRICS")
# Modules of the base classes of models.
_LIBRARIES = ("torch.nn.", "keras.", "flax.")


def read_recipe_file(path: Path, source: bytes | None = None) -> tuple[dict[str, Any], bytes]:
    """Run a recipe's file, as a module and not as a program.

    Args:
        path: The file.
        source: Source to run in place of the file's content, if already known.

    Returns:
        Its definitions, and the source that was run.

    Raises:
        RecipeError: It cannot be read, is not Python, raises, exits, or lacks a part; the message gives the location.
        MissingDependency: It imports a package that is not installed.
    """
    try:
        source = path.read_bytes() if source is None else source
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise RecipeError(
            f"the recipe file {path} cannot be read ({getattr(error, 'strerror', None) or error}); "
            "allowed: a Python file that you may read"
        ) from error
    scope = _run(path, source, "recipe")
    missing = [part for part in _PARTS if part not in scope]
    if missing:
        written = {name: meant for name in scope if name.isupper() and (meant := nearest(name, missing)) is not None}
        near = "".join(f"; it has {name!r}: did you mean {meant!r}?" for name, meant in written.items())
        models = [] if written else [f"{path}:{name}" for name in _models(scope)]
        more = f"; remedy: {' or '.join(models[:3])}, to train a model in it" if models else ""
        raise RecipeError(
            f"{path}: the recipe has no {' and no '.join(missing)}; allowed: a file that defines "
            f"{', '.join(_PARTS)}{near}{more}"
        )
    return scope, source


def named_in_file(text: str, beside: Path | None = None) -> Any:
    """The component that `FILE.py:NAME` names.

    Args:
        text: File, colon, name.
        beside: Folder of a relative file; None: the working directory.

    Raises:
        RecipeError: The file or the name in it does not exist, or the file cannot be run.
    """
    file, _, name = text.rpartition(":")
    path = Path(beside or "", file)
    try:
        source = path.read_bytes()
    except (OSError, ValueError) as error:  # as above
        raise RecipeError(
            f"the file {path} of the component {text!r} cannot be read ({getattr(error, 'strerror', None) or error}); "
            "allowed: FILE.py:NAME with an existing Python file"
        ) from error
    scope = _run(path, source, "component")
    if name not in scope:
        names = [known for known, value in scope.items() if not known.startswith("_") and _own(value, scope)]
        raise RecipeError(f"{path} has no {name!r}; allowed: {', '.join(names) or 'nothing'}{suggestion(name, names)}")
    return scope[name]


def _models(scope: dict[str, Any]) -> list[str]:
    """The names of a file's own classes and objects that are models of a library."""
    from deep5.core.plugins import owner_of

    found = []
    for name, value in scope.items():
        if name.startswith("_") or isinstance(value, types.FunctionType) or not _own(value, scope):
            continue
        bases = value.__mro__[1:] if isinstance(value, type) else ()
        if any(base.__module__.startswith(_LIBRARIES) for base in bases) or (not bases and owner_of(value)):
            found.append(name)
    return found


def _own(value: object, scope: dict[str, Any]) -> bool:
    # Imported names are used by the file, not offered by it.
    if isinstance(value, type | types.FunctionType):
        return bool(value.__module__ == scope["__name__"])
    return not isinstance(value, types.ModuleType)


def _run(path: Path, source: bytes, what: str) -> dict[str, Any]:
    try:
        # dont_inherit: the file is compiled as Python would, without this module's own __future__ imports.
        code = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        # Python's parser has no memory for deeply nested expressions, and gives no message.
        reason = error.args[0] if error.args else "expressions nested too deeply, or too little memory"
        raise RecipeError(f"{path}{line}: not valid Python: {reason}; allowed: a Python file") from error
    # A hash of the path distinguishes files of the same name.
    mark = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
    module = types.ModuleType(f"deep5_{what}_{path.stem}_{mark}")
    module.__file__ = str(path)
    # Classes defined in the file find their module, as `inspect` and data classes require.
    sys.modules[module.__name__] = module
    try:
        forget_opened_by(str(path))
        # The hook that notes files stays for the life of the process: a recipe of plain values does not need it.
        noted = is_own_file(os.path.realpath(path)) and not _is_plain(source, path)
        with importable(path, fresh=True), noting() if noted else nullcontext(), contained():
            # A recipe is the user's own program; code stored in a result is never run.
            exec(code, module.__dict__)  # noqa: S102
    except Deep5Error as error:
        if isinstance(error.__cause__, SystemExit):
            raise RecipeError(
                f"{_at(error.__cause__, path)}the {what} called exit({_code(error.__cause__)}) while it was read; "
                'allowed: a file that can be imported; remedy: put that under if __name__ == "__main__"'
            ) from error.__cause__
        if error.__cause__ is not None and not isinstance(error.__cause__, Exception):
            raise RecipeError(str(error)) from error.__cause__
        kind = MissingDependency if isinstance(error, MissingDependency) else RecipeError
        raise kind(f"{_at(error, path)}{error}") from error
    except ModuleNotFoundError as error:
        from deep5.core.plugins import missing_dependency

        raise MissingDependency(f"{_at(error, path)}{missing_dependency(f'the {what}', error)}") from error
    except Exception as error:
        if (wrong := wrong_call(error, str(path), source)) is not None:
            raise RecipeError(f"{_at(error, path)}{wrong}") from error
        raise RecipeError(
            f"{_at(error, path)}the {what} raised {described(error)}; allowed: a file that can be run; "
            "remedy: --debug shows where"
        ) from error
    return module.__dict__


def _code(end: SystemExit) -> str:
    return "" if end.code is None else brief(end.code)


def _is_plain(source: bytes, path: Path) -> bool:
    """Whether a recipe's fixed part is written as plain values, at every size, and its file opens no file as it runs.

    It opens none if it imports no module of the user's, and calls nothing besides its metrics.
    """
    try:
        body = parse(source).body
        parts = [
            node
            for node in body
            if any(isinstance(name, ast.Name) and name.id in ("FIXED", "SIZES") for name in ast.walk(node))
        ]
        values = [ast.literal_eval(node.value) for node in parts if isinstance(node, ast.Assign)]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    if not values or len(values) != len(parts) or ".py:" in repr(values):
        return False
    return not any(map(_calls, body)) and not imports_own(body, str(path.resolve().parent))


def _calls(node: ast.stmt) -> bool:
    """Whether a statement of a recipe's body calls anything, other than to create metrics."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    if isinstance(node, ast.If) and "__name__" in {inner.id for inner in ast.walk(node.test) if _is_name(inner)}:
        return False
    if isinstance(node, ast.Assign) and [name.id for name in node.targets if _is_name(name)] == ["METRICS"]:
        return False
    return any(isinstance(inner, ast.Call) for inner in ast.walk(node))


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _at(error: BaseException, path: Path) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{frames[-1].lineno}: " if frames else f"{path}: "
