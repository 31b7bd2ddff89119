"""A detector of objects as the peaks of a heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.networks.zoo.anchors import STRIDES
from deep5.networks.zoo.detection import (
    check_detector,
    feature_maps,
    fixed,
    head,
    inputs,
    per_object,
    prior_bias,
    squared,
    summed,
)
from deep5.networks.zoo.parts import conv_relu

if TYPE_CHECKING:
    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["center_net"]

# Zhou et al., section 3.
_SIZE_WEIGHT = 0.1


def center_net(
    *,
    image: int = 64,
    channels: int = 1,
    classes: int = 10,
    width: int = 16,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A detector without anchors: a heat map for each class has its peaks at the objects' centers.

    At each center, four more maps hold the size of the box and the offset of the center within its cell of 4 x 4
    pixels. The loss is the mean over the images of (focal loss of the heat map + 0.1 L1 loss of the sizes + L1 loss of
    the offsets) / (objects of the image, at least 1), sizes in cells. The transform `DrawCenters` makes the targets. A
    score is zero where a neighboring cell has a larger one, so no further suppression is needed.

    Args:
        image: Height and width of the images in pixels, a multiple of 8.
        channels: Channels of the images.
        classes: Number of classes.
        width: Channels of the first layer; the others have 2 and 4 times as many.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: He-normal; those of the last layers normal with standard deviation 0.01.
            Every class begins with the probability 0.1.

    Returns:
        Inputs `input` (N, channels, image, image), `heat_targets` (N, classes, image / 4, image / 4), `size_targets`
        (N, 4, image / 4, image / 4), and `boxes` (N, M, 4) and `classes` (N, M) int64 for metrics, which the network
        does not read. Outputs, for each cell, `predicted_boxes` (N, cells, 4): left, top, right, bottom in pixels;
        `predicted_scores` (N, cells, classes), probabilities; and the scalar `loss`.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, or an image whose size is not a
            multiple of 8.

    References:
        Zhou et al., Objects as points, 2019, sections 3 and 4 (arXiv:1904.07850). The backbone is that of `ssd`, its
        coarse feature map enlarged and added to the fine one.

    >>> import deep5 as d5
    >>> network = d5.networks.center_net(image=32, classes=3)
    >>> {name: str(spec) for name, spec in network.inputs.items() if name.endswith("targets")}
    {'heat_targets': 'float32[N, 3, 8, 8]', 'size_targets': 'float32[N, 4, 8, 8]'}
    >>> {name: str(spec) for name, spec in network.outputs.items()}
    {'predicted_boxes': 'float32[N, 64, 4]', 'predicted_scores': 'float32[N, 64, 3]', 'loss': 'float32[]'}
    """
    from deep5.networks.edit.builder import NetworkBuilder, he_normal, zeros

    check_detector(dtype, image=image, channels=channels, classes=classes, width=width)
    cells = image // STRIDES[0]
    build = NetworkBuilder("center_net", dtype=dtype, seed=seed)
    x = inputs(build, image, channels)
    heat_targets = build.input("heat_targets", ("N", classes, cells, cells))
    size_targets = build.input("size_targets", ("N", 4, cells, cells))

    fine, coarse = feature_maps(build, x, channels, width)
    enlarging = build.parameter("enlarge.weight", (4 * width, 2 * width, 2, 2), he_normal)
    enlarged = build.op("ConvTranspose", coarse, enlarging, kernel_shape=[2, 2], strides=[2, 2])
    features = build.op("Add", fine, enlarged)
    hidden = [conv_relu(build, features, name, (2 * width, 2 * width, 3, 3)) for name in ("heat.conv", "size.conv")]
    heat = head(build, hidden[0], "heat", (classes, 2 * width, 1, 1), prior_bias(0.1))
    sizes = head(build, hidden[1], "size", (4, 2 * width, 1, 1), zeros)

    probability = build.op("Sigmoid", heat)
    # Exactly one at the centers, and less everywhere else.
    peaks = build.op("Cast", build.op("GreaterOrEqual", heat_targets, build.scalar(1.0)), to=_element_type(build))
    centers = build.op("ReduceMax", peaks, _constant(build, "centers.axes", [1]), keepdims=1)
    error = build.op("Mul", build.op("Abs", build.op("Sub", sizes, size_targets)), centers)
    weights = fixed(build, [[[_SIZE_WEIGHT]], [[_SIZE_WEIGHT]], [[1.0]], [[1.0]]])
    sums = build.op(
        "Add",
        summed(build, _focal(build, heat, probability, heat_targets, peaks), "loss.heat", (1, 2, 3)),
        summed(build, build.op("Mul", error, weights), "loss.sizes", (1, 2, 3)),
    )
    return build.network({
        "predicted_boxes": _boxes(build, sizes, cells),
        "predicted_scores": _scores(build, probability, classes),
        "loss": per_object(build, sums, summed(build, peaks, "loss.objects", (1, 2, 3))),
    })  # fmt: skip


def _element_type(build: NetworkBuilder) -> int:
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(build.dtype))


def _constant(build: NetworkBuilder, name: str, values: Any) -> Any:
    import numpy as np

    return build.constant(name, np.array(values))


def _focal(build: NetworkBuilder, logits: Any, probability: Any, targets: Any, peaks: Any) -> Any:
    """Equation 1: at peaks -(1 - p)^2 log p, elsewhere -(1 - y)^4 p^2 log(1 - p), from logits."""
    other = build.op("Sub", build.scalar(1.0), probability)
    at_peaks = build.op("Mul", squared(build, other), build.op("Softplus", build.op("Neg", logits)))
    elsewhere = build.op("Mul", squared(build, probability), build.op("Softplus", logits))
    # Zero at peaks, where y is one.
    far = squared(build, squared(build, build.op("Sub", build.scalar(1.0), targets)))
    return build.op("Add", build.op("Mul", peaks, at_peaks), build.op("Mul", far, elsewhere))


def _scores(build: NetworkBuilder, heat: Any, classes: int) -> Any:
    """The probabilities that no neighbor exceeds, (N, cells, classes)."""
    largest = build.op("MaxPool", heat, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    peaks = build.op("Cast", build.op("Equal", heat, largest), to=_element_type(build))
    return _cells(build, build.op("Mul", heat, peaks), "scores.rows", classes)


def _boxes(build: NetworkBuilder, sizes: Any, cells: int) -> Any:
    """The corners of the boxes of all cells, (N, cells, 4), in pixels."""
    import numpy as np

    columns, rows = np.meshgrid(np.arange(cells), np.arange(cells), indexing="xy")
    origin = np.stack([columns, rows], axis=-1).reshape(1, -1, 2)
    size, offset = build.op("Split", _cells(build, sizes, "boxes.rows", 4), axis=-1, num_outputs=2, outputs=2)
    center = build.op("Add", offset, fixed(build, origin))
    half = build.op("Mul", size, build.scalar(0.5))
    corners = build.op("Concat", build.op("Sub", center, half), build.op("Add", center, half), axis=-1)
    return build.op("Mul", corners, build.scalar(float(STRIDES[0])))


def _cells(build: NetworkBuilder, x: Any, name: str, size: int) -> Any:
    """(N, size, H, W) as (N, H * W, size)."""
    rows = _constant(build, name, [0, -1, size])
    return build.op("Reshape", build.op("Transpose", x, perm=[0, 2, 3, 1]), rows)
