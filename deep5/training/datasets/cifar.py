"""CIFAR-10 from the files of its binary version."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from deep5.compiler import cache_folder
from deep5.errors import UsageError
from deep5.training.dataset import ArrayDataset, Splits

__all__ = ["cifar10"]

_RECORD = 1 + 3 * 32 * 32
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
# Mean and standard deviation of the 50 000 training images, a channel, of values in [0, 1].
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def cifar10(*, folder: str | None = None) -> Splits:
    """60 000 colour images of 32 x 32 pixels in ten classes, normalised by channel.

    Args:
        folder: Where `data_batch_1.bin` … `data_batch_5.bin` and `test_batch.bin` lie; by default
            `cifar-10-batches-bin` in `$DEEP5_DATA`, else in deep5's cache.

    Returns:
        Samples `input` float32 (3, 32, 32) and `label` int64 ().

    Raises:
        UsageError: A file is missing or is no such file.

    References:
        Krizhevsky, Learning multiple layers of features from tiny images, 2009; binary version, one byte of label
        and 3072 bytes of pixels a record.
    """
    root = Path(folder) if folder else Path(os.environ.get("DEEP5_DATA") or cache_folder() / "data")
    root = root if folder else root / "cifar-10-batches-bin"
    digest = hashlib.sha256()
    parts = []
    for names in (_TRAIN, ("test_batch.bin",)):
        records = np.concatenate([_records(root / name) for name in names])
        digest.update(records.data)
        pixels = records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(255)
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (_MEAN, _STD))
        parts.append(ArrayDataset({"input": (pixels - mean) / std, "label": records[:, 0].astype(np.int64)}))
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=digest.hexdigest(),
        description={
            "source": "CIFAR-10, binary version",
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "split": "the one that the files have",
            "preparation": f"divided by 255, less {_MEAN}, divided by {_STD}",
        },
    )


def _records(path: Path) -> np.ndarray:
    if not path.is_file():
        raise UsageError(
            f"the data file {path} is not there; remedy: unpack the binary version of CIFAR-10 and set DEEP5_DATA to "
            "the folder that holds cifar-10-batches-bin"
        )
    raw = np.fromfile(path, dtype=np.uint8)
    if raw.size == 0 or raw.size % _RECORD:
        raise UsageError(f"{path} holds {raw.size} bytes; allowed: records of {_RECORD} bytes, at least one")
    records = raw.reshape(-1, _RECORD)
    if records[:, 0].max() > 9:
        raise UsageError(f"{path} holds the label {records[:, 0].max()}; allowed: 0 to 9")
    return records
