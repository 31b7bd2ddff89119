"""`Normalise`: subtract the mean and divide by the standard deviation; and `Cast`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.transforms import kernels
from deep5.training.transforms.transform import Transform

__all__ = ["Cast", "Normalise"]


@dataclass(frozen=True)
class Normalise(Transform):
    """(value - mean) / std by channel, computed as value * (1 / std) + (-mean / std) with each factor rounded once.

    Bytes (uint8) are divided by 255 to values from 0 to 1, which published means and deviations assume. Floating-point
    values are used unchanged. The result is float32, or float64 for float64.

    Attributes:
        mean: One per channel, or one for all.
        std: The same.

    Raises:
        UsageError: A value is not finite, or a standard deviation is not above zero.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> images = {"input": np.full((1, 3, 1, 1), 255, np.uint8)}
    >>> d5.Normalise(mean=(0.5, 0.0, 1.0), std=(0.5, 0.25, 1.0))(images, None, epoch=0)["input"].ravel().tolist()
    [1.0, 4.0, 0.0]
    """

    mean: float | Sequence[float]
    std: float | Sequence[float]

    def __post_init__(self) -> None:
        what = type(self).__name__
        mean, std = (_numbers(what, name, getattr(self, name)) for name in ("mean", "std"))
        if len(mean) > 1 and len(std) > 1 and len(mean) != len(std):
            raise UsageError(f"{what}: got {len(mean)} means and {len(std)} deviations; allowed: equal numbers")
        if min(std) <= 0:
            raise UsageError(f"{what}: got std={brief(self.std)}; allowed: numbers above 0")
        object.__setattr__(self, "mean", mean)  # hashable, and not the caller's list
        object.__setattr__(self, "std", std)

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """Floating-point values of the same shape; see `Transform.specs`."""
        kind = numpy_dtype(spec.dtype).kind
        if spec.dtype != "uint8" and kind != "f" and spec.dtype != "bfloat16":
            raise UsageError(f"{type(self).__name__}: samples are {spec}; allowed: uint8 or floating values")
        channels = max(len(self.mean), len(self.std))  # type: ignore[arg-type]
        if not spec.shape or (channels > 1 and spec.shape[0] != channels):
            raise UsageError(
                f"{type(self).__name__}: samples are {spec}, and there are {channels} means or deviations; "
                "allowed: one for each channel (the first dimension), or one for all"
            )
        return TensorSpec(shape=spec.shape, dtype="float64" if spec.dtype == "float64" else "float32")

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The normalized values; see `Transform.__call__`."""
        scale, shift = _affine(self.mean, self.std, array.shape[1], str(array.dtype))
        return kernels.normalise(array, scale, shift)


@dataclass(frozen=True)
class Cast(Transform):
    """Converts floating-point values to another width.

    Attributes:
        dtype: `"float32"`, `"float64"`, `"float16"` or `"bfloat16"`.

    Raises:
        UsageError: The dtype is another one.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> d5.Cast("float64")({"input": np.zeros(2, np.float32)}, None, epoch=0)["input"].dtype
    dtype('float64')
    """

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in {"float16", "bfloat16", "float32", "float64"}:
            raise UsageError(f"Cast: got {brief(self.dtype)}; allowed: float16, bfloat16, float32, float64")

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """The same shape with the other dtype; see `Transform.specs`."""
        if spec.dtype not in {"float16", "bfloat16", "float32", "float64"}:
            raise UsageError(f"Cast: samples {self.part!r} are {spec}; allowed: floating values")
        return TensorSpec(shape=spec.shape, dtype=self.dtype)

    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The converted values; see `Transform.__call__`."""
        return array.astype(numpy_dtype(self.dtype), copy=False)


@functools.lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], channels: int, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift by channel, computed in float64."""
    middle, width = (np.broadcast_to(np.array(numbers), channels) for numbers in (mean, std))
    unit = 255.0 if dtype == "uint8" else 1.0
    result = np.float64 if dtype == "float64" else np.float32
    return (1.0 / (unit * width)).astype(result), (-middle / width).astype(result)


def _numbers(what: str, name: str, given: object) -> tuple[float, ...]:
    try:
        numbers = np.atleast_1d(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all() or isinstance(given, (bool, str)):
        raise UsageError(f"{what}: got {name}={brief(given)}; allowed: a finite number, or one for each channel")
    return tuple(numbers.tolist())
