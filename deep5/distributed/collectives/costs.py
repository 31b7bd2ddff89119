"""The modeled cost of all-reduce: latency, bandwidth and reduction, for each algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deep5.core.errors import UnknownName, UsageError
from deep5.distributed.collectives.messages import power_below
from deep5.distributed.collectives.pipeline import SEGMENT_BYTES

__all__ = ["MODELS", "Machine", "modelled_s", "optimal_segments"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The three constants of the model: a message of m bytes takes L + G m, combining m bytes takes γ m.

    Attributes:
        latency_s: L, seconds per message.
        gap_s_byte: G, seconds per byte sent; 1 / G is the bandwidth.
        reduction_s_byte: γ, seconds per byte of result.

    Raises:
        UsageError: A constant is negative or not finite.

    References:
        Alexandrov et al., LogGP: Incorporating Long Messages into the LogP Model, SPAA 1995, for L and G; Thakur,
        Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 19(1), 2005,
        section 3, for the separate reduction constant.
    """

    latency_s: float
    gap_s_byte: float
    reduction_s_byte: float

    def __post_init__(self) -> None:
        for name in ("latency_s", "gap_s_byte", "reduction_s_byte"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"Machine: got {name}={value!r}; allowed: a finite number of at least 0")


def _ring(machine: Machine, ranks: int, size_bytes: float, _segment_bytes: float) -> float:
    """T = 2(P - 1)L + 2(P - 1)/P G m + (P - 1)/P γ m."""
    share = (ranks - 1) / ranks * size_bytes
    return 2 * (ranks - 1) * machine.latency_s + (2 * machine.gap_s_byte + machine.reduction_s_byte) * share


def _folding(machine: Machine, ranks: int, size_bytes: float) -> float:
    """T = 2(L + G m) + γ m where P is not a power of two."""
    if ranks == power_below(ranks):
        return 0.0
    return 2 * (machine.latency_s + machine.gap_s_byte * size_bytes) + machine.reduction_s_byte * size_bytes


def _recursive_doubling(machine: Machine, ranks: int, size_bytes: float, _segment_bytes: float) -> float:
    """T = log2 Q (L + (G + γ) m), plus the folding."""
    steps = power_below(ranks).bit_length() - 1
    step_s = machine.latency_s + (machine.gap_s_byte + machine.reduction_s_byte) * size_bytes
    return steps * step_s + _folding(machine, ranks, size_bytes)


def _rabenseifner(machine: Machine, ranks: int, size_bytes: float, _segment_bytes: float) -> float:
    """T = 2 log2 Q L + 2(Q - 1)/Q G m + (Q - 1)/Q γ m, plus the folding."""
    members = power_below(ranks)
    share = (members - 1) / members * size_bytes
    own_s = 2 * (members.bit_length() - 1) * machine.latency_s
    own_s += (2 * machine.gap_s_byte + machine.reduction_s_byte) * share
    return own_s + _folding(machine, ranks, size_bytes)


def _binomial_tree(machine: Machine, ranks: int, size_bytes: float, _segment_bytes: float) -> float:
    """T = ceil(log2 P) (2 L + (2 G + γ) m)."""
    steps = (ranks - 1).bit_length()
    return steps * (2 * machine.latency_s + (2 * machine.gap_s_byte + machine.reduction_s_byte) * size_bytes)


def _pipeline(machine: Machine, ranks: int, size_bytes: float, segment_bytes: float) -> float:
    """T = (P + S - 2) (2 L + (2 G + γ) m / S) with S segments."""
    return _pipelined(machine, ranks, size_bytes, max(math.ceil(size_bytes / segment_bytes), 1))


def _pipelined(machine: Machine, ranks: int, size_bytes: float, segments: int) -> float:
    step_s = 2 * machine.latency_s + (2 * machine.gap_s_byte + machine.reduction_s_byte) * size_bytes / segments
    return (ranks + segments - 2) * step_s


MODELS: Mapping[str, Callable[[Machine, int, float, float], float]] = MappingProxyType(
    {
        "ring": _ring,
        "recursive_doubling": _recursive_doubling,
        "rabenseifner": _rabenseifner,
        "binomial_tree": _binomial_tree,
        "pipeline": _pipeline,
    }
)
"""Seconds per call, of (machine, P, m in bytes, segment size in bytes)."""


def modelled_s(
    name: str, machine: Machine, ranks: int, size_bytes: float, *, segment_bytes: float = SEGMENT_BYTES
) -> float:
    """Modeled seconds of an all-reduce.

    The model assumes that every rank has its own processor, can send and receive one message at the same time, and that
    messages do not interfere. Where ranks share a processor or memory, it underestimates.

    Args:
        name: Name of the algorithm.
        machine: Its constants.
        ranks: P.
        size_bytes: m.
        segment_bytes: Segment size of the pipeline.

    Raises:
        UnknownName: No algorithm has this name.
        UsageError: `ranks` is below 1 or `size_bytes` is negative.

    >>> machine = Machine(latency_s=1e-6, gap_s_byte=1e-9, reduction_s_byte=0.0)
    >>> round(modelled_s("ring", machine, 4, 4000) * 1e6, 3)
    12.0
    """
    if name not in MODELS:
        raise UnknownName("all-reduce algorithm", name, MODELS)
    if ranks < 1 or not size_bytes >= 0 or not segment_bytes > 0:
        raise UsageError(
            f"got {ranks!r} ranks, {size_bytes!r} bytes and segments of {segment_bytes!r}; allowed: at least 1, "
            "at least 0, and above 0"
        )
    return MODELS[name](machine, ranks, size_bytes, segment_bytes) if ranks > 1 and size_bytes else 0.0


def optimal_segments(machine: Machine, ranks: int, size_bytes: float) -> tuple[int, float]:
    """Optimal number of pipeline segments, and the modeled seconds with it.

    dT/dS = 0 gives S = sqrt((P - 2)(2 G + γ) m / (2 L)); T is convex in S, so one of the two neighboring integers is
    optimal. It is at least 1 and at most the number of bytes.

    >>> optimal_segments(Machine(latency_s=1e-6, gap_s_byte=1e-9, reduction_s_byte=0.0), 4, 2e6)[0]
    63
    """
    most = max(int(size_bytes), 1)
    if not machine.latency_s:
        best = float(most if ranks > 2 else 1)
    else:
        per_byte_s = 2 * machine.gap_s_byte + machine.reduction_s_byte
        best = math.sqrt(max(ranks - 2, 0) * per_byte_s * size_bytes / (2 * machine.latency_s))
    around = {min(max(count, 1), most) for count in (math.floor(best), math.ceil(best))}
    return min(((count, _pipelined(machine, ranks, size_bytes, count)) for count in around), key=lambda each: each[1])
