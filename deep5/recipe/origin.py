"""Where a recipe, and the user's own files that it depends on, were when it ran: what a repetition of the run needs."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.canonical import names_file
from deep5.core.content_hashes import file_hash
from deep5.core.own_files import is_users
from deep5.recipe.opened_files import not_noting, opened_by
from deep5.recipe.own_code import Code
from deep5.recipe.registered import registered_recipe

if TYPE_CHECKING:
    from deep5.recipe.recipe import Recipe

__all__ = ["ORIGIN_VERSION", "origin_of"]

ORIGIN_VERSION = "1"
"""Version of the form of an origin."""


def origin_of(recipe: Recipe) -> dict[str, Any]:
    """Where a recipe and its own files are, in JSON types.

    Returns:
        `schema_version`; `registered`: whether the recipe is a registered one; `file`: the path of its file, or of the
        model's that is given in its place, or None for a recipe made in Python; `model`: only with such a model, as
        given; `working_directory`: of this process, or None; `settings`: the values set from
        outside, without those that JSON cannot hold; `own`: by path, the SHA-256 of every other file of the user's
        that the recipe imports, names or opens; `modules`: by path, the dotted name of those that are modules. All
        paths are absolute.
    """
    model = recipe.in_place
    own_path = None if recipe.path is None else _absolute(recipe.path)
    found = registered_recipe(recipe.name) if own_path is not None else None
    registered = found is not None and own_path == _absolute(found.path())
    path = own_path if model is None else str(model.path)
    with not_noting():
        code, files = _own_files(recipe, None if registered else own_path)
        own = {}
        for name in sorted(files - {path}):
            with suppress(OSError):
                own[name] = file_hash(name)
    modules = {_absolute(file): name for name, file in code.located.items()}
    return {
        "schema_version": ORIGIN_VERSION,
        "registered": registered,
        "file": path,
        **({} if model is None else {"model": model.text}),
        "working_directory": _working_directory(),
        "settings": {
            key: value
            for key, value in {**recipe.fixed, **recipe.mutable}.items()
            if key in recipe.settings and _is_plain(value)
        },
        "own": own,
        "modules": {name: modules[name] for name in own if name in modules},
    }


def _own_files(recipe: Recipe, path: str | None) -> tuple[Code, set[str]]:
    """The user's own files; `path`: the recipe's file if it is the user's."""
    code, files = Code(), set[str]()
    if path is not None and recipe.source is not None:
        code.add_part(path, recipe.source, None)
        files |= opened_by(path).keys()
    for key, part in (*recipe.fixed.items(), *recipe.mutable.items()):
        for name, value in _strings(part, key):
            file = _named(name, value, recipe.folder_of(key))
            if file is None:
                continue
            files.add(file)
            if file.endswith(".py"):
                code.add_part(file, Path(file).read_bytes(), None)
                files |= opened_by(file).keys()
    own = frozenset[str]() if recipe.own_content is None else recipe.own_content.files
    for file in (*code.files, *own):
        files |= opened_by(file).keys()
    # Compiled modules are found by their names.
    files |= {*map(_absolute, code.located.values())}
    known = {os.path.realpath(name): name for name in files}
    files |= {name for name in own if os.path.realpath(name) not in known}
    folder = None if path is None else Path(path).parent
    return code, {name for name in map(_absolute, files) if is_users(name, folder) and Path(name).is_file()}


def _strings(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner, key)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner, key)
    elif isinstance(value, functools.partial):
        yield from _strings([value.args, value.keywords], key)


def _named(key: str, value: str, folder: Path | None) -> str | None:
    """The file that a string in a recipe names: code, weights, or a network; None if it names none."""
    if names_file(key, value):
        value = value.rpartition(":")[0]
    elif not (key == "init" or (key == "model" and value.lower().endswith(".onnx"))):
        return None
    path = Path(folder or "", value)
    return _absolute(path) if path.is_file() else None


def _absolute(path: str | Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - links stay, as they may be replaced


def _working_directory() -> str | None:
    with suppress(OSError):
        return str(Path.cwd())
    return None


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold a value and give it back, except that tuples become lists."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return isinstance(value, (list, tuple)) and all(map(_is_plain, value))
