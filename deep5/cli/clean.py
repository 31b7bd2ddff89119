"""`deep5 clean`: list and delete deep5's reproducible files on disk, and old checkpoints."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from deep5.core.compiler import cache_folder
from deep5.core.content_hashes import HASH_CACHE
from deep5.core.errors import Deep5Error, Errors, OutputError, UsageError
from deep5.core.files import is_file, is_folder
from deep5.core.kernel_cache import BUILD
from deep5.core.owner_secret import secret_path
from deep5.core.quantities import size

__all__ = ["KINDS", "Found", "clean_command", "cleaned", "found_in_cache", "found_in_results"]

KINDS = {
    "compiled": "compiled code",
    "secret": "the secret of compiled code",
    "listings": "the index of results",
    "data": "downloads, indices of TFRecord files, and hashes of files",
    "checkpoints": "checkpoints",
}
"""The kinds that can be deleted, with their descriptions."""

# Before entries were authenticated, checksums were files.
_COMPILED = re.compile(r".+\.(so|sha256|includes)")
_SECRET = re.compile(r"cache\.secret|\.cache\.secret\.[0-9a-f]{16}\.tmp")
_LISTING = re.compile(r"\.?[0-9a-f]{32}\.index\.jsonl(\..*\.tmp)?")
_INDEX = re.compile(r"[0-9a-f]{64}\.npy")
_HASH = re.compile(r"[0-9a-f]{64}\.sha256")
_WHEEL = re.compile(r".+\.whl|results\.json")
_DATA_SETS = ("cifar-10-batches-bin", "cifar-100-binary", "fashion-mnist", "loading_files", "mnist")
# With several ranks, each writes its part of the checkpoint next to the first rank's.
_STEP = re.compile(r"step-(\d{10,})(?:\.rank-([1-9]\d*))?\.safetensors")
_TORN = re.compile(r"\.(step-\d{10,}(\.rank-[1-9]\d*)?|best)\.safetensors\..*\.tmp")
_BEST = "best.safetensors"
# Younger files may still be written by another process.
_TORN_AFTER_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """An item on disk that deep5 wrote.

    Attributes:
        path: A file, or a folder with its content.
        kind: A key of `KINDS`.
        size_bytes: Bytes that deleting it frees.
        kept: Why it is kept, or empty.
    """

    path: Path
    kind: str
    size_bytes: int
    kept: str = ""


def found_in_cache(folder: Path | None = None) -> list[Found]:
    """The items in deep5's cache with names that deep5 gives; links are not followed, and other items are ignored.

    Args:
        folder: The cache; None: the user's, with the secret that authenticates compiled code.
    """
    root = cache_folder() if folder is None else folder
    found = [Found(path=path, kind="compiled", size_bytes=_size(path)) for path in _files(root / "kernels", _COMPILED)]
    if _is_folder(root / "kernels"):
        torn = [path for path in sorted((root / "kernels").glob(f"{BUILD}*")) if _is_folder(path)]
        busy = "a process may still use it"
        found += [Found(path=path, kind="compiled", size_bytes=_size(path), kept=_young(path, busy)) for path in torn]
    if folder is None:
        found += _secrets()
    found += [Found(path=path, kind="listings", size_bytes=_size(path)) for path in _files(root / "results", _LISTING)]
    if _is_folder(root / "torchinductor"):
        found.append(Found(path=root / "torchinductor", kind="compiled", size_bytes=_size(root / "torchinductor")))
    for name in _DATA_SETS if _is_folder(root / "data") else ():
        if _is_folder(path := root / "data" / name):
            found.append(Found(path=path, kind="data", size_bytes=_size(path)))
    if _is_folder(root / "data"):
        torn = [path for name in _DATA_SETS for path in (root / "data").glob(f".{name}.*.tmp") if _is_folder(path)]
        found += [Found(path=path, kind="data", size_bytes=_size(path), kept=_young(path)) for path in sorted(torn)]
    found += [Found(path=path, kind="data", size_bytes=_size(path)) for path in _files(root / "tfrecord", _INDEX)]
    found += [Found(path=path, kind="data", size_bytes=_size(path)) for path in _files(root / HASH_CACHE, _HASH)]
    found += [Found(path=path, kind="data", size_bytes=_size(path)) for path in _files(root / "real_files", _WHEEL)]
    if _is_folder(path := root / "real_files") and _is_folder(path := path / "work"):
        found.append(Found(path=path, kind="data", size_bytes=_size(path)))
    return found


def _secrets() -> list[Found]:
    """The secret, whatever it is: one that is refused goes, too; and what a killed process left of one."""
    try:
        folder = secret_path().parent  # deep5 follows a link there, too
        paths = [path for path in sorted(folder.iterdir()) if _SECRET.fullmatch(path.name)]
    except (Deep5Error, OSError):
        return []
    wrong = "deep5 writes a file there, and this is a folder; remedy: move {} elsewhere"
    return [
        Found(path=path, kind="secret", size_bytes=_size(path), kept=wrong.format(path) if _is_folder(path) else "")
        for path in paths
    ]


def found_in_results(folder: str | Path, keep: int = 1) -> list[Found]:
    """The checkpoints in a result folder, or in all result folders inside a folder.

    Args:
        folder: Folder of a run, or of several.
        keep: Number of latest checkpoints to keep per run; if 0, the best one is not kept either.

    Raises:
        UsageError: No such folder, no result folder in it, or a number below 0.
    """
    from deep5.results.kind import RESULT
    from deep5.results.store import result_folders

    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
        raise UsageError(f"keep {keep!r:.60}; allowed: an integer of at least 0")
    folder = Path(folder)
    runs = [folder] if is_file(folder / RESULT) else result_folders(folder)
    if not runs:
        raise UsageError(f"{folder} holds no result folder; allowed: a result folder, or a folder of them")
    return [entry for run in runs for entry in _checkpoints(run, keep)]


def _checkpoints(run: Path, keep: int) -> list[Found]:
    folder = run / "checkpoints"
    if not _is_folder(folder) or run.is_symlink():
        return []
    steps = _parts_by_step(folder)
    busy = "" if _free(run) else "a run still writes to it"
    # Ranks resume from a checkpoint that all of them have written.
    ranks = _ranks(run)
    usable = [step for step, parts in steps.items() if 0 in parts and len(parts) >= ranks]
    usable = usable or [step for step, parts in steps.items() if 0 in parts]
    oldest = min(usable[:keep], default=None)
    last = "it is the last one" if keep == 1 else f"it is among the last {keep}"
    found = []
    for step, parts in steps.items():
        stays = oldest is not None and step >= oldest and 0 in parts
        why = busy or ((last if step in usable else "it is newer than the last complete one") if stays else "")
        for path in parts.values():
            found.append(Found(path=path, kind="checkpoints", size_bytes=_size(path), kept=why))
    for path in _files(folder, re.compile(re.escape(_BEST))):
        why = busy or ("it is the checkpoint of the best evaluation" if keep else "")
        found.append(Found(path=path, kind="checkpoints", size_bytes=_size(path), kept=why))
    for path in _files(folder, _TORN):
        found.append(Found(path=path, kind="checkpoints", size_bytes=_size(path), kept=busy))
    return found


def _parts_by_step(folder: Path) -> dict[int, dict[int, Path]]:
    """The ranks' parts of every checkpoint, the one with the most steps first."""
    steps: dict[int, dict[int, Path]] = {}
    for path in _files(folder, _STEP):
        if (name := _STEP.fullmatch(path.name)) is not None:
            steps.setdefault(int(name[1]), {})[int(name[2] or 0)] = path
    return {step: dict(sorted(steps[step].items())) for step in sorted(steps, reverse=True)}


