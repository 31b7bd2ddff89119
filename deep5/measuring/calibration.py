"""Calibration: how much the times of identical code differ between fresh processes; one file per machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deep5.core.errors import RunFailed
from deep5.core.progress import Steps, Tell, unreported
from deep5.core.python_child import ask
from deep5.core.quantities import percent
from deep5.measuring.machine_load import CROWDED, machine_state, share_of_others
from deep5.measuring.pinning import environment, processors
from deep5.measuring.scheme import CURRENT

__all__ = [
    "Calibration",
    "calibrate",
    "calibration_of_this_machine",
    "clear_calibrations",
    "kept_calibration",
    "machine_id",
    "measure_once",
    "said_of",
]

PROCESSES = 32
"""Number of fresh processes of a calibration."""

_TIMEOUT_S = 60.0
# The background load of a shared machine changes within a day; load during the calibration changes much sooner.
_LASTS_S, _LOADED_LASTS_S = 24 * 3600.0, 600.0
_WHEN = "%Y-%m-%dT%H:%M:%SZ"
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Times of the same code in fresh processes, run one after another.

    Attributes:
        machine: Identifier of the machine.
        threads: Threads of each process.
        processes: By workload, the seconds of each process, in order.
        when: UTC timestamp.
        others_share: Share of processor time that other programs used meanwhile, 0 to 1; None if unknown.
    """

    machine: str
    threads: int
    processes: Mapping[str, tuple[float, ...]]
    when: str
    others_share: float | None = None

    def floor(self, rounds: int) -> float:
        """Noise floor of a comparison of `rounds` rounds: a ratio of at least 1, that of the noisiest workload."""
        from deep5.measuring.statistics import floor_of

        return max(floor_of(times, rounds) for times in self.processes.values())

    @classmethod
    def of_document(cls, reported: Mapping[str, Any]) -> Calibration:
        """The calibration stored with a comparison, in the format of `document`."""
        return cls(
            machine=str(reported["machine"]),
            threads=int(reported["threads"]),
            processes={name: tuple(map(float, values)) for name, values in reported["processes"].items()},
            when=str(reported.get("when", "")),
            others_share=reported.get("others_share"),
        )

    def document(self) -> dict[str, Any]:
        """The calibration in JSON types."""
        return {
            "version": _VERSION,
            "machine": self.machine,
            "threads": self.threads,
            "processes": {name: list(times) for name, times in self.processes.items()},
            "when": self.when,
            "others_share": self.others_share,
        }


def machine_id() -> str:
    """Identifier of this machine: its host, processors, and memory."""
    from deep5.core.canonical import canonical_hash
    from deep5.measuring.environment import describe_system

    system = describe_system()
    cpu = {name: value for name, value in system["cpu"].items() if name != "clock_mhz"}
    return canonical_hash([system["host"], cpu, system["affinity"], system["memory_bytes"]["total"]])[:16]


def _file(machine: str, threads: int | str) -> Path:
    from deep5.core.compiler import cache_folder

    return cache_folder() / "calibration" / f"{machine}-{threads}.json"


def clear_calibrations(threads: int | None = None) -> None:
    """Delete the calibrations stored for this machine.

    Args:
        threads: Delete only those with this number of threads; None: all.

    Raises:
        OutputError: A file cannot be removed.
    """
    from deep5.core.errors import OutputError

    path = _file(machine_id(), "*" if threads is None else threads)
    try:
        for found in path.parent.glob(path.name):
            found.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot remove {error.filename}: {error.strerror}; remedy: remove it yourself") from error


def calibration_of_this_machine(threads: int) -> Calibration | None:
    """This machine's calibration if it is recent enough, otherwise None.

    It is valid for a day, or for ten minutes if it was made under load.
    """
    found = kept_calibration(threads)
    if found is None:
        return None
    made_at = datetime.strptime(found.when, _WHEN).replace(tzinfo=UTC)
    lasts = _LASTS_S if (found.others_share or 0.0) < CROWDED else _LOADED_LASTS_S
    return found if abs((datetime.now(UTC) - made_at).total_seconds()) <= lasts else None


