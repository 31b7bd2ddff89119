"""A network that classifies the nodes of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.networks.zoo.parts import check_arguments, dropped

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["gcn"]


def gcn(
    *,
    nodes: int = 2708,
    features: int = 1433,
    hidden: int = 16,
    classes: int = 7,
    dropout: float = 0.5,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A graph convolutional network of two layers; its default sizes are those of the paper for the Cora graph.

    Z = A' relu(A' X W0) W1, where A' = D^-1/2 (A + I) D^-1/2 is the adjacency matrix with a loop at each
    node, normalized by the degrees D of its nodes. A sample is a whole graph, with a label for some of its nodes.

    Args:
        nodes: Nodes of a graph.
        features: Features of a node.
        hidden: Features of a node after the first layer.
        classes: Number of classes.
        dropout: Dropout probability for the features and after the first layer.
        dtype: Element type of parameters, features and the adjacency matrix.
        seed: Seed of the initial weights: Glorot-uniform.

    Returns:
        Inputs `input` (N, nodes, features), `adjacency` (N, nodes, nodes), symmetric and not negative, and `label`
        (N, nodes) int64, a class or -1 for a node without one; outputs `logits` (N, nodes, classes) and the scalar
        `loss`, the mean over the nodes with a label.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, or a dropout outside [0, 1).

    References:
        Kipf and Welling, Semi-supervised classification with graph convolutional networks, ICLR 2017,
        arXiv:1609.02907, equations 2, 9 and 10.

    >>> import deep5 as d5
    >>> network = d5.networks.gcn(nodes=5, features=3, hidden=4, classes=2)
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'input': 'float32[N, 5, 3]', 'adjacency': 'float32[N, 5, 5]', 'label': 'int64[N, 5]'}
    >>> {name: spec.shape for name, spec in network.parameter_specs.items()}
    {'layer0.weight': (3, 4), 'layer1.weight': (4, 2)}
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder

    sizes = {"nodes": nodes, "features": features, "hidden": hidden, "classes": classes}
    check_arguments(dtype, "cross_entropy", dropout, **sizes)
    build = NetworkBuilder("gcn", dtype=dtype, seed=seed)
    x, adjacency = build.input("input", ("N", nodes, features)), build.input("adjacency", ("N", nodes, nodes))
    label = build.input("label", ("N", nodes), "int64")

    degrees = build.op("ReduceSum", adjacency, build.constant("neighbors", np.array([2])), keepdims=1)
    root = build.op("Reciprocal", build.op("Sqrt", build.op("Add", degrees, build.scalar(1.0))))

    def layer(x: Any, index: int, into: int, out: int) -> Any:
        weight = build.parameter(f"layer{index}.weight", (into, out))
        x = build.op("Mul", root, build.op("MatMul", dropped(build, x, dropout), weight))
        # A' X = D^-1/2 (A (D^-1/2 X) + D^-1/2 X), without a second matrix of nodes by nodes.
        return build.op("Mul", root, build.op("Add", build.op("MatMul", adjacency, x), x))

    x = build.op("Relu", layer(x, 0, features, hidden))
    logits = layer(x, 1, hidden, classes)
    rows = build.op("Reshape", logits, build.constant("loss.rows", np.array([-1, classes])))
    targets = build.op("Reshape", label, build.constant("loss.targets", np.array([-1])))
    loss = build.op("SoftmaxCrossEntropyLoss", rows, targets, reduction="mean", ignore_index=-1)
    return build.network({"logits": logits, "loss": loss})
