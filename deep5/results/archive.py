"""Zip archives with a manifest: written with deterministic bytes, and read as what a stranger may have made.

Nothing outside the folder is written, nothing but plain files is created, and no more bytes than the manifest states.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

from deep5.core.errors import OutputError, UsageError
from deep5.core.files import exists, is_file, write_atomically
from deep5.core.progress import tracked
from deep5.results.reading import DOCUMENT_BYTES, parsed, read_bytes, read_object, shown_path
from deep5.results.validation import check_document

__all__ = [
    "FILE_BYTES",
    "MANIFEST",
    "TOTAL_BYTES",
    "Entry",
    "changed_files",
    "pack_schema",
    "read_manifest",
    "unpacked",
    "write_archive",
]

MANIFEST = "pack.json"
"""The manifest in an archive and in its unpacked folder."""

FILE_BYTES = 64 << 20
"""Largest file in an archive."""

TOTAL_BYTES = 1 << 30
"""Most bytes of all files of an archive together, uncompressed."""

_MOST_FILES = 20_000
_CHUNK_BYTES = 1 << 20
_DATE = (1980, 1, 1, 0, 0, 0)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)
_REMEDY = "remedy: have it packed again, by deep5 results pack"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of an archive.

    Attributes:
        name: Its name, relative, with slashes.
        content: Its bytes, or the file to copy.
        sha256: SHA-256 of its content.
        size_bytes: Length of its content.
    """

    name: str
    content: bytes | Path
    sha256: str
    size_bytes: int


@cache
def pack_schema() -> dict[str, Any]:
    """The JSON Schema of the manifest; a shared object that must not be modified."""
    found: dict[str, Any] = json.loads(files("deep5.results").joinpath("pack_schema.json").read_text("utf-8"))
    return found


