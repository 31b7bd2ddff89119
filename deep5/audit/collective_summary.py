"""The summary of timed all-reduce calls, derived from times, bytes and errors independently of `deep5.bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from deep5.audit.collective_model import MODELED, best_segments, elements_sent, fitted_line, modeled_seconds
from deep5.audit.order_statistics import median_ends

if TYPE_CHECKING:
    from deep5.bench.collective.plan import CollectivePlan

__all__ = ["Calls", "bus_bandwidth", "constants_of", "faults", "row_of", "segment_sizes"]

# Bits of the significand; the unit roundoff is 2 to the power of minus that. Sums of integers are exact.
_SIGNIFICAND = {"float16": 11, "float32": 24, "float64": 53}


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The calls of one algorithm at one size.

    Attributes:
        algorithm: Its name.
        size_bytes: Size of the buffer.
        seconds: By call, of the slowest rank.
        sent_bytes: By rank, in one call.
        messages: By rank, in one call.
        largest_error: Of all ranks, compared with the reference.
        checksums: By rank, two sums of the first result and two of the last.
    """

    algorithm: str
    size_bytes: int
    seconds: tuple[float, ...]
    sent_bytes: tuple[int, ...]
    messages: tuple[int, ...]
    largest_error: float
    checksums: tuple[tuple[int, ...], ...]

    @property
    def same_bits(self) -> bool:
        """Whether all ranks had the same result."""
        return all(own == self.checksums[0] for own in self.checksums)

    @property
    def where(self) -> str:
        """Algorithm and size in words."""
        return f"{self.algorithm} at {self.size_bytes} bytes"

    def right(self, plan: CollectivePlan) -> bool:
        """Whether the results were correct on every rank."""
        return self.same_bits and self.largest_error <= _tolerance(plan, len(self.checksums))


def bus_bandwidth(size_bytes: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth in 10^9 bytes per second: what each rank must send and receive at least, per time.

    Args:
        size_bytes: S, of the buffer: (n - 1)/n of it is sent to combine, and as much to distribute the result.
        seconds: Of a call.
        ranks: n.

    References:
        NVIDIA, nccl-tests, doc/PERFORMANCE.md, all-reduce.
    """
    return 2 * (size_bytes - size_bytes / ranks) / (seconds * 1e9)


def constants_of(messages: Mapping[int, Sequence[float]], additions: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """The constants of the model, with the names of collective.json.

    Args:
        messages: Seconds by size of the message in bytes.
        additions: Seconds to combine two buffers, by size in bytes.
    """
    latency_s, gap_s = fitted_line(messages)
    return {"latency_s": latency_s, "gap_s_byte": gap_s, "reduction_s_byte": fitted_line(additions)[1]}


def segment_sizes(machine: Mapping[str, float], ranks: int, size_bytes: int) -> list[int]:
    """Optimal segment sizes of the pipeline in bytes; several if rounding decides between them.

    Args:
        machine: Result of `constants_of`.
        ranks: Number of ranks.
        size_bytes: Size of the buffer.
    """
    return [-(-size_bytes // count) for count in best_segments(_constants(machine), ranks, size_bytes)]


def row_of(calls: Calls, plan: CollectivePlan, ranks: int, machine: Mapping[str, float]) -> dict[str, Any]:
    """A row of collective.json.

    Args:
        calls: The calls of the row.
        plan: The plan.
        ranks: Number of ranks.
        machine: Result of `constants_of`.
    """
    middle, ends = median(calls.seconds), median_ends(calls.seconds)
    modeled = None
    if calls.algorithm in MODELED:
        segment_bytes = max(plan.segment_bytes, plan.itemsize)
        modeled = modeled_seconds(calls.algorithm, _constants(machine), ranks, calls.size_bytes, segment_bytes)
    return {
        "algorithm": calls.algorithm,
        "size_bytes": calls.size_bytes,
        "rounds": len(calls.seconds),
        "median_s": middle,
        "low_s": None if ends is None else ends[0],
        "high_s": None if ends is None else ends[1],
        "algorithm_gbyte_s": calls.size_bytes / (middle * 1e9),
        "bus_gbyte_s": bus_bandwidth(calls.size_bytes, middle, ranks),
        "modelled_s": modeled,
        "measured_over_modelled": middle / modeled if modeled else None,
        "sent_bytes": max(calls.sent_bytes),
        "all_sent_bytes": sum(calls.sent_bytes),
        "messages": max(calls.messages),
        "largest_error": calls.largest_error,
        "allowed_error": _tolerance(plan, ranks),
        "right": calls.right(plan),
    }


def faults(calls: Calls, plan: CollectivePlan, ranks: int) -> list[str]:
    """What is wrong with results or sent bytes, in the words of collective.json.

    Args:
        calls: The calls.
        plan: The plan.
        ranks: Number of ranks.
    """
    found, tolerance = [], _tolerance(plan, ranks)
    if not calls.largest_error <= tolerance:
        what = "is the largest error" if plan.dtype in _SIGNIFICAND else "values are wrong"
        found.append(f"{calls.where}: {calls.largest_error:.3g} {what}; allowed: {tolerance:.3g}")
    if not calls.same_bits:
        found.append(f"{calls.where}: the ranks do not have the same bits; allowed: the same on every rank")
    if calls.algorithm in MODELED:
        elements = elements_sent(calls.algorithm, ranks, calls.size_bytes // plan.itemsize)
        due = [count * plan.itemsize for count in elements]
        if list(calls.sent_bytes) != due:
            found.append(f"{calls.where}: the ranks sent {list(calls.sent_bytes)} bytes; its formula says {due}")
    return found


def _constants(machine: Mapping[str, float]) -> tuple[float, float, float]:
    return machine["latency_s"], machine["gap_s_byte"], machine["reduction_s_byte"]


def _tolerance(plan: CollectivePlan, ranks: int) -> float:
    """The largest error of a correct result: twice that of one rounding per combination.

    Relative for products; for sums of n numbers of at most 1, n times as much; 0 where nothing is rounded.

    References:
        Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 2002, sections 3.1 and 4.2.
    """
    if plan.dtype not in _SIGNIFICAND or plan.op in ("max", "min"):
        return 0.0
    each = 2.0 ** (1 - _SIGNIFICAND[plan.dtype]) * (ranks - 1)
    return each * ranks if plan.op == "sum" else each
