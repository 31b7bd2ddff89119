"""Operators that draw random numbers, from a key that each call receives and that changes at each step.

A node's own seed, or its position in the network, makes its stream different from that of other nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import onnx_ir as ir

from deep5.frameworks.jax.table import attribute, number, operator
from deep5.networks.network import Network

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__ = ["DRAWING", "draws"]

Array = Any
DRAWING = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def draws(network: Network) -> bool:
    """Whether a node of the network, or of a subgraph, draws random numbers."""
    return any(node.op_type in DRAWING and node.domain == "" for node in network.model.graph.all_nodes())


def _normal(key: Array, shape: tuple[int, ...], dtype: Any, mean: float, scale: float) -> Array:
    return (mean + scale * jax.random.normal(key, shape, jnp.promote_types(dtype, "float32"))).astype(dtype)


def _uniform(key: Array, shape: tuple[int, ...], dtype: Any, low: float, high: float) -> Array:
    return jax.random.uniform(key, shape, jnp.promote_types(dtype, "float32"), low, high).astype(dtype)


def _emit(emitter: Emitter, node: ir.Node, function: Any, numbers: dict[str, float]) -> None:
    like = node.op_type.endswith("Like")
    shape = f"{emitter.plain(node.inputs[0])}.shape" if like else repr(tuple(attribute(node, "shape", ())))
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    how = ", ".join(number(node, name, value) for name, value in numbers.items())
    key = emitter.key(attribute(node, "seed", None))
    emitter.assign(node.outputs[0], f"{emitter.bind(function)}({key}, {shape}, {dtype}, {how})")


def _random_normal(emitter: Emitter, node: ir.Node) -> None:
    _emit(emitter, node, _normal, {"mean": 0.0, "scale": 1.0})


def _random_uniform(emitter: Emitter, node: ir.Node) -> None:
    _emit(emitter, node, _uniform, {"low": 0.0, "high": 1.0})


for _suffix in ("", "Like"):
    operator(f"RandomNormal{_suffix}")(_random_normal)
    operator(f"RandomUniform{_suffix}")(_random_uniform)


def _bernoulli(x: Array, key: Array, dtype: Any) -> Array:
    drawn = jax.random.uniform(key, x.shape, jnp.promote_types(x.dtype, "float32"))
    return (drawn < x).astype(dtype)


@operator("Bernoulli")
def _bernoulli_of(emitter: Emitter, node: ir.Node) -> None:
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    how = f"{emitter.plain(node.inputs[0])}, {emitter.key(attribute(node, 'seed', None))}, {dtype}"
    emitter.assign(node.outputs[0], f"{emitter.bind(_bernoulli)}({how})")


def _multinomial(x: Array, key: Array, count: int, dtype: Any) -> Array:
    """Classes sampled from unnormalized log probabilities, (N, classes) to (N, count)."""
    drawn = jax.random.categorical(key, x[:, None, :], axis=-1, shape=(x.shape[0], count))
    return drawn.astype(dtype)


@operator("Multinomial")
def _multinomial_of(emitter: Emitter, node: ir.Node) -> None:
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    key, count = emitter.key(attribute(node, "seed", None)), attribute(node, "sample_size", 1)
    emitter.assign(
        node.outputs[0], f"{emitter.bind(_multinomial)}({emitter.plain(node.inputs[0])}, {key}, {count}, {dtype})"
    )
