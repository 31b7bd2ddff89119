"""`SlurmEngine`: runs as jobs of a Slurm cluster."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.process_end import last_lines
from deep5.core.python_child import python_command
from deep5.engines import slurm_commands
from deep5.engines.call import Function, function_name, result
from deep5.engines.slurm_batches import Batches, resources
from deep5.engines.slurm_job import answer_stream

__all__ = ["SlurmEngine", "SlurmOptions", "parse_options"]

# Options of sbatch and srun with the same names; values are one word.
_PASSED = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "gpus", "time")
_VALUE = re.compile(r"[\w.:@+=&|\[\]*-]+")
_MOST_RUNS = 1000
# Slurm announces a time limit of minutes up to two minutes before it ends.
_LEAST_MINUTES = 4


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What a user says about jobs.

    Attributes:
        passed: Options of `sbatch` and `srun`.
        runs: Most runs that one job carries out.
        shared: Whether nodes see the folder of the results.
    """

    passed: Mapping[str, str] = field(default_factory=dict)
    runs: int = 1
    shared: bool = True

    def words(self) -> list[str]:
        """Options on a command line."""
        return [f"--{name}={value}" for name, value in self.passed.items()]


def parse_options(text: str) -> SlurmOptions:
    """Read the options after `slurm:`.

    Args:
        text: Such as `partition=main,time=60,runs=4`.

    Raises:
        UsageError: An option that does not exist, is repeated, or has no such value.

    >>> parse_options("partition=main,runs=4").words()
    ['--partition=main']
    """
    given: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in (*_PASSED, "runs", "shared") or name in given or _VALUE.fullmatch(value) is None:
            raise UsageError(
                f"the engine slurm with {part!r:.60}; allowed: NAME=VALUE of {', '.join(_PASSED)}, runs, shared, once "
                "each, with commas between them; remedy: such as slurm:partition=main,time=60"
            )
        given[name] = value
    runs, shared = given.pop("runs", "1"), given.pop("shared", "yes")
    if not runs.isdecimal() or not 1 <= int(runs) <= _MOST_RUNS:
        raise UsageError(f"the engine slurm with runs={runs:.20}; allowed: 1 to {_MOST_RUNS} runs per job")
    if given.get("time", "").isdecimal() and not int(given["time"]) >= _LEAST_MINUTES:
        raise UsageError(
            f"the engine slurm with time={given['time']}; allowed: at least {_LEAST_MINUTES} minutes: a run writes its "
            "checkpoint 60 s before the limit"
        )
    if shared not in ("yes", "no"):
        raise UsageError(f"the engine slurm with shared={shared:.20}; allowed: yes, no")
    return SlurmOptions(passed=given, runs=int(runs), shared=shared == "yes")


class SlurmEngine(Executor):
    """Calls functions in jobs of Slurm, which have the processors, the memory and the time that a run needs.

    Calls that are submitted at the same time become one array of jobs. What a call returns is known from the file that
    the job leaves, and the state of a job from `squeue`; both by names, since Slurm loses, repeats and renumbers jobs
    after faults. A lost job is submitted again. A process that dies leaves its jobs; the next one on the same folder
    finds them. Without a shared folder, each call is an `srun` of this process, which ends with it.

    Args:
        workers: Number of calls at the same time; without a shared folder, others wait.
        processors_each: Number of processors of each call.
        options: As `parse_options` reads them.

    Attributes:
        queue_limit_s: How long a call may wait until it starts.
        shared: Whether nodes see the folder of the results.
        queued: Which runs wait in the queue, in words; empty: none.

    Raises:
        UsageError: An option that does not exist, or no Slurm here.

    References:
        Yoo, Jette, Grondona, "SLURM: simple Linux utility for resource management", JSSPP 2003.
    """

    queue_limit_s = 7.0 * 24 * 3600

    def __init__(self, workers: int = 1, processors_each: int = 1, options: str = "") -> None:
        self._options = parse_options(options)
        self.shared = self._options.shared
        slurm_commands.check()
        self._batches = Batches(self._options.words(), self._options.runs) if self.shared else None
        self._pool = None if self.shared else ThreadPoolExecutor(workers, thread_name_prefix="deep5-srun")
        self._streams: set[subprocess.Popen[bytes]] = set()
        self._lock, self._cancelled = threading.Lock(), False

    @property
    def queued(self) -> str:
        """See above."""
        return "" if self._batches is None else self._batches.queued

    # A narrower signature than that of `Executor`: requests travel as JSON.
    def submit(self, fn: Function, request: Mapping[str, Any], /) -> Future[dict[str, Any]]:  # type: ignore[override]
        """See `concurrent.futures.Executor.submit`.

        Args:
            fn: A function at the top level of a module of deep5.
            request: Its argument, in JSON types.
        """
        name = function_name(fn)
        if self._batches is not None:
            return self._batches.submit(name, request)
        assert self._pool is not None  # noqa: S101  # either files or streams
        return self._pool.submit(self._stream, name, request)

    def _stream(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a call by `srun`."""
        run = request["run"]
        words = ["srun", "--quiet", f"--job-name={run['key']}", *resources(run), *self._options.words()]
        with self._lock:
            if self._cancelled:
                raise CancelledError
            process = subprocess.Popen(
                [*words, *python_command(answer_stream)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self._streams.add(process)
        try:
            sent = json.dumps({"function": name, "request": request}).encode()
            said, errors = process.communicate(sent, timeout=self.queue_limit_s)
        finally:
            process.kill()
            process.wait()
            self._streams.discard(process)
        if process.returncode != 0:
            raise ConnectionError(f"srun exited with status {process.returncode}{last_lines(errors)}")
        return result(json.loads(said))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `concurrent.futures.Executor.shutdown`; with `cancel_futures`, jobs under way are canceled, too."""
        if self._batches is not None:
            self._batches.close(wait=wait, cancel=cancel_futures)
        if self._pool is not None:
            with self._lock:
                self._cancelled = cancel_futures
                for process in [*self._streams] if cancel_futures else ():
                    process.terminate()
            self._pool.shutdown(wait, cancel_futures=cancel_futures)
