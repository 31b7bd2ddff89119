"""Which files are the user's: neither the standard library's, nor an installed package's, nor deep5's own."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from deep5.core.compiler import cache_folder
from deep5.core.errors import UsageError

__all__ = ["file_of", "is_own_file", "is_own_module", "is_standard", "is_users"]

_INSTALLED = {"site-packages", "dist-packages"}
# Folders of the system and of devices: what is read there is not the recipe's.
_SYSTEM = tuple(
    f"/{name}/"
    for name in ("proc", "sys", "dev", "etc", "run", "boot", "lib", "lib64", "usr/lib", "usr/lib64", "usr/share")
)
# Folders of users within them: memory as a file system, mounted media, and a user's own temporary files.
_USERS = ("/dev/shm/", "/run/media/", "/run/user/", "/run/shm/")  # noqa: S108 - compared, not written to


@functools.cache
def _others() -> tuple[str, ...]:
    """Folders of the standard library and of deep5, whose parts may be elsewhere in an editable installation."""
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    root = __name__.partition(".")[0]
    for name in (root, *(f"{root}.{part}" for part in ("frameworks", "metrics", "recipes"))):
        spec = importlib.util.find_spec(name)
        found |= set() if spec is None else set(spec.submodule_search_locations or ())
    return tuple(os.path.realpath(place) + os.sep for place in found if place)


@functools.lru_cache(maxsize=4096)
def is_own_file(path: str) -> bool:
    """Whether a file may belong to the user; `path` is absolute."""
    place = os.path.realpath(path)
    return not place.startswith(_others()) and not _INSTALLED & {*Path(place).parts}


def is_users(path: str, folder: Path | None) -> bool:
    """Whether a file that a recipe's code opens is the user's.

    Files of installed packages, of deep5 and of its cache are not. Nor are files of the system and of the settings and
    caches of programs (`~/.…`), unless they are in the folder of the recipe.

    Args:
        path: The file, absolute.
        folder: The recipe's folder, or None.
    """
    place = os.path.realpath(path)
    if not is_own_file(path) or place.startswith(_cache()):
        return False
    beside = "" if folder is None else os.path.realpath(folder).rstrip(os.sep) + os.sep
    system = next((name for name in _SYSTEM if place.startswith(name)), None)
    if system is not None and not place.startswith(_USERS):
        # A recipe in a folder above it, such as /, is not beside it.
        return beside.startswith(system) and place.startswith(beside)
    home = _home()
    return not home or not place.startswith(f"{home}.") or (beside.startswith(home) and place.startswith(beside))


def _cache() -> tuple[str, ...]:
    """What the paths of files in deep5's cache start with; nothing if the cache has no place."""
    try:
        return (os.path.realpath(cache_folder()) + os.sep,)
    except UsageError:
        return ()


def _home() -> str:
    """What the paths of files in the home folder start with; "" if this user has none."""
    try:
        return os.path.realpath(Path.home()) + os.sep
    except RuntimeError:
        return ""


def file_of(module: ModuleType | None) -> str | None:
    """The source of a module, or the compiled file if there is no source; None if it has no file."""
    file = getattr(module, "__file__", None)
    # Not by Path: it raises for a folder that this user may not read.
    return file if isinstance(file, str) and os.path.isfile(file) else None  # noqa: PTH113


def is_own_module(name: str) -> bool:
    """Whether a loaded module, by name, is the user's.

    A recipe's file is, wherever it is; a module of an interactive session is too, without a file.
    """
    if name == "deep5" or name.startswith("deep5."):
        return False
    if name.startswith(("deep5_recipe_", "deep5_component_")):
        return True
    module = sys.modules.get(name)
    file = file_of(module)
    if file is None:
        return name == "__main__"
    return is_own_file(os.path.realpath(file))


def is_standard(name: str) -> bool:
    """Whether a module, by name, is of the standard library: a file of the user's may have the name of one."""
    first = name.partition(".")[0]
    if first not in sys.stdlib_module_names or first == "__main__":
        return False
    file = file_of(sys.modules.get(first))
    return file is None or not _lies_with_the_user(file)


@functools.lru_cache(maxsize=1024)
def _lies_with_the_user(file: str) -> bool:
    return is_own_file(os.path.realpath(file))
