"""Hand-written recurrent networks on JAX; see `jax_dense` for what a class has.

The products with the inputs of all steps are one matrix product before the loop over the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.recipes.overhead.workloads.jax_dense import Model, cross_entropy, dense, product

__all__ = ["LanguageModel", "Speech", "Transducer"]

Arrays = Mapping[str, np.ndarray]
Tree = Any


def _split(given: Arrays) -> dict[str, np.ndarray]:
    """The weights of recurrent layers as matrices (in, gates), with their two biases, for each direction."""
    made = {}
    for name, value in given.items():
        layer, _, part = name.rpartition(".")
        recurrent = f"{layer}.hidden_weight" in given
        if recurrent and part == "bias":
            for direction, both in enumerate(value):
                made[f"{layer}{direction}.input_bias"], made[f"{layer}{direction}.hidden_bias"] = np.split(both, 2)
        elif recurrent:
            made |= {f"{layer}{direction}.{part}": matrix.T for direction, matrix in enumerate(value)}
        else:
            made[name] = value
    return made


def _lstm(p: Tree, name: str, x: Any) -> Any:
    """All states of an LSTM with ONNX's order of gates, i, o, f, c; x is (length, samples, features)."""
    import jax
    import jax.numpy as jnp

    recurrence = p[f"{name}.hidden_weight"]
    given = product(x, p[f"{name}.input_weight"]) + (p[f"{name}.input_bias"] + p[f"{name}.hidden_bias"])
    zeros = jnp.zeros((x.shape[1], len(recurrence)), x.dtype)

    def step(state: Any, given: Any) -> Any:
        hidden, cell = state
        i, o, f, c = jnp.split(given + hidden @ recurrence, 4, 1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(c)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    return jax.lax.scan(step, (zeros, zeros), given)[1]


def _gru(p: Tree, name: str, x: Any, *, begin: Any = None, there: Any = None, reverse: bool = False) -> Any:
    """The last and all states of a GRU with ONNX's order of gates, z, r, h.

    Args:
        p: The weights.
        name: The layer and its direction.
        x: Shape (length, samples, features).
        begin: The first state; None: zeros.
        there: Shape (length, samples, 1): where a sample has not ended; elsewhere the state stays, and zero is
            returned.
        reverse: Whether the last step is the first.
    """
    import jax
    import jax.numpy as jnp

    recurrence, bias = p[f"{name}.hidden_weight"], p[f"{name}.hidden_bias"]
    given = product(x, p[f"{name}.input_weight"]) + p[f"{name}.input_bias"]
    begin = jnp.zeros((x.shape[1], len(recurrence)), x.dtype) if begin is None else begin

    def step(hidden: Any, given: Any) -> Any:
        given, here = given
        z, r, h = jnp.split(given, 3, 1)
        own_z, own_r, own_h = jnp.split(hidden @ recurrence + bias, 3, 1)
        z, r = jax.nn.sigmoid(z + own_z), jax.nn.sigmoid(r + own_r)
        new = (1 - z) * jnp.tanh(h + r * own_h) + z * hidden
        if here is None:
            return new, new
        return jnp.where(here, new, hidden), jnp.where(here, new, 0.0)

    return jax.lax.scan(step, begin, (given, there), reverse=reverse)


class LanguageModel(Model):
    """`d5.networks.lstm_language_model` without dropout."""

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        return _split(given)

    def loss(self, p: Tree, statistics: Tree, key: Any, input: Any, label: Any) -> Any:  # noqa: A002 - the network's
        x = p["embedding"][input.T]
        for layer in range(self.given["layers"]):
            x = _lstm(p, f"lstm{layer}0", x)
        return cross_entropy(dense(p, "fc", x), label.T), statistics


class Transducer(Model):
    """`d5.networks.attention_seq2seq` without dropout."""

    inputs = ("source", "target", "label")

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        return _split(given)

    def loss(self, p: Tree, statistics: Tree, key: Any, source: Any, target: Any, label: Any) -> Any:
        import jax
        import jax.numpy as jnp

        x = p["source.embedding"][source.T]
        _, forward = _gru(p, "encoder0", x)
        last, backward = _gru(p, "encoder1", x, reverse=True)
        states = jnp.concatenate([forward, backward], 2)
        begin = jnp.tanh(dense(p, "decoder.begin", last))
        _, hidden = _gru(p, "decoder0", p["target.embedding"][target.T], begin=begin)
        scores = jnp.einsum("tnf,snf->nts", hidden, product(states, p["attention.weight"]))
        weights = jax.nn.softmax(jnp.where((source == 0)[:, None], -1e9, scores))
        context = jnp.einsum("nts,snf->tnf", weights, states)
        attended = jnp.tanh(dense(p, "combined", jnp.concatenate([context, hidden], 2)))
        return cross_entropy(dense(p, "fc", attended), label.T, ignores=True), statistics


class Speech(Model):
    """`d5.networks.deep_speech`, with Optax's loss of connectionist temporal classification."""

    inputs = ("input", "labels", "input_length", "label_length")

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        return {**_split(given), "conv.weight": given["conv.weight"].transpose(2, 1, 0)}

    def loss(
        self,
        p: Tree,
        statistics: Tree,
        key: Any,
        input: Any,  # noqa: A002 - the network's name
        labels: Any,
        input_length: Any,
        label_length: Any,
    ) -> Any:
        import jax
        import jax.numpy as jnp
        import optax

        stride, kernel = self.given.get("stride", 2), p["conv.weight"]
        steps = (input_length + stride - 1) // stride
        x = jax.lax.conv_general_dilated(
            input, kernel, (stride,), [(len(kernel) // 2,) * 2], dimension_numbers=("NWC", "WIO", "NWC")
        )
        x = jnp.clip(x + p["conv.bias"], 0.0, 20.0).swapaxes(0, 1)
        there = (jnp.arange(len(x))[:, None] < steps)[:, :, None]
        for layer in range(self.given["layers"]):
            _, forward = _gru(p, f"gru{layer}0", x, there=there)
            _, backward = _gru(p, f"gru{layer}1", x, there=there, reverse=True)
            x = forward + backward
        logits = dense(p, "fc", x).swapaxes(0, 1)
        after = jnp.arange(labels.shape[1]) >= label_length[:, None]
        paddings = (1.0 - there[:, :, 0].T.astype(logits.dtype)), after.astype(logits.dtype)
        return optax.ctc_loss(logits, paddings[0], labels, paddings[1]).mean(), statistics
