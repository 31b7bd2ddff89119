"""Shared parts of the detectors: a small backbone, inputs, and losses per object."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.networks.zoo.anchors import STRIDES
from deep5.networks.zoo.parts import activated, check_arguments, convolution, convolved

if TYPE_CHECKING:
    from deep5.networks.edit.builder import Initializer, NetworkBuilder

__all__ = ["check_detector", "feature_maps", "fixed", "head", "inputs", "per_object", "prior_bias", "squared", "summed"]


def check_detector(dtype: str, **sizes: int) -> None:
    """Check a detector's arguments.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, or an image whose size is not a
            multiple of the largest stride.
    """
    check_arguments(dtype, "cross_entropy", **sizes)
    if sizes["image"] % STRIDES[-1]:
        raise UsageError(f"got image = {sizes['image']}; allowed: a multiple of {STRIDES[-1]}, the largest stride")


def inputs(build: NetworkBuilder, image: int, channels: int) -> Any:
    """Declare `input`, and the true `boxes` and `classes`, which the network does not read: metrics do."""
    x = build.input("input", ("N", channels, image, image))
    build.input("boxes", ("N", "M", 4))
    build.input("classes", ("N", "M"), "int64")
    return x


def feature_maps(build: NetworkBuilder, x: Any, channels: int, width: int) -> tuple[Any, Any]:
    """Seven 3 x 3 convolutions with batch normalization and ReLU.

    Args:
        build: The builder.
        x: Images (N, channels, H, W).
        channels: Channels of the images.
        width: Channels of the first layers.

    Returns:
        The feature maps (N, 2 width, H / 4, W / 4) and (N, 4 width, H / 8, W / 8).
    """
    sizes = ((1, 2), (2, 2), (2, 1), (2, 1), (4, 2), (4, 1), (4, 1))
    maps = []
    for number, (factor, stride) in enumerate(sizes):
        name, out = f"conv{number + 1}", factor * width
        x = activated(build, convolved(build, x, name, (out, channels, 3, 3), stride), name, out)
        channels = out
        maps.append(x)
    return maps[3], maps[6]


def head(
    build: NetworkBuilder, x: Any, name: str, shape: tuple[int, ...], bias: Initializer, *, deviation: float = 0.01
) -> Any:
    """A convolution whose weights are normal with a small standard deviation; `shape` is (out, in, k, k)."""

    def small(rng: Any, shape: tuple[int, ...]) -> Any:
        return deviation * rng.standard_normal(shape)

    weight = build.parameter(f"{name}.weight", shape, small)
    return convolution(build, x, weight, build.parameter(f"{name}.bias", shape[:1], bias), pad=shape[2] // 2)


def fixed(build: NetworkBuilder, values: Any) -> Any:
    """Numbers that are not trained, in the network's element type; `constant` would make floats a parameter."""
    import numpy as np
    import onnx_ir as ir

    return build.op("Constant", value=ir.tensor(np.asarray(values, dtype=build.dtype)))


def prior_bias(probability: float) -> Initializer:
    """An initializer by which every sigmoid begins with this probability (Lin et al., 2017, section 4.1)."""

    def initial(rng: Any, shape: tuple[int, ...]) -> Any:
        import numpy as np

        return np.full(shape, -math.log((1 - probability) / probability))

    return initial


def squared(build: NetworkBuilder, x: Any) -> Any:
    """The square of each element."""
    return build.op("Mul", x, x)


def summed(build: NetworkBuilder, x: Any, name: str, axes: tuple[int, ...]) -> Any:
    """The sum over some axes, which are dropped."""
    import numpy as np

    return build.op("ReduceSum", x, build.constant(name, np.array(axes)), keepdims=0)


def per_object(build: NetworkBuilder, sums: Any, objects: Any) -> Any:
    """The mean over the images of a sum divided by the image's number of objects, of at least one; both (N,).

    Papers divide by the number in the whole batch. Divided by that of each image, the loss is a mean over samples, and
    training does not depend on how ranks or accumulated steps divide a batch.
    """
    counts = build.op("Max", objects, build.scalar(1.0))
    return build.op("ReduceMean", build.op("Div", sums, counts), keepdims=0)
