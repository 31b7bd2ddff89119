"""`random_feed`: inputs for a network, drawn at random, that it can run on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deep5.core.seeds import generator
from deep5.core.tensors import numpy_dtype
from deep5.networks.labels import label_inputs
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["random_feed"]

# What hands its first input on as it is, or rearranged.
_SAME = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))


def random_feed(network: Network, extents: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """A batch of inputs: floats of the standard normal distribution; labels and indices that exist; of what else is
    whole, zeros and ones.

    Args:
        network: The network.
        extents: Every symbolic extent of the inputs, by name.
        seed: Of the numbers.

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
        if spec.dtype.startswith(("float", "bfloat")):
            feed[name] = draw.standard_normal(shape, np.float32).astype(dtype)
        else:
            feed[name] = draw.integers(0, below.get(name, 2), shape).astype(dtype)
    return feed


def _indices(network: Network) -> dict[str, int]:
    """The inputs that rows of a table are taken by, and how many rows there are; of several tables the fewest."""
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
