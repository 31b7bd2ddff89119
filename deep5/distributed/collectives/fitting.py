"""A machine's constants, from measured times: of messages over their sizes, of additions over theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deep5.core.errors import TooFewSamples, UsageError
from deep5.distributed.collectives.costs import Machine

__all__ = ["fit_line", "fit_machine"]

# Huber's constant: 95 % of the efficiency of least squares on normal noise; and the spread of it over its MAD.
_HUBER, _SPREAD = 1.345, 1.4826
_ROUNDS = 50


def fit_line(times: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Constant and slope of seconds = a + b size, neither below zero, by robust least squares of relative errors.

    Each size has one vote, its median time, so that what is slow now and then does not count; and each is held to its
    own time, as sizes span decades. Sizes that do not lie on the line, those around a change of the library's protocol
    say, lose weight: iteratively reweighted least squares with Huber's weights.

    Args:
        times: By size in bytes, seconds of every repetition.

    Returns:
        a in seconds, b in seconds a byte.

    Raises:
        TooFewSamples: Fewer than three sizes, or a size without a time.
        UsageError: A time is not positive and finite.

    References:
        Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35(1), 1964; Holland and
        Welsch, Robust Regression Using Iteratively Reweighted Least-Squares, Communications in Statistics 6(9), 1977.

    >>> a, b = fit_line({size: [2e-6 + size * 1e-9] for size in (1, 1000, 1000000)})
    >>> round(a * 1e6, 3), round(b * 1e9, 3)
    (2.0, 1.0)
    """
    from scipy.optimize import nnls

    if len(times) < 3 or not all(len(values) for values in times.values()):
        raise TooFewSamples(f"times of {len(times)} sizes; a line needs at least 3, each with a time: measure more")
    medians = np.array([np.median(values) for values in times.values()], np.float64)
    if not (np.isfinite(medians) & (medians > 0)).all():
        raise UsageError(f"times {medians!r:.80}; allowed: positive, finite seconds")
    sizes = np.array(list(times), np.float64)
    # Columns of about one, or the solver's tolerance would swallow the slope.
    unit_bytes, unit_s = max(float(sizes.max()), 1.0), float(medians.min())
    rows = np.stack([np.full(len(sizes), unit_s), sizes * (medians.max() / unit_bytes)], axis=1) / medians[:, None]
    weights = np.ones(len(sizes))
    solution = np.zeros(2)
    for _ in range(_ROUNDS):
        before = solution
        root = np.sqrt(weights)
        solution, _ = nnls(rows * root[:, None], root)
        errors = np.abs(rows @ solution - 1)
        spread = _SPREAD * float(np.median(errors))
        if spread < 1e-12 or np.allclose(solution, before, rtol=1e-10, atol=0):
            break
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(errors, 1e-300))
    return float(solution[0] * unit_s), float(solution[1] * medians.max() / unit_bytes)


def fit_machine(messages: Mapping[int, Sequence[float]], additions: Mapping[int, Sequence[float]]) -> Machine:
    """L, G and γ.

    Args:
        messages: By size in bytes, seconds of a message: half of what there and back took.
        additions: By size of the result in bytes, seconds of combining two buffers of that size.

    Raises:
        TooFewSamples: Fewer than three sizes of one of them.
        UsageError: A time is not positive and finite.
    """
    latency_s, gap_s_byte = fit_line(messages)
    return Machine(latency_s=latency_s, gap_s_byte=gap_s_byte, reduction_s_byte=fit_line(additions)[1])
