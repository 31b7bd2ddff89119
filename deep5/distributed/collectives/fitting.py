"""Fits a machine's constants to measured times of messages and of additions of several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deep5.core.errors import TooFewSamples, UsageError
from deep5.distributed.collectives.costs import Machine

__all__ = ["fit_line", "fit_machine"]

# Huber's constant: 95 % of the efficiency of least squares under normal noise; and the ratio of normal spread to MAD.
_HUBER, _SPREAD = 1.345, 1.4826
_ROUNDS = 50


def fit_line(times: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Fit constant and slope of seconds = a + b size, both nonnegative, by robust least squares of relative errors.

    Each size contributes its median time, so that occasional slow repetitions do not count. Errors are relative to the
    measured time, because sizes span decades. Sizes off the line, for example around a protocol switch of the library,
    lose weight: iteratively reweighted least squares with Huber's weights.

    Args:
        times: Seconds of every repetition, by size in bytes.

    Returns:
        a in seconds, b in seconds per byte.

    Raises:
        TooFewSamples: Fewer than three sizes, or a size without times.
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
        raise TooFewSamples(
            f"got times of {len(times)} sizes; allowed: at least 3, each with a time; remedy: measure more"
        )
    medians = np.array([np.median(values) for values in times.values()], np.float64)
    if not (np.isfinite(medians) & (medians > 0)).all():
        raise UsageError(f"times {medians!r:.80}; allowed: positive, finite seconds")
    sizes = np.array(list(times), np.float64)
    # Scale the columns to about one, otherwise the solver's tolerance would hide the slope.
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
    """Fit L, G and γ.

    Args:
        messages: Seconds per message by size in bytes: half of the round-trip time.
        additions: Seconds to combine two buffers, by size of the result in bytes.

    Raises:
        TooFewSamples: Fewer than three sizes in either mapping.
        UsageError: A time is not positive and finite.
    """
    latency_s, gap_s_byte = fit_line(messages)
    return Machine(latency_s=latency_s, gap_s_byte=gap_s_byte, reduction_s_byte=fit_line(additions)[1])
