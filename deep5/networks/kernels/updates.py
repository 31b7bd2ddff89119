"""ONNX's operators for update rules, in the domain ai.onnx.preview.training."""

from __future__ import annotations

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite

__all__ = ["DOMAIN", "OPERATORS"]

DOMAIN = "ai.onnx.preview.training"


def _groups(values: tuple[Array, ...], count: int) -> list[tuple[Array, ...]]:
    """Regroup a sequence of all parameters, all gradients and so on by parameter."""
    each = len(values) // count
    return list(zip(*(values[at * each : (at + 1) * each] for at in range(count)), strict=True))


def _in_order(results: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Flatten results per parameter to the order of the outputs."""
    return tuple(value for column in zip(*results, strict=True) for value in column)


def _adagrad(
    xp: Primitives,
    rate: Array,
    step: Array,
    *values: Array,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    outputs: int,
) -> tuple[Array, ...]:
    """Adagrad.

    References:
        Duchi, Hazan and Singer, Adaptive subgradient methods, JMLR 12, 2011.
    """
    rate = rate / (1 + xp.astype(step, rate.dtype) * decay_factor)
    results = []
    for x, gradient, squares in _groups(values, 3):
        slope = norm_coefficient * x + gradient
        total = squares + slope * slope
        results.append((x - xp.astype(rate, x.dtype) * slope / (xp.sqrt(total) + epsilon), total))
    return _in_order(results)


def _adam(
    xp: Primitives,
    rate: Array,
    step: Array,
    *values: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
    outputs: int,
) -> tuple[Array, ...]:
    """Adam.

    References:
        Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015, algorithm 1 and section 2.
    """
    count = xp.astype(step, rate.dtype)
    later = xp.where(count > 0, count, xp.ones_like(count))
    rate = xp.where(count > 0, rate * xp.sqrt(1 - beta**later) / (1 - alpha**later), rate)
    results = []
    for x, gradient, mean, squares in _groups(values, 4):
        slope = norm_coefficient * x + gradient
        first = alpha * mean + (1 - alpha) * slope
        second = beta * squares + (1 - beta) * slope * slope
        moved = x - xp.astype(rate, x.dtype) * first / (xp.sqrt(second) + epsilon)
        results.append(((1 - norm_coefficient_post) * moved, first, second))
    return _in_order(results)


def _momentum(
    xp: Primitives,
    rate: Array,
    step: Array,
    *values: Array,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
    outputs: int,
) -> tuple[Array, ...]:
    """Gradient descent with momentum, standard or Nesterov's.

    References:
        Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013, section 2.
    """
    results = []
    for x, gradient, velocity in _groups(values, 3):
        slope = norm_coefficient * x + gradient
        one = xp.ones_like(xp.astype(step, x.dtype))
        share = xp.where(step > 0, beta * one, one)  # the first gradient is not damped
        speed = alpha * velocity + share * slope
        moved = slope + alpha * speed if mode == "nesterov" else speed
        results.append((x - xp.astype(rate, x.dtype) * moved, speed))
    return _in_order(results)


OPERATORS = {
    f"{DOMAIN}.Adagrad": Composite(function=_adagrad),
    f"{DOMAIN}.Adam": Composite(function=_adam),
    f"{DOMAIN}.Momentum": Composite(function=_momentum),
}