def _ranks(run: Path) -> int:
    """Number of ranks recorded in a result; 1 if there is none."""
    from deep5.results.kind import RESULT
    from deep5.results.reading import read_object

    try:
        ranks = read_object(run / RESULT, root=run).get("ranks", 1)
    except UsageError:
        return 1
    return ranks if isinstance(ranks, int) else 1


def cleaned(found: list[Found]) -> list[Found]:
    """Delete the items that are not kept.

    Args:
        found: Result of `found_in_cache` and `found_in_results`.

    Returns:
        The deleted items.

    Raises:
        OutputError: An item cannot be deleted; those before it are deleted.
    """
    gone = []
    for entry in found:
        if entry.kept:
            continue
        try:
            with _held(entry):
                if _is_folder(entry.path):
                    shutil.rmtree(entry.path)  # it deletes links and does not follow them
                else:
                    entry.path.unlink(missing_ok=True)
        except BlockingIOError:
            continue  # a run has started to write there since the listing
        except OSError as error:
            raise OutputError(
                f"{entry.path} cannot be deleted ({error.strerror or error}); allowed: a file that this user may delete"
            ) from error
        gone.append(entry)
    for folder in {entry.path.parent for entry in gone if entry.kind == "checkpoints"}:
        if _is_folder(folder) and not any(folder.iterdir()):
            folder.rmdir()
    return gone


@contextmanager
def _held(entry: Found) -> Iterator[None]:
    """Prevent runs from writing into the result folder of a checkpoint in this context.

    Raises:
        BlockingIOError: A run is already writing there.
    """
    if entry.kind != "checkpoints":
        yield
        return
    handle = os.open(entry.path.parent.parent, os.O_RDONLY)
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


def _free(run: Path) -> bool:
    try:
        handle = os.open(run, os.O_RDONLY)
    except OSError:
        return False
    try:
        _lock(handle)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise BlockingIOError from error
        # A file system without locks: whether a run writes there is unknown.


def _is_folder(path: Path) -> bool:
    """Whether it is a folder and not a link to one: the target of a link may not belong to deep5."""
    return is_folder(path) and not path.is_symlink()


