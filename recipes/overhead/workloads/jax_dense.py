"""Hand-written networks on JAX: dense layers, embeddings and graphs.

Each class has the arguments of the network of `deep5.networks` that it matches, and the names of the inputs that it
takes. `values_of` converts the network's weights to its own, a dictionary of arrays whose dense layers are (in, out);
`statistics` makes the running statistics; and `loss` takes weights, statistics, a random key and a batch, and returns
the loss with the new statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Autoencoder", "GraphNetwork", "Model", "Policy", "Recommender", "cross_entropy", "dense", "product"]

Arrays = Mapping[str, np.ndarray]
Tree = Any


class Model:
    """What all have: no statistics, unless they say otherwise, and arguments that they do not need."""

    inputs: tuple[str, ...] = ("input", "label")

    def __init__(self, **given: Any) -> None:
        self.given = given

    def statistics(self, parameters: Tree) -> Tree:
        return {}

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        """Dense layers (out, in), except tables, transposed."""
        return {name: value.T if name.endswith(".weight") else value for name, value in given.items()}


def product(x: Any, weight: Any) -> Any:
    """x W of any number of leading axes, as one matrix product: XLA takes longer for several axes of rows."""
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], weight.shape[1])


def dense(p: Tree, name: str, x: Any) -> Any:
    """x W + b."""
    return product(x, p[f"{name}.weight"]) + p[f"{name}.bias"]


def _stacked(p: Tree, name: str, x: Any) -> Any:
    """Dense layers with ReLU in between."""
    import jax

    count = sum(key.startswith(name) and key.endswith(".weight") for key in p)
    for index in range(count):
        x = dense(p, f"{name}{index}", jax.nn.relu(x) if index else x)
    return x


def cross_entropy(logits: Any, labels: Any, *, ignores: bool = False) -> Any:
    """The mean cross entropy over all labels, or over those that are not negative."""
    import jax.numpy as jnp
    import optax

    if not ignores:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    there = labels >= 0
    costs = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(there, labels, 0))
    return jnp.sum(jnp.where(there, costs, 0.0)) / jnp.sum(there)


class Autoencoder(Model):
    """`d5.networks.autoencoder`."""

    inputs = ("input",)

    def loss(self, p: Tree, statistics: Tree, key: Any, input: Any) -> Any:  # noqa: A002 - the network's name
        import jax.numpy as jnp

        x = input.reshape(len(input), -1)
        return jnp.mean(jnp.square(_stacked(p, "decoder", _stacked(p, "encoder", x)) - x)), statistics


class Recommender(Model):
    """`d5.networks.dlrm`."""

    inputs = ("numeric", "categories", "label")

    def loss(self, p: Tree, statistics: Tree, key: Any, numeric: Any, categories: Any, label: Any) -> Any:
        import jax
        import jax.numpy as jnp
        import optax

        x = jax.nn.relu(_stacked(p, "bottom", numeric))
        tables = len(self.given["tables"])
        embedded = [p[f"embedding{index}"][categories[:, index]] for index in range(tables)]
        vectors = jnp.stack([x, *embedded], 1)
        rows, columns = np.tril_indices(tables + 1, -1)
        below = (vectors @ vectors.swapaxes(1, 2))[:, rows, columns]
        logits = _stacked(p, "top", jnp.concatenate([x, below], 1))[:, 0]
        return optax.sigmoid_binary_cross_entropy(logits, label.astype(logits.dtype)).mean(), statistics


class GraphNetwork(Model):
    """`d5.networks.gcn`: a dense adjacency matrix, which is normalized in each step, since it belongs to a sample."""

    inputs = ("input", "adjacency", "label")

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        return dict(given)

    def loss(self, p: Tree, statistics: Tree, key: Any, input: Any, adjacency: Any, label: Any) -> Any:  # noqa: A002
        import jax
        import jax.numpy as jnp

        root, kept = jax.lax.rsqrt(adjacency.sum(2, keepdims=True) + 1), 1.0 - self.given["dropout"]

        def layer(x: Any, name: str, key: Any) -> Any:
            if kept < 1.0:
                x = jnp.where(jax.random.bernoulli(key, kept, x.shape), x / kept, 0.0)
            x = root * product(x, p[f"{name}.weight"])
            return root * (adjacency @ x + x)

        first, second = jax.random.split(key)
        logits = layer(jax.nn.relu(layer(input, "layer0", first)), "layer1", second)
        return cross_entropy(logits, label, ignores=True), statistics


class Policy(Model):
    """`d5.networks.policy_network`."""

    inputs = ("input", "action", "target")

    def loss(self, p: Tree, statistics: Tree, key: Any, input: Any, action: Any, target: Any) -> Any:  # noqa: A002
        import jax.numpy as jnp
        import optax

        x, count = input, len(self.given["hidden"])
        for index in range(count):
            x = jnp.tanh(dense(p, f"fc{index + 1}", x))
        costs = optax.softmax_cross_entropy_with_integer_labels(dense(p, f"fc{count + 1}", x), action)
        return jnp.mean(costs * target), statistics
