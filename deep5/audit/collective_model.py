"""The modeled times and the messages of all-reduce, derived independently of `deep5.distributed.collectives`.

A message of m bytes takes L + G m seconds, and combining m bytes takes γ m seconds. Each algorithm is described by its
longest chain of messages and combinations.

References:
    Alexandrov et al., LogGP, SPAA 1995; Thakur, Rabenseifner and Gropp, Optimization of Collective Communication
    Operations in MPICH, IJHPCA 19(1), 2005.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import median

from deep5.core.errors import UsageError

__all__ = ["MODELED", "best_segments", "elements_sent", "fitted_line", "modeled_seconds"]

MODELED = ("ring", "recursive_doubling", "rabenseifner", "binomial_tree", "pipeline")
"""Names of the algorithms."""

# Huber's constant, the ratio of a normal distribution's deviation to its median absolute one, and the stop of the fit.
_HUBER, _NORMAL, _ROUNDS, _EXACT, _SETTLED = 1.345, 1.4826, 50, 1e-12, 1e-10


def modeled_seconds(
    name: str, constants: tuple[float, float, float], ranks: int, size_bytes: int, segment_bytes: int
) -> float:
    """Modeled seconds of a call.

    Args:
        name: One of `MODELED`.
        constants: L in seconds, G and γ in seconds per byte.
        ranks: Number of ranks, at least 2.
        size_bytes: Size of the buffer.
        segment_bytes: Segment size of the pipeline.
    """
    latency_s, gap_s, reduction_s = constants
    messages, sent, combined = _chain(name, ranks, segment_bytes, size_bytes)
    return messages * latency_s + (sent * gap_s + combined * reduction_s) * size_bytes


def _chain(name: str, ranks: int, segment_bytes: int, size_bytes: int) -> tuple[float, float, float]:
    """Messages of the longest chain, and what they send and combine, in buffers."""
    doublings = math.floor(math.log2(ranks))
    # Halves of the buffer, then quarters, and so on.
    halved = sum(2.0**-step for step in range(1, doublings + 1))
    # Ranks beyond a power of two give their buffer to a neighbor, and receive the result.
    folded = (2, 2, 1) if ranks > 2**doublings else (0, 0, 0)
    if name == "ring":
        part = (ranks - 1) / ranks
        return 2 * (ranks - 1), 2 * part, part
    if name == "recursive_doubling":
        return folded[0] + doublings, folded[1] + doublings, folded[2] + doublings
    if name == "rabenseifner":
        return folded[0] + 2 * doublings, folded[1] + 2 * halved, folded[2] + halved
    if name == "binomial_tree":
        depth = math.ceil(math.log2(ranks))
        return 2 * depth, 2 * depth, depth
    segments = max(-(-size_bytes // segment_bytes), 1)
    steps = ranks - 2 + segments
    return 2 * steps, 2 * steps / segments, steps / segments


def best_segments(constants: tuple[float, float, float], ranks: int, size_bytes: int) -> list[int]:
    """Numbers of pipeline segments that are optimal up to rounding.

    With S segments a call takes (P + S - 2)(2 L + (2 G + γ) m / S), which falls until 2 L S (S + 1) reaches
    (P - 2)(2 G + γ) m. That is decided in exact arithmetic.

    Args:
        constants: L in seconds, G and γ in seconds per byte.
        ranks: P.
        size_bytes: m.
    """
    latency_s, gap_s, reduction_s = map(Fraction, constants)
    rises, falls = 2 * latency_s, (ranks - 2) * (2 * gap_s + reduction_s) * size_bytes
    if not rises:
        return [max(size_bytes, 1) if ranks > 2 else 1]
    limit = falls / rises  # of S (S + 1)
    best = max(1, math.isqrt(max(0, math.floor(limit) - 1)))
    while best > 1 and (best - 1) * best >= limit:
        best -= 1
    while best * (best + 1) < limit:
        best += 1

    def cost(count: int) -> Fraction:
        return rises * count + falls / count

    best = min(best, max(size_bytes, 1))
    return [
        count
        for count in (best, best - 1, best + 1)
        if 1 <= count <= max(size_bytes, 1) and cost(count) <= cost(best) * (1 + Fraction(1, 10**12))
    ]


def fitted_line(times: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Constant and slope, at least 0, of seconds by bytes: least squares of relative errors with Huber's weights.

    Args:
        times: Seconds by size in bytes; at least three sizes, each with a time.

    Raises:
        UsageError: There are fewer sizes, or a time is not positive and finite.
    """
    if len(times) < 3 or not all(times.values()):
        raise UsageError(f"times of {len(times)} sizes; allowed: at least 3, each with a time")
    middles = {size: median(values) for size, values in times.items()}
    if not all(0 < middle < math.inf for middle in middles.values()):
        raise UsageError("a time that is not positive and finite")
    # In units of about 1, so that the fit settles as that of any other unit.
    unit_s, unit_bytes = min(middles.values()), max(*middles, 1) / max(middles.values())
    rows = [(unit_s / middle, size / unit_bytes / middle) for size, middle in middles.items()]
    weights = [1.0] * len(rows)
    found = (0.0, 0.0)
    for _ in range(_ROUNDS):
        before, found = found, _least_squares(rows, weights)
        errors = [abs(one * found[0] + other * found[1] - 1) for one, other in rows]
        spread = _NORMAL * median(errors)
        if spread < _EXACT or all(
            abs(now - then) <= _SETTLED * abs(then) for now, then in zip(found, before, strict=True)
        ):
            break
        weights = [min(1.0, _HUBER * spread / error) if error else 1.0 for error in errors]
    return found[0] * unit_s, found[1] / unit_bytes


