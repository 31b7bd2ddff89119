"""Modules beside a recipe: importable while it is loaded and while its functions run, and apart from other recipes'."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from deep5.core.own_files import file_of, is_own_module
from deep5.recipe.opened_files import forget_opened_by

__all__ = ["hidden", "importable"]


@dataclass(frozen=True, kw_only=True)
class _Imported:
    """A module that was imported from a folder, and the state of its file then."""

    module: ModuleType
    state: tuple[int, int, int] | None


# By folder, the user's modules that were imported while it was importable, by name.
_FOLDERS: dict[str, dict[str, _Imported]] = {}
_LOCK = threading.RLock()


@contextmanager
def importable(file: str | Path, *, fresh: bool = False) -> Iterator[None]:
    """Let code import modules from the folder of its file, as when Python runs the file.

    A module that another recipe imported under the same name is set aside: each recipe gets the modules beside itself.

    Args:
        file: The file of the code.
        fresh: Import the modules again of which a file has changed.
    """
    place = _place(file)
    with _LOCK:
        _set_aside(place)
        if fresh:
            _drop_changed(place)
        for name, own in _FOLDERS.get(place, {}).items():
            sys.modules.setdefault(name, own.module)
        before = set(sys.modules)
        sys.path.insert(0, place)
    try:
        yield
    finally:
        with _LOCK:
            with suppress(ValueError):
                sys.path.remove(place)
            for name in set(sys.modules) - before:
                # A recipe is a module too, under a name that no other file has.
                if name.startswith(("deep5_recipe_", "deep5_component_")) or not is_own_module(name):
                    continue
                module = sys.modules[name]
                _FOLDERS.setdefault(place, {})[name] = _Imported(module=module, state=_state(module))


@contextmanager
def hidden(file: str | Path, *, but: Iterable[str]) -> Iterator[None]:
    """Import the modules beside a file again where code imports them, as in a new process, and restore them.

    Args:
        file: The file.
        but: Names of the modules that stay.
    """
    kept = set(but)
    with _LOCK:
        folder = _FOLDERS.setdefault(_place(file), {})
        own = {name: imported for name, imported in folder.items() if name not in kept}
        own = {name: imported for name, imported in own.items() if sys.modules.get(name) is imported.module}
        for name in own:
            del sys.modules[name], folder[name]
    try:
        yield
    finally:
        with _LOCK:
            folder.update(own)
            sys.modules.update({name: imported.module for name, imported in own.items()})


def _place(file: str | Path) -> str:
    return str(Path(file).resolve().parent)


def _set_aside(place: str) -> None:
    """Remove the modules of other folders whose names exist here."""
    for other, modules in _FOLDERS.items():
        if other == place:
            continue
        for name, own in modules.items():
            top = name.partition(".")[0]
            here = any(Path(place, file).exists() for file in (f"{top}.py", top))
            if here and sys.modules.get(name) is own.module:
                del sys.modules[name]


def _drop_changed(place: str) -> None:
    """Forget all modules of a folder if one of them changed: the others may hold parts of it."""
    own = _FOLDERS.get(place, {})
    if all(_state(imported.module) == imported.state for imported in own.values()):
        return
    for name, imported in own.items():
        if sys.modules.get(name) is imported.module:
            del sys.modules[name]
        if (file := file_of(imported.module)) is not None:
            forget_opened_by(file)
    _FOLDERS[place] = {}
    importlib.invalidate_caches()


def _state(module: ModuleType) -> tuple[int, int, int] | None:
    if (file := file_of(module)) is None:
        return None
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
