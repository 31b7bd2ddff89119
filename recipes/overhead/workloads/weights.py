"""Weights of deep5's networks, which have ONNX's layout, in the layouts and names of hand-written modules."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["linear", "recurrent", "renamed", "transposed"]

Arrays = Mapping[str, np.ndarray]

_GATES = {3: (1, 0, 2), 4: (0, 2, 3, 1)}
"""PyTorch's gates by their numbers in ONNX's order: r, z, n of z, r, h (GRU); and i, f, g, o of i, o, f, c (LSTM)."""


def renamed(given: Arrays, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Some weights by other names.

    Args:
        given: The network's weights.
        names: New names, and those in `given`.
    """
    return {new: given[old] for new, old in names.items()}


def linear(given: Arrays, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Weights (out, in) and biases of layers, by the layers' new names; as `renamed`."""
    return {f"{new}.{part}": given[f"{old}.{part}"] for new, old in names.items() for part in ("weight", "bias")}


def transposed(given: Arrays, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """As `linear`, of layers whose weights are (in, out) in the network."""
    return {name: value.T if value.ndim == 2 else value for name, value in linear(given, names).items()}


def recurrent(given: Arrays, new: str, old: str, layer: int = 0) -> dict[str, np.ndarray]:
    """The weights and biases of one recurrent layer, as those of a layer of `torch.nn.GRU` or `torch.nn.LSTM`.

    Args:
        given: The network's weights.
        new: Name of the module.
        old: Name of the layer in the network.
        layer: Number of the layer in the module.
    """
    weight, recurrence, bias = (given[f"{old}.{part}"] for part in ("input_weight", "hidden_weight", "bias"))
    gates = _GATES[recurrence.shape[1] // recurrence.shape[2]]
    made = {}
    for direction in range(len(weight)):
        first, second = np.split(bias[direction], 2)
        parts = {
            "weight_ih": weight[direction],
            "weight_hh": recurrence[direction],
            "bias_ih": first,
            "bias_hh": second,
        }
        end = "_reverse" if direction else ""
        for name, value in parts.items():
            blocks = np.split(value, len(gates))
            made[f"{new}.{name}_l{layer}{end}"] = np.concatenate([blocks[gate] for gate in gates])
    return made
