"""`random_feed`: random valid inputs for a network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deep5.core.errors import NetworkError
from deep5.core.seeds import generator
from deep5.core.tensors import numpy_dtype
from deep5.networks.labels import label_inputs
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["random_feed"]

# Of NumPy's arrays.
_MOST_AXES = 64
# Operators that only rearrange or cast the elements of their first input.
_SAME = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))


def random_feed(network: Network, extents: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """A batch of inputs: standard normal floats; valid labels and indices; zeros and ones for other integers; "a".

    Args:
        network: The network.
        extents: Every symbolic dimension of the inputs, by name.
        seed: Seed of the numbers.

    Raises:
        NetworkError: An input is a list or an optional value, or has more dimensions than NumPy's arrays.

    >>> from deep5.networks import mlp
    >>> feed = random_feed(mlp(features=4, classes=3), {"N": 2})
    >>> feed["input"].shape, feed["label"].shape, bool((feed["label"] < 3).all())
    ((2, 4), (2,), True)
    """
    below = _indices(network) | {labels.name: labels.classes for labels in label_inputs(network)}
    feed = {}
    for name, spec in network.inputs.items():
        draw = generator(seed, "feed", name)
        shape = tuple(extents[extent] if isinstance(extent, str) else extent for extent in spec.shape)
        dtype = np.dtype(numpy_dtype(spec.dtype))
        if spec.collection:
            raise NetworkError(
                f"no random value for the input {name!r}, {spec}; allowed: inputs that are tensors; remedy: "
                "executor.inference with your own values"
            )
        if len(shape) > _MOST_AXES:
            raise NetworkError(
                f"no random value for the input {name!r} of {len(shape)} dimensions; allowed: at most {_MOST_AXES}, as "
                "NumPy has; remedy: fewer dimensions"
            )
        if spec.dtype == "string":
            feed[name] = np.full(shape, "a", dtype)
        elif spec.dtype.startswith(("float", "bfloat")):
            feed[name] = draw.standard_normal(shape, np.float32).astype(dtype)
        else:
            feed[name] = draw.integers(0, below.get(name, 2), shape).astype(dtype)
    return feed


def _indices(network: Network) -> dict[str, int]:
    """The inputs that are row indices of a table, with the number of rows; for several tables, the smallest number."""
    found: dict[str, int] = {}
    for node in network.nodes:
        if node.op_type != "Gather" or node.domain:
            continue
        data, chosen = node.inputs[:2]
        while chosen is not None and (maker := chosen.producer()) is not None and maker.op_type in _SAME:
            chosen = maker.inputs[0]
        if data is None or data.shape is None or chosen is None or chosen.name not in network.inputs:
            continue
        rows = data.shape[attribute(node, "axis", 0)]
        if isinstance(rows, int):
            found[str(chosen.name)] = min(rows, found.get(str(chosen.name), rows))
    return found
