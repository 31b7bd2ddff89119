"""CIFAR-10 and CIFAR-100, read from the files of their binary versions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.files import is_file
from deep5.training.dataset import Splits
from deep5.training.datasets.pixels import image_arrays, scaling_of
from deep5.training.datasets.splitting import check_limit
from deep5.training.downloads import Remote, find_or_fetch

__all__ = ["cifar10", "cifar100"]

_PIXELS = 3 * 32 * 32
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
# SHA-256 and sizes: tensorflow/datasets, url_checksums/cifar10.txt and cifar100.txt. The authors publish the MD5 of the
# same files at https://www.cs.toronto.edu/~kriz/cifar.html: c32a1d4ab5d03f1284b67883e8d87530 (CIFAR-10) and
# 03b5dce01913d631647c71ecec9e9cb8 (CIFAR-100).
_CIFAR10 = Remote(
    name="cifar-10-binary.tar.gz",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    size_bytes=170_052_171,
    archive_of="cifar-10-batches-bin",
    unpacked_bytes=200_000_000,
)
_CIFAR100 = Remote(
    name="cifar-100-binary.tar.gz",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    size_bytes=168_513_733,
    archive_of="cifar-100-binary",
    unpacked_bytes=200_000_000,
)


def cifar10(
    *,
    folder: str | None = None,
    pixels: str = "normalised",
    limit: int | None = None,
    test_limit: int | None = None,
    download: bool = True,
) -> Splits:
    """CIFAR-10: 60 000 color images of 32 x 32 pixels in ten classes (binary version, 162 MiB).

    Args:
        folder: The folder with `data_batch_1.bin` … `data_batch_5.bin` and `test_batch.bin`; by default
            `cifar-10-batches-bin` in `$DEEP5_DATA`, else in deep5's cache.
        pixels: "normalised" by the mean and standard deviation of the training images, "unit" for values in [0, 1], or
            "uint8".
        limit: The number of training samples to keep, from the first; None: all.
        test_limit: The same for the test samples.
        download: Whether to download files that are in neither folder.

    Returns:
        Samples `input` float32 or uint8 (3, 32, 32) and `label` int64 ().

    Raises:
        UsageError: A file is missing, cannot be downloaded, has another format, or holds an invalid label.

    References:
        Krizhevsky, Learning multiple layers of features from tiny images, 2009; binary version, records of one label
        byte and 3072 pixel bytes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import deep5 as d5
    >>> names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in names:
    ...         _ = Path(folder, name).write_bytes(2 * bytes([7, *[128] * 3072]))  # two gray images of class 7
    ...     data = d5.datasets.cifar10(folder=folder, pixels="unit")
    >>> len(data.train), len(data.test), {name: str(spec) for name, spec in data.train.specs.items()}
    (10, 2, {'input': 'float32[3, 32, 32]', 'label': 'int64[]'})
    """
    root = find_or_fetch("cifar-10-batches-bin", "cifar10", [_CIFAR10], folder=folder, download=download)
    # Per-channel mean and standard deviation of the 50 000 training images, with values in [0, 1].
    statistics = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    files = [root / name for name in _TRAIN], [root / "test_batch.bin"]
    return _splits("CIFAR-10", files, [10], 0, pixels, statistics, limit, test_limit)


def cifar100(
    *,
    folder: str | None = None,
    labels: str = "fine",
    pixels: str = "normalised",
    limit: int | None = None,
    test_limit: int | None = None,
    download: bool = True,
) -> Splits:
    """CIFAR-100: 60 000 color images of 32 x 32 pixels in 100 classes, or in 20 coarse ones (binary version, 161 MiB).

    Args:
        folder: The folder with `train.bin` and `test.bin`; by default `cifar-100-binary` in `$DEEP5_DATA`, else in
            deep5's cache.
        labels: "fine" for 100 classes, or "coarse" for the 20 superclasses.
        pixels: "normalised" by the mean and standard deviation of the training images, "unit" for values in [0, 1], or
            "uint8".
        limit: The number of training samples to keep, from the first; None: all.
        test_limit: The same for the test samples.
        download: Whether to download files that are in neither folder.

    Returns:
        Samples `input` float32 or uint8 (3, 32, 32) and `label` int64 ().

    Raises:
        UsageError: A file is missing, cannot be downloaded, has another format, or holds an invalid label.

    References:
        Krizhevsky, Learning multiple layers of features from tiny images, 2009; binary version, records of a
        coarse-label byte, a fine-label byte and 3072 pixel bytes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("train.bin", "test.bin"):
    ...         _ = Path(folder, name).write_bytes(2 * bytes([3, 42, *[128] * 3072]))  # coarse class 3, fine class 42
    ...     for labels in ("fine", "coarse"):
    ...         print(d5.datasets.cifar100(folder=folder, labels=labels).train.batch(np.arange(2))["label"])
    [42 42]
    [3 3]
    """
    if labels not in ("coarse", "fine"):
        raise UsageError(f"cifar100 with labels {labels!r:.60}; allowed: 'fine', 'coarse'")
    root = find_or_fetch("cifar-100-binary", "cifar100", [_CIFAR100], folder=folder, download=download)
    statistics = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    files = [root / "train.bin"], [root / "test.bin"]
    splits = _splits(
        "CIFAR-100", files, [20, 100], ("coarse", "fine").index(labels), pixels, statistics, limit, test_limit
    )
    splits.description["labels"] = labels
    return splits


def _splits(
    source: str,
    files: tuple[list[Path], list[Path]],
    classes: Sequence[int],
    chosen: int,
    pixels: str,
    statistics: tuple[tuple[float, ...], tuple[float, ...]],
    limit: int | None,
    test_limit: int | None,
) -> Splits:
    """Training and test part. Records hold one label for each entry of `classes`; `chosen` selects one."""
    scaling = scaling_of(pixels, *statistics, source)
    digest = hashlib.sha256()
    parts = []
    for paths, name, most in ((files[0], "limit", limit), (files[1], "test_limit", test_limit)):
        records = np.concatenate([_records(path, classes, source) for path in paths])
        records = records[: check_limit(source, name, most, len(records))]
        digest.update(records.data)
        # A copy: batches are gathered from one block of bytes, and the records are freed.
        images = np.ascontiguousarray(records[:, len(classes) :]).reshape(-1, 3, 32, 32)
        parts.append(image_arrays(images, records[:, chosen], scaling))
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=digest.hexdigest(),
        description={
            "source": f"{source}, binary version",
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "split": "the one that the files have",
            "preparation": scaling.describe() if scaling else "none",
        },
    )


def _records(path: Path, classes: Sequence[int], source: str) -> np.ndarray:
    """The records of a file with checked labels, uint8 of shape (records, labels + 3072)."""
    if not is_file(path):
        raise UsageError(
            f"the data file {path} is not there; remedy: unpack the binary version of {source} and set DEEP5_DATA to "
            f"the folder that holds {path.parent.name}, or delete {path.parent} and let it be downloaded"
        )
    length = len(classes) + _PIXELS
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})") from error
    if raw.size == 0 or raw.size % length:
        raise UsageError(f"{path} holds {raw.size} bytes; allowed: records of {length} bytes, at least one")
    records = raw.reshape(-1, length)
    for column, count in enumerate(classes):
        labels = records[:, column]
        if labels.max() >= count:
            wrong = int((labels >= count).argmax())
            raise UsageError(f"{path}, record {wrong}, holds the label {labels[wrong]}; allowed: 0 to {count - 1}")
    return records
