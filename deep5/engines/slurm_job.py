"""Main function of a Slurm job: carries out calls one after another, and leaves their answers in files."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from deep5.core.errors import Deep5Error
from deep5.core.files import write_atomically
from deep5.engines.attempt import Worker, at_work
from deep5.engines.call import ANSWER, answer_of
from deep5.engines.lease import Interrupted
from deep5.engines.slurm_commands import requeue

__all__ = ["BEAT", "CALL", "LOG", "answer_stream", "main", "noted"]

CALL, BEAT = ".call.json", ".beat"
"""Ends of the names of a call's files: what to call, and a file that is renewed meanwhile."""

LOG = "jobs.jsonl"
"""The file with a line per job: `job`, its name, and `calls`, by its tasks; and a line per loss of a call."""

_RENEWED_S = 5.0


def main(place: str, name: str) -> None:
    """Carry out the calls of a job, or of its task of an array.

    Slurm announces the time limit by SIGUSR1: the run writes a checkpoint, and the job is queued again.

    Args:
        place: The engine's folder.
        name: The job's name.
    """
    folder = Path(place)
    worker = Worker()
    task, job = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")), os.environ["SLURM_JOB_ID"]
    _forget_job()
    signals = _interrupted_by(worker)
    with at_work(worker):
        for key in next(line["calls"] for line in noted(folder) if line.get("job") == name)[task]:
            answer = folder / f"{key}{ANSWER}"
            if answer.exists():
                continue
            request = json.loads((folder / f"{key}{CALL}").read_text())
            with _beating(folder / f"{key}{BEAT}"):
                try:
                    given = answer_of(request["function"], request["request"])
                except Interrupted:
                    break
                write_atomically(answer, json.dumps(given))
            if worker.cancelled.is_set():
                break
        else:
            return
    if signal.SIGUSR1 in signals:
        # If it is refused, whoever waits for the answer submits the call again.
        with suppress(Deep5Error):
            requeue(job)


def answer_stream() -> None:
    """Carry out one call from standard input, and print its answer."""
    worker = Worker()
    _interrupted_by(worker)
    _forget_job()
    request = json.load(sys.stdin)
    with at_work(worker):
        given = answer_of(request["function"], request["request"])
    sys.stdout.write(json.dumps(given))


def noted(folder: Path) -> list[dict[str, Any]]:
    """The lines about jobs.

    Args:
        folder: The engine's folder.
    """
    lines = []
    for line in (folder / LOG).read_text().splitlines() if (folder / LOG).exists() else ():
        with suppress(ValueError):  # a line that a kill has torn
            lines.append(json.loads(line))
    return lines


def _forget_job() -> None:
    """Hide the job from runs: their launchers would take it for one of theirs, with as many ranks as it has tasks."""
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")) and name != "SLURM_CONF":
            del os.environ[name]


def _interrupted_by(worker: Worker) -> set[int]:
    """Interrupt the worker when Slurm announces the end; returns the signals that arrived."""
    arrived: set[int] = set()

    def end(number: int, _: object) -> None:
        arrived.add(number)
        worker.cancelled.set()

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, end)
    return arrived


@contextmanager
def _beating(path: Path) -> Iterator[None]:
    """Renew a file meanwhile."""
    ended = threading.Event()

    def beat() -> None:
        while True:
            with suppress(OSError):
                path.touch()
            if ended.wait(_RENEWED_S):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
