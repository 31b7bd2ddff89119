"""Faults that hit a running command: SIGKILL and SIGSTOP at a drawn moment, and a file system that is full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

import forked
from ranks import ranks_of

__all__ = [
    "CHILD",
    "COMMAND",
    "GROUP",
    "KILL",
    "LINE",
    "POINT",
    "STOP",
    "STOP_AND_KILL",
    "TIME",
    "Attempt",
    "Fault",
    "SmallDisk",
    "attempt",
    "counted",
    "small_disk",
]

COMMAND, GROUP, CHILD = "command", "group", "child"
POINT, TIME, LINE = "point", "time", "line"
KILL, STOP, STOP_AND_KILL = "kill", "stop", "stop and kill"
# An attempt that takes longer hangs: the longest, a comparison, takes one minute on an idle machine.
_LIMIT_S = 400.0
# What a killed command leaves has to end by itself: ranks look for their parent every 10 s at the latest.
_ORPHANS_S = 30.0
_PIDS = "pids"
_COMMAND_FILE = Path(__file__).with_name("trial_command.py")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of one attempt.

    Attributes:
        when: `POINT`: before a change to a file; `TIME`; or `LINE`: after a line on standard error.
        at: The number of the change or the line; seconds since the start.
        whom: `COMMAND`, `GROUP` (its process group), `CHILD` (one of its processes), or "rank N".
        how: `KILL`; `STOP`: stopped for `pause_s`; or `STOP_AND_KILL`.
        pause_s: Seconds between the stop and what follows it.
    """

    when: str
    at: float
    whom: str
    how: str
    pause_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.how} {self.whom} at {self.when} {self.at:.4g}"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a command ended.

    Attributes:
        status: As `Popen.returncode`.
        error: Its standard error.
        happened: Whether the fault did.
        seconds: Duration.
        left: Processes that were still there after `_ORPHANS_S`; they are killed.
    """

    status: int
    error: str
    happened: bool
    seconds: float
    left: tuple[str, ...]


def attempt(
    words: Sequence[str],
    place: Path,
    live: Path,
    environment: Mapping[str, str],
    fault: Fault | None = None,
    *,
    forks: bool = False,
) -> Attempt:
    """Run a command to its end, whatever hits it.

    Args:
        words: Arguments of `deep5`.
        place: Folder for what is written about the attempt; its `counts` are of this attempt.
        live: Folder that holds everything that the command writes.
        environment: More environment variables.
        fault: What hits it.
        forks: Whether its Python processes are forked too, where a fresh interpreter would do the same.
    """
    counts = place / "counts"
    counts.mkdir(exist_ok=True)
    for path in counts.iterdir():
        path.unlink()
    point = {"who": None, "number": None, "what": None, "folder": f"{live}/", "counts": str(counts)}
    if fault is not None and fault.when == POINT:
        what = fault.how if fault.how == KILL else STOP
        if fault.how == KILL and fault.whom in (COMMAND, GROUP):
            what = f"kill the {fault.whom}"
        who = COMMAND if fault.whom == GROUP else fault.whom
        point |= {"who": who, "number": int(fault.at), "what": what}
    variables = {**os.environ, **environment, "TRIAL_POINT": json.dumps(point), "TRIAL_PLACE": str(place)}
    if forks:
        variables["TRIAL_FORKS"] = "1"
    begin, since = time.monotonic(), time.time()
    with (place / "out").open("wb") as out, (place / "err").open("wb") as err:
        process = forked.Popen(
            [sys.executable, str(_COMMAND_FILE), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=variables,
            cwd=place,
            start_new_session=True,
        )
    happened = False
    try:
        happened = _watch(process, place, fault, begin, since)
    finally:
        seconds = time.monotonic() - begin
        process.poll()
        left = _ended(process, place, since)
    error = (place / "err").read_text(errors="replace")
    return Attempt(status=process.returncode, error=error, happened=happened, seconds=seconds, left=left)


def counted(place: Path) -> dict[str, int]:
    """How many changes the processes of an attempt made to files, by name."""
    return {path.name: path.stat().st_size for path in (place / "counts").iterdir() if path.name != _PIDS}


def _watch(process: subprocess.Popen[bytes], place: Path, fault: Fault | None, begin: float, since: float) -> bool:
    """Wait for the end of a command, hit it at the drawn moment, and return whether it was hit."""
    happened, stopped, due = False, [], 0.0
    while process.poll() is None:
        now = time.monotonic()
        if now - begin > _LIMIT_S:
            raise TimeoutError(f"not done within {_LIMIT_S:g} s")
        if fault is not None and not happened:
            if fault.when == POINT:
                who = COMMAND if fault.whom == GROUP else fault.whom
                happened = counted(place).get(who, 0) >= fault.at
                noted = _noted(place, since) if happened and fault.how != KILL else []
                stopped = [each.pid for each in noted if _is_stopped(each)]
                happened = happened and (fault.how == KILL or bool(stopped))
            elif (now - begin if fault.when == TIME else _lines(place)) >= fault.at:
                stopped = _targets(process, fault.whom)
                happened = bool(stopped)
                for pid in stopped:
                    _send(pid, signal.SIGKILL if fault.how == KILL else signal.SIGSTOP)
            due = now + fault.pause_s
        elif fault is not None and stopped and fault.how != KILL and now >= due:
            for pid in stopped:
                _send(pid, signal.SIGKILL if fault.how == STOP_AND_KILL else signal.SIGCONT)
            stopped = []
        time.sleep(0.003)
    if fault is not None and fault.when == POINT and not happened:
        who = COMMAND if fault.whom == GROUP else fault.whom
        happened = counted(place).get(who, 0) >= fault.at
    return happened


def _lines(place: Path) -> int:
    return (place / "err").read_bytes().count(b"\n")


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _targets(process: subprocess.Popen[bytes], whom: str) -> list[int]:
    """The processes that a fault hits; none if they are not there yet."""
    if whom == COMMAND:
        return [process.pid]
    with suppress(psutil.Error):
        own = psutil.Process(process.pid)
        if whom == GROUP:
            return [each.pid for each in [*own.children(recursive=True), own] if _group(each.pid) == process.pid]
        if whom == CHILD:
            # Of the children, those that deep5 started to work: each leads its own session.
            return [each.pid for each in own.children(recursive=True) if _group(each.pid) == each.pid][-1:]
        return [each.pid for rank, each in ranks_of(process.pid).items() if whom == f"rank {rank}"]
    return []


def _is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


def _group(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def _noted(place: Path, since: float) -> list[psutil.Process]:
    """The Python processes of an attempt that still run."""
    found = []
    path = place / "counts" / _PIDS
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(psutil.Error):
            each = psutil.Process(int(line))
            # Not one that has its number since.
            if each.create_time() >= since - 1.0 and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def _marked(place: Path) -> list[psutil.Process]:
    """The other processes of a trial: TRIAL_PLACE, which they inherit, names its folder."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if each.status() != psutil.STATUS_ZOMBIE and each.environ().get("TRIAL_PLACE") == str(place):
                found.append(each)
    return found


