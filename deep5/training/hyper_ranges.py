"""The values that hyperparameters of deep5's own optimizers may have, by name."""

from __future__ import annotations

import math

from deep5.training.rule import UpdateRule

__all__ = ["hyper_bounds", "hyper_fault"]

_LARGEST = math.nextafter(math.inf, 0.0)
_BELOW_ONE = math.nextafter(1.0, 0.0)
# Closed intervals. Averages with a weight of one never forget their first value, and those above one diverge; a bias
# correction divides by one minus the weight.
_AVERAGE, _SIZE = (0.0, _BELOW_ONE), (0.0, _LARGEST)
_BOUNDS = {
    "beta1": _AVERAGE,
    "beta2": _AVERAGE,
    "diameter": _SIZE,
    "epsilon": _SIZE,
    "gradient_bound": _SIZE,
    "initial": _SIZE,
    "lr": _SIZE,
    "momentum": _AVERAGE,
    "momentum_decay": _SIZE,
    "rho": _AVERAGE,
    "trust": _SIZE,
    "weight_decay": _SIZE,
}


def hyper_bounds(optimizer: object, name: str) -> tuple[float, float]:
    """The smallest and the largest allowed value of a hyperparameter.

    Args:
        optimizer: A rule or a native optimizer; the hyperparameters of others are any finite numbers.
        name: The hyperparameter.
    """
    rule = getattr(optimizer, "rule", optimizer)
    kind = getattr(rule, "twin", type(rule))
    # A user's own rule may give these names another meaning.
    own = any(base.__module__.startswith("deep5.training.rules.") for base in kind.__mro__ if base is not UpdateRule)
    return _BOUNDS.get(name, (-_LARGEST, _LARGEST)) if own else (-_LARGEST, _LARGEST)


def hyper_fault(optimizer: object, name: str, value: float) -> str | None:
    """What is allowed instead of a finite value that is out of range; None if it is in range.

    >>> from deep5.training.rules.adam import Adam
    >>> hyper_fault(Adam(), "beta1", 1.0), hyper_fault(Adam(), "beta1", 0.9)
    ('a number of at least 0 and below 1', None)
    """
    low, high = hyper_bounds(optimizer, name)
    if low <= value <= high:
        return None
    return "a number of at least 0" + (" and below 1" if high == _BELOW_ONE else "")
