"""Operators that draw random numbers: each node has a separate stream, seeded by its attribute if it has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite
from deep5.networks.network import Network

__all__ = ["OPERATORS", "draws"]


def draws(network: Network) -> bool:
    """Whether a node of the network, or of a subgraph, draws random numbers."""
    return any(node.op_type in OPERATORS and node.domain == "" for node in network.model.graph.all_nodes())


def _normal(
    xp: Primitives, *, shape: Any, mean: float = 0.0, scale: float = 1.0, kind: Any, place: Any, stream: Any
) -> Array:
    return xp.normal(stream, tuple(shape), kind, place, mean, scale)


def _uniform(
    xp: Primitives, *, shape: Any, low: float = 0.0, high: float = 1.0, kind: Any, place: Any, stream: Any
) -> Array:
    return xp.uniform(stream, tuple(shape), kind, place, low, high)


def _normal_like(
    xp: Primitives, x: Array, *, mean: float = 0.0, scale: float = 1.0, kind: Any, place: Any, stream: Any
) -> Array:
    return xp.normal(stream, x.shape, kind, place, mean, scale)


def _uniform_like(
    xp: Primitives, x: Array, *, low: float = 0.0, high: float = 1.0, kind: Any, place: Any, stream: Any
) -> Array:
    return xp.uniform(stream, x.shape, kind, place, low, high)


def _bernoulli(xp: Primitives, x: Array, *, kind: Any, stream: Any) -> Array:
    return xp.astype(xp.coins(stream, xp.held(x)), kind)


def _multinomial(xp: Primitives, x: Array, *, sample_size: int = 1, kind: Any, stream: Any) -> Array:
    return xp.astype(xp.draws(stream, xp.held(x), sample_size), kind)


def _check_kind(node: ir.Node) -> str | None:
    kind = node.outputs[0].dtype
    return None if kind is not None and kind.is_floating_point() else f"random numbers of {kind}"


def _numbers(function: Callable[..., Array]) -> Composite:
    return Composite(function=function, check=_check_kind)


OPERATORS = {
    "Bernoulli": Composite(function=_bernoulli),
    "Multinomial": Composite(function=_multinomial),
    "RandomNormal": _numbers(_normal),
    "RandomNormalLike": _numbers(_normal_like),
    "RandomUniform": _numbers(_uniform),
    "RandomUniformLike": _numbers(_uniform_like),
}
