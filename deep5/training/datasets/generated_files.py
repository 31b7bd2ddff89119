"""Synthetic files in the real formats: the readers of CIFAR and ImageNet run on them without a download."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.errors import UnknownName, UsageError
from deep5.core.files import is_folder
from deep5.core.made_folder import make_folder
from deep5.core.seeds import generator
from deep5.training.dataset import Splits
from deep5.training.datasets.cifar import cifar10, cifar100
from deep5.training.datasets.example import encode_example
from deep5.training.datasets.folders import image_folder
from deep5.training.datasets.idx import fashion_mnist, mnist
from deep5.training.datasets.ilsvrc import imagenet
from deep5.training.datasets.record_files import write_records
from deep5.training.downloads import check_fetching, download_folder

__all__ = ["synthetic_files"]

_RULE = (
    "label = number of the sample modulo classes; image = a pattern of its class, 4 x 4 patches of one color each "
    "drawn uniformly from 0 … 255, scaled up, plus normal noise of deviation 32, rounded and clipped to 0 … 255"
)
_NOISE = 32.0
# Part of every cache key: increase it when the rule or the written format changes.
_VERSION = 1
_PHOTO = (72, 96)  # height and width of a synthetic photograph


def synthetic_files(
    *,
    like: str = "cifar10",
    train: int = 96,
    test: int = 32,
    classes: int | None = None,
    data_seed: int = 0,
    **options: Any,
) -> Splits:
    """Synthetic files in a real format, read like the real ones: for trials and smoke tests, never for results.

    The files are written once, into deep5's cache. The description holds the label rule.

    Args:
        like: "cifar10", "cifar100", "mnist", "fashion_mnist" (their files' formats), "imagenet" (folders of JPEG
            files), "imagenet_tfrecord" (TFRecord files of JPEG images), "image_folder" (PNG files).
        train: Number of training samples.
        test: Number of test samples.
        classes: The number of classes; None: that of the format's data set, ten for images in folders.
        data_seed: The seed of the patterns and the noise.
        options: Passed to the data set that reads the files: size, pixels, …

    Returns:
        The result of that data set; its description states that the files are synthetic, and their rule.

    Raises:
        UnknownName: `like` is not one of these.
        UsageError: A number is out of its range.
        OutputError: The cache cannot be written.
        MissingDependency: Images in folders or TFRecord files require Pillow, which is not installed.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic_files(like="mnist", train=10, test=4)
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (10, 4, {'input': 'float32[1, 28, 28]', 'label': 'int64[]'})
    >>> data.description["source"]
    'synthetic files in the format of MNIST, IDX files'
    """
    if like not in _FORMATS:
        raise UnknownName("format of synthetic files", like, _FORMATS)
    write, read, usual, most = _FORMATS[like]
    classes = usual if classes is None else classes
    if any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in (train, test, classes)):
        raise UsageError(
            f"synthetic files of {train!r} + {test!r} samples, {classes!r} classes; allowed: integers of at least 1"
        )
    least = max(classes if write is _write_folder else 1, 5 if like == "cifar10" else 1)
    if classes > most or train < least or (write is _write_folder and test < 1):
        raise UsageError(
            f"synthetic files like {like} of {train} training samples and {classes} classes; allowed: at least {least} "
            f"samples and at most {most} classes"
        )
    taken = {"folder", "download", "classes"} & options.keys()
    if taken:
        raise UsageError(f"synthetic files with {', '.join(sorted(taken))}; allowed: the reader's other arguments")
    key = json.dumps([_VERSION, like, train, test, classes, data_seed])
    folder = download_folder() / "synthetic_files" / f"{like}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not is_folder(folder):
        check_fetching("synthetic_files")
        make_folder(folder, lambda room: write(room, train, test, classes, data_seed), "synthetic image files")
    if like.startswith("imagenet"):
        options["classes"] = classes
    splits = read(folder=str(folder), **options)
    splits.description["source"] = f"synthetic files in the format of {splits.description['source']}"
    splits.description["rule"] = f"{_RULE}; {train} + {test} samples, {classes} classes, seed {data_seed}"
    return splits


def _images(
    part: str, count: int, classes: int, shape: tuple[int, int, int], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (count, height, width, channels), and their labels by the rule."""
    height, width, channels = shape
    patterns = generator(seed, "patterns").integers(0, 256, (classes, 4, 4, channels)).astype(np.float32)
    labels = np.arange(count) % classes
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    plain = patterns[labels][:, rows][:, :, columns]
    noise = generator(seed, "noise", part).standard_normal(plain.shape, dtype=np.float32) * np.float32(_NOISE)
    return np.clip(np.rint(plain + noise), 0, 255).astype(np.uint8), labels


