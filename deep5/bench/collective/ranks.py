"""Ranks that time collectives: those of this process' job, threads, or newly started processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from deep5.bench.collective.measure import CollectiveTimes, measure_collectives
from deep5.bench.collective.plan import CollectivePlan
from deep5.core.communicator import Communicator
from deep5.core.errors import CommunicationError, UnknownName, UsageError
from deep5.core.quantities import percent
from deep5.distributed.collectives.algorithms import ALGORITHMS, AllReduceFunction
from deep5.distributed.launch.launcher import check_ranks
from deep5.measuring.machine_load import CROWDED

__all__ = ["LAUNCHERS", "check_launcher", "crowded", "disturbed", "measure_as_rank", "start"]

LAUNCHERS = ("mpiexec", "threads", "torchrun")
"""The launchers of ranks."""

# Every call has its own limit; the limit of the whole measurement is far larger.
_LIMIT_S = 24 * 3600.0


def check_launcher(launcher: str) -> None:
    """Reject an unknown launcher.

    Raises:
        UnknownName: It does not exist.
    """
    if launcher not in LAUNCHERS:
        raise UnknownName("launcher", launcher, LAUNCHERS)


def crowded(ranks: int) -> list[str]:
    """A warning if this machine has fewer processors than ranks; one sentence, or none.

    Args:
        ranks: Number of ranks on this machine.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if ranks <= processors:
        return []
    return [f"{ranks} ranks share {processors} processors, and the model assumes one for each: it underestimates times"]


def disturbed(times: CollectiveTimes) -> list[str]:
    """A warning if other programs used the processors meanwhile; one sentence, or none.

    Args:
        times: The measurements.
    """
    if times.others_share is None or times.others_share < CROWDED:
        return []
    return [f"other programs took up to {percent(times.others_share)} of the processors; remedy: a quiet machine"]


def measure_as_rank(plan: CollectivePlan, ranks: int | None) -> tuple[CollectiveTimes, int, str] | None:
    """Measure as a rank of the job that this process belongs to; every rank calls this.

    Args:
        plan: What to measure.
        ranks: Expected number of ranks; None: any.

    Returns:
        The times, the same on every rank; this rank; and the launcher of the job. None without a job.

    Raises:
        UsageError: The number of ranks is not the expected one.
        CommunicationError: A call did not finish in time, or a rank is lost.
    """
    from deep5.distributed.launch.join import join
    from deep5.distributed.launch.launcher import launched

    rank = launched()
    if rank is None:
        return None
    if ranks not in (None, rank.size):
        raise UsageError(
            f"--ranks {ranks} in a job of {rank.size} ranks, started by {rank.by}; allowed: no --ranks, or {rank.size}"
        )
    communicator = join(rank)
    times = measure_collectives(communicator, plan)
    communicator.close()
    return times, rank.rank, rank.by


def start(
    plan: CollectivePlan, ranks: int, launcher: str, algorithms: Mapping[str, AllReduceFunction] = ALGORITHMS
) -> CollectiveTimes:
    """Start ranks, measure, and end them.

    Args:
        plan: What to measure.
        ranks: Number of ranks.
        launcher: One of `LAUNCHERS`. Threads of this process show the cost of an algorithm, not that of a network.
        algorithms: By name; other processes know only deep5's own.

    Raises:
        UnknownName: No such launcher.
        MissingDependency: It is not installed.
        CommunicationError: A call did not finish in time, or a rank is lost.
        KeyboardInterrupt: The job was interrupted.
    """
    check_launcher(launcher)
    check_ranks(ranks)
    if launcher == "threads":
        return _in_threads(plan, ranks, algorithms)
    if algorithms is not ALGORITHMS:
        raise UsageError(f"user-defined algorithms with --launcher {launcher}; allowed: threads")
    return _in_processes(plan, ranks, launcher)


def _in_threads(plan: CollectivePlan, ranks: int, algorithms: Mapping[str, AllReduceFunction]) -> CollectiveTimes:
    from deep5.distributed.communicators.threads import run_in_threads

    def work(communicator: Communicator) -> CollectiveTimes:
        return measure_collectives(communicator, plan, algorithms)

    return run_in_threads(ranks, work, timeout_s=_LIMIT_S)[0]


def _in_processes(plan: CollectivePlan, ranks: int, launcher: str) -> CollectiveTimes:
    from deep5.distributed.launch.start import start_ranks

    with TemporaryDirectory(prefix="deep5-collective-") as folder:
        given, made = Path(folder, "plan.json"), Path(folder, "times.json")
        given.write_text(plan.to_json(), "utf-8")
        command = [sys.executable, "-m", "deep5.bench.collective.rank", str(given), str(made)]
        ended = start_ranks(command, ranks=ranks, launcher=launcher)  # type: ignore[arg-type]
        if ended.status == 130:
            raise KeyboardInterrupt(ended.error or "interrupted")
        if ended.status == UsageError.exit_status:
            raise UsageError(ended.error or "a rank rejected its arguments")
        if ended.status:
            raise CommunicationError(ended.error or f"a rank exited with status {ended.status}")
        return CollectiveTimes.from_json(made.read_text("utf-8"))