def _files(folder: Path, name: re.Pattern[str]) -> list[Path]:
    if not _is_folder(folder):
        return []
    return sorted(
        path for path in folder.iterdir() if name.fullmatch(path.name) and is_file(path) and not path.is_symlink()
    )


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links in it count as 0."""
    if not _is_folder(path):
        return path.lstat().st_size
    total = 0
    for inside, _, names in os.walk(path):  # links to folders are not followed
        for name in names:
            try:
                about = Path(inside, name).lstat()
            except OSError:  # deleted meanwhile
                continue
            total += about.st_size if stat.S_ISREG(about.st_mode) else 0
    return total


def _young(path: Path, busy: str = "a download may still write there") -> str:
    try:
        newest = max((inside.lstat().st_mtime for inside in (path, *path.iterdir())), default=0.0)
    except OSError:
        return "another process writes it"
    return busy if time.time() - newest < _TORN_AFTER_S else ""


def clean_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("clean")
    @click.option(
        "--data", is_flag=True, help="Delete downloaded data sets instead; the next use downloads them again."
    )
    @click.option(
        "--checkpoints",
        metavar="DIR",
        help="Delete old checkpoints in a result folder, or in a folder of result folders.",
    )
    @click.option(
        "--keep",
        type=click.IntRange(min=0),
        default=None,
        metavar="K",
        help="Checkpoints to keep per run.  [default: 1]",
    )
    @click.option("--all", "everything", is_flag=True, help="Delete everything in the cache, including data sets.")
    @click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def clean(
        data: bool,
        checkpoints: str | None,
        keep: int | None,
        everything: bool,
        dry_run: bool,
        as_json: bool,
        debug: bool,
    ) -> None:
        """Delete compiled code and the index of results from deep5's cache; deep5 makes both again when needed.

        The cache is the folder that DEEP5_CACHE names, else deep5 in the user's cache folder (~/.cache). The secret
        that authenticates compiled code is deleted, too; it is in the user's state folder (~/.local/state). The command
        deletes only files that deep5 wrote, follows no link, and never touches a folder of DEEP5_DATA.
        """
        with errors(debug, as_json) as show:
            if keep is not None and checkpoints is None:
                raise UsageError("--keep is for --checkpoints DIR; remedy: name the folder")
            wanted = _wanted(data, checkpoints is not None, everything)
            cache = found_in_cache()
            results = [] if checkpoints is None else found_in_results(checkpoints, 1 if keep is None else keep)
            chosen = [entry for entry in cache if entry.kind in wanted] + results
            gone = [entry for entry in chosen if not entry.kept] if dry_run else cleaned(chosen)
            left = [entry for entry in (*cache, *results) if entry not in gone]
            if as_json:
                show(json.dumps(_document(gone, left, dry_run), indent=2))
            else:
                show("\n".join(_lines(gone, left, wanted, Path(checkpoints) if checkpoints else None, dry_run)))

    return clean


def _wanted(data: bool, checkpoints: bool, everything: bool) -> set[str]:
    """The kinds of cached items to delete."""
    if everything:
        return {"compiled", "secret", "listings", "data"}
    if data:
        return {"data"}
    return set() if checkpoints else {"compiled", "secret", "listings"}


def _lines(gone: list[Found], left: list[Found], wanted: set[str], results: Path | None, dry_run: bool) -> list[str]:
    word = "would free" if dry_run else "freed"
    lines = []
    for place, kinds in ((cache_folder(), wanted), (results, {"checkpoints"})):
        if place is not None and kinds:
            own = [entry for entry in gone if entry.kind in kinds - {"secret"}]
            lines.append(f"{word} {size(sum(entry.size_bytes for entry in own))} in {place}")
            if dry_run:
                lines += [f"  {entry.path}  {size(entry.size_bytes)}" for entry in own]
    lines += [
        f"{'would delete' if dry_run else 'deleted'} {KINDS['secret']}, {entry.path}"
        for entry in gone
        if entry.kind == "secret"
    ]
    for kind, name in KINDS.items():
        own = [entry for entry in left if entry.kind == kind]
        if own:
            options = {
                "compiled": "",
                "secret": "",
                "listings": "",
                "data": " --data",
                "checkpoints": f" --checkpoints {results} --keep 0",
            }
            why = "; ".join(dict.fromkeys(entry.kept for entry in own if entry.kept))
            reported = why or f"deep5 clean{options[kind]} deletes them"
            lines.append(f"kept {size(sum(entry.size_bytes for entry in own))} of {name}: {reported}")
    return lines


def _document(gone: list[Found], left: list[Found], dry_run: bool) -> dict[str, Any]:
    def rows(entries: list[Found]) -> list[dict[str, Any]]:
        return [
            {"path": str(entry.path), "kind": entry.kind, "size_bytes": entry.size_bytes, "kept": entry.kept or None}
            for entry in entries
        ]

    return {
        "cache": str(cache_folder()),
        "dry_run": dry_run,
        "freed_bytes": 0 if dry_run else sum(entry.size_bytes for entry in gone),
        "deleted": rows(gone),
        "left": rows(left),
    }
