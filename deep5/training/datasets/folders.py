"""Image files in folders, one folder per class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.core.errors import UsageError
from deep5.training.dataset import Splits
from deep5.training.datasets.class_folders import class_split
from deep5.training.datasets.images import Decoder, image_files
from deep5.training.datasets.pixels import Scaling, scaling_of
from deep5.training.downloads import given_path

__all__ = ["HASHED", "IMAGE_SUFFIXES", "given_scaling", "image_folder"]

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pbm", ".pgm", ".ppm", ".pnm")
)
"""Endings of the names of image files, in lower case."""
HASHED = "names, sizes, labels and bytes of the files; and what becomes of them"
"""What the hash of a file-based data set covers, for its description."""


def image_folder(
    folder: str,
    *,
    size: int = 64,
    channels: int = 3,
    fit: str = "stretch",
    pixels: str = "unit",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
    decoder: str = "pillow",
    workers: int | None = None,
) -> Splits:
    """Image files in folders, one folder per class, decoded on access.

    Classes are the folders sorted by name, samples the files sorted by path. If the folder has `train` and one of
    `test`, `val` and `validation`, these are the split; otherwise a seeded, stratified split is drawn. A folder `train`
    that holds folders of images and has no test folder next to it is an error, not a class.

    Args:
        folder: The parent of the class folders.
        size: Height and width of the samples.
        channels: 3 for RGB, 1 for grayscale.
        fit: "stretch" to the size, or scale the shorter side and "crop" the center.
        pixels: "unit" for values in [0, 1], or "uint8"; "normalised" if `mean` and `std` are given.
        mean: Per channel, for values in [0, 1].
        std: The same.
        test_share: Fraction of each class in the test set, if the folder has no split.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep, balanced by class; None: all.
        test_limit: The same for the test samples.
        decoder: "pillow", "turbojpeg" or "opencv": the library that decodes. Colors and scaling are Pillow's
            with each. "turbojpeg" decodes only JPEG, "opencv" also PNG; both refuse incomplete files.
        workers: Decoding threads; None: one per processor, up to eight.

    Returns:
        Samples `input` float32 or uint8 (channels, size, size) and `label` int64 ().

    Raises:
        UsageError: A folder is missing or empty, or an argument is out of its range. A batch with an image that does
            not decode raises an error that names the image.
        MissingDependency: Pillow or the decoder's library is not installed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for path in (Path(folder, name) for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")):
    ...         path.parent.mkdir(exist_ok=True)
    ...         Image.new("RGB", (40, 30)).save(path)
    ...     data = d5.datasets.image_folder(folder, size=32, test_share=0.5)
    ...     print(len(data.train), len(data.test), str(data.train.specs["input"]), data.description["classes"])
    2 2 float32[3, 32, 32] ['cat', 'dog']
    """
    what, root = "image_folder", given_path("image_folder", folder)
    images = Decoder(size=size, channels=channels, fit=fit, name=decoder)
    scaling = given_scaling(what, pixels, mean, std, channels)
    found = class_split(
        what,
        root,
        "image",
        IMAGE_SUFFIXES,
        test_share=test_share,
        split_seed=split_seed,
        limit=limit,
        test_limit=test_limit,
    )
    parts = [
        image_files(root, names, labels, decoder=images, scaling=scaling, workers=workers)
        for names, labels in (found.train, found.test)
    ]
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=found.split_hash,
        description={
            "source": f"image files of {root.resolve().name}",
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "classes": found.classes,
            "split": found.text,
            "preparation": f"{images.describe()}; {scaling.describe() if scaling else 'bytes'}",
            "decoder": images.library,
            **({"decisions": found.decisions} if found.decisions else {}),
            "hash": HASHED,
        },
    )


def given_scaling(
    what: str, pixels: str, mean: Sequence[float] | None, std: Sequence[float] | None, channels: int
) -> Scaling | None:
    """The scaling for images whose statistics the caller gives, if any.

    Raises:
        UsageError: Only one of `mean` and `std` is given, they have another number of channels, or a deviation is 0.
    """
    if mean is None and std is None:
        if pixels == "normalised":
            raise UsageError(f"{what} with pixels 'normalised'; remedy: mean= and std= a channel, or pixels='unit'")
        return scaling_of(pixels, (0.0,) * channels, (1.0,) * channels, what)
    numbers = [
        value for given in (mean, std) if isinstance(given, Sequence) and len(given) == channels for value in given
    ]
    if len(numbers) != 2 * channels or not all(
        isinstance(value, (int, float)) and np.isfinite(value) for value in numbers
    ):
        raise UsageError(
            f"{what} with mean {mean!r:.60} and std {std!r:.60}; allowed: {channels} finite "
            f"number{'s' if channels > 1 else ''} each"
        )
    if any(value <= 0 for value in numbers[channels:]):
        raise UsageError(f"{what} with std {std!r:.60}; allowed: numbers above 0")
    return scaling_of("normalised" if pixels == "unit" else pixels, numbers[:channels], numbers[channels:], what)
