"""What the tests keep in the virtual environment between runs, under a hash of everything it depends on."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(sys.prefix) / "deep5-tests"
"""`DEEP5_FRESH=1` in the environment ignores it and makes everything again."""


def keeps() -> bool:
    """Whether anything is kept: in a virtual environment, unless the environment forbids it."""
    return sys.prefix != sys.base_prefix and not os.environ.get("DEEP5_FRESH")


def folder(
    name: str, make: Callable[[Path], object], elsewhere: Path, *, sources: Iterable[Path], packages: Iterable[str]
) -> Path:
    """A read-only folder that `make` fills, once for these sources and versions of packages.

    Args:
        name: Name of the kind of folder.
        make: Fills an empty folder.
        elsewhere: An empty folder, filled instead if nothing is kept.
        sources: Files that determine the content.
        packages: Installed packages that determine the content.
    """
    if not keeps():
        make(elsewhere)
        return elsewhere
    key = hashlib.sha256()
    for source in sources:
        key.update(hashlib.sha256(source.read_bytes()).digest())
    for package in packages:
        key.update(f"{package} {version(package)}\n".encode())
    place = FOLDER / name / key.hexdigest()[:20]
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=place.parent))
        try:
            make(fresh)
        except BaseException:
            shutil.rmtree(fresh)
            raise
        try:
            fresh.rename(place)
        except OSError:  # another worker was faster
            shutil.rmtree(fresh)
    return place
