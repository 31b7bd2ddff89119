"""Leases of runs: which process carries out a run, known from files that all machines see."""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

from deep5.core.errors import RunFailed
from deep5.core.files import write_atomically
from deep5.engines.request import Outcome

__all__ = ["ATTEMPT", "Interrupted", "Lease", "lease_or_outcome", "result_of"]

ATTEMPT = "attempt.json"
"""The file of an attempt's folder: who carries it out, and how it ended."""

# An attempt's file is renewed at this interval; without renewal for this long, its process is taken for dead, if it is
# on another machine; interval of looking for the end of a process that lives.
_RENEWED_S, _STALE_S, _WAIT_S = 5.0, 60.0, 0.2
# Folders of the attempts that this process carries out.
_here: set[Path] = set()


class Interrupted(RunFailed):
    """A run that was interrupted from outside, and can resume."""


class Lease:
    """The right to carry out a run: a new folder of an attempt, whose file is renewed while its process lives.

    A context manager: the attempt is under way within it.

    Args:
        folder: The attempt's folder, which does not exist.
        before: The folder of an interrupted attempt in whose results this one resumes; or None.

    Attributes:
        folder: The attempt's folder.
        results: The folder with its result folder.
        before_s: Duration of the attempts in whose results it resumes.

    Raises:
        FileExistsError: Another process has made it.
    """

    def __init__(self, folder: Path, before: Path | None) -> None:
        earlier = {} if before is None else _read(before)
        self.results = folder if before is None else before.parent / str(earlier["results"])
        self.before_s = float(earlier.get("wall_s", 0.0))
        self._began = self._renewed = monotonic()
        # With its file from the start, and only once: a folder that is not empty cannot be replaced.
        self.folder = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
        self.folder.mkdir()
        self._write()
        try:
            self.folder.rename(folder)
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise FileExistsError from error
            raise
        self.folder = folder

    def __enter__(self) -> Self:
        _here.add(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        _here.discard(self.folder)

    def renew(self) -> None:
        """Show that the process lives."""
        if monotonic() - self._renewed >= _RENEWED_S:
            self._write()
            self._renewed = monotonic()

    def release(self) -> None:
        """Store that the run has been interrupted, and no process writes into its results."""
        self._write(released=True)

    def end(self, outcome: Outcome) -> None:
        """Store how the attempt ended."""
        self._write(outcome)

    def _write(self, outcome: Outcome | None = None, *, released: bool = False) -> None:
        import psutil

        about = {
            "host": platform.node(),
            "process": os.getpid(),
            "created": psutil.Process().create_time(),
            "results": self.results.name,
            "wall_s": self.before_s + monotonic() - self._began,
            "released": released,
            "ended": None if outcome is None else asdict(outcome),
        }
        write_atomically(self.folder / ATTEMPT, json.dumps(about))


def lease_or_outcome(own: Path, cancelled: threading.Event | None, *, resumes: bool = True) -> Lease | Outcome:
    """The right to carry out a run; or, if it has ended, its outcome.

    An attempt whose process still lives, such as one of an earlier driver, is waited for.

    Args:
        own: The folder of the run, with a folder per attempt.
        cancelled: Ends the wait when it is set.
        resumes: Whether a new attempt resumes in the results of an interrupted one, if it can.

    Raises:
        Interrupted: `cancelled` was set.
    """
    own.mkdir(parents=True, exist_ok=True)
    while True:
        numbers = sorted(int(path.name) for path in own.iterdir() if path.name.isdecimal())
        before: Path | None = None
        if numbers:
            last = own / str(numbers[-1])
            if (known := _outcome(last)) is not None:
                return known
            if _lives(last):
                if cancelled is not None and cancelled.is_set():
                    raise Interrupted(f"the run {own.name} was interrupted while another process carries it out")
                sleep(_WAIT_S)
                continue
            before = last if resumes and _can_resume(last) else None
        with suppress(FileExistsError):  # another process was faster
            return Lease(own / str((numbers[-1] if numbers else 0) + 1), before)


def result_of(folder: Path) -> Path | None:
    """The result folder of an attempt, or None.

    Args:
        folder: The folder that the run got as `--out`.
    """
    if not folder.is_dir():
        return None
    found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return found[0] if found else None


def _lives(folder: Path) -> bool:
    """Whether the process of an attempt lives: known for certain on its machine; elsewhere by the last renewal."""
    import psutil

    about = _read(folder)
    if about.get("released"):
        return False
    if about.get("host") == platform.node():
        if about.get("process") == os.getpid():
            return folder in _here
        try:
            process = psutil.Process(about["process"])
            # A zombie has ended, and its parent has not noticed.
            return bool(process.create_time() == about["created"] and process.status() != psutil.STATUS_ZOMBIE)
        except (KeyError, psutil.Error):
            return False
    # By the clock of the disk, which machines share.
    clock = folder / f".clock-{secrets.token_hex(4)}"
    clock.touch()
    now = clock.stat().st_mtime
    clock.unlink()
    return now - (folder / ATTEMPT).stat().st_mtime < _STALE_S


def _can_resume(folder: Path) -> bool:
    """Whether an interrupted attempt left what another one can resume.

    On another machine its process may be stopped only for a time, and would then write into the same folder; unless it
    has stated that it does not.
    """
    about = _read(folder)
    results = about.get("results")
    safe = about.get("host") == platform.node() or about.get("released") is True
    if not safe or not isinstance(results, str) or not results.isdecimal():
        return False
    left = result_of(folder.parent / results)
    return left is not None and any(left.glob("*.json"))


def _read(folder: Path) -> Mapping[str, Any]:
    try:
        document = json.loads((folder / ATTEMPT).read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _outcome(folder: Path) -> Outcome | None:
    """How an attempt ended; None: it was interrupted, or is under way."""
    about = _read(folder)
    ended, results = about.get("ended"), about.get("results")
    if not isinstance(ended, dict) or not isinstance(results, str) or not results.isdecimal():
        return None
    # Where they are now: the folder may have been moved.
    place = folder.parent / results
    found = result_of(place)
    here = {"attempt": str(folder), "results": str(place), "run": None if found is None else str(found)}
    try:
        return Outcome(**{**ended, **here})
    except TypeError:  # of another deep5
        return None