def write_archive(path: Path, manifest: Mapping[str, Any], entries: Iterable[Entry]) -> None:
    """Write an archive, whose bytes depend only on manifest and content.

    Args:
        path: The file, which is replaced atomically.
        manifest: Everything except `files`, which follows from the entries.
        entries: The files.

    Raises:
        UsageError: A file changed since its hash was taken, or the manifest is not valid.
        OutputError: The archive cannot be written.
    """
    ordered = sorted(entries, key=lambda entry: entry.name)
    listed = {entry.name: {"sha256": entry.sha256, "bytes": entry.size_bytes} for entry in ordered}
    document = _checked({**manifest, "files": listed}, path)
    text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"

    def written(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            _add(archive, MANIFEST, text.encode())
            for entry in tracked(ordered, f"packing {path.name}", len(ordered)):
                content = entry.content if isinstance(entry.content, bytes) else entry.content.read_bytes()
                if hashlib.sha256(content).hexdigest() != entry.sha256:
                    raise UsageError(f"{entry.name} changed while it was packed; remedy: pack again")
                _add(archive, entry.name, content)

    try:
        write_atomically(path, written)
    except OSError as error:
        raise OutputError(
            f"cannot write {shown_path(path)}: {error.strerror or error}; allowed: a file in a writable folder"
        ) from error


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    about = zipfile.ZipInfo(name, _DATE)
    about.create_system, about.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    about.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(about, content)


def unpacked(archive: str | Path, folder: Path) -> dict[str, Any]:
    """Unpack an archive into a new folder, and verify every hash; a folder that already holds the same stays.

    Args:
        archive: The zip file.
        folder: The folder to create.

    Returns:
        The manifest.

    Raises:
        UsageError: It is not an archive of deep5, is truncated or damaged, has entries that are not plain files in it,
            or more bytes than allowed; or the folder holds something else. Nothing is left on disk.
        OutputError: The folder cannot be written.
    """
    with _opened(archive) as (zipped, manifest):
        if exists(folder):
            if (
                (folder / MANIFEST).is_file()
                and read_manifest(folder) == manifest
                and not changed_files(folder, manifest)
            ):
                return manifest
            raise UsageError(
                f"{shown_path(folder)} is there already, and is not what {shown_path(archive)} holds; allowed: a new "
                "folder; remedy: deep5 results unpack with -o"
            )
        hidden = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        try:
            hidden.mkdir(parents=True)
            listed = manifest["files"].items()
            for name, about in tracked(listed, f"unpacking {Path(archive).name}", len(listed)):
                _extract(zipped, archive, name, about, hidden)
            (hidden / MANIFEST).write_bytes(zipped.read(MANIFEST))
            hidden.rename(folder)
        except OSError as error:
            if exists(folder):  # another rank unpacked it in the meantime
                return unpacked(archive, folder)
            raise OutputError(
                f"cannot unpack into {shown_path(folder)}: {error.strerror or error}; allowed: a writable folder"
            ) from error
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an unpacked archive.

    Raises:
        UsageError: It is missing or not valid.
    """
    manifest = read_object(folder / MANIFEST)
    return _checked(manifest, folder / MANIFEST)


def changed_files(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """The names of the files of an unpacked archive that changed or are missing."""
    return [name for name, about in manifest["files"].items() if not _is_unchanged(folder, name, about)]


def _is_unchanged(folder: Path, name: str, about: Mapping[str, Any]) -> bool:
    try:
        content = read_bytes(folder / name, root=folder, most_bytes=FILE_BYTES)
    except UsageError:  # also a link, in any part of the path
        return False
    return len(content) == int(about["bytes"]) and hashlib.sha256(content).hexdigest() == str(about["sha256"])


@contextmanager
def _opened(archive: str | Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
    """An archive whose directory is safe, and its manifest."""
    if not is_file(archive):
        raise UsageError(f"{shown_path(archive)} is not a file; allowed: an archive by deep5 results pack")
    try:
        zipped = zipfile.ZipFile(archive)
    except _BROKEN as error:
        raise UsageError(f"{shown_path(archive)} is truncated or not a zip archive ({error}); {_REMEDY}") from error
    with zipped:
        _check_names(zipped, archive)
        try:
            about = zipped.getinfo(MANIFEST)
            with zipped.open(about) as file:
                content = file.read(DOCUMENT_BYTES + 1)
            if len(content) > DOCUMENT_BYTES:
                raise ValueError("it is too long")
            manifest = parsed(content)
        except KeyError as error:
            raise UsageError(
                f"{shown_path(archive)} holds no {MANIFEST}; allowed: an archive by deep5 results pack"
            ) from error
        except _BROKEN as error:
            raise UsageError(f"{MANIFEST} of {shown_path(archive)} cannot be read ({error}); {_REMEDY}") from error
        manifest = _checked(manifest, f"{archive}/{MANIFEST}")
        there = {info.filename for info in zipped.infolist() if not info.is_dir()} - {MANIFEST}
        if odd := sorted(there ^ manifest["files"].keys()):
            state = "is not in its manifest" if odd[0] in there else "is missing"
            raise UsageError(f"{shown_path(archive)}: {shown_path(odd[0])} {state}; {_REMEDY}")
        yield zipped, manifest


def _checked(manifest: Any, where: str | Path) -> dict[str, Any]:
    if not isinstance(manifest, dict):
        raise UsageError(f"{shown_path(where)} holds no JSON object; {_REMEDY}")
    try:
        check_document(manifest, pack_schema())
    except UsageError as error:
        raise UsageError(f"{shown_path(where)}: {error}; {_REMEDY}") from error
    named = [manifest["recipe"]["file"], manifest["working_directory"], *manifest["python_path"], *manifest["own"]]
    named += [manifest["run_id"], *manifest["files"], *(left["file"] for left in manifest["left_out"])]
    for name in named:
        if name is not None and (fault := _fault(name)):
            raise UsageError(f"{shown_path(where)}: {shown_path(name)} {fault}; allowed: names within it; {_REMEDY}")
    if sum(about["bytes"] for about in manifest["files"].values()) > TOTAL_BYTES:
        raise UsageError(f"{shown_path(where)} states more than {TOTAL_BYTES} bytes; allowed: at most as many")
    return manifest


def _check_names(zipped: zipfile.ZipFile, archive: str | Path) -> None:
    """Refuse a directory that names anything but distinct plain files within the archive."""
    infos, seen = zipped.infolist(), set[str]()
    if len(infos) > _MOST_FILES:
        raise UsageError(f"{shown_path(archive)} has {len(infos)} entries; allowed: at most {_MOST_FILES}")
    for info in infos:
        kind, fault = stat.S_IFMT(info.external_attr >> 16), _fault(info.filename.removesuffix("/"))
        if kind not in (0, stat.S_IFDIR if info.is_dir() else stat.S_IFREG):
            fault = "is a link" if kind == stat.S_IFLNK else "is a device or another special file"
        elif info.flag_bits & 1:
            fault = "is encrypted"
        elif info.filename.casefold() in seen:
            fault = "is there twice"
        elif info.file_size > FILE_BYTES:
            fault = f"has {info.file_size} bytes, more than {FILE_BYTES}"
        if fault:
            raise UsageError(
                f"{shown_path(archive)}: the entry {shown_path(info.filename)} {fault}; allowed: distinct plain files "
                f"within the archive; {_REMEDY}"
            )
        seen.add(info.filename.casefold())


def _fault(name: str) -> str:
    """Why a name may not be used below a folder; empty if it may."""
    parts = name.split("/")
    if name.startswith(("/", "\\")) or ":" in parts[0]:
        return "is an absolute path"
    if ".." in parts:
        return "leads out of the archive"
    if not name or "" in parts or "." in parts or "\\" in name or any(not letter.isprintable() for letter in name):
        return "is not a plain path"
    return ""


def _extract(zipped: zipfile.ZipFile, archive: str | Path, name: str, about: Mapping[str, Any], folder: Path) -> None:
    path, sha, left = folder / name, hashlib.sha256(), int(about["bytes"])
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "wb") as target:
        try:
            with zipped.open(name) as file:
                while chunk := file.read(min(_CHUNK_BYTES, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        break
                    sha.update(chunk)
                    target.write(chunk)
        except _BROKEN as error:
            raise UsageError(f"{shown_path(archive)}: {shown_path(name)} is damaged ({error}); {_REMEDY}") from error
    if left or sha.hexdigest() != about["sha256"]:
        raise UsageError(f"{shown_path(archive)}: {shown_path(name)} is not the file of its manifest; {_REMEDY}")
