"""Hand-written transformers on JAX; see `jax_dense` for what a class has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.recipes.overhead.workloads.jax_dense import Model, cross_entropy, dense, product

__all__ = ["Decoder", "VisionTransformer"]

Arrays = Mapping[str, np.ndarray]
Tree = Any


def _norm(p: Tree, name: str, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.scale"] + p[f"{name}.bias"]


def _blocks(p: Tree, x: Any, given: Mapping[str, Any], *, causal: bool) -> Any:
    """Pre-norm blocks, and the normalization after them; the decoder's GELU is the approximation.

    Not by `jax.nn.dot_product_attention`, whose softmax is in float32 even for float64.
    """
    import jax
    import jax.numpy as jnp

    def split(part: Any) -> Any:
        return part.reshape(*part.shape[:2], given["heads"], -1).transpose(0, 2, 1, 3)

    for index in range(given["layers"]):
        attention, feed = f"block{index}.attention", f"block{index}.feed_forward"
        q, k, v = map(split, jnp.split(dense(p, f"{attention}.qkv", _norm(p, f"{attention}.norm", x)), 3, -1))
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        if causal:
            scores = jnp.where(np.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
        y = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3)
        x = x + dense(p, f"{attention}.out", y.reshape(x.shape))
        y = jax.nn.gelu(dense(p, f"{feed}.in", _norm(p, f"{feed}.norm", x)), approximate=causal)
        x = x + dense(p, f"{feed}.out", y)
    return _norm(p, "norm", x)


class Decoder(Model):
    """`d5.networks.gpt` without dropout; its last layer has the weights of the embedding."""

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        return dict(given)

    def loss(self, p: Tree, statistics: Tree, key: Any, input: Any, label: Any) -> Any:  # noqa: A002 - the network's
        x = _blocks(p, p["embedding"][input] + p["position"], self.given, causal=True)
        return cross_entropy(product(x, p["embedding"].T), label), statistics


class VisionTransformer(Model):
    """`d5.networks.vit` without dropout; a patch is a row of pixels."""

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        patches, head = given["patches.weight"], given["classifier.weight"]
        return {**given, "patches.weight": patches.reshape(len(patches), -1).T, "classifier.weight": head.T}

    def loss(self, p: Tree, statistics: Tree, key: Any, input: Any, label: Any) -> Any:  # noqa: A002 - the network's
        import jax.numpy as jnp

        samples, channels, height, width = input.shape
        side = self.given["patch"]
        x = input.reshape(samples, channels, height // side, side, width // side, side)
        x = x.transpose(0, 2, 4, 1, 3, 5).reshape(samples, -1, channels * side * side)
        x = dense(p, "patches", x)
        first = jnp.broadcast_to(p["class_token"], (samples, 1, x.shape[2]))
        x = _blocks(p, jnp.concatenate([first, x], 1) + p["position"], self.given, causal=False)
        return cross_entropy(dense(p, "classifier", x[:, 0]), label), statistics