def _write_cifar10(room: Path, train: int, test: int, classes: int, seed: int) -> None:
    pixels, labels = _images("train", train, classes, (32, 32, 3), seed)
    records = _cifar_records(pixels, labels[:, None])
    for number, part in enumerate(np.array_split(records, 5), start=1):
        part.tofile(room / f"data_batch_{number}.bin")
    pixels, labels = _images("test", test, classes, (32, 32, 3), seed)
    _cifar_records(pixels, labels[:, None]).tofile(room / "test_batch.bin")


def _write_cifar100(room: Path, train: int, test: int, classes: int, seed: int) -> None:
    for name, count in (("train", train), ("test", test)):
        pixels, labels = _images(name, count, classes, (32, 32, 3), seed)
        _cifar_records(pixels, np.stack([labels // 5, labels], axis=1)).tofile(room / f"{name}.bin")


def _cifar_records(pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.hstack([labels.astype(np.uint8), pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)])


def _write_idx(room: Path, train: int, test: int, classes: int, seed: int) -> None:
    for stem, name, count in (("train", "train", train), ("t10k", "test", test)):
        pixels, labels = _images(name, count, classes, (28, 28, 1), seed)
        for kind, array in (("images-idx3", pixels[..., 0]), ("labels-idx1", labels.astype(np.uint8))):
            header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            # No time stamp: the files are the same every time.
            (room / f"{stem}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes(), mtime=0))


def _write_folder(room: Path, train: int, test: int, classes: int, seed: int) -> None:
    _write_tree(room, train, test, classes, seed, ("train", "test"), "PNG", lambda label: f"class_{label:04d}")


def _write_imagenet(room: Path, train: int, test: int, classes: int, seed: int) -> None:
    _write_tree(room, train, test, classes, seed, ("train", "val"), "JPEG", _wordnet)


def _write_tree(
    room: Path,
    train: int,
    test: int,
    classes: int,
    seed: int,
    names: tuple[str, str],
    kind: str,
    class_name: Callable[[int], str],
) -> None:
    for folder, name, count in ((names[0], "train", train), (names[1], "test", test)):
        pixels, labels = _images(name, count, classes, (*_PHOTO, 3), seed)
        for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
            place = room / folder / class_name(label)
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{class_name(label)}_{number}.{kind}").write_bytes(_encoded(image, kind))


def _write_tfrecord(room: Path, train: int, test: int, classes: int, seed: int) -> None:
    for prefix, name, count, shards in (("train", "train", train, 4), ("validation", "test", test, 2)):
        pixels, labels = _images(name, count, classes, (*_PHOTO, 3), seed)
        for shard, ids in enumerate(np.array_split(np.arange(count), min(shards, count))):
            examples = [
                encode_example(
                    {
                        "image/encoded": [_encoded(pixels[index], "JPEG")],
                        "image/format": [b"JPEG"],
                        "image/height": [_PHOTO[0]],
                        "image/width": [_PHOTO[1]],
                        "image/class/label": [int(labels[index]) + 1],
                        "image/class/synset": [_wordnet(int(labels[index])).encode()],
                        "image/filename": [f"{_wordnet(int(labels[index]))}_{index}.JPEG".encode()],
                    }
                )
                for index in ids
            ]
            write_records(room / f"{prefix}-{shard:05d}-of-{min(shards, count):05d}", examples)


def _wordnet(label: int) -> str:
    return f"n{90_000_000 + label:08d}"


def _encoded(image: np.ndarray, kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format=kind, **({"quality": 90} if kind == "JPEG" else {}))
    return buffer.getvalue()


_FORMATS: dict[str, tuple[Callable[[Path, int, int, int, int], None], Callable[..., Splits], int, int]] = {
    # Writer, reader, default and maximum number of classes.
    "cifar10": (_write_cifar10, cifar10, 10, 10),
    "cifar100": (_write_cifar100, cifar100, 100, 100),
    "mnist": (_write_idx, mnist, 10, 10),
    "fashion_mnist": (_write_idx, fashion_mnist, 10, 10),
    "imagenet": (_write_imagenet, imagenet, 10, 1000),
    "imagenet_tfrecord": (_write_tfrecord, imagenet, 10, 1000),
    "image_folder": (_write_folder, image_folder, 10, 1000),
}
