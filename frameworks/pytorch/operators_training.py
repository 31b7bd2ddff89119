"""ONNX's operators for update rules, in the domain ai.onnx.preview.training."""

from __future__ import annotations

from typing import Any

from deep5.frameworks.pytorch.table import kernel

__all__ = ["DOMAIN"]

DOMAIN = "ai.onnx.preview.training"


def _groups(values: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Regroup a sequence of all parameters, all gradients and so on by parameter."""
    each = len(values) // count
    return list(zip(*(values[at * each : (at + 1) * each] for at in range(count)), strict=True))


def _in_order(results: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Flatten results per parameter to the order of the outputs."""
    return tuple(value for column in zip(*results, strict=True) for value in column)


@kernel(f"{DOMAIN}.Adagrad")
def _adagrad(
    rate: Any,
    step: Any,
    *values: Any,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    outputs: int,
) -> tuple[Any, ...]:
    """Adagrad.

    References:
        Duchi, Hazan and Singer, Adaptive subgradient methods, JMLR 12, 2011.
    """
    rate = rate / (1 + step * decay_factor)
    results = []
    for x, gradient, squares in _groups(values, 3):
        slope = norm_coefficient * x + gradient
        squares = squares + slope * slope  # noqa: PLW2901 - the rule's own letter
        results.append((x - rate * slope / (squares.sqrt() + epsilon), squares))
    return _in_order(results)


@kernel(f"{DOMAIN}.Adam")
def _adam(
    rate: Any,
    step: Any,
    *values: Any,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
    outputs: int,
) -> tuple[Any, ...]:
    """Adam.

    References:
        Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015, algorithm 1 and section 2.
    """
    power = step.to(rate.dtype)
    adjusted = rate * (1 - beta**power).sqrt() / (1 - alpha**power)
    rate = rate.where(step == 0, adjusted)
    results = []
    for x, gradient, mean, squares in _groups(values, 4):
        slope = norm_coefficient * x + gradient
        mean = alpha * mean + (1 - alpha) * slope  # noqa: PLW2901
        squares = beta * squares + (1 - beta) * slope * slope  # noqa: PLW2901
        moved = x - rate * mean / (squares.sqrt() + epsilon)
        results.append(((1 - norm_coefficient_post) * moved, mean, squares))
    return _in_order(results)


@kernel(f"{DOMAIN}.Momentum")
def _momentum(
    rate: Any,
    step: Any,
    *values: Any,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
    outputs: int,
) -> tuple[Any, ...]:
    """Gradient descent with momentum, standard or Nesterov's.

    References:
        Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013, section 2.
    """
    results = []
    for x, gradient, velocity in _groups(values, 3):
        slope = norm_coefficient * x + gradient
        share = (step > 0) * (beta - 1.0) + 1.0  # the first gradient is not damped
        velocity = alpha * velocity + share.to(x.dtype) * slope  # noqa: PLW2901
        moved = slope + alpha * velocity if mode == "nesterov" else velocity
        results.append((x - rate * moved, velocity))
    return _in_order(results)
