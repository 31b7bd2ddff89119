"""Synthetic images whose labels follow a stated rule."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.training.dataset import ArrayDataset, Splits

__all__ = ["synthetic"]


def synthetic(
    *, shape: Sequence[int] = (1, 28, 28), classes: int = 10, train: int = 1024, test: int = 256, data_seed: int = 0
) -> Splits:
    """Gaussian noise around one template per class: x = template[label] + noise, both standard normal.

    Args:
        shape: The shape of one sample.
        classes: Number of classes; labels are 0, 1, …, in turn.
        train: Number of training samples.
        test: Number of test samples.
        data_seed: The seed of the templates and the noise.

    Returns:
        Samples `input` float32 `shape` and `label` int64 ().

    Raises:
        UsageError: The shape is not a sequence, or a size is not an integer of at least 1.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(3, 8, 8), classes=4, train=12, test=8)
    >>> len(data.train), len(data.test), str(data.train.specs["input"])
    (12, 8, 'float32[3, 8, 8]')
    >>> data.train.batch(np.arange(6))["label"]
    array([0, 1, 2, 3, 0, 1])
    """
    if not isinstance(shape, Sequence):
        raise UsageError(
            f"synthetic data of shape {shape!r:.60}; allowed: a sequence of integers of at least 1; remedy: "
            "shape=(4,), say"
        )
    shape = tuple(shape)
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in (train, test, classes, *shape)):
        raise UsageError(
            f"synthetic data of {train!r} + {test!r} samples, {classes!r} classes, shape {shape}; "
            "allowed: integers of at least 1"
        )
    templates = generator(data_seed, "templates").standard_normal((classes, *shape), dtype=np.float32)

    def part(name: str, count: int) -> ArrayDataset:
        labels = np.arange(count, dtype=np.int64) % classes
        noise = generator(data_seed, "noise", name).standard_normal((count, *shape), dtype=np.float32)
        return ArrayDataset({"input": templates[labels] + noise, "label": labels})

    rule = (
        f"x = template[label] + noise, standard normal, seed {data_seed}, shape {shape}, {classes} classes, "
        f"{train} + {test} samples"
    )
    return Splits(
        train=part("train", train),
        test=part("test", test),
        split_hash=hashlib.sha256(rule.encode()).hexdigest(),
        description={"source": "synthetic", "rule": rule, "samples": {"train": train, "test": test}},
    )
