"""How a token is chosen from logits: in float64 on the host, so that all back-ends choose alike."""

from __future__ import annotations

import numpy as np

from deep5.core.seeds import derive_seed
from deep5.networks.philox import philox

__all__ = ["draw", "probabilities", "uniforms"]

_TO_UNIT = 2.0**-53


def probabilities(
    logits: np.ndarray, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> np.ndarray:
    """The probabilities that a token is drawn with, float64 (vocabulary,).

    softmax(logits / temperature), of which `top_k` keeps the most probable tokens, and `top_p` then the smallest set of
    most probable tokens whose probability is at least `top_p`. Of equal tokens, those of the lowest ids are kept.

    Args:
        logits: Scores of the tokens, (vocabulary,).
        temperature: A number above 0.
        top_k: The number of tokens to keep; None: all.
        top_p: The probability to keep, in (0, 1]; None: all.

    References:
        Holtzman et al., The curious case of neural text degeneration, ICLR 2020, equations 2 and 3.

    >>> probabilities(np.log([0.5, 0.25, 0.125, 0.125]), top_k=3)
    array([0.57142857, 0.28571429, 0.14285714, 0.        ])
    >>> probabilities(np.log([0.5, 0.25, 0.125, 0.125]), top_p=0.7)
    array([0.66666667, 0.33333333, 0.        , 0.        ])
    """
    scaled = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite logits become NaN, which the caller reports
        scaled = (scaled - scaled.max()) / temperature
    if top_k is not None and top_k < len(scaled):
        scaled[np.argsort(-scaled, kind="stable")[top_k:]] = -np.inf
    found: np.ndarray = np.exp(scaled)
    found /= found.sum()
    if top_p is not None and top_p < 1:
        order = np.argsort(-found, kind="stable")
        kept = int(np.searchsorted(np.cumsum(found[order]), top_p)) + 1
        found[order[kept:]] = 0.0
        found /= found.sum()
    return found


def draw(shares: np.ndarray, uniform: float) -> int:
    """The first token at which the sum of the probabilities exceeds a number: a draw by the inverse of their sums.

    Args:
        shares: Probabilities, (vocabulary,); their sum need not be exactly 1.
        uniform: A number in [0, 1).

    >>> [draw(np.array([0.5, 0.0, 0.5]), uniform) for uniform in (0.0, 0.4, 0.5, 0.9)]
    [0, 0, 2, 2]
    """
    sums = np.cumsum(shares)
    found = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    # The product may round up to the whole sum.
    return found if found < len(shares) else int(np.flatnonzero(shares)[-1])


def uniforms(seed: int, number: int, begin: int, count: int) -> np.ndarray:
    """Numbers in [0, 1) for the tokens of a request, float64 (count,), multiples of 2**-53.

    Each depends on the seed, the request's number and the token's position only, and not on the batch.

    Args:
        seed: The request's seed.
        number: The request's number.
        begin: Position of the first token in its sequence, the prompt included.
        count: Number of tokens.

    References:
        Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC'11, section 3.3: Philox4x32-10.

    >>> np.array_equal(uniforms(0, 3, 10, 5)[2:], uniforms(0, 3, 12, 3))
    True
    """
    key = derive_seed(seed, "sampled tokens")
    words = philox(np.arange(begin, begin + count), high=number, key=key).astype(np.uint64)
    numbers: np.ndarray = ((words[0] << np.uint64(32) | words[1]) >> np.uint64(11)).astype(np.float64)
    return numbers * _TO_UNIT
