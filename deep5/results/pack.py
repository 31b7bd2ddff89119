"""What an archive of a run holds: its result, and the user's own files at the places that they had to each other."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core import quantities
from deep5.core.content_hashes import file_hash
from deep5.core.errors import UsageError
from deep5.core.progress import tracked
from deep5.results.archive import FILE_BYTES, TOTAL_BYTES, Entry, unpacked, write_archive
from deep5.results.folder import locked
from deep5.results.origin import Origin, read_origin, source_name
from deep5.results.reading import NotThere, opened, read_bytes, read_object, shown_path
from deep5.results.result import Result, load

__all__ = ["Tree", "changed_own", "check_finished", "pack", "stored_source", "tree_of", "unpack"]

_MOST_DATA = 10_000
_BLOCK_BYTES = 1 << 20
# An ONNX file is at most as large.
_MODEL_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The user's own files of a run, at the places that they had to each other.

    Attributes:
        entries: The files, named relative to the root; the recipe's as it ran, the others as they are now.
        recipe: Name of the file of the recipe, or of the model in its place; None for a registered recipe.
        working_directory: Name of the folder in which the run started, or None.
        python_path: Further folders from which modules are imported.
        own: Where the own files were, by name.
        left_out: Files and folders that are too large or cannot be moved.
    """

    entries: tuple[Entry, ...]
    recipe: str | None
    working_directory: str | None
    python_path: tuple[str, ...]
    own: Mapping[str, str]
    left_out: tuple[dict[str, Any], ...]


def pack(folder: str | Path, out: str | Path | None = None) -> tuple[Path, list[dict[str, Any]]]:
    """Write one archive with everything that a repetition of a run needs, except large data.

    Args:
        folder: The result folder of a finished run.
        out: The archive; None: the folder's name with .zip, in the working directory.

    Returns:
        The archive, and what it leaves out, as in its manifest.

    Raises:
        UsageError: It is not the result of a finished run, a run still writes to it, or an own file is missing or
            changed since the run.
        OutputError: The archive cannot be written.
    """
    result = load(folder)
    check_finished(result)
    document, origin = result.document, read_origin(result.folder, result.document)
    tree = tree_of(result, origin)
    target = Path(out) if out is not None else Path(f"{document['run_id']}.zip")
    if target.is_dir() or not target.name.endswith(".zip"):
        raise UsageError(f"the archive is {shown_path(target)}; allowed: a name that ends in .zip; remedy: -o FILE.zip")
    stored, too_large = _stored(result.folder, document["run_id"])
    own = [_within("files", entry) for entry in tree.entries]
    entries = [*stored, *(entry for entry in own if entry.size_bytes <= FILE_BYTES)]
    left_out = [  # a model in place of a recipe; the sizes of the other files are known
        _left(entry.name, origin.file or Path(entry.name), entry.sha256, entry.size_bytes)
        for entry in own
        if entry.size_bytes > FILE_BYTES
    ]
    total = sum(entry.size_bytes for entry in entries)
    if total > TOTAL_BYTES:
        raise UsageError(
            f"{shown_path(folder)} and its own files have {total} bytes; allowed: {TOTAL_BYTES} in an archive; remedy: "
            "delete checkpoints/ from a copy of the folder"
        )
    left_out += [*too_large, *({**each, "file": _inside(each["file"])} for each in tree.left_out)]
    recipe = document["recipe"]
    manifest = {
        "schema_version": "1",
        "run_id": document["run_id"],
        "recipe": {
            "name": recipe["name"],
            "hash": recipe["hash"],
            "registered": origin.registered,
            "file": _inside(tree.recipe),
            **({} if origin.model is None else {"model": origin.model}),
        },
        "working_directory": _inside(tree.working_directory),
        "python_path": [f"files/{name}" if name != "." else "files" for name in tree.python_path],
        "settings": dict(origin.settings),
        "own": {f"files/{name}": path for name, path in tree.own.items()},
        "left_out": left_out,
        "data": _data(result),
    }
    write_archive(target, manifest, entries)
    return target, left_out


