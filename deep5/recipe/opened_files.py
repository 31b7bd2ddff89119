"""Files that a recipe's code opens while it is loaded and while its network is built, noted by an audit hook.

A file that a module opens while it is imported belongs to that module, which is imported only once: it is noted for the
rest of the process. Files are noted in the thread that resolves the recipe.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote

from deep5.core.own_files import is_own_file

__all__ = ["Opened", "forget_opened_by", "not_noting", "noting", "opened_by"]

_LOCAL = threading.local()
_INSTALLED: list[bool] = []
# By file of a module, the files that its body opened, with the line of the body that did.
_BODIES: dict[str, dict[str, int]] = {}
_CREATES = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
_IMPORTS = "<frozen importlib"
_DESCRIPTORS = "/proc/self/fd"
# These load a library that their caller names.
_LOADERS = ("numpy.ctypeslib", "torch._ops")
# These read source files to show or to inspect them; the user may read another file with them.
_READERS_OF_SOURCE = ("linecache.py", "inspect.py", "tokenize.py", "traceback.py", "warnings.py")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Files that were opened.

    Attributes:
        read: Files opened for reading.
        written: Files that the code wrote itself, which follow from the code.
    """

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


@contextmanager
def noting() -> Iterator[Opened]:
    """Note the files that this thread opens.

    Files opened by the body of a module are noted for the module; see `opened_by`. What is read and not written in a
    block within another one counts for the other too.
    """
    if not _INSTALLED:
        _INSTALLED.append(True)
        sys.addaudithook(_hook)  # stays for the life of the process; it returns at once unless something is noted
    _forget_shown()
    before, outer, opened = getattr(_LOCAL, "opened", None), getattr(_LOCAL, "begin", None), Opened()
    # The frame of the with statement: what is below it on the stack does not open files for the recipe.
    _LOCAL.opened, _LOCAL.begin = opened, sys._getframe(2)
    try:
        yield opened
    finally:
        _LOCAL.opened, _LOCAL.begin = before, outer
        if before is not None:
            before.read.update(opened.read - opened.written)


@contextmanager
def not_noting() -> Iterator[None]:
    """Do not note the files that this thread opens: deep5 reads them itself."""
    before, _LOCAL.opened = getattr(_LOCAL, "opened", None), None
    try:
        yield
    finally:
        _LOCAL.opened = before


def opened_by(module_file: str) -> dict[str, int]:
    """The files that the body of a module opened for reading, with the line of the module that did."""
    return dict(_BODIES.get(os.path.realpath(module_file), {}))


def forget_opened_by(module_file: str) -> None:
    """Forget what the body of a module opened, because it runs again; modules that stay loaded are not opened again."""
    opened = _BODIES.pop(os.path.realpath(module_file), {})
    sources = _sources() if opened else set()
    if kept := {name: line for name, line in opened.items() if os.path.realpath(name) in sources}:
        _BODIES[os.path.realpath(module_file)] = kept


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    opened = getattr(_LOCAL, "opened", None)
    if opened is None:
        return
    _LOCAL.opened = None  # opening files here would note them
    try:
        _EVENTS[event](opened, args, sys._getframe(1))
    except (TypeError, ValueError, OSError):
        pass  # an unusual argument: the call itself reports it
    finally:
        _LOCAL.opened = opened


def _note_open(opened: Opened, args: tuple[Any, ...], frame: FrameType) -> None:
    path, mode, flags = args[:3]
    if isinstance(path, int):
        return
    name = os.fsdecode(path)
    places = [os.path.abspath(name)]  # noqa: PTH100 - links stay, as they may be replaced
    if mode is None and not os.path.isabs(name):  # noqa: PTH117 - os.open, which may start from an open folder
        places += [os.path.normpath(os.path.join(folder, name)) for folder in _open_folders()]  # noqa: PTH118
    if (isinstance(mode, str) and set(mode) & set("wax")) or (isinstance(flags, int) and flags & _CREATES):
        opened.written.update(places)
        return
    for number, place in enumerate(places):
        if number == 0 or Path(place).is_file():
            _note(opened, place, frame)


def _note_executed(opened: Opened, args: tuple[Any, ...], frame: FrameType) -> None:
    """The source of a module: of one that is compiled already, only the compiled file is opened."""
    name = getattr(args[0], "co_filename", "<")
    if frame.f_code.co_filename.startswith(_IMPORTS) and not name.startswith("<"):
        _note(opened, os.path.abspath(name), frame)  # noqa: PTH100


