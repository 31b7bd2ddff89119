"""The update rules of ai.onnx.preview.training: parameters, gradients and statistics in, new ones out.

In all of them g is the gradient plus `norm_coefficient` times the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["adagrad", "adam", "momentum"]


def adagrad(
    rate: Array, count: Array, *tensors: Array, norm_coefficient: float, decay_factor: float, epsilon: float
) -> tuple[Array, ...]:
    """h += g^2; x -= rate / (1 + count decay_factor) g / (sqrt(h) + epsilon).

    Args:
        rate: The learning rate, a number.
        count: Updates so far, a number.
        tensors: All x, then their gradients, then their h.
        norm_coefficient: Factor of the penalty's gradient.
        decay_factor: Decay of the learning rate.
        epsilon: Added to the root.

    Returns:
        All x, then all h.

    References:
        Duchi, Hazan and Singer, Adaptive subgradient methods for online learning, JMLR 12, 2011.
    """
    step = rate / (1 + count * decay_factor)
    xs, hs = [], []
    for x, gradient, h in _together(tensors, 3):
        g = _number(norm_coefficient, x) * x + gradient
        hs.append(h + g * g)
        xs.append(x - _number(step, x) * g / (np.sqrt(hs[-1]) + _number(epsilon, x)))
    return (*xs, *hs)


def adam(
    rate: Array,
    count: Array,
    *tensors: Array,
    norm_coefficient: float,
    norm_coefficient_post: float,
    alpha: float,
    beta: float,
    epsilon: float,
) -> tuple[Array, ...]:
    """v = alpha v + (1 - alpha) g; h = beta h + (1 - beta) g^2; x -= rate v / (sqrt(h) + epsilon).

    From the second update on, the rate is multiplied by sqrt(1 - beta^count) / (1 - alpha^count).

    Args:
        rate: The learning rate, a number.
        count: Updates so far, a number.
        tensors: All x, then their gradients, their v, their h.
        norm_coefficient: Factor of the penalty's gradient.
        norm_coefficient_post: Fraction of x to subtract after the update.
        alpha: Weight of the previous v.
        beta: Weight of the previous h.
        epsilon: Added to the root.

    Returns:
        All x, then all v, then all h.

    References:
        Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015, section 2.
    """
    step = rate * np.sqrt(1 - beta**count) / (1 - alpha**count) if count > 0 else rate
    xs, vs, hs = [], [], []
    for x, gradient, v, h in _together(tensors, 4):
        g = _number(norm_coefficient, x) * x + gradient
        vs.append(_number(alpha, x) * v + _number(1 - alpha, x) * g)
        hs.append(_number(beta, x) * h + _number(1 - beta, x) * g * g)
        moved = x - _number(step, x) * vs[-1] / (np.sqrt(hs[-1]) + _number(epsilon, x))
        xs.append(_number(1 - norm_coefficient_post, x) * moved)
    return (*xs, *vs, *hs)


def momentum(
    rate: Array, count: Array, *tensors: Array, norm_coefficient: float, alpha: float, beta: float, nesterov: bool
) -> tuple[Array, ...]:
    """v = alpha v + beta g; x -= rate v, or with Nesterov, rate (g + alpha v). In the first update beta is 1.

    Args:
        rate: The learning rate, a number.
        count: Updates so far, a number.
        tensors: All x, then their gradients, then their v.
        norm_coefficient: Factor of the penalty's gradient.
        alpha: Weight of the previous v.
        beta: Weight of g.
        nesterov: Whether to use Nesterov's momentum.

    Returns:
        All x, then all v.
    """
    added = beta if count > 0 else 1.0
    xs, vs = [], []
    for x, gradient, v in _together(tensors, 3):
        g = _number(norm_coefficient, x) * x + gradient
        vs.append(_number(alpha, x) * v + _number(added, x) * g)
        xs.append(x - _number(rate, x) * (g + _number(alpha, x) * vs[-1] if nesterov else vs[-1]))
    return (*xs, *vs)


def _together(tensors: tuple[Array, ...], kinds: int) -> Iterator[tuple[Array, ...]]:
    """The tensors of each parameter, in turn."""
    many = len(tensors) // kinds
    return zip(*(tensors[kind * many : (kind + 1) * many] for kind in range(kinds)), strict=True)


def _number(value: float | Array, x: Array) -> Array:
    return np.asarray(value, x.dtype).reshape(())
