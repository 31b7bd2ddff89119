"""Transforms that make the targets of a detector's loss from the true boxes and classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.networks.zoo.anchors import SCALES, STRIDES, anchor_boxes, check_scales
from deep5.training.detection.boxes import are_inside, encoded
from deep5.training.detection.matching import matched
from deep5.training.transforms.transform import described, image

__all__ = ["DrawCenters", "MatchAnchors"]

_PARTS = ("input", "boxes", "classes")
# CornerNet's overlap of a box whose corners are moved within the radius.
_OVERLAP = 0.7


@dataclass(frozen=True)
class _Targets(ABC):
    """Adds targets to samples with `input` (channels, H, H), `boxes` (M, 4) and `classes` (M), -1 for no box."""

    classes: int

    def __post_init__(self) -> None:
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 1:
            raise UsageError(f"{self._name}: got classes={brief(self.classes)}; allowed: an integer of at least 1")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def __call__(self, inputs: Mapping[str, np.ndarray], ids: np.ndarray | None, epoch: int) -> dict[str, np.ndarray]:
        """The batch with the targets added.

        Args:
            inputs: Samples by name, batch dimension first.
            ids: Not used.
            epoch: Not used.

        Raises:
            UsageError: A part is missing or has another shape, a class is not below `classes`, or a box has no area or
                is not within its image.
        """
        specs = {name: TensorSpec(shape=array.shape[1:], dtype=str(array.dtype)) for name, array in inputs.items()}
        side = self._side(specs)
        boxes, classes = np.asarray(inputs["boxes"], dtype=np.float64), inputs["classes"]
        if classes.size and classes.max() >= self.classes:
            raise UsageError(
                f"{self._name}: got an object of class {classes.max()}; allowed: 0 to {self.classes - 1}, and -1 for "
                f"no object; remedy: classes={classes.max() + 1} here and in the network"
            )
        wrong = (classes >= 0) & ~are_inside(boxes, side, side)
        if wrong.any():
            raise UsageError(
                f"{self._name}: got the box {boxes[wrong][0].tolist()}; allowed: left, top, right and bottom in pixels "
                f"from 0 to {side}, with right above left and bottom above top"
            )
        return {**inputs, **self.targets(side, boxes, classes)}

    def specs(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """The specs of the samples with the targets.

        Args:
            specs: The specs before, without the batch dimension.

        Raises:
            UsageError: A part is missing or has another shape.
        """
        shapes = self.shapes(self._side(specs))
        return {**specs, **{name: TensorSpec(shape=shape) for name, shape in shapes.items()}}

    def _side(self, specs: Mapping[str, TensorSpec]) -> int:
        """Height and width of the images."""
        for name in _PARTS:
            if name not in specs:
                raise UsageError(
                    f"{self._name}: the samples have no part {name!r}; allowed: samples of a detection data set, with "
                    f"{', '.join(_PARTS)}"
                )
        height, width = image(specs["input"], self._name)
        if height != width or height % STRIDES[-1]:
            raise UsageError(
                f"{self._name}: samples are {specs['input']}; allowed: square images, a multiple of {STRIDES[-1]} wide"
            )
        most = specs["classes"].shape
        if len(most) != 1 or specs["boxes"].shape != (*most, 4) or np.dtype(specs["classes"].dtype).kind not in "iu":
            raise UsageError(
                f"{self._name}: boxes are {specs['boxes']} and classes {specs['classes']}; allowed: (M, 4) numbers and "
                "(M) integers"
            )
        return height

    @abstractmethod
    def shapes(self, side: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the targets by name, all float32.

        Args:
            side: Height and width of the images.
        """

    @abstractmethod
    def targets(self, side: int, boxes: np.ndarray, classes: np.ndarray) -> dict[str, np.ndarray]:
        """The targets by name.

        Args:
            side: Height and width of the images.
            boxes: float64, shape (N, M, 4).
            classes: Shape (N, M).
        """

    def describe(self) -> dict[str, Any]:
        """The content of a recipe's hash."""
        return described(self)


