"""Handwritten digits at random places and sizes of a canvas, with their boxes, for object detection."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.training.dataset import ArrayDataset, Splits
from deep5.training.datasets.pixels import Scaling
from deep5.training.datasets.splitting import stratified
from deep5.training.datasets.uci_digits import enlarge

__all__ = ["digit_canvases"]

_OVERLAP = 0.1
_TRIES = 50
# The split of the data set `digits`.
_TEST_SHARE, _SPLIT_SEED = 0.2, 0


def digit_canvases(
    *,
    size: int = 64,
    most: int = 4,
    smallest: int = 16,
    largest: int = 32,
    train: int = 2000,
    test: int = 300,
    data_seed: int = 0,
) -> Splits:
    """Canvases with 1 to 4 handwritten digits each at random places and sizes, with exact boxes.

    The rule: the number of digits of a canvas is uniform from 1 to `most`. Each is drawn uniformly from the digits of
    the same part of the data set `digits` (so no test digit occurs in a training canvas), and enlarged bilinearly from
    8 x 8 pixels to a side that is uniform from `smallest` to `largest`; its place is uniform among those where this
    square is within the canvas. A place where the intersection over union of its box with an earlier one is larger than
    0.1 is drawn again, up to 50 times; then the digit is left out. Where digits overlap, the brighter pixel counts. A
    box is tight around the digit's pixels that are not zero as bytes.

    Args:
        size: Height and width of a canvas in pixels.
        most: The largest number of digits of a canvas.
        smallest: The smallest side of a digit's square in pixels, at least 8.
        largest: The largest side, at most `size`.
        train: Number of training canvases.
        test: Number of test canvases.
        data_seed: The seed of the canvases; each is a function of it, its part and its number.

    Returns:
        Samples `input` float32 (1, size, size) in [0, 1], `boxes` float32 (most, 4): left, top, right and bottom in
        pixels from the top left corner, and `classes` int64 (most,); rows without a digit are -1.

    Raises:
        UsageError: An argument is out of its range.

    References:
        The digits are those of `digits`: Alpaydin and Kaynak, Optical recognition of handwritten digits, UCI Machine
        Learning Repository, 1998 (CC BY 4.0).

    >>> import deep5 as d5
    >>> data = d5.datasets.digit_canvases(train=8, test=4)
    >>> {name: str(spec) for name, spec in data.train.specs.items()}
    {'input': 'float32[1, 64, 64]', 'boxes': 'float32[4, 4]', 'classes': 'int64[4]'}
    >>> sample = data.train.batch([1])
    >>> sample["classes"].tolist(), sample["boxes"][0, 0].tolist()
    ([[8, 9, 9, -1]], [12.0, 31.0, 40.0, 61.0])
    """
    counts = {"size": size, "most": most, "smallest": smallest, "largest": largest, "train": train, "test": test}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"digit_canvases with {name} {value!r:.60}; allowed: an integer of at least 1")
    if not 8 <= smallest <= largest <= size:
        raise UsageError(
            f"digit_canvases of size {size} with digits from {smallest} to {largest} pixels; allowed: "
            "8 <= smallest <= largest <= size"
        )
    with (files("deep5.training.datasets") / "digits.npz").open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        raw, labels = archive["images"].astype(np.float32) / np.float32(16), archive["labels"].astype(np.int64)
    parts = dict(zip(("train", "test"), stratified(labels, _TEST_SHARE, _SPLIT_SEED), strict=True))
    made = {}
    for part, count in (("train", train), ("test", test)):
        digits = raw[parts[part]]
        pixels = np.zeros((count, 1, size, size), np.uint8)
        boxes = np.full((count, most, 4), -1, np.float32)
        classes = np.full((count, most), -1, np.int64)
        for number in range(count):
            rng = generator(data_seed, "canvases", part, number)
            for slot, (digit, box) in enumerate(_drawn(rng, digits, pixels[number, 0], most, smallest, largest)):
                boxes[number, slot] = box
                classes[number, slot] = labels[parts[part][digit]]
        scaled = Scaling(mean=(0.0,), std=(1.0,)).apply(pixels)
        made[part] = ArrayDataset({"input": scaled, "boxes": boxes, "classes": classes})
    rule = (
        f"1 to {most} digits of {smallest} to {largest} pixels on a canvas of {size} x {size}, uniform; intersection "
        f"over union of two boxes at most {_OVERLAP:g}; {train} + {test} canvases, seed {data_seed}"
    )
    return Splits(
        train=made["train"],
        test=made["test"],
        split_hash=hashlib.sha256(rule.encode()).hexdigest(),
        description={
            "source": "canvases of UCI Optical recognition of handwritten digits, test part",
            "rule": rule,
            "samples": {"train": train, "test": test},
            "split": f"of the digits: stratified by class, {_TEST_SHARE:g} of each to the test set, seed {_SPLIT_SEED}",
            "preparation": "enlarged bilinearly, rounded to bytes, divided by 255",
        },
    )


def _drawn(
    rng: np.random.Generator, digits: np.ndarray, canvas: np.ndarray, most: int, smallest: int, largest: int
) -> list[tuple[int, tuple[int, int, int, int]]]:
    """Draw digits on a canvas; their indices and boxes."""
    found: list[tuple[int, tuple[int, int, int, int]]] = []
    for _ in range(int(rng.integers(1, most + 1))):
        digit, side = int(rng.integers(len(digits))), int(rng.integers(smallest, largest + 1))
        ink = np.rint(enlarge(digits[digit : digit + 1], side)[0] * np.float32(255)).astype(np.uint8)
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        for _ in range(_TRIES):
            top, left = rng.integers(len(canvas) - side + 1, size=2).tolist()
            box = (left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1)
            if all(_share(box, other) <= _OVERLAP for _, other in found):
                place = canvas[top : top + side, left : left + side]
                np.maximum(place, ink, out=place)
                found.append((digit, box))
                break
    return found


def _share(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> float:
    """Intersection over union."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return float(width * height / (areas - width * height))
