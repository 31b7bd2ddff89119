"""ImageNet (ILSVRC2012) from folders of JPEG files or from TFRecord files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.files import is_file, is_folder
from deep5.training.dataset import Dataset, Splits, StreamDataset
from deep5.training.datasets.class_folders import class_tree
from deep5.training.datasets.folders import HASHED, IMAGE_SUFFIXES
from deep5.training.datasets.images import Decoder, image_files
from deep5.training.datasets.lists import read_list
from deep5.training.datasets.pixels import Scaling, scaling_of
from deep5.training.datasets.shards import (
    HASHED_RECORDS,
    ImageExample,
    find_shards,
    image_records,
    image_stream,
)
from deep5.training.datasets.splitting import check_limit, evenly, split_hash
from deep5.training.downloads import DataMissing, data_folders, given_path

__all__ = ["imagenet"]

# Per-channel means and standard deviations of the training images, with values in [0, 1]; the customary ones.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The fraction of the shorter side that a test crop keeps: 224 of 256.
_SHARE = 0.875
_WINDOW = 1024


def imagenet(
    *,
    folder: str | None = None,
    size: int = 224,
    train_size: int | None = None,
    pixels: str = "normalised",
    classes: int = 1000,
    stream: bool = False,
    window: int = _WINDOW,
    shuffle_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
    workers: int | None = None,
) -> Splits:
    """ImageNet (ILSVRC2012): 1.28 million photographs in 1000 classes, in folders or TFRecord files, decoded on access.

    Folders: `train/<WordNet ID>/*.JPEG`, and `val/<WordNet ID>/*.JPEG` or `val/*.JPEG` with a list `val.txt` of `file
    label` lines (a number from 0, or a WordNet ID). The class is the index of its WordNet ID in sorted order. TFRecord
    files: `train-00000-of-01024` … and `validation-00000-of-00128` …, in the folder or in its `train` and `validation`;
    `image/class/label` counts from 1.

    The shorter side of an image is scaled to `size` / 0.875 and the center is cropped: `size` x `size` for tests,
    `train_size` x `train_size` for training, where a transform may then crop at random. EXIF orientations are ignored,
    as in the published results.

    Args:
        folder: The folder with either layout; by default `imagenet` in `$DEEP5_DATA`. ImageNet is never downloaded.
        size: Height and width of the test samples.
        train_size: Height and width of the training samples; None: `size`.
        pixels: "normalised" by mean and standard deviation, "unit" for values in [0, 1], or "uint8".
        classes: The number of classes; a larger label is an error.
        stream: Read TFRecord files as streams: training records shuffled, test records in file order.
        window: The number of training records that a stream shuffles at a time, about 0.1 MiB each; 1: no shuffling.
        shuffle_seed: The seed of a stream's order, which is a function of the seed and the epoch.
        limit: The number of training samples to keep (folders: balanced by class; TFRecord files: the first; not
            allowed for streams); None: all.
        test_limit: The same for the test samples.
        workers: Decoding threads; None: one per processor, up to eight.

    Returns:
        Samples `input` float32 or uint8 (3, size, size) and `label` int64 ().

    Raises:
        UsageError: Files are missing, corrupt or of another layout, or an argument is out of its range. Access to an
            image that does not decode raises an error that names it.
        MissingDependency: Pillow is not installed.

    References:
        Russakovsky et al., ImageNet large scale visual recognition challenge, International Journal of Computer Vision
        115(3), 2015.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("train", "val"):
    ...         for name in ("n01440764", "n01443537"):  # WordNet IDs: the classes 0 and 1
    ...             Path(folder, part, name).mkdir(parents=True)
    ...             Image.new("RGB", (96, 72)).save(Path(folder, part, name, "1.JPEG"))
    ...     data = d5.datasets.imagenet(folder=folder, size=64, classes=2)
    ...     print(len(data.train), len(data.test), str(data.train.specs["input"]))
    2 2 float32[3, 64, 64]
    """
    what = "imagenet"
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise UsageError(f"imagenet of {classes!r} classes; allowed: an integer of at least 1")
    scaling = scaling_of(pixels, _MEAN, _DEVIATION, what)
    root = _root(folder)
    scaled = round(size / _SHARE) if isinstance(size, int) else 0
    decoders = []
    for name, given in (("train_size", train_size or size), ("size", size)):
        if not isinstance(given, int) or not 1 <= given <= scaled:
            raise UsageError(
                f"imagenet with {name} {given!r}; allowed: an integer from 1 to {scaled or 'size / 0.875'}"
            )
        decoders.append(Decoder(size=given, fit="crop", share=given / scaled, turn=False))
    shards = [
        find_shards(root, names) or find_shards(root / names[0], names)
        for names in (("train",), ("validation", "val", "test"))
    ]
    if any(shards):
        if not all(shards):
            raise UsageError(
                f"{root} holds TFRecord files of only one part; allowed: train-00000-of-… and validation-00000-of-…"
            )
        parts, layout = _from_records(
            shards, decoders, scaling, classes, stream, window, shuffle_seed, limit, test_limit, workers
        )
        hashed = HASHED_RECORDS
        hashes = split_hash(np.array([limit or 0, len(shards[0])]), np.array([test_limit or 0, len(shards[1])]))
    else:
        if stream:
            raise UsageError(f"imagenet with stream=True, but {root} holds no TFRecord files; remedy: stream=False")
        parts, hashes = _from_folders(root, decoders, scaling, classes, limit, test_limit, workers)
        layout, hashed = "folders", HASHED
    samples = {
        name: len(part) if isinstance(part, Dataset) else None
        for name, part in zip(("train", "test"), parts, strict=True)
    }
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=hashes,
        description={
            "source": f"ImageNet (ILSVRC2012), {layout}",
            "samples": samples,
            "split": "the one that the files have; the validation part is the test",
            "preparation": {
                name: f"{decoder.describe()}; {scaling.describe() if scaling else 'bytes'}"
                for name, decoder in zip(("train", "test"), decoders, strict=True)
            },
            "decoder": decoders[0].library,
            "hash": hashed,
        },
    )


def _root(folder: str | None) -> Path:
    places = (
        [given_path("imagenet", folder)] if folder is not None else [place / "imagenet" for place in data_folders()]
    )
    for place in places:
        if is_folder(place):
            return place
    raise DataMissing(
        f"the data set imagenet is not there: no folder {' or '.join(map(str, places))}; it is not downloaded, as its "
        "terms are to be agreed to by name; remedy: get ILSVRC2012_img_train.tar (138 GiB) and ILSVRC2012_img_val.tar "
        "(6.28 GiB) at https://image-net.org/download, unpack them to train/<WordNet ID>/ and val/<WordNet ID>/, and "
        "set DEEP5_DATA to the folder that holds imagenet"
    )


def _from_records(
    shards: list[list[Path]],
    decoders: list[Decoder],
    scaling: Scaling | None,
    classes: int,
    stream: bool,
    window: int,
    seed: int,
    limit: int | None,
    test_limit: int | None,
    workers: int | None,
) -> tuple[list[Dataset | StreamDataset], str]:
    example = ImageExample(classes)
    parts: list[Dataset | StreamDataset] = []
    for position, (name, most) in enumerate((("limit", limit), ("test_limit", test_limit))):
        check_limit("imagenet", name, most, 1 << 40)
        if stream and most is not None:
            raise UsageError(f"imagenet with stream=True and {name}={most}; allowed: one of them")
        if stream:
            parts.append(
                image_stream(
                    shards[position],
                    example,
                    decoder=decoders[position],
                    scaling=scaling,
                    window=1 if position else window,
                    seed=seed,
                    workers=workers or min(os.cpu_count() or 1, 8),
                )
            )
        else:
            parts.append(
                image_records(
                    shards[position],
                    example,
                    decoder=decoders[position],
                    scaling=scaling,
                    limit=most,
                    workers=workers,
                )
            )
    counted = f"{len(shards[0])} + {len(shards[1])} TFRecord files"
    return parts, f"{counted} as streams" if stream else counted


def _from_folders(
    root: Path,
    decoders: list[Decoder],
    scaling: Scaling | None,
    classes: int,
    limit: int | None,
    test_limit: int | None,
    workers: int | None,
) -> tuple[list[Dataset | StreamDataset], str]:
    if not is_folder(root / "train") or not is_folder(root / "val"):
        raise UsageError(
            f"{root} holds neither the folders train and val nor TFRecord files named train-00000-of-…; allowed: either"
        )
    names, labels, known = class_tree(root / "train", "image", IMAGE_SUFFIXES, prefix="train/")
    odd = next((name for name in known if not re.fullmatch(r"n\d{8}", name)), None)
    if odd is not None:
        raise UsageError(
            f"{root / 'train'} holds the folder {odd!r}; allowed: folders named by WordNet IDs, such as n01440764; "
            "remedy: image_folder reads others"
        )
    if len(known) > classes:
        raise UsageError(
            f"{root / 'train'} holds {len(known)} classes; allowed: {classes}; remedy: classes={len(known)}"
        )
    with os.scandir(root / "val") as entries:
        foldered = any(entry.is_dir() for entry in entries)
    if foldered:
        test_names, test_labels, _ = class_tree(root / "val", "image", IMAGE_SUFFIXES, prefix="val/", classes=known)
    else:
        test_names, test_labels = _listed(root, known)
    kept = evenly(labels, check_limit("imagenet", "limit", limit, len(names)))
    kept_test = evenly(test_labels, check_limit("imagenet", "test_limit", test_limit, len(test_names)))
    parts: list[Dataset | StreamDataset] = [
        image_files(
            root, [part[index] for index in ids], values[ids], decoder=decoder, scaling=scaling, workers=workers
        )
        for part, values, ids, decoder in (
            (names, labels, kept, decoders[0]),
            (test_names, test_labels, kept_test, decoders[1]),
        )
    ]
    return parts, split_hash(kept, kept_test)


def _listed(root: Path, known: list[str]) -> tuple[list[str], np.ndarray]:
    """Validation images in one folder, with their labels in the list `val.txt` next to it."""
    path = root / "val.txt"
    if not is_file(path):
        raise UsageError(
            f"{root / 'val'} holds no folders, and there is no list {path} of its files and labels; allowed: either"
        )
    numbers = {name: number for number, name in enumerate(known)}
    names, labels = [], []
    for line, name, label in sorted(read_list(path), key=lambda entry: entry[1]):
        number = numbers.get(label, int(label) if label.isascii() and label.isdecimal() and len(label) < 9 else -1)
        if not 0 <= number < len(known):
            raise UsageError(
                f"{path}, line {line}: got the label {label!r}; allowed: 0 to {len(known) - 1}, or a WordNet ID of the "
                "training folder"
            )
        names.append(f"val/{name}")
        labels.append(number)
    return names, np.array(labels, dtype=np.int64)
