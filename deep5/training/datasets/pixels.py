"""Pixels stored as bytes, and their conversion to a network's input."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.dataset import ArrayDataset, Dataset, fitted, sample_ids

__all__ = ["PIXELS", "PixelDataset", "Scaling", "image_arrays", "scaling_of"]

PIXELS = ("normalised", "unit", "uint8")
"""The output formats of image data sets: (x / 255 - mean) / std by channel, x / 255, or unchanged bytes."""
# Up to this size images are stored as float32, whose batches are gathered twice as fast; above, as bytes.
_FLOATS_UP_TO_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Converts bytes to numbers: (x / 255 - mean) / std, in float32.

    Attributes:
        mean: Per channel, for values in [0, 1].
        std: The same; mean 0 and std 1 leave the values in [0, 1].
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """The scaled values of uint8 pixels of shape (N, C, H, W), float32."""
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        numbers = pixels.astype(np.float32)
        numbers /= np.float32(255)
        if self._changes():
            numbers -= mean
            numbers /= std
        return numbers

    def describe(self) -> str:
        """The operations, for readers and for hashes."""
        if not self._changes():
            return "divided by 255"
        return f"divided by 255, less {self.mean}, divided by {self.std}"

    def _changes(self) -> bool:
        return any(self.mean) or any(value != 1 for value in self.std)


def scaling_of(pixels: str, mean: Sequence[float], std: Sequence[float], what: str) -> Scaling | None:
    """The scaling for one of `PIXELS`; None for unchanged bytes.

    Raises:
        UsageError: `pixels` is another value.
    """
    if pixels not in PIXELS:
        raise UsageError(f"{what} with pixels {pixels!r:.60}; allowed: {', '.join(map(repr, PIXELS))}")
    if pixels == "uint8":
        return None
    if pixels == "unit":
        return Scaling(mean=(0.0,) * len(mean), std=(1.0,) * len(std))
    # Plain floats: the repr of NumPy's would put their type into the description.
    return Scaling(mean=tuple(map(float, mean)), std=tuple(map(float, std)))


def image_arrays(pixels: np.ndarray, labels: np.ndarray, scaling: Scaling | None) -> Dataset:
    """Images in memory, in the data set that suits their size; the samples' bits do not depend on the choice.

    Args:
        pixels: uint8, shape (N, C, H, W).
        labels: Integers, shape (N,).
        scaling: Scales the pixels; None: they stay bytes.

    Returns:
        Samples `input` float32 or uint8 (C, H, W) and `label` int64 ().
    """
    labels = labels.astype(np.int64)
    if scaling is None:
        return ArrayDataset({"input": pixels, "label": labels})
    if pixels.size * 4 <= _FLOATS_UP_TO_BYTES:
        return ArrayDataset({"input": scaling.apply(pixels), "label": labels})
    return PixelDataset(pixels, labels, scaling)


class PixelDataset(Dataset):
    """Images stored as bytes, a quarter of float32's memory, and scaled batch by batch.

    Args:
        pixels: uint8, shape (N, C, H, W).
        labels: int64, shape (N,).
        scaling: Scales the pixels.
        dtype: The dtype of the samples' values, which are computed in float32.
    """

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, scaling: Scaling, *, dtype: str = "float32") -> None:
        self._pixels, self._labels, self._scaling, self._dtype = pixels, labels, scaling, dtype
        self.specs = {
            "input": TensorSpec(shape=pixels.shape[1:], dtype=dtype),
            "label": TensorSpec(shape=(), dtype="int64"),
        }

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._labels)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The samples with these indices, gathered and scaled; see `Dataset.batch`."""
        ids = sample_ids(ids, len(self))
        numbers = self._scaling.apply(self._pixels.take(ids, axis=0))
        return {
            "input": numbers.astype(numpy_dtype(self._dtype), copy=False),
            "label": self._labels.take(ids),
        }

    def labels(self, name: str = "label") -> np.ndarray | None:
        """The labels; see `Dataset.labels`."""
        return self._labels if name == "label" else None

    def content_hash(self) -> str:
        """SHA-256 over scaling, element type, labels and pixels."""
        digest = hashlib.sha256(f"{self._scaling.describe()} {self._dtype} {self._pixels.shape}\n".encode())
        digest.update(self._labels.data)
        digest.update(np.ascontiguousarray(self._pixels).data)
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> PixelDataset:
        """The same bytes with another dtype of the values."""
        dtype = fitted(self.specs, specs)["input"]
        return PixelDataset(self._pixels, self._labels, self._scaling, dtype=dtype)
