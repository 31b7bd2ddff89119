"""Image files in folders, one folder per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.files import is_folder
from deep5.training.dataset import Splits
from deep5.training.datasets.images import Decoder, image_files
from deep5.training.datasets.pixels import Scaling, scaling_of
from deep5.training.datasets.splitting import check_limit, check_share, evenly, split_hash, stratified
from deep5.training.downloads import given_path

__all__ = ["HASHED", "class_tree", "given_scaling", "image_folder"]

_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pbm", ".pgm", ".ppm", ".pnm")
)
_TEST_NAMES = ("test", "val", "validation")
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
        workers: Decoding threads; None: one per processor, up to eight.

    Returns:
        Samples `input` float32 or uint8 (channels, size, size) and `label` int64 ().

    Raises:
        UsageError: A folder is missing or empty, or an argument is out of its range. A batch with an image that does
            not decode raises an error that names the image.
        MissingDependency: Pillow is not installed.
    """
    what, root = "image_folder", given_path("image_folder", folder)
    decoder = Decoder(size=size, channels=channels, fit=fit)
    scaling = given_scaling(what, pixels, mean, std, channels)
    if not is_folder(root):
        raise UsageError(
            f"image_folder: the folder {root} is not there; allowed: one that holds a folder for each class"
        )
    own = next((name for name in _TEST_NAMES if is_folder(root / name)), None) if is_folder(root / "train") else None
    if own is not None:
        train_names, train_labels, classes = class_tree(root / "train", "train/")
        test_names, test_labels, _ = class_tree(root / own, f"{own}/", classes)
        chosen = np.arange(len(train_names)), np.arange(len(test_names))
        split = f"the folders train and {own}"
    else:
        _check_no_part(root)
        names, labels, classes = class_tree(root)
        chosen = stratified(labels, check_share(what, test_share), split_seed)
        train_names, test_names = ([names[index] for index in part] for part in chosen)
        train_labels, test_labels = (labels[part] for part in chosen)
        split = f"stratified by class, {test_share:g} of each to the test set, seed {split_seed}"
    kept = evenly(train_labels, check_limit(what, "limit", limit, len(train_names)))
    kept_test = evenly(test_labels, check_limit(what, "test_limit", test_limit, len(test_names)))
    parts = [
        image_files(
            root, [names[index] for index in ids], labels[ids], decoder=decoder, scaling=scaling, workers=workers
        )
        for names, labels, ids in ((train_names, train_labels, kept), (test_names, test_labels, kept_test))
    ]
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=split_hash(chosen[0][kept], chosen[1][kept_test]),
        description={
            "source": f"image files of {root.resolve().name}",
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "classes": classes,
            "split": split,
            "preparation": f"{decoder.describe()}; {scaling.describe() if scaling else 'bytes'}",
            "decoder": decoder.library,
            "hash": HASHED,
        },
    )


def _check_no_part(root: Path) -> None:
    """Reject a training folder without a test folder: it would become a class named train.

    Raises:
        UsageError: `train` holds folders of images.
    """
    place = root / "train"
    if is_folder(place) and any("/" in name for name in _images(place)):
        raise UsageError(
            f"image_folder: {place} holds folders of images, and {root} has no folder of test images beside it; "
            f"allowed: {', '.join(_TEST_NAMES)}; remedy: folder={str(place)!r}, of which a split is drawn; or name the "
            "folder of test images so"
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


def class_tree(
    root: Path, prefix: str = "", classes: Sequence[str] | None = None
) -> tuple[list[str], np.ndarray, list[str]]:
    """The images under a folder of classes.

    Args:
        root: Holds one folder per class; images may be in subfolders. Names that begin with a dot are ignored.
        prefix: Prepended to each name.
        classes: The allowed classes, in order; None: the existing folders, sorted by name.

    Returns:
        File names relative to `root` with the prefix, sorted by class and name; their labels, int64; the classes.

    Raises:
        UsageError: There are no classes, a class has no images, or it is not among `classes`.
    """
    try:
        with os.scandir(root) as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UsageError(f"the folder {root} cannot be read ({error.strerror or error})") from error
    if not folders:
        raise UsageError(f"the folder {root} holds no folder; allowed: one for each class, with its images")
    known = list(classes) if classes is not None else folders
    if unknown := sorted(set(folders) - set(known)):
        raise UsageError(
            f"the folder {root} holds the class {unknown[0]!r}, which the training folder has not; allowed: "
            f"{', '.join(known[:10])}{', …' if len(known) > 10 else ''}"
        )
    names, labels = [], []
    for name in folders:
        found = _images(root / name)
        if not found:
            raise UsageError(
                f"the class folder {root / name} holds no image; allowed: files that end in "
                f"{', '.join(sorted(_SUFFIXES))}"
            )
        names += [f"{prefix}{name}/{file}" for file in found]
        labels += [known.index(name)] * len(found)
    return names, np.array(labels, dtype=np.int64), known


def _images(folder: Path) -> list[str]:
    found = []
    for parent, inner, files in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        place = Path(parent).relative_to(folder).as_posix()
        found += [
            file if place == "." else f"{place}/{file}"
            for file in files
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in _SUFFIXES  # noqa: PTH122 - a million times
        ]
    return sorted(found)