def unpack(archive: str | Path, out: str | Path | None = None) -> tuple[Path, dict[str, Any]]:
    """Unpack an archive of a run into a new folder, and verify every hash; nothing in it is executed.

    Args:
        archive: The archive.
        out: The folder; None: the archive's name without .zip, in the working directory.

    Returns:
        The folder, and the manifest.

    Raises:
        UsageError: As `deep5.results.archive.unpacked`.
        OutputError: The folder cannot be written.
    """
    folder = Path(out) if out is not None else Path(Path(archive).name.removesuffix(".zip"))
    if out is None and folder.name == Path(archive).name:
        raise UsageError(f"{shown_path(archive)} does not end in .zip; remedy: -o FOLDER")
    return folder, unpacked(archive, folder.absolute())


def check_finished(result: Result) -> None:
    """Refuse a run that did not finish.

    Raises:
        UsageError: Its status is not success.
    """
    if result.status != "success":
        why = f" ({'; '.join(result.reasons)})" if result.reasons else ""
        raise UsageError(
            f"the run {result.document['run_id']} is {result.status}{why:.200}; allowed: a finished run; remedy: "
            "finish it by its command and --resume FOLDER, or run its recipe again"
        )


def stored_source(result: Result, origin: Origin) -> bytes:
    """The file of the recipe, or of the model in its place, as the run stored it; it is never executed here.

    Args:
        result: The run.
        origin: Its origin.

    Raises:
        UsageError: The run had no file, or the stored one has another hash.
    """
    name, expected = result.document["run_id"], result.document["provenance"]["recipe_source"]
    if expected is None and result.document.get("recorded") is not None:
        raise UsageError(
            f"the run {name} is a recording of a loop that deep5 does not have; allowed: runs of a recipe in a file; "
            "remedy: start the loop's own program again"
        )
    if expected is None:
        raise UsageError(
            f"the run {name} stores no file of what it ran: it was started from Python with an object, or is of an "
            "older deep5; allowed: runs of a recipe or a model in a file; remedy: start that program or command again"
        )
    stored = source_name(origin.model)
    source = read_bytes(result.folder / stored, most_bytes=_MODEL_BYTES)
    if hashlib.sha256(source).hexdigest() != expected:
        raise UsageError(f"{stored} of {name} changed since the run; remedy: restore it from a copy")
    return source


def changed_own(origin: Origin) -> list[str]:
    """What happened to the own files of a run since, one string each: missing, or changed."""
    found = []
    for name, expected in origin.own.items():
        try:
            if file_hash(name) != expected:
                found.append(f"{shown_path(name)} changed")
        except OSError:
            found.append(f"{shown_path(name)} is missing")
    return found


def tree_of(result: Result, origin: Origin) -> Tree:
    """The user's own files of a run.

    Raises:
        UsageError: One of them is missing or changed since the run.
    """
    if changed := changed_own(origin):
        raise UsageError(
            f"the recipe of {result.document['run_id']} used files that are not as they were: {', '.join(changed[:5])}"
            f"{f' and {len(changed) - 5} more' if len(changed) > 5 else ''}; remedy: restore them"
        )
    source = stored_source(result, origin)
    recipe = None if origin.registered else origin.file or Path("/", f"{result.document['recipe']['name']}.py")
    data = list(_data_paths(result, origin))
    places = [*(Path(name) for name in origin.own), *(path for path, relative in data if relative)]
    folders = [path.parent for path in places] + ([recipe.parent] if recipe is not None else [])
    if not folders:
        return Tree(entries=(), recipe=None, working_directory=None, python_path=(), own={}, left_out=_fixed(data))
    start = origin.working_directory
    if start is not None and any(start.is_relative_to(each) or each.is_relative_to(start) for each in folders):
        folders.append(start)
    root = Path(os.path.commonpath(folders))
    entries, left_out = [], list(_fixed(data))
    if recipe is not None:
        sha = hashlib.sha256(source).hexdigest()
        entries.append(Entry(name=_name(recipe, root), content=source, sha256=sha, size_bytes=len(source)))
    own = {_name(Path(name), root): name for name in origin.own}
    taken = {entry.name for entry in entries}
    for path in [*(Path(name) for name in origin.own), *_moved(data, root, left_out)]:
        name = _name(path, root)
        if name in taken:
            continue
        taken.add(name)
        size, sha = path.stat().st_size, file_hash(path)
        if size > FILE_BYTES:
            left_out.append(_left(name, path, sha, size))
        else:
            entries.append(Entry(name=name, content=path, sha256=sha, size_bytes=size))
    beside = None if recipe is None else recipe.parent
    roots = {_top(Path(name), dotted) for name, dotted in origin.modules.items()}
    return Tree(
        entries=tuple(entries),
        recipe=None if recipe is None else _name(recipe, root),
        working_directory=_name(start, root) if start is not None and start.is_relative_to(root) else None,
        python_path=tuple(sorted(_name(each, root) for each in roots if each != beside)),
        own=own,
        left_out=tuple(left_out),
    )


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _inside(name: str | None) -> str | None:
    return None if name is None else "files" if name == "." else f"files/{name}"


