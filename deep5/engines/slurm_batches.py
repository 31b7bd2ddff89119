"""`Batches`: calls as arrays of Slurm jobs, with files on a disk that nodes share; they survive this process."""

from __future__ import annotations

import hashlib
import json
import shlex
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from deep5.core.errors import RunFailed
from deep5.core.files import write_atomically
from deep5.core.python_child import python_command
from deep5.core.terminal import counted
from deep5.engines import slurm_commands
from deep5.engines.call import ANSWER, ENGINE, result
from deep5.engines.request import Refused
from deep5.engines.slurm_commands import ALLOWED, Job, Unreachable
from deep5.engines.slurm_job import BEAT, CALL, LOG, main, noted

__all__ = ["Batches", "resources"]

# Intervals of looking for answers, and of asking Slurm; how long calls that follow each other are collected.
_LOOK_S, _ASK_S, _COLLECT_S = 0.1, 1.0, 0.05
# For how long a call has neither a job nor a sign of life when it counts as lost.
_GONE_S, _SILENT_S = 3.0, 15.0
# How long a job may be running without a sign of life of its call, such as while a node starts it.
_MUTE_S = 180.0
# How long the controller may be unreachable; how often a call may be lost before and after it has started.
_UNREACHABLE_S = 3600.0
_MOST_UNSTARTED, _MOST_LOST = 20, 5
# A time limit is announced so many seconds before: the run finishes its step and writes a checkpoint.
_ANNOUNCED_S = 60
# Slurm's default of MaxArraySize is 1001.
_MOST_TASKS = 500
# Names on one command line.
_MOST_NAMES = 500
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
}  # fmt: skip
# Slurm holds a job whose start failed, such as because of a fault of its daemons.
_LAUNCH_FAILED = "launch failed requeued held"
# Why a job that waits will never start without help.
_NEVER = (
    "PartitionNodeLimit", "PartitionTimeLimit", "PartitionConfig", "BadConstraints", "InvalidAccount", "InvalidQOS",
    "QOSMaxWallDurationPerJobLimit", "JobHeldAdmin", "AccountNotAllowed", "QOSNotAllowed",
    "MaxMemPerLimit", "MaxCpuPerNode",
)  # fmt: skip


@dataclass(eq=False)
class _Call:
    """A call that has not ended.

    Attributes:
        key: Names its files.
        folder: The engine's folder.
        run: Its `RunRequest`, in JSON types.
        future: What the caller waits for.
        place: The job, by its name and number in its array; None: not submitted.
        since: When this was submitted, or last known to Slurm.
        beat: Time stamp of its sign of life, and when it was last seen to change.
        lost: How often it was lost before and after it had started.
    """

    key: str
    folder: Path
    run: Mapping[str, Any]
    future: Future[dict[str, Any]]
    place: tuple[str, int] | None = None
    since: float = 0.0
    running_since: float | None = None
    beat: tuple[float, float] = (0.0, 0.0)
    lost: tuple[int, int] = (0, 0)


