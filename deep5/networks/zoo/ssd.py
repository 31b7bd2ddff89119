"""A single-shot detector with anchors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deep5.networks.zoo.anchors import SCALES, VARIANCES, anchor_boxes, anchors_per_cell
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

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["ssd"]

# Lin et al., section 5.1: the best pair.
_ALPHA = 0.25


def ssd(
    *,
    image: int = 64,
    channels: int = 1,
    classes: int = 10,
    width: int = 16,
    scales: Sequence[float] = SCALES,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A single-shot detector: at every anchor of two feature maps it predicts the classes and the offsets of a box.

    The loss is the mean over the images of (focal loss of the classes + smooth L1 loss of the offsets of the matched
    anchors) / (matched anchors of the image, at least 1). The focal loss (gamma 2, alpha 0.25) replaces the softmax and
    the mining of hard negatives of the paper: background is the absence of all classes. The transform `MatchAnchors`
    makes the targets.

    Args:
        image: Height and width of the images in pixels, a multiple of 8.
        channels: Channels of the images.
        classes: Number of classes, without the background.
        width: Channels of the first layer; the others have 2 and 4 times as many.
        scales: Of the anchors, as for `MatchAnchors`, which needs the same ones: three increasing fractions of the
            image's size.
        dtype: Element type of parameters and images.
        seed: Seed of the initial weights: He-normal; those of the heads normal with standard deviation 0.01. Every
            class begins with the probability 0.01.

    Returns:
        Inputs `input` (N, channels, image, image), `class_targets` (N, anchors, classes), `offset_targets`
        (N, anchors, 4), and `boxes` (N, M, 4) and `classes` (N, M) int64 for metrics, which the network does not read.
        Outputs `predicted_boxes` (N, anchors, 4): left, top, right, bottom in pixels; `predicted_scores` (N, anchors,
        classes), probabilities; and the scalar `loss`.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, an image whose size is not a multiple
            of 8, or scales that are not three increasing numbers in (0, 1].

    References:
        Liu et al., SSD: Single shot multibox detector, ECCV 2016, section 2 (arXiv:1512.02325); Lin et al., Focal loss
        for dense object detection, ICCV 2017, equation 5 and section 4.1 (arXiv:1708.02002).

    >>> import deep5 as d5
    >>> network = d5.networks.ssd(image=32, classes=3)
    >>> {name: str(spec) for name, spec in network.inputs.items() if name.endswith("targets")}
    {'class_targets': 'float32[N, 320, 3]', 'offset_targets': 'float32[N, 320, 4]'}
    >>> {name: str(spec) for name, spec in network.outputs.items()}
    {'predicted_boxes': 'float32[N, 320, 4]', 'predicted_scores': 'float32[N, 320, 3]', 'loss': 'float32[]'}
    """
    from deep5.networks.edit.builder import NetworkBuilder, zeros

    check_detector(dtype, image=image, channels=channels, classes=classes, width=width)
    anchors = anchor_boxes(image, scales)
    build = NetworkBuilder("ssd", dtype=dtype, seed=seed)
    x = inputs(build, image, channels)
    class_targets = build.input("class_targets", ("N", len(anchors), classes))
    offset_targets = build.input("offset_targets", ("N", len(anchors), 4))

    maps = feature_maps(build, x, channels, width)
    logits: list[Any] = []
    offsets: list[Any] = []
    for number, (features, factor) in enumerate(zip(maps, (2, 4), strict=True)):
        for found, what, size, bias in (
            (logits, "classes", classes, prior_bias(0.01)),
            (offsets, "offsets", 4, zeros),
        ):
            name, out = f"{what}{number + 1}", anchors_per_cell() * size
            found.append(_rows(build, head(build, features, name, (out, factor * width, 3, 3), bias), name, size))
    scores, offset = (build.op("Concat", *found, axis=1) for found in (logits, offsets))

    probability = build.op("Sigmoid", scores)
    matched = build.op("ReduceMax", class_targets, _axes(build, "matched.axes", (2,)), keepdims=1)
    error = build.op("Mul", _smooth_l1(build, build.op("Sub", offset, offset_targets)), matched)
    sums = build.op(
        "Add",
        summed(build, _focal(build, scores, probability, class_targets), "loss.classes", (1, 2)),
        summed(build, error, "loss.offsets", (1, 2)),
    )
    return build.network({
        "predicted_boxes": _decoded(build, offset, anchors),
        "predicted_scores": probability,
        "loss": per_object(build, sums, summed(build, matched, "loss.matched", (1, 2))),
    })  # fmt: skip


def _axes(build: NetworkBuilder, name: str, axes: tuple[int, ...]) -> Any:
    import numpy as np

    return build.constant(name, np.array(axes))


def _rows(build: NetworkBuilder, x: Any, name: str, size: int) -> Any:
    """(N, anchors * size, H, W) as (N, H * W * anchors, size)."""
    import numpy as np

    last = build.op("Transpose", x, perm=[0, 2, 3, 1])
    return build.op("Reshape", last, build.constant(f"{name}.rows", np.array([0, -1, size])))


def _focal(build: NetworkBuilder, logits: Any, probability: Any, targets: Any) -> Any:
    """alpha_t (1 - p_t)^2 (-log p_t), for targets y of 0 and 1: 1 - p_t = |y - p|, -log p_t = softplus(x) - x y."""
    cross_entropy = build.op("Sub", build.op("Softplus", logits), build.op("Mul", logits, targets))
    missing = squared(build, build.op("Sub", probability, targets))
    weight = build.op("Mul", targets, build.scalar(2 * _ALPHA - 1))
    weight = build.op("Add", weight, build.scalar(1 - _ALPHA))
    return build.op("Mul", weight, build.op("Mul", missing, cross_entropy))


def _smooth_l1(build: NetworkBuilder, difference: Any) -> Any:
    """d^2 / 2 where |d| < 1, and |d| - 1/2 elsewhere: m (|d| - m / 2) with m = min(|d|, 1)."""
    size = build.op("Abs", difference)
    least = build.op("Min", size, build.scalar(1.0))
    return build.op("Mul", least, build.op("Sub", size, build.op("Mul", least, build.scalar(0.5))))


def _decoded(build: NetworkBuilder, offsets: Any, anchors: np.ndarray) -> Any:
    """The corners of the predicted boxes; the inverse of `deep5.training.detection.encoded`."""
    size = anchors[:, 2:] - anchors[:, :2]
    center = (anchors[:, :2] + anchors[:, 2:]) / 2
    shift, growth = build.op("Split", offsets, axis=-1, num_outputs=2, outputs=2)
    middle = build.op("Add", build.op("Mul", shift, fixed(build, VARIANCES[0] * size)), fixed(build, center))
    growth = build.op("Exp", build.op("Mul", growth, build.scalar(VARIANCES[1])))
    half = build.op("Mul", growth, fixed(build, size / 2))
    return build.op("Concat", build.op("Sub", middle, half), build.op("Add", middle, half), axis=-1)
