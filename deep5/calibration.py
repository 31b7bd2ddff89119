"""`deep5 calibrate`: how far apart identical code is on this machine, from fresh processes; one file a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from deep5.errors import Errors, RunFailed, UsageError
from deep5.pinning import environment, processors

__all__ = ["Calibration", "calibrate", "calibrate_command", "calibration_of_this_machine", "measure_once"]

PROCESSES = 32
"""Fresh processes of a calibration."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from deep5.calibration import measure_once; "
    "print(json.dumps(measure_once(int(sys.argv[2]), json.loads(sys.argv[3]))))"
)
_TIMEOUT_S = 60.0
_LASTS_S = 24 * 3600.0
_WHEN = "%Y-%m-%dT%H:%M:%SZ"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Times of the same code in fresh processes, one after the other.

    Attributes:
        machine: What names the machine.
        threads: Each process had so many.
        processes: By workload, seconds of each process, in their order.
        when: UTC.
    """

    machine: str
    threads: int
    processes: Mapping[str, tuple[float, ...]]
    when: str

    def floor(self, rounds: int) -> float:
        """The noise floor of a comparison of so many rounds: a ratio of at least 1; that of the noisiest workload."""
        from deep5.statistics import floor_of

        return max(floor_of(times, rounds) for times in self.processes.values())

    def document(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "version": _VERSION,
            "machine": self.machine,
            "threads": self.threads,
            "processes": {name: list(times) for name, times in self.processes.items()},
            "when": self.when,
        }


def _machine() -> str:
    """What names this machine: its host, its processors, its memory."""
    from deep5.canonical import canonical_hash
    from deep5.environment import describe_system

    system = describe_system()
    cpu = {name: value for name, value in system["cpu"].items() if name != "clock_mhz"}
    return canonical_hash([system["host"], cpu, system["affinity"], system["memory_bytes"]["total"]])[:16]


def _file(machine: str, threads: int) -> Path:
    from deep5.compiler import cache_folder

    return cache_folder() / "calibration" / f"{machine}-{threads}.json"


def calibration_of_this_machine(threads: int) -> Calibration | None:
    """What was kept of this machine in the last day, or None; a file that cannot be read is none."""
    machine = _machine()
    try:
        found = json.loads(_file(machine, threads).read_text("utf-8"))
        if found["version"] != _VERSION or found["machine"] != machine or found["threads"] != threads:
            return None
        made_at = datetime.strptime(found["when"], _WHEN).replace(tzinfo=UTC)
        if abs((datetime.now(UTC) - made_at).total_seconds()) > _LASTS_S:
            return None  # what a machine shares with others changes in a day
        times = {str(name): tuple(map(float, values)) for name, values in found["processes"].items()}
        made = Calibration(machine=machine, threads=threads, processes=times, when=str(found["when"]))
        made.floor(1)
    except Exception:  # damaged, or of an earlier deep5: it is measured again
        return None
    return made


def measure_once(threads: int, pinned: Sequence[int]) -> dict[str, float]:
    """Medians, in seconds, of a matrix product, a copy beyond the caches, and the interpreter: in this process.

    Args:
        threads: Of the product.
        pinned: The processors that the process is pinned to.
    """
    from statistics import median

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, pinned)

    import numpy as np
    from threadpoolctl import threadpool_limits

    from deep5.operators.timing import Work, calibrate, collector_off, time_loop

    draw = np.random.Generator(np.random.Philox(0))
    a, b = (draw.standard_normal((384, 384), np.float32) for _ in range(2))
    out, long = np.empty_like(a), np.ones(1 << 22)
    there = np.empty_like(long)
    works = {
        "matrix product": lambda: np.matmul(a, b, out=out),
        "copy": lambda: np.copyto(there, long),
        "interpreter": lambda: sum(number * number for number in range(2000)),
    }
    found = {}
    with threadpool_limits(threads), collector_off():
        for name, call in works.items():
            work = Work(call=call)
            calls, _ = calibrate(work, 5e-3)
            for _ in range(3):
                time_loop(work, calls)
            found[name] = median(time_loop(work, calls) for _ in range(21))
    return found


def calibrate(threads: int, tell: Callable[[int], object] | None = None) -> Calibration:
    """Run the same code in 32 fresh processes, one after the other, and keep what it took; under a minute.

    Args:
        threads: Within an operator.
        tell: Takes the number of processes done.

    Raises:
        RunFailed: A process did not end well.
        OutputError: It cannot be kept.
    """
    from deep5.errors import OutputError
    from deep5.files import write_atomically

    pinned = processors(threads)
    found: dict[str, list[float]] = {}
    for number in range(PROCESSES):
        command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(threads), json.dumps(pinned)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env=environment(threads),
            )
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"a process of the calibration did not end within {_TIMEOUT_S:g} s") from error
        if done.returncode:
            last = " | ".join(done.stderr.strip().splitlines()[-2:])
            raise RunFailed(f"a process of the calibration ended with the status {done.returncode}: {last}")
        for name, seconds in json.loads(done.stdout).items():
            found.setdefault(name, []).append(seconds)
        if tell is not None:
            tell(number + 1)
    machine = _machine()
    made = Calibration(
        machine=machine,
        threads=threads,
        processes={name: tuple(times) for name, times in found.items()},
        when=datetime.now(UTC).strftime(_WHEN),
    )
    path = _file(machine, threads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(made.document(), indent=2) + "\n")
    except OSError as error:
        raise OutputError(f"cannot keep the calibration in {path}: {error.strerror or error}") from error
    return made


def calibrate_command(errors: Errors) -> click.Command:
    """The command, for a command line that says how errors are told."""

    @click.command("calibrate")
    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads within an operator.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--clear", is_flag=True, help="Forget what was measured of this machine, and measure nothing.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def command(threads: int | None, as_json: bool, clear: bool, debug: bool) -> None:
        """Measure this machine's noise floor: how far apart identical code is in 32 fresh processes. Under a minute.

        A difference that 'deep5 compare' finds counts only where it is larger.
        """
        with errors(debug, as_json) as show:
            from deep5.environment import default_threads

            count = threads or default_threads("") or 1
            if clear:
                _file(_machine(), count).unlink(missing_ok=True)
                return
            here = len(processors(count))
            if count > here:
                raise UsageError(f"{count} threads; allowed: at most {here}, the processors of this process")
            made = calibrate(count)
            if as_json:
                show(
                    json.dumps({**made.document(), "floors": {n: made.floor(n) for n in (1, 8, 16, 24, 30)}}, indent=2)
                )
                return
            for rounds, what in ((1, "one process each (--quick)"), (8, "8 processes each"), (30, "30 processes each")):
                show(f"{what}: differences up to {made.floor(rounds) - 1:.1%} are noise")

    return command