def _least_squares(rows: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    """a and b, at least 0, with the least weighted sum of (a x + b y - 1)^2; the normal equations in exact numbers."""
    exact = [(Fraction(weight), Fraction(x), Fraction(y)) for weight, (x, y) in zip(weights, rows, strict=True)]
    nothing = Fraction(0)
    xx, yy = sum((w * x * x for w, x, _ in exact), nothing), sum((w * y * y for w, _, y in exact), nothing)
    xy = sum((w * x * y for w, x, y in exact), nothing)
    x1, y1 = sum((w * x for w, x, _ in exact), nothing), sum((w * y for w, _, y in exact), nothing)
    determinant = xx * yy - xy * xy
    if determinant:
        a, b = (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant
        if a >= 0 and b >= 0:
            return float(a), float(b)
    # One of them is 0. The other lowers the sum by x1^2 / xx or by y1^2 / yy.
    one, other = (x1 * x1 / xx if xx else nothing), (y1 * y1 / yy if yy else nothing)
    return (float(x1 / xx), 0.0) if one >= other else (0.0, float(y1 / yy))


def elements_sent(name: str, ranks: int, elements: int) -> list[int]:
    """Elements that each rank sends in one call, counted message by message.

    Args:
        name: One of `MODELED`.
        ranks: Number of ranks, at least 2.
        elements: Number of elements of the buffer.
    """
    if name == "ring":
        sizes = _sizes(elements, ranks)
        return [
            sum(sizes[(rank - step) % ranks] + sizes[(rank + 1 - step) % ranks] for step in range(ranks - 1))
            for rank in range(ranks)
        ]
    if name == "pipeline":
        return [elements * ((rank > 0) + (rank < ranks - 1)) for rank in range(ranks)]
    if name == "binomial_tree":
        sent = [0] * ranks
        for child in range(1, ranks):
            # The parent has the lowest bit of the child's number unset: once up, and once down.
            sent[child] += elements
            sent[child & (child - 1)] += elements
        return sent
    active = 2 ** math.floor(math.log2(ranks))
    pairs = ranks - active
    sent = [elements if rank < 2 * pairs else 0 for rank in range(ranks)]
    sizes = _sizes(elements, active)
    for place, rank in enumerate([*range(1, 2 * pairs, 2), *range(2 * pairs, ranks)]):
        width = active
        while width > 1:
            # The buffer is shared by `width` places, whose lower and upper halves exchange.
            first, width = place // width * width, width // 2
            lower, upper = sum(sizes[first : first + width]), sum(sizes[first + width : first + 2 * width])
            # Either way, both halves go out once: the other's while halving, the own one while doubling.
            sent[rank] += lower + upper if name == "rabenseifner" else elements
    return sent


def _sizes(elements: int, parts: int) -> list[int]:
    """Sizes of the parts of a buffer, which differ by at most one element."""
    return [elements * (part + 1) // parts - elements * part // parts for part in range(parts)]