def _note_library(opened: Opened, args: tuple[Any, ...], frame: FrameType) -> None:
    """An extension module, or a library that ctypes loads by its path."""
    imported = len(args) > 1
    name = args[1] if imported else args[0]
    if not isinstance(name, (str, bytes, os.PathLike)) or os.sep not in (name := os.fsdecode(name)):
        return
    caller = None if imported else _after(frame, "ctypes")
    # What deep5 and other packages compile for this machine follows from its source.
    if (
        caller is None
        or is_own_file(os.path.realpath(caller.f_code.co_filename))
        or str(caller.f_globals.get("__name__")).startswith(_LOADERS)
    ):
        _note(opened, os.path.abspath(name), frame)  # noqa: PTH100


def _note_database(opened: Opened, args: tuple[Any, ...], frame: FrameType) -> None:
    name = os.fsdecode(args[0])
    name = unquote(name.removeprefix("file:").partition("?")[0]) if name.startswith("file:") else name
    place = os.path.abspath(name)  # noqa: PTH100
    if Path(place).is_file():
        _note(opened, place, frame)
    elif name and name != ":memory:":
        opened.written.add(place)


_EVENTS: dict[str, Callable[[Opened, tuple[Any, ...], FrameType], None]] = {
    "open": _note_open,
    "exec": _note_executed,
    "import": _note_library,
    "ctypes.dlopen": _note_library,
    "sqlite3.connect": _note_database,
}


def _note(opened: Opened, place: str, frame: FrameType) -> None:
    """Note a file that is read."""
    if "__pycache__" in place and place.endswith(".pyc"):
        place = importlib.util.source_from_cache(place)
    body, imported, installed, shown = _opener(frame)
    if (imported and (installed or not is_own_file(place))) or (shown and _is_source(place)):
        return
    if body is None:
        opened.read.add(place)
    else:
        file, line = body
        _BODIES.setdefault(os.path.realpath(file), {})[place] = line


def _open_folders() -> list[str]:
    """The folders that this process has open: the event of os.open does not say from which of them it starts."""
    found = []
    for number in os.listdir(_DESCRIPTORS) if Path(_DESCRIPTORS).is_dir() else ():  # noqa: PTH208
        with suppress(OSError):
            place = os.readlink(f"{_DESCRIPTORS}/{number}")  # noqa: PTH115 - Path would resolve it
            if Path(place).is_dir():
                found.append(place)
    return found


def _sources() -> set[str]:
    """The sources of loaded modules of the user's."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    # Most modules are installed ones, whose names show it.
    own = [file for file in files if isinstance(file, str) and f"-packages{os.sep}" not in file and is_own_file(file)]
    return set(map(os.path.realpath, own))


def _is_source(place: str) -> bool:
    """Whether a file is the source of a loaded module, or not the user's."""
    real = os.path.realpath(place)
    return not is_own_file(real) or real in _sources()


def _forget_shown() -> None:
    """Let linecache read the user's other files again, which it opens only once in a process."""
    linecache = sys.modules.get("linecache")
    kept = [name for name in getattr(linecache, "cache", ()) if not name.startswith("<")]
    kept = [name for name in kept if is_own_file(os.path.abspath(name)) and Path(name).is_file()]  # noqa: PTH100
    sources = _sources() if kept else set()
    for name in kept:
        if os.path.realpath(name) not in sources:
            linecache.cache.pop(name, None)  # type: ignore[union-attr]


def _after(frame: FrameType | None, package: str) -> FrameType | None:
    """The first frame that is not in a package of the standard library."""
    while frame is not None and f"{os.sep}{package}{os.sep}" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame


def _opener(frame: FrameType | None) -> tuple[tuple[str, int] | None, bool, bool, bool]:
    """The body of the user's module that opens a file, with its line, or None; whether an import opens it, and whether
    code of an installed package that is being imported does; whether it is opened only to show source."""
    imported, installed, shown, own = False, False, False, False
    begin = getattr(_LOCAL, "begin", None)
    while frame is not None and frame is not begin:
        name = frame.f_code.co_filename
        if name.startswith(_IMPORTS):
            # An import within an installed package, or of one; what the user's own code opens is decided below it.
            imported = imported or not own
        elif name.endswith(_READERS_OF_SOURCE) and not is_own_file(os.path.realpath(name)):
            shown = shown or not own
        elif not name.startswith("<") and is_own_file(os.path.realpath(name)):
            own = True
            if frame.f_code.co_name == "<module>":
                return (name, frame.f_lineno), imported, installed, shown
        elif not name.startswith("<"):
            installed = installed or not (own or imported)
        frame = frame.f_back
    return None, imported, installed, shown