def _ended(process: subprocess.Popen[bytes], place: Path, since: float) -> tuple[str, ...]:
    """Wait until no process of the trial is left; kill those that do not end, and name them."""
    if process.poll() is None:
        process.kill()
    process.wait(30)
    until = time.monotonic() + _ORPHANS_S
    while (left := [*_noted(place, since), *_marked(place)]) and time.monotonic() < until:
        time.sleep(0.02)
    named = []
    for each in left:
        with suppress(psutil.Error):
            named.append(f"{each.pid}: {' '.join(each.cmdline())[-120:]}")
            each.kill()
    return tuple(named)


# A small disk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SmallDisk:
    """A file system that becomes full.

    Attributes:
        kib: Its size in KiB; it holds whole pages of 4 KiB.
        files: The most files and folders on it; None: any number.
        scratch: Whether temporary files are on it too.
    """

    kib: int
    files: int | None = None
    scratch: bool = False

    def __str__(self) -> str:
        files = "" if self.files is None else f", {self.files} files"
        return f"a disk of {self.kib} KiB{files}{', temporary files too' if self.scratch else ''}"

    def grow(self, folder: Path) -> None:
        """Free space: what is written there stays."""
        _run("mount", "-o", "remount,size=256m,nr_inodes=0", "tmpfs", str(folder))


@contextmanager
def small_disk(disk: SmallDisk | None, folder: Path) -> Iterator[None]:
    """Mount the file system on a folder; this process may mount, as in its own mount namespace."""
    if disk is None:
        yield
        return
    files = "" if disk.files is None else f",nr_inodes={disk.files}"
    _run("mount", "-t", "tmpfs", "-o", f"size={disk.kib}k{files}", "tmpfs", str(folder))
    try:
        yield
    finally:
        _run("umount", "-l", str(folder))


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
