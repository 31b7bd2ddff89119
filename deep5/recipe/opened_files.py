"""Files that a recipe's code opens while it is loaded and while its network is built, noted by an audit hook.

A file that a module opens while it is imported belongs to that module, which is imported only once: it is noted for the
rest of the process. Files are noted in the thread that resolves the recipe.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from deep5.core.own_files import is_own_file

__all__ = ["Opened", "forget_opened_by", "not_noting", "noting", "opened_by"]

_LOCAL = threading.local()
_INSTALLED: list[bool] = []
# By file of a module, the files that its body opened, with the line of the body that did.
_BODIES: dict[str, dict[str, int]] = {}
_CREATES = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
_IMPORTS = "<frozen importlib"
# These read source files to show or to inspect them.
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

    Files opened by the body of a module are noted for the module; see `opened_by`.
    """
    if not _INSTALLED:
        _INSTALLED.append(True)
        sys.addaudithook(_hook)  # stays for the life of the process; it returns at once unless something is noted
    before, outer, opened = getattr(_LOCAL, "opened", None), getattr(_LOCAL, "begin", None), Opened()
    # The frame of the with statement: what is below it on the stack does not open files for the recipe.
    _LOCAL.opened, _LOCAL.begin = opened, sys._getframe(2)
    try:
        yield opened
    finally:
        _LOCAL.opened, _LOCAL.begin = before, outer
        if before is not None:
            before.read.update(opened.read)
            before.written.update(opened.written)


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
    """Forget what the body of a module opened, because it runs again."""
    _BODIES.pop(os.path.realpath(module_file), None)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event != "open":
        return
    opened = getattr(_LOCAL, "opened", None)
    if opened is None:
        return
    _LOCAL.opened = None  # opening files here would note them
    try:
        _note(opened, *args[:3])
    except (TypeError, ValueError, OSError):
        pass  # an unusual argument: the call itself reports it
    finally:
        _LOCAL.opened = opened


def _note(opened: Opened, path: Any, mode: Any, flags: Any) -> None:
    if isinstance(path, int):
        return
    place = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links stay, as they may be replaced
    if (isinstance(mode, str) and set(mode) & set("wax")) or (isinstance(flags, int) and flags & _CREATES):
        opened.written.add(place)
        return
    if "__pycache__" in place and place.endswith(".pyc"):
        place = importlib.util.source_from_cache(place)
    body, imported, shown = _opener(sys._getframe(2))
    if shown or (imported and not (place.endswith(".py") and is_own_file(place))):
        return
    if body is None:
        opened.read.add(place)
    else:
        file, line = body
        _BODIES.setdefault(os.path.realpath(file), {})[place] = line


def _opener(frame: FrameType | None) -> tuple[tuple[str, int] | None, bool, bool]:
    """The body of the user's module that opens a file, with its line, or None; whether an import opens it, and whether
    it is opened only to show source."""
    imported, shown, own = False, False, False
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
                return (name, frame.f_lineno), imported, shown
        frame = frame.f_back
    return None, imported, shown
