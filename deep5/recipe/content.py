"""What a recipe's fixed part consists of beyond its text: the user's code, the files it opens, and its network."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.canonical import captured, given_in_function, kind_of, names_file
from deep5.core.content_hashes import file_hash
from deep5.core.errors import Deep5Error, RecipeError
from deep5.core.own_files import file_of, is_own_module, is_users
from deep5.core.python_source import syntax_hash
from deep5.recipe.file import named_in_file
from deep5.recipe.generators import one_at_a_time
from deep5.recipe.live_code import add_live
from deep5.recipe.opened_files import noting, opened_by
from deep5.recipe.own_code import Code
from deep5.recipe.own_modules import hidden, importable
from deep5.recipe.own_network import described_network, is_own_network
from deep5.recipe.own_operators import files_of_operator, files_of_operators
from deep5.recipe.part import Part, is_factory
from deep5.recipe.registered import own_registered

__all__ = ["Content", "content_of"]


@dataclass(frozen=True, kw_only=True)
class Content:
    """The user's own content of a fixed part.

    Attributes:
        document: `modules`: by name, the hash of each imported module of the user's; `parts`: the hashes of the
            definitions of the components; `files`: the hashes of the files that they open; `network`: the hashes of
            structure and initial weights of the network that the code under `model` creates at the identity's seed, or
            None.
        files: The paths of the modules and files, absolute.
    """

    document: dict[str, Any]
    files: frozenset[str]


# Keys of components whose classes are not hashed by their registered names.
_OTHERS = {"scheme": "schemes", "compression": "compressors"}


@dataclass(frozen=True, kw_only=True)
class _Root:
    """A component in the fixed part that is the user's code.

    Attributes:
        component: The class or function; None: a whole file.
        file: The file, of a component that is named by it.
    """

    component: Any = None
    file: Path | None = None


def content_of(
    fixed: Mapping[str, Any],
    *,
    path: Path | None,
    source: bytes | None,
    model: Part | None,
    others: Iterable[Part] = (),
) -> Content | None:
    """The user's code, files and network in a fixed part, with hashes; None if it has only named parts and values.

    Args:
        fixed: The fixed part.
        path: The recipe's file, or None.
        source: Its content, or None.
        model: The part `model` if the fixed part determines it completely, else None.
        others: Other parts, such as the optimizer, that are created to see which files their code opens.

    Raises:
        RecipeError: The network cannot be created, or a file cannot be read.
        MissingDependency: A package that the network needs is not installed.
    """
    folder, network = None if path is None else path.parent, None
    # A recipe made in Python imports from where that program does.
    with importable(path) if path is not None else nullcontext():
        roots = list(_roots(fixed, folder))
    creates = model is not None and is_own_network(model.value)
    if not roots and not creates:
        return None
    with importable(path) if path is not None else nullcontext(), noting() as opened:
        code, files = _code(roots, path, source)
        # What functions import by a name that they compute is imported again, to be noted in every process.
        with one_at_a_time(), hidden(path, but=code.modules) if path is not None else nullcontext():
            if creates and model is not None:
                network = described_network(model)
                code, files = _code(roots, path, source)
            for part in others:
                # An error is reported where the part is used, with what it needs there.
                with suppress(Exception):
                    _create(part)
    files |= opened.read - opened.written
    files |= _of_bodies(code)
    files |= _of_imported(files, code)
    files |= files_of_operators(code)
    files = {name for name in files if is_users(name, folder) and Path(name).is_file()}
    hashes = set()
    for name in files:
        if name.endswith((".py", ".pyc")) and os.path.realpath(name) in {*code.files, *code.lines}:
            continue
        if name.endswith(".py"):  # imported under a name that the code computes
            code.parts.add(syntax_hash(Path(name).read_bytes()))
            continue
        try:
            hashes.add(file_hash(name))
        except OSError as error:
            raise RecipeError(
                f"the file {name}, which the recipe's fixed part opens, cannot be read ({error.strerror or error})"
            ) from error
    document = {
        "modules": dict(sorted(code.modules.items())),
        "parts": sorted(code.parts),
        "files": sorted(hashes),
        "network": None if network is None else network.document(),
    }
    return Content(document=document, files=frozenset(files | code.files))


def _create(part: Part) -> None:
    if part.key == "schedules":
        part.schedules()
    elif part.key.endswith("_transforms"):
        part.transforms()
    elif is_factory(component := part.component()) and is_own_module(str(getattr(component, "__module__", ""))):
        part.make(component)


def _code(roots: Iterable[_Root], path: Path | None, source: bytes | None) -> tuple[Code, set[str]]:
    code, files = Code(), set[str]()
    for root in roots:
        _add(code, files, root, path, source)
    return code, files


def _roots(value: Any, folder: Path | None, key: str = "", outside: frozenset[int] = frozenset()) -> Iterator[_Root]:
    """The user's components in a value of the fixed part; `outside`: identities of the code that holds the value."""
    if isinstance(value, str):
        if names_file(key, value):
            file = Path(folder or "", value.rpartition(":")[0])
            if file.is_file():
                yield _Root(file=file)
                try:
                    named = named_in_file(value, folder)
                except Deep5Error:
                    return  # reported where the component is used
                yield from _roots(named, folder, outside=outside)
        elif key == "bare" and ":" in value:
            yield _Root(component=value)
        elif (kind := kind_of(key) or _OTHERS.get(key, "")) and (own := own_registered(kind, value)) is not None:
            yield from _roots(own, folder, outside=outside)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _roots(inner, folder, key or str(name), outside)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _roots(inner, folder, key, outside)
    elif isinstance(value, functools.partial):
        yield from _roots([value.func, value.args, value.keywords], folder, outside=outside)
    elif isinstance(value, type) or inspect.isroutine(value):
        yield from _of_code(value, folder, outside)
    else:
        if is_own_module(type(value).__module__):
            yield _Root(component=type(value))
        if callable(describe := getattr(value, "describe", None)):
            try:
                described = describe()
            except Exception:
                return
            yield from _roots(described, folder, outside=outside)


