"""Small networks for first experiments: LeNet-5 and a network with one hidden layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deep5.networks.zoo.parts import (
    check_arguments,
    choice,
    convolution,
    dropped,
    finished,
    label_of,
    linear,
)

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["lenet", "mlp"]


def lenet(
    *,
    classes: int = 10,
    activation: str = "tanh",
    pooling: str = "average",
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """LeNet-5 for 28 x 28 gray images: two convolutions with pooling, three fully connected layers.

    With tanh and average pooling every layer is smooth, so that two correct float32 implementations stay close; with
    ReLU and max-pooling they diverge without bound.

    Args:
        classes: Number of classes.
        activation: `"tanh"` or `"relu"`.
        pooling: `"average"` or `"max"`.
        loss: `"cross_entropy"`, the mean over the batch; or `"mse"`, the mean over all elements.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: Glorot-uniform for tanh, He-normal for ReLU, biases zero.

    Returns:
        Inputs `input` (N, 1, 28, 28) and `label`, (N,) int64 or, for the squared error, (N, classes) in the network's
        dtype; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown activation, pooling, loss or dtype, or a size that is not an integer of at least 1.

    References:
        LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998, figure 2; every
        feature map of the second convolution is connected to all of the first, and the last layer is linear.

    >>> import deep5 as d5
    >>> network = d5.networks.lenet()
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'input': 'float32[N, 1, 28, 28]', 'label': 'int64[N]'}
    >>> {name: str(spec) for name, spec in network.outputs.items()}
    {'logits': 'float32[N, 10]', 'loss': 'float32[]'}
    >>> sum(spec.size for spec in network.parameter_specs.values())
    61706
    """
    from deep5.networks.edit.builder import NetworkBuilder, glorot_uniform, he_normal, zeros

    nonlinear = choice("activation", activation, {"tanh": "Tanh", "relu": "Relu"})
    pool = choice("pooling", pooling, {"average": "AveragePool", "max": "MaxPool"})
    init = glorot_uniform if activation == "tanh" else he_normal
    check_arguments(dtype, loss, classes=classes)
    build = NetworkBuilder("lenet", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 1, 28, 28)), label_of(build, loss, classes)

    for name, shape, pad in (("conv1", (6, 1, 5, 5), 2), ("conv2", (16, 6, 5, 5), 0)):
        weight, bias = build.parameter(f"{name}.weight", shape, init), build.parameter(f"{name}.bias", shape[:1], zeros)
        x = convolution(build, x, weight, bias, pad=pad)
        x = build.op(pool, build.op(nonlinear, x), kernel_shape=[2, 2], strides=[2, 2])
    x = build.op("Flatten", x, axis=1)
    for name, sizes in (("fc1", (120, 400)), ("fc2", (84, 120)), ("fc3", (classes, 84))):
        x = linear(build, x, name, sizes, init)
        x = x if name == "fc3" else build.op(nonlinear, x)
    return finished(build, x, label, loss)


def mlp(
    *,
    features: int = 784,
    hidden: int = 500,
    classes: int = 10,
    activation: str = "tanh",
    dropout: float = 0.0,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A network with one hidden layer.

    Args:
        features: Features of a sample.
        hidden: Size of the hidden layer.
        classes: Number of classes.
        activation: As for `lenet`.
        dropout: Dropout probability after the hidden layer.
        loss: As for `lenet`.
        dtype: Element type of parameters and features.
        seed: As for `lenet`.

    Returns:
        Inputs `input` (N, features) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown activation, loss or dtype, a size that is not an integer of at least 1, or a dropout
            outside [0, 1).

    >>> import deep5 as d5
    >>> network = d5.networks.mlp(features=4, hidden=8, classes=3, activation="relu", dropout=0.5)
    >>> {name: spec.shape for name, spec in network.parameter_specs.items()}
    {'fc1.weight': (8, 4), 'fc1.bias': (8,), 'fc2.weight': (3, 8), 'fc2.bias': (3,)}
    >>> [node.op_type for node in network.nodes]
    ['Gemm', 'Relu', 'Constant', 'Dropout', 'Gemm', 'SoftmaxCrossEntropyLoss']
    """
    from deep5.networks.edit.builder import NetworkBuilder, glorot_uniform, he_normal

    nonlinear = choice("activation", activation, {"tanh": "Tanh", "relu": "Relu"})
    init = glorot_uniform if activation == "tanh" else he_normal
    check_arguments(dtype, loss, dropout=dropout, features=features, hidden=hidden, classes=classes)
    build = NetworkBuilder("mlp", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", features)), label_of(build, loss, classes)
    x = build.op(nonlinear, linear(build, x, "fc1", (hidden, features), init))
    x = linear(build, dropped(build, x, dropout), "fc2", (classes, hidden), init)
    return finished(build, x, label, loss)
