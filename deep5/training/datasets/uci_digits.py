"""The handwritten digits of scikit-learn, embedded; also at all positions of a larger image."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files

import numpy as np

from deep5.core.errors import UsageError
from deep5.training.dataset import ArrayDataset, Dataset, Splits
from deep5.training.datasets.splitting import stratified

__all__ = ["digits", "enlarge", "shifted_digits"]


def digits(
    *, size: int = 28, test_share: float = 0.2, split_seed: int = 0, limit: int | None = None, labels: bool = True
) -> Splits:
    """1797 real 8 x 8 images of handwritten digits, upsampled bilinearly; values in [0, 1].

    Args:
        size: Height and width after upsampling, at least 8.
        test_share: Fraction of each class in the test set, in (0, 1).
        split_seed: The seed of the stratified split.
        limit: The number of training samples to keep (the first of the split, balanced by class); None: all.
        labels: Whether samples have their class; an autoencoder takes none. The samples are the same.

    Returns:
        Samples `input` float32 (1, size, size) and, with labels, `label` int64 ().

    Raises:
        UsageError: An argument is out of its range.

    References:
        Alpaydin and Kaynak, Optical recognition of handwritten digits, UCI Machine Learning Repository, 1998, test part
        (CC BY 4.0), as provided by scikit-learn's `load_digits`.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.datasets.digits(size=8, limit=100)
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (100, 359, {'input': 'float32[1, 8, 8]', 'label': 'int64[]'})
    >>> batch = data.train.batch(np.arange(4))
    >>> batch["input"].shape, float(batch["input"].max()), batch["label"]
    ((4, 1, 8, 8), 1.0, array([0, 1, 2, 3]))
    """
    if not (isinstance(size, int) and size >= 8):
        raise UsageError(f"digits of size {size!r}; allowed: an integer of at least 8")
    if not (isinstance(test_share, (int, float)) and 0.0 < test_share < 1.0):
        raise UsageError(f"digits with test_share {test_share!r}; allowed: a number between 0 and 1")
    if not isinstance(labels, bool):
        raise UsageError(f"digits with labels {labels!r:.60}; allowed: True or False")
    with (files("deep5.training.datasets") / "digits.npz").open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        raw, classes = archive["images"], archive["labels"].astype(np.int64)
    images = enlarge(raw.astype(np.float32) / np.float32(16), size)[:, None]

    train, test = stratified(classes, test_share, split_seed)
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= len(train):
            raise UsageError(f"digits with limit {limit!r}; allowed: None or an integer from 1 to {len(train)}")
        train = train[:limit]
    parts = {"input": images, **({"label": classes} if labels else {})}
    return Splits(
        train=ArrayDataset({name: part[train] for name, part in parts.items()}),
        test=ArrayDataset({name: part[test] for name, part in parts.items()}),
        split_hash=hashlib.sha256(train.tobytes() + b"|" + test.tobytes()).hexdigest(),
        description={
            "source": "UCI Optical recognition of handwritten digits, test part",
            "samples": {"train": len(train), "test": len(test)},
            "split": f"stratified by class, {test_share:g} of each to the test set, seed {split_seed}",
            "preparation": f"divided by 16, enlarged bilinearly to {size} x {size}",
        },
    )


def shifted_digits(
    *,
    reach: int = 2,
    size: int = 8,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    flat: bool = False,
) -> Splits:
    """The digits at all positions of a larger image: (2 reach + 1)² images of each, 25 by default; values in [0, 1].

    With the default, 35,950 training and 8,975 test samples. All images of one digit are in the same part, so that the
    test set has no digit that was trained at another position. Pixels around a digit are zero.

    Args:
        reach: Largest shift from the center in each direction, in pixels, from 0 to 8.
        size: As for `digits`, of a digit.
        test_share: As for `digits`.
        split_seed: As for `digits`.
        limit: The number of training samples to keep; None: all. The samples of one position follow those of another,
            in the order of `digits`, the center first.
        flat: Whether a sample is a vector of its pixels, for a network without an image.

    Returns:
        Samples `input` float32 (1, size + 2 reach, size + 2 reach), or of one axis, and `label` int64 ().

    Raises:
        UsageError: An argument is out of its range.

    References:
        As for `digits`.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.datasets.shifted_digits(reach=1)
    >>> len(data.train), len(data.test), str(data.train.specs["input"])
    (12942, 3231, 'float32[1, 10, 10]')
    >>> center = data.train.batch(np.array([0]))["input"][:, :, 1:-1, 1:-1]
    >>> bool((center == d5.datasets.digits(size=8).train.batch(np.array([0]))["input"]).all())
    True
    """
    if isinstance(reach, bool) or not isinstance(reach, int) or not 0 <= reach <= 8:
        raise UsageError(f"shifted_digits with reach {reach!r:.60}; allowed: an integer from 0 to 8")
    if not isinstance(flat, bool):
        raise UsageError(f"shifted_digits with flat {flat!r:.60}; allowed: True or False")
    plain = digits(size=size, test_share=test_share, split_seed=split_seed)
    positions = [(down, right) for down in range(2 * reach + 1) for right in range(2 * reach + 1)]
    positions.sort(key=lambda position: position != (reach, reach))
    parts = [_at_positions(part, positions, size + 2 * reach, flat) for part in (plain.train, plain.test)]
    count = len(parts[0]["label"])
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= count):
        raise UsageError(f"shifted_digits with limit {limit!r:.60}; allowed: None or an integer from 1 to {count}")
    train, test = (
        {name: value[:most] for name, value in part.items()} for part, most in zip(parts, (limit, None), strict=True)
    )
    rule = f"each at {len(positions)} positions, up to {reach} pixels from the center, limit {limit}"
    return Splits(
        train=ArrayDataset(train),
        test=ArrayDataset(test),
        split_hash=hashlib.sha256(f"{plain.split_hash}|{rule}".encode()).hexdigest(),
        description={
            **plain.description,
            "samples": {"train": len(train["label"]), "test": len(test["label"])},
            "rule": rule,
        },
    )


def _at_positions(
    part: Dataset, positions: Sequence[tuple[int, int]], extent: int, flat: bool
) -> dict[str, np.ndarray]:
    """All samples at each position in turn."""
    samples = part.batch(np.arange(len(part)))
    images, size = samples["input"], samples["input"].shape[-1]
    moved = np.zeros((len(positions), len(images), 1, extent, extent), np.float32)
    for number, (down, right) in enumerate(positions):
        moved[number, :, :, down : down + size, right : right + size] = images
    shape = (-1, extent * extent) if flat else (-1, 1, extent, extent)
    return {"input": moved.reshape(shape), "label": np.tile(samples["label"], len(positions))}


def enlarge(images: np.ndarray, size: int) -> np.ndarray:
    """Bilinear upsampling with aligned corners.

    Args:
        images: Shape (N, H, W), floating-point.
        size: New height and width.

    Returns:
        Shape (N, size, size), the same dtype. Each pixel is a sum of products in a fixed order, so the bits do not
        depend on a BLAS library.
    """
    for axis in (1, 2):
        points = np.linspace(0, images.shape[axis] - 1, size)
        below = np.minimum(points.astype(np.int64), images.shape[axis] - 2)
        weight = (points - below).astype(images.dtype)
        weight = weight[:, None] if axis == 1 else weight
        images = images.take(below, axis) * (1 - weight) + images.take(below + 1, axis) * weight
    return images