def kept_calibration(threads: int) -> Calibration | None:
    """This machine's stored calibration of any age, or None if it does not exist or cannot be read."""
    machine = machine_id()
    try:
        found = json.loads(_file(machine, threads).read_text("utf-8"))
        if found["version"] != _VERSION or found["machine"] != machine or found["threads"] != threads:
            return None
        datetime.strptime(found["when"], _WHEN)
        share = None if found["others_share"] is None else float(found["others_share"])
        times = {str(name): tuple(map(float, values)) for name, values in found["processes"].items()}
        made = Calibration(
            machine=machine, threads=threads, processes=times, when=str(found["when"]), others_share=share
        )
        made.floor(CURRENT.quick_rounds)
    except Exception:  # damaged, or written by an earlier deep5: it is measured again
        return None
    return made


def said_of(made: Calibration, before: Calibration | None) -> list[str]:
    """Notes on a calibration for the user, one per line: the load during it, and the calibration that it replaces.

    Args:
        made: The new calibration.
        before: The calibration stored until now, or None.
    """
    said = []
    if made.others_share is not None:
        said.append(f"other programs took {percent(made.others_share, 1)} of the processors meanwhile")
        if made.others_share >= CROWDED:
            said.append("warning: under such a load the noise floor is too wide; remedy: repeat on a quiet machine")
    if before is not None:
        floors = " -> ".join(percent(own.floor(CURRENT.quick_rounds) - 1, 1) for own in (before, made))
        said.append(f"replaces the calibration of {before.when}: largest difference of two processes {floors}")
    return said


def measure_once(threads: int, pinned: Sequence[int]) -> dict[str, Any]:
    """Median seconds of a matrix product, of a copy larger than the caches, and of interpreter work, in this process.

    Args:
        threads: Threads of the product.
        pinned: The processors that the process is pinned to.

    Returns:
        `seconds` by workload, and the machine state `before` and `after`.
    """
    from statistics import median

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, pinned)
    before = machine_state()

    import numpy as np
    from threadpoolctl import threadpool_limits

    from deep5.measuring.loops import Work, calibrate, collector_off, time_loop

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
    return {"seconds": found, "before": before, "after": machine_state()}


def calibrate(threads: int, *, tell: Tell = unreported) -> Calibration:
    """Run the same code in 32 fresh processes, one after another, and store the times; takes less than a minute.

    Args:
        threads: Threads within an operator.
        tell: Called with a `ProgressLine` before each process.

    Raises:
        RunFailed: A process failed.
        OutputError: The calibration cannot be stored.
    """
    from deep5.core.errors import OutputError
    from deep5.core.files import write_atomically

    pinned = processors(threads)
    found: dict[str, list[float]] = {}
    spans = []
    steps = Steps(PROCESSES, tell)
    for _ in range(PROCESSES):
        steps.say("calibration: processes")
        answer = ask(measure_once, threads, pinned, time_limit_s=_TIMEOUT_S, environment=environment(threads))
        if answer.fault is not None:
            raise RunFailed(
                f"a process of the calibration {answer.fault}; allowed: its times within {_TIMEOUT_S:g} s; remedy: a "
                "quiet machine, and again"
            )
        spans.append((answer.value["before"], answer.value["after"]))
        for name, seconds in answer.value["seconds"].items():
            found.setdefault(name, []).append(seconds)
        steps.advance()
    machine = machine_id()
    made = Calibration(
        machine=machine,
        threads=threads,
        processes={name: tuple(times) for name, times in found.items()},
        when=datetime.now(UTC).strftime(_WHEN),
        others_share=share_of_others(spans),
    )
    path = _file(machine, threads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(made.document(), indent=2) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write the calibration to {path}: {error.strerror or error}") from error
    return made
