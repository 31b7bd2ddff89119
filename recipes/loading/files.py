"""The images of the study, written once into deep5's cache in four formats, and the data sets that read them.

Rule: an image is the sum of four plane waves of random direction, length and color, as smooth as a photograph without
edges, plus normal noise of deviation 10, equal in all colors, for the texture that JPEG has to store; then it is
encoded as JPEG at quality 90. Each image is a function of the seed and its number.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.core.files import is_folder
from deep5.core.made_folder import make_folder
from deep5.core.seeds import generator
from deep5.training.datasets.decoders import PILLOW
from deep5.training.datasets.example import encode_example
from deep5.training.datasets.pixels import PixelDataset, Scaling
from deep5.training.datasets.record_files import write_records
from deep5.training.downloads import download_folder

__all__ = ["FORMATS", "PACKED", "decoded", "image", "image_files", "opened", "paths_of"]

PACKED = "packed"
"""The format without a decoder: one .npy file of uint8 pixels, memory-mapped."""

FORMATS = ("folder", "tar", "tfrecord", PACKED)
"""A JPEG file for each image; all of them in one tar file, or one TFRecord file; their pixels in one .npy file."""

# Part of the cache key: increase it when the rule or a written format changes.
_VERSION = 1
_CLASSES, _WAVES, _NOISE, _QUALITY = 10, 4, 10.0, 90
# The readers return training and test samples; the study does not read these.
_TEST = 2 * _CLASSES
_UNIT = Scaling(mean=(0.0,) * 3, std=(1.0,) * 3)


def image(number: int, size: int, seed: int) -> np.ndarray:
    """An image by the rule.

    Args:
        number: Of the image.
        size: Height and width.
        seed: Of the images.

    Returns:
        uint8, shape (size, size, 3).

    >>> image(0, 32, 0).shape, bool((image(0, 32, 0) == image(0, 32, 0)).all())
    ((32, 32, 3), True)
    """
    rng = generator(seed, "loading", number)
    rows, columns = np.mgrid[:size, :size].astype(np.float32) / size
    pixels = np.full((size, size, 3), 128, np.float32)
    for _ in range(_WAVES):
        angle, length, phase = rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 1.0), rng.uniform(0, 2 * np.pi)
        wave = np.sin(2 * np.pi / length * (np.cos(angle) * rows + np.sin(angle) * columns) + phase)
        pixels += wave[:, :, None].astype(np.float32) * rng.uniform(-40, 40, 3).astype(np.float32)
    pixels += rng.standard_normal((size, size, 1), dtype=np.float32) * np.float32(_NOISE)
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def image_files(images: int, size: int, seed: int) -> Path:
    """The folder of the images in all formats, written if it is not in the cache.

    `deep5 clean` lists and deletes it.

    Args:
        images: The number of images.
        size: Height and width.
        seed: Of the images.

    Raises:
        UsageError: A number is out of its range.
        OutputError: The cache cannot be written.
        MissingDependency: Pillow, which encodes them, is not installed.
    """
    for name, value, least, most in (("images", images, _CLASSES, 100_000), ("size", size, 8, 4096)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UsageError(f"a study of loading with {name}={value!r:.60}; allowed: integers from {least} to {most}")
    key = json.dumps([_VERSION, images, size, seed, _CLASSES, _TEST, _WAVES, _NOISE, _QUALITY])
    folder = download_folder() / "loading_files" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not is_folder(folder):
        make_folder(folder, lambda room: _write_parts(room, images, size, seed), "a study of loading")
    return folder


def paths_of(folder: Path, form: str) -> list[Path]:
    """The files of a format that hold the training samples.

    Args:
        folder: Of all formats.
        form: One of `FORMATS`.

    Raises:
        UsageError: No such format.
    """
    _check_form(form)
    if form == "folder":
        return sorted((folder / "folder" / "train").rglob("*.jpg"))
    return [folder / {"tar": "train.tar", "tfrecord": "train.tfrecord", PACKED: "train.npy"}[form]]


def opened(folder: Path, form: str, decoder: str = PILLOW, size: int = 224) -> Any:
    """The training samples of a format: float32 images in [0, 1], decoded by the thread that requests them.

    Args:
        folder: Of all formats.
        form: One of `FORMATS`.
        decoder: The decoding library; without effect on packed pixels.
        size: Of the images, which are not scaled.

    Raises:
        UsageError: No such format.
        MissingDependency: The decoding library is not installed.
    """
    _check_form(form)
    given: dict[str, Any] = {"decoder": decoder, "workers": 1}
    if form == "folder":
        return d5.datasets.image_folder(str(folder / "folder"), size=size, **given).train
    if form == "tar":
        tar, test = (str(folder / f"{part}.tar") for part in ("train", "test"))
        return d5.datasets.webdataset(tar, test=test, size=size, **given).train
    if form == "tfrecord":
        features = {"input": f"image: image[3, {size}, {size}]", "label": "label"}
        record, test = (str(folder / f"{part}.tfrecord") for part in ("train", "test"))
        return d5.datasets.tfrecord(record, features=features, test=test, **given).train
    pixels = np.load(folder / "train.npy", mmap_mode="r", allow_pickle=False)
    return PixelDataset(pixels, _labels(len(pixels)), _UNIT)


def _check_form(form: Any) -> None:
    if not isinstance(form, str) or form not in FORMATS:
        raise UsageError(f"images in the format {form!r:.60}; allowed: {', '.join(map(repr, FORMATS))}")


def decoded(folder: Path) -> Any:
    """The ideal: the samples already decoded to float32 arrays in memory."""
    packed = opened(folder, PACKED)
    return d5.ArrayDataset(packed.batch(np.arange(len(packed))))


def _labels(images: int) -> np.ndarray:
    """Sorted, as `image_folder` sorts its files, so that a number names the same image in each format."""
    return np.arange(images, dtype=np.int64) * _CLASSES // images


def _write_parts(room: Path, images: int, size: int, seed: int) -> None:
    for part, first, count in (("train", 0, images), ("test", images, _TEST)):
        _write(room, part, range(first, first + count), size, seed)


def _write(room: Path, part: str, numbers: range, size: int, seed: int) -> None:
    from PIL import Image

    labels = _labels(len(numbers)).tolist()
    pixels = np.lib.format.open_memmap(
        room / f"{part}.npy", mode="w+", dtype=np.uint8, shape=(len(numbers), 3, size, size)
    )
    files: list[bytes] = []
    for place, number in enumerate(numbers):
        buffer = io.BytesIO()
        Image.fromarray(image(number, size, seed)).save(buffer, "JPEG", quality=_QUALITY)
        files.append(buffer.getvalue())
        with Image.open(buffer) as stored:
            pixels[place] = np.asarray(stored).transpose(2, 0, 1)
        path = room / "folder" / part / f"class_{labels[place]}" / f"{place:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[-1])
    pixels.flush()
    with tarfile.open(room / f"{part}.tar", "w") as tar:
        for name, content in _entries(files, labels):
            entry = tarfile.TarInfo(name)  # without time and owner: the same file every time
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    records = (encode_example({"image": [data], "label": [label]}) for data, label in zip(files, labels, strict=True))
    write_records(room / f"{part}.tfrecord", records)


def _entries(files: list[bytes], labels: list[int]) -> Iterator[tuple[str, bytes]]:
    for number, (data, label) in enumerate(zip(files, labels, strict=True)):
        yield f"{number:06d}.jpg", data
        yield f"{number:06d}.cls", str(label).encode()