@dataclass(frozen=True)
class MatchAnchors(_Targets):
    """Matches the true boxes with the anchors of the network `ssd`, and adds its targets.

    Adds `class_targets` (anchors, classes): one at the class of a matched anchor's box, zero elsewhere; and
    `offset_targets` (anchors, 4): the offsets of that box from the anchor, zeros for background.

    Attributes:
        classes: Number of classes.
        scales: Of the anchors, those of the network.

    Raises:
        UsageError: `classes` is not an integer of at least 1, or the scales are invalid.

    References:
        Liu et al., SSD: Single shot multibox detector, ECCV 2016, section 2.2 (arXiv:1512.02325).

    >>> import deep5 as d5
    >>> data = d5.datasets.digit_canvases(train=8, test=4)
    >>> sampler = d5.OrderedSampler(data.train, 4, transforms=[d5.MatchAnchors(classes=10)])
    >>> ids, batch = next(sampler.batches(0))
    >>> batch["class_targets"].shape, batch["offset_targets"].shape
    ((4, 1280, 10), (4, 1280, 4))
    >>> bool((batch["class_targets"].sum(axis=(1, 2)) >= (batch["classes"] >= 0).sum(axis=1)).all())
    True
    """

    scales: tuple[float, ...] = SCALES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scales(self.scales)
        object.__setattr__(self, "scales", tuple(self.scales))

    def shapes(self, side: int) -> dict[str, tuple[int, ...]]:
        """See `MatchAnchors`."""
        count = len(_anchors(side, self.scales))
        return {"class_targets": (count, self.classes), "offset_targets": (count, 4)}

    def targets(self, side: int, boxes: np.ndarray, classes: np.ndarray) -> dict[str, np.ndarray]:
        """See `MatchAnchors`."""
        anchors = _anchors(side, self.scales)
        made = {name: np.zeros((len(boxes), *shape), np.float32) for name, shape in self.shapes(side).items()}
        # Image by image: the overlaps of all images at once would not fit the caches.
        for sample, present in enumerate(classes >= 0):
            own, kinds = boxes[sample, present], classes[sample, present]
            index = matched(anchors, own)
            anchor = np.flatnonzero(index >= 0)
            box = index[anchor]
            made["class_targets"][sample, anchor, kinds[box]] = 1
            made["offset_targets"][sample, anchor] = encoded(own[box], anchors[anchor])
        return made


@lru_cache(maxsize=8)
def _anchors(side: int, scales: tuple[float, ...]) -> np.ndarray:
    anchors = anchor_boxes(side, scales)
    anchors.flags.writeable = False
    return anchors


@dataclass(frozen=True)
class DrawCenters(_Targets):
    """Draws the targets of the network `center_net`: heat maps with a peak at the center of each object.

    Adds `heat_targets` (classes, H / 4, H / 4): in cells of 4 x 4 pixels, exp(-d^2 / (2 sigma^2)) of the distance d to
    the cell of the nearest center of a box of this class in terms of its sigma, so one at the centers; and
    `size_targets` (4, H / 4, H / 4): in the cells of centers the width and the height of the box in cells, and the
    offset x, y of the center within the cell; zeros elsewhere. Sigma is (2 r + 1) / 6, where a box whose corners both
    move inward by r cells, diagonally, has an intersection over union of 0.7 with the original. Where two centers share
    a cell, the size is that of the later box.

    Attributes:
        classes: Number of classes.

    Raises:
        UsageError: `classes` is not an integer of at least 1.

    References:
        Zhou et al., Objects as points, 2019, section 3 (arXiv:1904.07850); Law and Deng, CornerNet, ECCV 2018, section
        3.2 (arXiv:1808.01244) for the radius.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> sample = {
    ...     "input": np.zeros((1, 1, 16, 16), np.float32),
    ...     "boxes": np.array([[[2, 4, 12, 14]]]),
    ...     "classes": np.array([[1]]),
    ... }
    >>> made = d5.DrawCenters(classes=2)(sample, ids=None, epoch=0)
    >>> np.argwhere(made["heat_targets"][0] == 1).tolist()  # the center is at (7, 9): class 1, row 2, column 1
    [[1, 2, 1]]
    >>> made["size_targets"][0, :, 2, 1].tolist()
    [2.5, 2.5, 0.75, 0.25]
    """

    def shapes(self, side: int) -> dict[str, tuple[int, ...]]:
        """See `DrawCenters`."""
        cells = side // STRIDES[0]
        return {"heat_targets": (self.classes, cells, cells), "size_targets": (4, cells, cells)}

    def targets(self, side: int, boxes: np.ndarray, classes: np.ndarray) -> dict[str, np.ndarray]:
        """See `DrawCenters`."""
        made = {name: np.zeros((len(boxes), *shape), np.float32) for name, shape in self.shapes(side).items()}
        cells = side // STRIDES[0]
        sample, place = np.nonzero(classes >= 0)
        corners = boxes[sample, place] / STRIDES[0]
        size, center = corners[:, 2:] - corners[:, :2], (corners[:, :2] + corners[:, 2:]) / 2
        # A center on the border of the image belongs to its last cell.
        cell = np.clip(np.floor(center), 0, cells - 1).astype(np.int64)
        values = np.concatenate([size, center - cell], axis=1)
        sigma = (2 * _radius(size) + 1) / 6
        steps = np.arange(cells)
        bells = [
            np.exp(-((steps - cell[:, axis, None]) ** 2) / (2 * sigma[:, None] ** 2)) for axis in (0, 1)
        ]  # by column and by row
        spots = (bells[1][:, :, None] * bells[0][:, None, :]).astype(np.float32)
        np.maximum.at(made["heat_targets"], (sample, classes[sample, place]), spots)
        made["size_targets"][sample, :, cell[:, 1], cell[:, 0]] = values
        return made


def _radius(size: np.ndarray) -> np.ndarray:
    """The r for which (w - 2 r) (h - 2 r) is 0.7 w h.

    Of CornerNet's three cases, where the corners move inward, outward, or one each, this one has the smallest radius.
    """
    total, area = size.sum(axis=1), size.prod(axis=1)
    radius: np.ndarray = (total - np.sqrt(total**2 - 4 * (1 - _OVERLAP) * area)) / 4
    return radius
