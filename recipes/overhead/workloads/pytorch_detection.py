"""Hand-written detectors on PyTorch; see `pytorch_dense` for what a module has.

In training, boxes and scores are not decoded: the loss needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from deep5.recipes.overhead.workloads.weights import linear, renamed

__all__ = ["Centers", "SingleShot"]

Arrays = Mapping[str, np.ndarray]

_ANCHORS = 4
_LAYERS = ((1, 2), (2, 2), (2, 1), (2, 1), (4, 2), (4, 1), (4, 1))
"""Of the backbone: channels as multiples of the first layer's, and stride."""


def _backbone(channels: int, width: int) -> tuple[Any, Any]:
    """The layers of the fine feature map, and those that follow for the coarse one."""
    layers: list[Any] = []
    for factor, stride in _LAYERS:
        convolution = nn.Conv2d(channels, factor * width, 3, stride, 1, bias=False)
        channels = factor * width
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:12]), nn.Sequential(*layers[12:])


def _of_backbone(given: Arrays) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    for index in range(len(_LAYERS)):
        part, first = ("fine", 3 * index) if index < 4 else ("coarse", 3 * (index - 4))
        names = {f"{first}.weight": "weight", f"{first + 1}.weight": "scale", f"{first + 1}.bias": "bias"}
        made |= renamed(given, {f"{part}.{new}": f"conv{index + 1}.{old}" for new, old in names.items()})
    return made


class SingleShot(nn.Module):  # type: ignore[misc]  # torch is not followed
    """`d5.networks.ssd`."""

    def __init__(self, classes: int, channels: int = 1, width: int = 16, **_: Any) -> None:
        super().__init__()
        self.classes = classes
        self.fine, self.coarse = _backbone(channels, width)
        self.scores, self.offsets = (
            nn.ModuleList(nn.Conv2d(factor * width, _ANCHORS * size, 3, padding=1) for factor in (2, 4))
            for size in (classes, 4)
        )

    def forward(self, x: Any) -> tuple[Any, Any]:
        fine = self.fine(x)
        maps = (fine, self.coarse(fine))

        def rows(heads: Any, size: int) -> Any:
            found = [head(features) for head, features in zip(heads, maps, strict=True)]
            return torch.cat([each.permute(0, 2, 3, 1).reshape(len(x), -1, size) for each in found], 1)

        return rows(self.scores, self.classes), rows(self.offsets, 4)

    def loss(self, input: Any, class_targets: Any, offset_targets: Any, **_: Any) -> Any:  # noqa: A002 - the network's
        logits, offsets = self(input)
        entropy = functional.binary_cross_entropy_with_logits(logits, class_targets, reduction="none")
        weight = 0.75 - 0.5 * class_targets
        focal = weight * (logits.sigmoid() - class_targets) ** 2 * entropy
        matched = class_targets.amax(2, keepdim=True)
        error = functional.smooth_l1_loss(offsets, offset_targets, reduction="none") * matched
        sums = focal.sum((1, 2)) + error.sum((1, 2))
        return (sums / matched.sum((1, 2)).clamp(min=1)).mean()

    @staticmethod
    def values_of(given: Arrays) -> dict[str, np.ndarray]:
        heads = {"scores": "classes", "offsets": "offsets"}
        names = {f"{new}.{index}": f"{old}{index + 1}" for new, old in heads.items() for index in range(2)}
        return {**_of_backbone(given), **linear(given, names)}


class Centers(nn.Module):  # type: ignore[misc]
    """`d5.networks.center_net`."""

    def __init__(self, classes: int, channels: int = 1, width: int = 16, **_: Any) -> None:
        super().__init__()
        self.fine, self.coarse = _backbone(channels, width)
        self.enlarge = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2, bias=False)

        def head(size: int) -> Any:
            first = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
            return nn.Sequential(first, nn.ReLU(inplace=True), nn.Conv2d(2 * width, size, 1))

        self.heat, self.size = head(classes), head(4)
        # In float64, from which a module in float32 rounds it.
        weights = torch.tensor([0.1, 0.1, 1.0, 1.0], dtype=torch.float64)
        self.register_buffer("weights", weights[:, None, None])

    def forward(self, x: Any) -> tuple[Any, Any]:
        fine = self.fine(x)
        features = fine + self.enlarge(self.coarse(fine))
        return self.heat(features), self.size(features)

    def loss(self, input: Any, heat_targets: Any, size_targets: Any, **_: Any) -> Any:  # noqa: A002 - the network's
        heat, size = self(input)
        peaks = (heat_targets >= 1).to(heat.dtype)
        probability = heat.sigmoid()
        at_peaks = peaks * (1 - probability) ** 2 * functional.softplus(-heat)
        elsewhere = (1 - heat_targets) ** 4 * probability**2 * functional.softplus(heat)
        error = functional.l1_loss(size, size_targets, reduction="none") * peaks.amax(1, keepdim=True) * self.weights
        sums = (at_peaks + elsewhere).sum((1, 2, 3)) + error.sum((1, 2, 3))
        return (sums / peaks.sum((1, 2, 3)).clamp(min=1)).mean()

    @staticmethod
    def values_of(given: Arrays) -> dict[str, np.ndarray]:
        names = {"heat.0": "heat.conv", "heat.2": "heat", "size.0": "size.conv", "size.2": "size"}
        return {**_of_backbone(given), **renamed(given, {"enlarge.weight": "enlarge.weight"}), **linear(given, names)}