def _of_code(value: Any, folder: Path | None, outside: frozenset[int]) -> Iterator[_Root]:
    """A function or class, the object of a method, and the components that they hold."""
    if is_own_module(str(getattr(value, "__module__", None))):
        yield _Root(component=value)
    if id(value) in outside:  # it refers to itself, perhaps by way of others
        return
    outside = outside | {id(value)}
    owner = None if isinstance(value, type) else getattr(value, "__self__", None)
    held = [] if owner is None or inspect.ismodule(owner) else [owner]
    held += [inner for _, inner in captured(value)]
    if "<locals>" in value.__qualname__:
        held += [inner for _, inner in given_in_function(value)]
    for inner in held:
        yield from _roots(inner, folder, outside=outside)


def _add(code: Code, files: set[str], root: _Root, path: Path | None, source: bytes | None) -> None:
    component = root.component
    if root.file is not None:
        code.add_part(str(root.file), root.file.read_bytes(), None)
        return
    if isinstance(component, str):
        code.add_named(component.partition(":")[0], str(Path.cwd()))
        return
    files.update(files_of_operator(component))
    module = sys.modules.get(component.__module__)
    file = file_of(module)
    if file is None:
        add_live(code, component)
        return
    folder = str((path or Path(file)).resolve().parent)
    if path is None or os.path.realpath(file) == os.path.realpath(path):
        own = source if source is not None and path is not None else Path(file).read_bytes()
        package = str(getattr(module, "__package__", "") or "")
        code.add_part(file, own, [component.__qualname__.partition(".")[0]], package)
        return
    if component.__module__.startswith("deep5_component_"):
        code.add_part(file, Path(file).read_bytes(), None)
    else:
        code.add_module(component.__module__, file, folder)
    if source is not None:
        code.add_changes(str(path), source)


def _of_bodies(code: Code) -> set[str]:
    """The files that modules opened while they were imported, and the recipe's file by the statements that count."""
    found = {name for file in code.files for name in opened_by(file)}
    for file, spans in code.lines.items():
        found |= {name for name, line in opened_by(file).items() if any(first <= line <= last for first, last in spans)}
    return found


def _of_imported(files: set[str], code: Code) -> set[str]:
    """The files that other modules opened while they were imported: those imported by a name that the code computes."""
    found, left = set[str](), list(files)
    while left:
        name = os.path.realpath(left.pop())
        if name not in code.files and name not in code.lines:
            more = opened_by(name).keys() - files - found
            found |= more
            left += more
    return found
