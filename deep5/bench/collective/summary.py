"""Summary of the raw times of all-reduce: medians, bandwidths, modeled times, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from deep5.bench.collective.data import allowed_error
from deep5.bench.collective.measure import CollectiveTimes, Measured, is_right
from deep5.bench.collective.plan import LIBRARY
from deep5.core.errors import TooFewSamples
from deep5.distributed.collectives.algorithms import ALGORITHMS, sent_bytes
from deep5.distributed.collectives.costs import MODELS, Machine, modelled_s, optimal_segments
from deep5.distributed.collectives.fitting import fit_machine
from deep5.measuring.samples import median_interval

__all__ = ["CollectiveRow", "CollectiveSummary", "bus_gbyte_s", "faults_of", "summarise_collectives"]


@dataclass(frozen=True, kw_only=True)
class CollectiveRow:
    """One algorithm at one size.

    Attributes:
        algorithm: Its name.
        size_bytes: Size of the buffer.
        rounds: Timed calls.
        median_s: Seconds per call, of the slowest rank.
        low_s: Lower end of the median's 95 % interval; None with fewer than six rounds.
        high_s: Upper end.
        algorithm_gbyte_s: Algorithm bandwidth S / t in 10**9 bytes per second, as defined by nccl-tests.
        bus_gbyte_s: Bus bandwidth, S / t * 2(n - 1)/n: the minimum that each rank must send and receive.
        modelled_s: Time by the model; None for the library's.
        measured_over_modelled: Median over model; None for the library's.
        sent_bytes: In one call, of the rank that sent most, as counted by its communicator.
        all_sent_bytes: Of all ranks together.
        messages: Of the rank that sent the most messages.
        largest_error: Compared with the reference.
        allowed_error: The largest allowed error.
        right: Whether the result was correct, and the same on every rank.
    """

    algorithm: str
    size_bytes: int
    rounds: int
    median_s: float
    low_s: float | None
    high_s: float | None
    algorithm_gbyte_s: float
    bus_gbyte_s: float
    modelled_s: float | None
    measured_over_modelled: float | None
    sent_bytes: int
    all_sent_bytes: int
    messages: int
    largest_error: float
    allowed_error: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class CollectiveSummary:
    """Summary of a measurement.

    Attributes:
        ranks: Number of ranks.
        machine: The fitted constants.
        optimal_segment_bytes: By size, the optimal segment of the pipeline by the model.
        rows: Ordered by size.
        wrong: One sentence per wrong result; empty if all were correct.
    """

    ranks: int
    machine: Machine
    optimal_segment_bytes: dict[int, int]
    rows: tuple[CollectiveRow, ...]
    wrong: tuple[str, ...]


def summarise_collectives(times: CollectiveTimes) -> CollectiveSummary:
    """Medians with intervals, bandwidths, and the model fitted to messages and additions.

    References:
        NVIDIA, nccl-tests, doc/PERFORMANCE.md, for algorithm and bus bandwidth.
    """
    machine = fit_machine(times.message_s, times.addition_s)
    best = {size: optimal_segments(machine, times.ranks, size)[0] for size in times.plan.sizes_bytes}
    return CollectiveSummary(
        ranks=times.ranks,
        machine=machine,
        optimal_segment_bytes={size: -(-size // count) for size, count in best.items()},
        rows=tuple(_row(each, times, machine) for each in times.measured),
        wrong=tuple(sentence for each in times.measured for sentence in faults_of(each, times)),
    )


def _row(each: Measured, times: CollectiveTimes, machine: Machine) -> CollectiveRow:
    middle, ranks, plan = median(each.seconds), times.ranks, times.plan
    low_s, high_s = _interval(each.seconds)
    expected_s = None
    if each.algorithm in MODELS:
        expected_s = modelled_s(
            each.algorithm, machine, ranks, each.size_bytes, segment_bytes=max(plan.segment_bytes, plan.itemsize)
        )
    rate = each.size_bytes / middle / 1e9
    return CollectiveRow(
        algorithm=each.algorithm,
        size_bytes=each.size_bytes,
        rounds=len(each.seconds),
        median_s=middle,
        low_s=low_s,
        high_s=high_s,
        algorithm_gbyte_s=rate,
        bus_gbyte_s=bus_gbyte_s(each.size_bytes, middle, ranks),
        modelled_s=expected_s,
        measured_over_modelled=middle / expected_s if expected_s else None,
        sent_bytes=max(each.sent_bytes),
        all_sent_bytes=sum(each.sent_bytes),
        messages=max(each.messages),
        largest_error=each.largest_error,
        allowed_error=allowed_error(plan, ranks),
        right=is_right(each, plan),
    )


def _interval(seconds: Sequence[float]) -> tuple[float | None, float | None]:
    try:
        found = median_interval(seconds)
    except TooFewSamples:
        return None, None
    return found.low, found.high


def bus_gbyte_s(size_bytes: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth in 10**9 bytes per second: S / t * 2(n - 1)/n.

    Args:
        size_bytes: S, of the buffer.
        seconds: t, of a call.
        ranks: n.

    References:
        NVIDIA, nccl-tests, doc/PERFORMANCE.md, all-reduce.

    >>> bus_gbyte_s(10**9, 0.5, 4)
    3.0
    """
    return size_bytes / seconds / 1e9 * 2 * (ranks - 1) / ranks


def faults_of(each: Measured, times: CollectiveTimes) -> list[str]:
    """Errors in an algorithm's results at a size, or in the bytes it sent, one sentence each.

    Args:
        each: One of the measured entries.
        times: All measurements.
    """
    plan, ranks = times.plan, times.ranks
    at = f"{each.algorithm} at {each.size_bytes} bytes"
    found, allowed = [], allowed_error(plan, ranks)
    if not each.largest_error <= allowed:
        what = "values are wrong" if plan.dtype.startswith("int") else "is the largest error"
        found.append(f"{at}: {each.largest_error:.3g} {what}; allowed: {allowed:.3g}")
    if not each.same_bits:
        found.append(f"{at}: the ranks do not have the same bits; allowed: the same on every rank")
    if each.algorithm != LIBRARY and each.algorithm in ALGORITHMS:
        elements = each.size_bytes // plan.itemsize
        due = [sent_bytes(each.algorithm, rank, ranks, elements, plan.itemsize) for rank in range(ranks)]
        if list(each.sent_bytes) != due:
            found.append(f"{at}: the ranks sent {list(each.sent_bytes)} bytes; its formula says {due}")
    return found
