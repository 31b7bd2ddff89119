"""`RankJob`: a launcher and its ranks, watched until all their processes have ended."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any, TextIO

import psutil

from deep5.core.child_process import start
from deep5.core.communicator import TIMEOUT_S
from deep5.core.process_end import OUT_OF_MEMORY, full_disk, how_ended, last_lines
from deep5.core.process_tree import ancestors, descendants, is_alive, kill_processes
from deep5.distributed.launch.output import RankOutput
from deep5.distributed.launch.silent import StoppedRanks, state_of
from deep5.distributed.launch.supervisor import LIFELINE, OVER

__all__ = ["BEGIN_S", "START_S", "RankJob", "RanksEnded"]

START_S = 120.0
"""Maximum time until all ranks run: a launcher that waits for an unresponsive machine prints nothing."""

BEGIN_S = 100.0
"""Maximum time between the first and the last rank that is about to meet the others.

The meeting itself has a limit that starts later and is slightly longer.
"""

_LOOK_S = 0.1
# After one rank fails, the others mostly fail for the same reason; they have this long to report it.
_TOGETHER_S = 1.0
# If the only known failure is that a rank could not reach the others, one of those mostly has ended or is about to: the
# system may write its core dump first.
_UNREACHED_S = 5.0
# A rank that reported an error ends the MPI job a second later (`mpi_waiting.leave`), and the launcher then ends the
# other ranks; an end that caused the report is observed within a fraction of that.
_BEHIND_S = 0.8
# Ranks that wait for a lost one have no cleanup that is worth waiting for.
_LOST_GRACE_S = 3.0
_LAUNCHER_S = 2.0
# Where a rank is stopped, the others wait for it, mostly within calls that no signal interrupts.
_STOPPED_GRACE_S = 1.0
_FAILED, _INTERRUPTED = 3, 130


@dataclass(frozen=True, kw_only=True)
class RanksEnded:
    """The outcome of a job.

    Attributes:
        status: Exit status of the first rank with a nonzero status, 3 if a rank was lost, 130 if the job was
            interrupted.
        lost: The rank lost because its process was ended from outside, or None.
        failed: The rank that failed by itself first, or None.
        late: The first rank for which the others waited too long, or None.
        signal: The signal that ended the lost rank, if known.
        error: The error as one string, or None. The rank may have printed it, unless it left that to `Report`.
        reason: The part of the error that gives the cause, if the failed rank reported it separately.
        alike: Whether all ranks failed and reported the same reason.
        trace: Traceback of the failed rank, as Python prints it, or None.
        result_folder: Folder of the run's result, as the first rank that knew it reported.
        seconds_to_notice: Seconds from the end of the lost or failed rank until it was observed; None without one.
    """

    status: int
    lost: int | None = None
    failed: int | None = None
    late: int | None = None
    signal: int | None = None
    error: str | None = None
    reason: str | None = None
    alike: bool = False
    trace: str | None = None
    result_folder: Path | None = None
    seconds_to_notice: float | None = None


@dataclass(frozen=True, kw_only=True)
class _End:
    """How a rank ended; `signal` is 0 if it is not known."""

    rank: int
    at_ns: int
    status: int | None
    signal: int | None


class RankJob:
    """A launcher with its ranks; a context manager that leaves no running process.

    Args:
        folder: Where ranks and their holders report their progress.
        ranks: Number of ranks.
        launcher: Name of the launcher.
        command: The launcher's command line.
        variables: Environment variables.
        stdout: Receives the output of rank 0.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        launcher: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        stdout: TextIO,
    ) -> None:
        self.folder, self.ranks, self.launcher = folder, ranks, launcher
        self._all_begun = False
        self.ended: dict[int, _End] = {}
        self._stopped = StoppedRanks()
        self.holders: dict[int, tuple[psutil.Process, int]] = {}
        os.mkfifo(folder / LIFELINE)
        self._lifeline = os.open(folder / LIFELINE, os.O_RDWR)
        self._output = RankOutput(folder, ranks, stdout)
        with (folder / "launcher.txt").open("wb") as printed:
            # The terminal's signals are for this process, which forwards them.
            self.process = start(command, variables, printed)

    def __enter__(self) -> RankJob:
        return self

    def __exit__(self, *_: object) -> None:
        self._sweep()
        self._output.close()

    def watch(self, requested: list[int], grace_s: float) -> RanksEnded:
        """Return when all ranks have ended, or were ended because one failed."""
        deadline = monotonic() + START_S
        while True:
            self._look()
            if requested:
                return self._interrupted(requested, grace_s)
            if (first := self._first()) is not None:
                return self._wrong(first, min(grace_s, _LOST_GRACE_S))
            if stopped := self._stopped.look(self._processes(), self._limit_s()):
                states = {rank: f"has been stopped for {seconds:.0f} s" for rank, seconds in sorted(stopped.items())}
                return self._silent(states, max(stopped.values()))
            if (late := self._late()) is not None:
                self._end(signal.SIGTERM, _LOST_GRACE_S)
                return RanksEnded(status=_FAILED, failed=late, error=self._not_begun(late))
            if len(self.ended) == self.ranks:
                return RanksEnded(status=0, result_folder=self._result_folder())
            if self.process.poll() is not None:
                self._look()
                if self._first() is None and len(self.ended) < self.ranks:
                    return self._launcher_failed()
            elif len(self.holders) < self.ranks and monotonic() > deadline:
                return RanksEnded(
                    status=_FAILED,
                    error=f"{len(self.holders)} of {self.ranks} ranks started within {START_S:g} s{self._printed()}",
                )
            else:
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_LOOK_S)

    def _late(self) -> int | None:
        """A rank that has not begun long after another one has; each rank reports its begin."""
        if self._all_begun:
            return None
        begun = [self._read(f"rank-{rank}.json").get("at_ns") for rank in range(self.ranks)]
        self._all_begun = None not in begun
        reported = [at_ns for at_ns in begun if at_ns is not None]
        if self._all_begun or not reported or monotonic_ns() - min(reported) < BEGIN_S * 1e9:
            return None
        return begun.index(None)

    def _processes(self) -> dict[int, tuple[int, ...]]:
        """The holder and the process of each rank that has not ended."""
        return {rank: (own.pid, rank_pid) for rank, (own, rank_pid) in self.holders.items() if rank not in self.ended}

    def _limit_s(self) -> float:
        """How long ranks wait for each other, as they have reported."""
        reported = [self._read(f"rank-{rank}.json").get("limit_s") for rank in range(self.ranks)]
        return max((limit_s for limit_s in reported if limit_s is not None), default=TIMEOUT_S)

    def _silent(self, states: Mapping[int, str], seconds: float, waited: str | None = None) -> RanksEnded:
        """The outcome for ranks that did not answer.

        Args:
            states: The ranks, and their states in words.
            seconds: For how long that is known.
            waited: What another rank reported; None: nothing yet.
        """
        named = " and ".join(self._described(rank, state) for rank, state in states.items())
        if waited is not None:
            reason = f"{named}; another rank waited for it, {waited}"
        else:
            reason = (
                f"{named}, and ranks wait {self._limit_s():g} s for each other at most; remedy: kill -CONT in time, or "
                "a longer scheme_kwargs.timeout_s"
            )
        folder = self._result_folder()
        for rank, state in states.items():
            # It reacts to no other signal; its holder reports its end.
            if rank in self.holders and rank not in self.ended and "stopped" in state:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(self.holders[rank][1], signal.SIGKILL)
        self._end(signal.SIGTERM, _STOPPED_GRACE_S)
        first = min(states)
        return RanksEnded(status=_FAILED, late=first, error=reason, result_folder=folder, seconds_to_notice=seconds)

    def _described(self, rank: int, state: str) -> str:
        host = self._read(f"rank-{rank}.json").get("host") or platform.node()
        return f"rank {rank} of {self.ranks} on {host} {state}"

    def _not_begun(self, rank: int) -> str:
        return (
            f"rank {rank} of {self.ranks} did not begin within {BEGIN_S:g} s of the first one; remedy: look at what "
            f"takes so long while it reads its recipe{self._tail(rank)}"
        )

    def _look(self) -> None:
        """Find the ranks that have started and that have ended."""
        for rank in range(self.ranks):
            if rank in self.ended:
                continue
            if rank not in self.holders and (reported := self._read(f"holder-{rank}.json")):
                with suppress(psutil.NoSuchProcess):
                    self.holders[rank] = (psutil.Process(reported["pid"]), reported["rank_pid"])
                gone = rank not in self.holders
            else:
                gone = rank in self.holders and not is_alive(self.holders[rank][0])
            if reported := self._read(f"ended-{rank}.json"):
                self.ended[rank] = _End(
                    rank=rank, at_ns=reported["at_ns"], status=reported["status"], signal=reported["signal"]
                )
            elif gone:
                self.ended[rank] = _End(rank=rank, at_ns=monotonic_ns(), status=None, signal=0)

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _first(self) -> tuple[int, int, dict[str, Any]] | None:
        """Time and number of the first rank that failed, and its report.

        A rank that reports a failure counts from that report: its process may end later than the other ranks notice,
        and MPI's shutdown may wait for them. A rank that failed because it could not reach the others comes last: a
        process's end is observed when it is over, but its connections close before. A rank that ends without a report
        some time after another rank's report was ended because of it: by a launcher, when the reporting rank ended the
        job.
        """
        reports = [self._read(f"rank-{rank}.json") for rank in range(self.ranks)]
        reported_ns = [int(report["at_ns"]) for report in reports if report.get("state") == "failed"]
        found: list[tuple[bool, int, int, dict[str, Any]]] = []
        for rank in range(self.ranks):
            report, end = reports[rank], self.ended.get(rank)
            if report.get("state") == "failed":
                found.append((bool(report.get("unreached")), int(report["at_ns"]), rank, report))
            elif end is not None and end.status != 0:
                if end.signal == 0 and reported_ns and end.at_ns > min(reported_ns) + _BEHIND_S * 1e9:
                    continue
                found.append((False, end.at_ns, rank, {}))
        first = min(found, key=lambda each: each[:3], default=None)
        return None if first is None else first[1:]

    def _wrong(self, first: tuple[int, int, dict[str, Any]], grace_s: float) -> RanksEnded:
        """The outcome for the first rank that failed; its effects on the others are not reported."""
        notice = max(monotonic_ns() - first[0], 0) / 1e9
        if first[2].get("late"):
            # Before the launcher, which notices the failure, ends the others.
            states = {rank: state_of(those[-1]) for rank, those in self._processes().items() if rank != first[1]}
            self._wait(_TOGETHER_S)
            late = {
                rank: f"is {state}"
                for rank, state in states.items()
                if self._read(f"rank-{rank}.json").get("state") in (None, "started")
            }
            if late:
                return self._silent(late, notice, f"rank {first[1]}: {first[2].get('reason')}")
        if first[2]:
            deadline = monotonic() + _UNREACHED_S
            self._wait(_TOGETHER_S)
            first = self._first() or first
            while first[2].get("unreached") and monotonic() < deadline and len(self.ended) < len(self.holders):
                self._wait(_LOOK_S)
                first = self._first() or first
        self._end(signal.SIGTERM, grace_s)
        _, rank, report = first
        end, folder = self.ended.get(rank), self._result_folder()
        if not report and end is not None and end.signal is not None:
            return RanksEnded(
                status=_FAILED,
                lost=rank,
                signal=end.signal or None,
                error=self._lost(end),
                result_folder=folder,
                seconds_to_notice=notice,
            )
        status = report.get("status") or (end.status if end is not None else None) or _FAILED
        reason = report.get("reason")
        return RanksEnded(
            status=status,
            failed=rank,
            error=report.get("error") or f"rank {rank} exited with status {status}{self._tail(rank)}",
            reason=reason,
            alike=all(self._read(f"rank-{other}.json").get("reason") == reason for other in range(self.ranks)),
            trace=report.get("trace"),
            result_folder=folder,
            seconds_to_notice=notice,
        )

    def _lost(self, end: _End) -> str:
        if not end.signal:
            return f"rank {end.rank} of {self.ranks} is lost: its process is gone"
        why = OUT_OF_MEMORY if end.signal == signal.SIGKILL else self._tail(end.rank)
        return f"rank {end.rank} of {self.ranks} is lost: it {how_ended(-end.signal)}{why}"

    def _interrupted(self, requested: list[int], grace_s: float) -> RanksEnded:
        self._end(requested[0], grace_s if len(self.holders) == self.ranks else 0.0, requested)
        return RanksEnded(status=_INTERRUPTED, error="interrupted", result_folder=self._result_folder())

    def _launcher_failed(self) -> RanksEnded:
        self._end(signal.SIGTERM, _LOST_GRACE_S)
        return RanksEnded(
            status=_FAILED,
            error=f"{self.launcher} {how_ended(self.process.returncode)} before its ranks{self._printed()}",
            result_folder=self._result_folder(),
        )

    def _printed(self) -> str:
        return last_lines((self.folder / "launcher.txt").read_bytes()) + full_disk()

    def _tail(self, rank: int) -> str:
        sleep(_LOOK_S)  # its last lines are in flight
        return self._output.tail(rank) + full_disk()

    def _result_folder(self) -> Path | None:
        reported = (self._read(f"rank-{rank}.json").get("folder") for rank in range(self.ranks))
        return next((Path(folder) for folder in reported if folder), None)

    def _wait(self, limit_s: float, requested: list[int] | None = None) -> None:
        """Wait until all started ranks have ended, the limit has passed, or a second signal arrives."""
        deadline = monotonic() + limit_s
        while monotonic() < deadline and (requested is None or len(requested) < 2):
            self._look()
            if all(rank in self.ended for rank in self.holders):
                return
            sleep(_LOOK_S / 4)

    def _end(self, number: int, grace_s: float, requested: list[int] | None = None) -> None:
        """Send the remaining ranks a signal, wait, and then kill them."""
        self._look()
        for rank, (holder, process) in self.holders.items():
            # A rank's process id stays valid until its parent, the holder, has reaped it.
            if rank not in self.ended and is_alive(holder):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)
        self._wait(grace_s, requested)

    def _sweep(self) -> None:
        """End all remaining processes: those that ranks started, the ranks, their holders, and the launcher."""
        left = descendants(self.process.pid)
        places = {holder.pid for holder, _ in self.holders.values()}
        above = {ancestor.pid for holder, _ in self.holders.values() for ancestor in ancestors(holder)}
        # Of the launcher's processes, only those below a holder: it would report an error for any other.
        kill_processes(
            each
            for each in left
            if each.pid not in places and each.pid not in above and places & {up.pid for up in ancestors(each)}
        )
        # The holders exit, and the launcher sees all of them succeed.
        (self.folder / OVER).touch()
        os.close(self._lifeline)
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None:
                self.process.send_signal(sign)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_LAUNCHER_S)
                break
        kill_processes(left)
        psutil.wait_procs(left, _LAUNCHER_S)