class Batches:
    """Submits calls, and watches for their answers in a thread.

    Args:
        options: Options of `sbatch` for all jobs.
        runs: Most calls that one job carries out.

    Attributes:
        queued: Which calls wait in the queue, in words; empty: none.
    """

    queued = ""

    def __init__(self, options: Sequence[str], runs: int) -> None:
        self._options, self._runs = options, runs
        self._new: list[_Call] = []
        self._calls: dict[str, _Call] = {}
        self._folders = set[Path]()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = self._cancel = False
        self._asked_at = self._heard_at = monotonic()
        self._thread: threading.Thread | None = None

    def submit(self, function: str, request: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Carry out a call, or find its answer, or the job that an earlier process submitted for it.

        Args:
            function: Its name.
            request: Its argument, in JSON types, with a `RunRequest` as `run`.

        Raises:
            RuntimeError: It is closed.
            OSError: The folder cannot be written.
        """
        run = request["run"]
        folder = Path(run["folder"]).parent / ENGINE
        folder.mkdir(exist_ok=True)
        future: Future[dict[str, Any]] = Future()
        future.set_running_or_notify_cancel()
        call = _Call(key=run["key"], folder=folder, run=run, future=future)
        if not (folder / f"{call.key}{ANSWER}").exists():
            write_atomically(
                folder / f"{call.key}{CALL}", json.dumps({"function": function, "request": request}, default=list)
            )
            call.place = _known_place(folder, call.key)
            call.since = monotonic()
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._new.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="deep5-slurm", daemon=True)
                self._thread.start()
        self._wake.set()
        return future

    def close(self, *, wait: bool, cancel: bool) -> None:
        """End when all calls have ended.

        Args:
            wait: Whether to wait for that.
            cancel: Whether to cancel all calls.
        """
        with self._lock:
            self._closed, self._cancel = True, self._cancel or cancel
            thread = self._thread
        self._wake.set()
        if wait and thread is not None:
            thread.join()

    def _watch(self) -> None:
        try:
            while not (self._closed and not self._calls and not self._new):
                if self._wake.wait(_LOOK_S):
                    self._wake.clear()
                    if not self._cancel:
                        threading.Event().wait(_COLLECT_S)
                if self._cancel:
                    self._cancel_all()
                    return
                with self._lock:
                    new, self._new = self._new, []
                self._calls |= {call.key: call for call in new}
                self._folders |= {call.folder for call in new}
                self._take_answers()
                self._submit([call for call in self._calls.values() if call.place is None])
                if self._calls and monotonic() - self._asked_at >= _ASK_S:
                    self._ask()
            with suppress(Unreachable, Refused):
                self._cancel_left()
        except BaseException as error:  # whoever waits for a call has to know
            for call in [*self._calls.values(), *self._new]:
                call.future.set_exception(error)
            self._calls.clear()

    def _take_answers(self) -> None:
        for folder in {call.folder for call in self._calls.values()}:
            # Listing a folder also refreshes what this machine knows about it.
            present = {path.name: path for path in folder.iterdir()}
            for call in [own for own in self._calls.values() if own.folder == folder]:
                if (answer := present.get(f"{call.key}{ANSWER}")) is not None:
                    self._end(call, json.loads(answer.read_text()))
                elif (beat := present.get(f"{call.key}{BEAT}")) is not None:
                    with suppress(OSError):
                        stamp = beat.stat().st_mtime
                        if stamp != call.beat[0]:
                            call.beat = stamp, monotonic()

    def _end(self, call: _Call, answer: Mapping[str, Any] | BaseException) -> None:
        del self._calls[call.key]
        try:
            if isinstance(answer, BaseException):
                raise answer
            call.future.set_result(result(answer))
        except Exception as error:  # of the function, or of Slurm
            # The answer stays only if it is one: the same call may be made again.
            (call.folder / f"{call.key}{ANSWER}").unlink(missing_ok=True)
            call.future.set_exception(error)

    def _submit(self, calls: Iterable[_Call]) -> None:
        """Submit calls: those with equal needs in one array."""
        groups: dict[tuple[Path, tuple[str, ...]], list[_Call]] = {}
        for call in calls:
            groups.setdefault((call.folder, tuple(resources(call.run))), []).append(call)
        for (folder, words), group in groups.items():
            tasks = [group[start : start + self._runs] for start in range(0, len(group), self._runs)]
            for start in range(0, len(tasks), _MOST_TASKS):
                self._submit_array(folder, words, tasks[start : start + _MOST_TASKS])

    def _submit_array(self, folder: Path, words: Sequence[str], tasks: Sequence[Sequence[_Call]]) -> None:
        keys = [[call.key for call in task] for task in tasks]
        name = _new_name(folder, keys)
        array = [f"--array=0-{len(tasks) - 1}"] if len(tasks) > 1 else []
        options = [f"--job-name={name}", *words, "--requeue", "--open-mode=append", *array, *self._options]
        options += [f"--signal=B:USR1@{_ANNOUNCED_S}", f"--output={folder}/{name}{'-%a' if array else ''}.out"]
        command = python_command(main, str(folder), name)
        refused: Refused | None = None
        try:
            slurm_commands.submit(options, f"#!/bin/sh\nexec {shlex.join(command)}\n")
        except Unreachable:
            pass  # it may have been submitted nevertheless: whether it exists shows when Slurm is asked
        except Refused as error:
            refused = error
        for number, task in enumerate(tasks):
            for call in task:
                call.place, call.since, call.running_since = (name, number), monotonic(), None
                if refused is not None:
                    self._end(call, Refused(f"Slurm refuses a job: {refused}; {ALLOWED}"))

    def _ask(self) -> None:
        """Find out which calls have lost their jobs."""
        now = self._asked_at = monotonic()
        placed = [call for call in self._calls.values() if call.place is not None]
        try:
            known = slurm_commands.jobs(sorted({call.place[0] for call in placed if call.place is not None}))
        except Unreachable as error:
            if now - self._heard_at > _UNREACHABLE_S:
                raise RunFailed(f"Slurm's controller has not answered for {_UNREACHABLE_S:g} s: {error}") from error
            return
        self._asked_at = monotonic()
        # What was unreachable says nothing about calls: their time starts now.
        away_s = now - self._heard_at
        jobs = [known.get(call.place) for call in placed if call.place is not None]
        self.queued = _queued(job for job in jobs if job is not None)
        self._heard_at = self._asked_at
        for call in placed:
            job = None if call.place is None else known.get(call.place)
            if away_s > 3 * _ASK_S:
                call.since = max(call.since, now)
            if job is not None and job.state not in _ENDED:
                self._consider(call, job)
            elif now - call.since > _GONE_S and now - call.beat[1] > _SILENT_S:
                self._lose(call, "Slurm no longer knows its job" if job is None else f"its job is {job.state}")

    def _consider(self, call: _Call, job: Job) -> None:
        """A call whose job Slurm knows."""
        now = call.since = monotonic()
        if job.state == "PENDING" and _LAUNCH_FAILED in job.reason:
            with suppress(Unreachable, Refused):
                slurm_commands.cancel_job(job.number)
            self._lose(call, "Slurm failed to start its job")
            return
        if job.state == "PENDING" and any(own in job.reason for own in _NEVER):
            with suppress(Unreachable, Refused):
                slurm_commands.cancel_job(job.number)
            self._end(call, Refused(f"Slurm will not start a job: {job.reason}; {ALLOWED}"))
        if job.state != "RUNNING":
            call.running_since = None
            return
        call.running_since = call.running_since or now
        beats = [own.beat[1] for own in self._calls.values() if own.place == call.place]
        if now - max(call.running_since, *beats) > _MUTE_S:
            with suppress(Unreachable, Refused):
                slurm_commands.cancel_job(job.number)
            self._lose(call, "its job shows no sign of life")

    def _lose(self, call: _Call, why: str) -> None:
        """Submit a call again, unless it has been lost too often."""
        _note(call.folder, {"lost": call.key, "job": call.place, "because": why})
        before, after = call.lost
        call.lost = (before, after + 1) if call.beat[1] else (before + 1, after)
        call.place, call.beat = None, (call.beat[0], 0.0)
        if call.lost[0] >= _MOST_UNSTARTED or call.lost[1] >= _MOST_LOST:
            self._end(call, RunFailed(f"the run {call.key} was lost {sum(call.lost)} times, the last time: {why}"))

    def _cancel_left(self) -> None:
        """Cancel jobs that came back after a fault, although their calls have been answered."""
        names = sorted(name for folder in self._folders for name in _names(folder))
        for start in range(0, len(names), _MOST_NAMES):
            for job in slurm_commands.jobs(names[start : start + _MOST_NAMES]).values():
                if job.state not in _ENDED:
                    slurm_commands.cancel_job(job.number)

    def _cancel_all(self) -> None:
        with self._lock:
            calls = [*self._calls.values(), *self._new]
        with suppress(Unreachable, Refused):
            slurm_commands.cancel(sorted({call.place[0] for call in calls if call.place is not None}))
        for call in calls:
            call.future.set_exception(CancelledError())
        self._calls.clear()


def _queued(jobs: Iterable[Job]) -> str:
    """How many of the calls' jobs wait, and why."""
    counts = Counter(job.reason for job in jobs if job.state == "PENDING")
    return "; ".join(f"{counted(count, 'run')} in Slurm's queue ({why})" for why, count in counts.most_common(3))


def resources(run: Mapping[str, Any]) -> list[str]:
    """Options of `sbatch` and `srun` for what a run needs.

    Args:
        run: The `RunRequest`, in JSON types.
    """
    words = ["--ntasks=1", f"--cpus-per-task={run['processors']}"]
    if run["memory_limit_bytes"] is not None:
        words.append(f"--mem={-(-run['memory_limit_bytes'] // (1 << 20))}M")
    return [*words, "--exclusive"] if run["timed"] else words


def _new_name(folder: Path, keys: Sequence[Sequence[str]]) -> str:
    """A name that no other job has, noted with its calls before it is submitted."""
    path = folder / LOG
    own = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    name = f"deep5-{own}-{len(path.read_text().splitlines()) if path.exists() else 0}"
    _note(folder, {"job": name, "calls": keys})
    return name


def _note(folder: Path, about: Mapping[str, Any]) -> None:
    with (folder / LOG).open("a+") as log:
        # A kill may have torn the last line.
        size = log.tell()
        log.seek(max(0, size - 1))
        torn = "" if log.read(1) in ("\n", "") else "\n"
        log.write(torn + json.dumps(about) + "\n")


def _names(folder: Path) -> list[str]:
    """Names of all jobs that were submitted."""
    return [str(line["job"]) for line in noted(folder) if "calls" in line]


def _known_place(folder: Path, key: str) -> tuple[str, int] | None:
    """The last job that was submitted for a call."""
    found = None
    for line in noted(folder):
        for number, keys in enumerate(line.get("calls", ())):
            if key in keys:
                found = line["job"], number
    return found
