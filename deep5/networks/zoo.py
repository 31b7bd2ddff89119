"""Networks by name, each a function of its sizes, dtype and seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.errors import UsageError

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["lenet", "mlp", "resnet"]


def lenet(
    *, classes: int = 10, activation: str = "tanh", pooling: str = "average", dtype: str = "float32", seed: int = 0
) -> Network:
    """LeNet-5 for 28 x 28 grey images: two convolutions with pooling, three fully connected layers.

    With tanh and average pooling every layer is smooth, so that two right float32 implementations stay together;
    with ReLU and max-pooling they drift apart without bound.

    Args:
        classes: Number of classes.
        activation: `"tanh"` or `"relu"`.
        pooling: `"average"` or `"max"`.
        dtype: Element type of parameters and images.
        seed: Of the initial weights: Glorot-uniform for tanh, He-normal for ReLU, biases zero.

    Returns:
        Inputs `input` (N, 1, 28, 28) and `label` (N,) int64; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown activation, pooling or dtype, or a size that is no whole number of at least 1.

    References:
        LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998, figure 2;
        every feature map of the second convolution sees all of the first, and the last layer is linear.
    """
    from deep5.networks.builder import NetworkBuilder, glorot_uniform, he_normal, zeros

    nonlinear = _choice("activation", activation, {"tanh": "Tanh", "relu": "Relu"})
    pool = _choice("pooling", pooling, {"average": "AveragePool", "max": "MaxPool"})
    init = glorot_uniform if activation == "tanh" else he_normal
    _check(dtype, classes=classes)
    build = NetworkBuilder("lenet", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 1, 28, 28)), build.input("label", ("N",), "int64")

    for name, shape, pad in (("conv1", (6, 1, 5, 5), 2), ("conv2", (16, 6, 5, 5), 0)):
        weight, bias = build.parameter(f"{name}.weight", shape, init), build.parameter(f"{name}.bias", shape[:1], zeros)
        x = build.op("Conv", x, weight, bias, kernel_shape=[5, 5], pads=[pad] * 4, strides=[1, 1])
        x = build.op(pool, build.op(nonlinear, x), kernel_shape=[2, 2], strides=[2, 2])
    x = build.op("Flatten", x, axis=1)
    for name, sizes in (("fc1", (120, 400)), ("fc2", (84, 120)), ("fc3", (classes, 84))):
        x = _linear(build, x, name, sizes, init)
        x = x if name == "fc3" else build.op(nonlinear, x)
    loss = build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")
    return build.network({"logits": x, "loss": loss})


def mlp(
    *,
    features: int = 784,
    hidden: int = 500,
    classes: int = 10,
    activation: str = "tanh",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """One hidden layer. Inputs `input` (N, features) and `label`; outputs and other arguments as for `lenet`."""
    from deep5.networks.builder import NetworkBuilder, glorot_uniform, he_normal

    nonlinear = _choice("activation", activation, {"tanh": "Tanh", "relu": "Relu"})
    init = glorot_uniform if activation == "tanh" else he_normal
    _check(dtype, features=features, hidden=hidden, classes=classes)
    build = NetworkBuilder("mlp", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", features)), build.input("label", ("N",), "int64")
    x = build.op(nonlinear, _linear(build, x, "fc1", (hidden, features), init))
    x = _linear(build, x, "fc2", (classes, hidden), init)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")})


def resnet(*, depth: int = 44, classes: int = 10, dtype: str = "float32", seed: int = 0) -> Network:
    """The residual network for 32 x 32 colour images: 6n + 2 layers, shortcuts without parameters.

    Args:
        depth: 6n + 2: 8, 14, 20, 32, 44, 56, 110.
        classes: Number of classes.
        dtype: Element type of parameters and images.
        seed: Of the initial weights (He-normal).

    Returns:
        Inputs `input` (N, 3, 32, 32) and `label` (N,) int64; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: A depth that is not 6n + 2, an unknown dtype, or classes that are no whole number of at least 1.

    References:
        He et al., Deep residual learning for image recognition, CVPR 2016, section 4.2 (option A shortcuts:
        every second pixel, missing channels zero).
    """
    from deep5.networks.builder import NetworkBuilder, glorot_uniform, he_normal, ones, zeros

    _check(dtype, depth=depth, classes=classes)
    if depth < 8 or (depth - 2) % 6:
        raise UsageError(f"a resnet of depth {depth!r} does not exist; allowed: 6n + 2, such as 8, 20, 44, 110")
    build = NetworkBuilder(f"resnet{depth}", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", 3, 32, 32)), build.input("label", ("N",), "int64")

    def conv_bn(x: Any, name: str, out: int, into: int, stride: int) -> Any:
        weight = build.parameter(f"{name}.weight", (out, into, 3, 3), he_normal)
        x = build.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1] * 4, strides=[stride] * 2)
        scale, bias = build.parameter(f"{name}.scale", (out,), ones), build.parameter(f"{name}.bias", (out,), zeros)
        mean, variance = (
            build.parameter(f"{name}.mean", (out,), zeros),
            build.parameter(f"{name}.variance", (out,), ones),
        )
        return build.op("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-5, momentum=0.9)

    x = build.op("Relu", conv_bn(x, "conv0", 16, 3, 1))
    into = 16
    for stage, out in enumerate((16, 32, 64), start=1):
        for block in range((depth - 2) // 6):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 0 else 1
            y = build.op("Relu", conv_bn(x, f"{name}.conv1", out, into, stride))
            y = conv_bn(y, f"{name}.conv2", out, out, 1)
            if stride == 2:
                x = _option_a(build, x, name, out - into)
            x, into = build.op("Relu", build.op("Add", y, x)), out
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    x = _linear(build, x, "fc", (classes, 64), glorot_uniform)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")})


def _option_a(build: Any, x: Any, name: str, channels: int) -> Any:
    import numpy as np

    def constant(suffix: str, *values: int) -> Any:
        return build.constant(f"{name}.{suffix}", np.array(values, dtype=np.int64))

    end = np.iinfo(np.int64).max
    x = build.op(
        "Slice",
        x,
        constant("starts", 0, 0),
        constant("ends", end, end),
        constant("axes", 2, 3),
        constant("steps", 2, 2),
    )
    return build.op("Pad", x, constant("pads", 0, channels // 2, 0, 0, 0, channels - channels // 2, 0, 0))


def _linear(build: Any, x: Any, name: str, sizes: tuple[int, int], init: Any) -> Any:
    from deep5.networks.builder import zeros

    weight, bias = build.parameter(f"{name}.weight", sizes, init), build.parameter(f"{name}.bias", sizes[:1], zeros)
    return build.op("Gemm", x, weight, bias, transB=1)


def _check(dtype: str, **sizes: int) -> None:
    if dtype not in ("float32", "float64"):
        raise UsageError(f"unknown dtype {dtype!r} of a network; allowed: float32, float64")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"got {name} = {size!r}; allowed: a whole number of at least 1")


def _choice(what: str, got: str, allowed: dict[str, str]) -> str:
    if got not in allowed:
        raise UsageError(f"unknown {what} {got!r}; allowed: {', '.join(allowed)}")
    return allowed[got]