def _within(folder: str, entry: Entry) -> Entry:
    return Entry(name=f"{folder}/{entry.name}", content=entry.content, sha256=entry.sha256, size_bytes=entry.size_bytes)


def _top(path: Path, dotted: str) -> Path:
    """The folder from which a module is imported."""
    depth = dotted.count(".") + (path.name == "__init__.py")
    return path.parents[depth]


def _left(name: str | None, path: Path, sha: str | None, size: int | None, why: str = "") -> dict[str, Any]:
    why = why or f"it has more than {quantities.size(FILE_BYTES)}"
    return {"file": name, "origin": str(path), "sha256": sha, "bytes": size, "why": why}


def _data_paths(result: Result, origin: Origin) -> Iterator[tuple[Path, bool]]:
    """The files and folders that a data set's arguments name, and whether their names are relative."""
    recipe, start = result.document["recipe"], origin.working_directory
    for part in (recipe["fixed"], recipe["mutable"]):
        for key, value in part.items():
            for text in _strings(value) if key.startswith("dataset_") else ():
                path = Path(text)
                if path.is_absolute():
                    if os.path.lexists(path):
                        yield path, False
                elif start is not None and text and os.path.exists(start / path):  # noqa: PTH110 - any string
                    yield Path(os.path.abspath(start / path)), True  # noqa: PTH100 - links stay


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str) and "\0" not in value and len(value) < 4096:
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _fixed(data: Iterable[tuple[Path, bool]]) -> tuple[dict[str, Any], ...]:
    """Data with absolute names, which the repetition expects at the same place."""
    why = "the recipe names it by an absolute path, which must exist where the run is repeated"
    found = []
    for path, relative in data:
        if not relative:
            known = path.is_file()
            sha, size = (file_hash(path), path.stat().st_size) if known else (None, None)
            found.append(_left(None, path, sha, size, why))
    return tuple(found)


def _moved(data: Sequence[tuple[Path, bool]], root: Path, left_out: list[dict[str, Any]]) -> Iterator[Path]:
    """The files of data with relative names; a folder that is too large is added to `left_out`."""
    for path, relative in data:
        if not relative:
            continue
        if path.is_file():
            yield path
            continue
        inside, size = [], 0
        for file in sorted(path.rglob("*")):
            if file.is_file():
                inside.append(file)
                size += file.stat().st_size
            if len(inside) > _MOST_DATA or size > FILE_BYTES:
                why = f"it has more than {quantities.size(FILE_BYTES)}, or more than {_MOST_DATA} files"
                left_out.append(_left(_name(path, root), path, None, None, why))
                break
        else:
            yield from inside


def _stored(folder: Path, run_id: str) -> tuple[list[Entry], list[dict[str, Any]]]:
    """The files of a result folder; those that are too large are left out."""
    entries, left_out = [], []
    os.close(locked(folder))
    paths = sorted(folder.rglob("*"))
    for path in tracked(paths, f"hashing the files of {folder}", len(paths)):
        if path.is_dir() and not path.is_symlink():
            continue
        name = f"{run_id}/{path.relative_to(folder).as_posix()}"
        with opened(path, root=folder, most_bytes=1 << 62) as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256()
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        sha = digest.hexdigest()
        if size > FILE_BYTES:
            left_out.append(_left(name, path.absolute(), sha, size))
        else:
            entries.append(Entry(name=name, content=path, sha256=sha, size_bytes=size))
    return entries, left_out


def _data(result: Result) -> dict[str, Any] | None:
    found = result.document["provenance"]["data"]
    try:
        return {"hash": found, "origin": read_object(result.folder / "dataset.json")}
    except NotThere:
        return None if found is None else {"hash": found, "origin": None}
