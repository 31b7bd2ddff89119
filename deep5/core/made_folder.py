"""A folder of files that is made as a whole, or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from deep5.core.errors import OutputError
from deep5.core.plugins import missing_dependency

__all__ = ["make_folder"]


def make_folder(folder: Path, write: Callable[[Path], None], what: str) -> None:
    """Write a folder of files under another name beside it, then rename it; another process may make it first.

    Args:
        folder: The folder, which does not exist yet.
        write: Writes the files into an existing folder.
        what: What requires the files, for an error about a missing package.

    Raises:
        MissingDependency: A package that `write` imports is not installed.
        OutputError: The folder cannot be written. Nothing is left on disk.
    """
    room = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
        write(room)
        room.chmod(0o755)
        try:
            room.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process made it first
                raise
    except ModuleNotFoundError as error:
        raise missing_dependency(what, error) from error
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error}); remedy: set DEEP5_CACHE") from error
    finally:
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)
