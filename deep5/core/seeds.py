"""One seed per purpose: weights, order and noise are drawn from independent streams."""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["derive_seed", "generator"]


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed derived from the run's seed and its purpose.

    >>> derive_seed(0, "weights", "conv1") == derive_seed(0, "weights", "conv1")
    True
    >>> derive_seed(0, "weights", "conv1") == derive_seed(0, "weights", "conv2")
    False
    """
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> Any:
    """A `numpy.random.Generator` (Philox, counter-based) for one purpose.

    Args:
        seed: The run's seed.
        purpose: Strings and integers that name the purpose; another purpose gives an independent stream.

    >>> import deep5 as d5
    >>> d5.generator(0, "noise", "layer1").integers(0, 100, 5)
    array([54, 36, 32, 24, 54])
    >>> d5.generator(0, "noise", "layer1").integers(0, 100, 5)
    array([54, 36, 32, 24, 54])
    >>> d5.generator(0, "noise", "layer2").integers(0, 100, 5)
    array([95, 24, 40, 63, 19])
    """
    import numpy as np

    return np.random.Generator(np.random.Philox(derive_seed(seed, *purpose)))
