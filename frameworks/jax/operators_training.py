"""Optimizers as operators: those of ONNX's domain ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import onnx_ir as ir

from deep5.frameworks.jax.table import attribute, number, operator, results

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__ = ["DOMAIN"]

DOMAIN = "ai.onnx.preview.training"

Array = Any


def _adagrad(rate: Array, step: Array, x: Array, g: Array, h: Array, norm: float, decay: float, epsilon: float) -> Any:
    """Duchi, Hazan and Singer, Adaptive subgradient methods, JMLR 12, 2011."""
    factor = (rate / (1 + step.astype(rate.dtype) * decay)).astype(x.dtype)
    gradient = norm * x + g
    new = h + gradient * gradient
    return x - factor * gradient / (jnp.sqrt(new) + epsilon), new


def _adam(
    rate: Array,
    step: Array,
    x: Array,
    g: Array,
    v: Array,
    h: Array,
    alpha: float,
    beta: float,
    norm: float,
    norm_post: float,
    epsilon: float,
) -> Any:
    """Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015."""
    gradient = norm * x + g
    new_v = alpha * v + (1 - alpha) * gradient
    new_h = beta * h + (1 - beta) * gradient * gradient
    count = step.astype(rate.dtype)
    later = jnp.where(count > 0, count, 1)
    adjusted = jnp.where(count > 0, rate * jnp.sqrt(1 - beta**later) / (1 - alpha**later), rate).astype(x.dtype)
    return (1 - norm_post) * (x - adjusted * new_v / (jnp.sqrt(new_h) + epsilon)), new_v, new_h


def _momentum(
    rate: Array, step: Array, x: Array, g: Array, v: Array, alpha: float, beta: float, norm: float, ahead: bool
) -> Any:
    """Nesterov momentum if `ahead`; Sutskever et al., On the importance of initialization and momentum, ICML 2013."""
    gradient = norm * x + g
    new = alpha * v + jnp.where(step > 0, beta, 1.0).astype(x.dtype) * gradient
    return x - rate.astype(x.dtype) * (gradient + alpha * new if ahead else new), new


def _each(emitter: Emitter, node: ir.Node, function: Callable[..., Any], parts: int, how: str) -> None:
    """Emit the update of every tensor: inputs and outputs are grouped by their role."""
    rate, step, *values = (emitter.plain(value) for value in node.inputs)
    count, bound = len(values) // (parts + 1), emitter.bind(function)
    made = emitter.new()
    updates = (f"{bound}({rate}, {step}, {', '.join(values[number::count])}, {how})" for number in range(count))
    emitter.line(f"{made} = ({''.join(f'{update}, ' for update in updates)})")
    order = ", ".join(f"{made}[{number}][{part}]" for part in range(parts) for number in range(count))
    results(emitter, node, f"({order}, )")


def _numbers(node: ir.Node, **defaults: float) -> str:
    return ", ".join(number(node, name, value) for name, value in defaults.items())


@operator(f"{DOMAIN}.Adagrad")
def _adagrad_of(emitter: Emitter, node: ir.Node) -> None:
    _each(emitter, node, _adagrad, 2, _numbers(node, norm_coefficient=0.0, decay_factor=0.0, epsilon=0.0))


@operator(f"{DOMAIN}.Adam")
def _adam_of(emitter: Emitter, node: ir.Node) -> None:
    how = _numbers(node, alpha=0.9, beta=0.999, norm_coefficient=0.0, norm_coefficient_post=0.0, epsilon=0.0)
    _each(emitter, node, _adam, 3, how)


@operator(f"{DOMAIN}.Momentum")
def _momentum_of(emitter: Emitter, node: ir.Node) -> None:
    how = _numbers(node, alpha=0.0, beta=0.0, norm_coefficient=0.0)
    _each(emitter, node, _momentum, 2, f"{how}, {attribute(node, 'mode', 'standard') == 'nesterov'}")
