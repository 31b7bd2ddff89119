"""`Transform`: changes one part of each batch, sample by sample."""

from __future__ import annotations

import dataclasses
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.seeds import derive_seed
from deep5.core.tensors import TensorSpec
from deep5.training.transforms import kernels

__all__ = ["RandomTransform", "Transform", "check_fill", "described", "extents", "image"]


@dataclasses.dataclass(frozen=True)
class Transform(ABC):
    """A change of one part of the samples. The result for a sample does not depend on the rest of its batch.

    Attributes:
        part: The part of the samples that is changed.

    >>> import numpy as np
    >>> from dataclasses import dataclass
    >>> import deep5 as d5
    >>> @dataclass(frozen=True)
    ... class Invert(d5.Transform):
    ...     def spec(self, spec): return spec
    ...     def apply(self, array, ids, epoch): return 255 - array
    >>> Invert()({"input": np.array([[0, 200]], np.uint8)}, ids=None, epoch=0)["input"].tolist()
    [[255, 55]]
    >>> data = d5.ArrayDataset({"input": np.zeros((4, 2), np.uint8)})
    >>> next(d5.OrderedSampler(data, 2, transforms=[Invert()]).batches(epoch=0))[1]["input"].tolist()
    [[255, 255], [255, 255]]
    """

    part: str = dataclasses.field(default="input", kw_only=True)

    def __call__(self, inputs: Mapping[str, np.ndarray], ids: np.ndarray | None, epoch: int) -> dict[str, np.ndarray]:
        """The batch with its part changed; the input arrays are not modified.

        Args:
            inputs: Samples by name, batch dimension first.
            ids: Identities of the samples, int64, shape (batch,).
            epoch: Counted from 0.

        Raises:
            UsageError: The samples have no such part, or the transform does not apply to it.
        """
        array = _part(inputs, self.part, type(self).__name__)
        self.spec(TensorSpec(shape=array.shape[1:], dtype=str(array.dtype)))  # rejects unsupported samples
        return {**inputs, self.part: self.apply(array, ids, epoch)}

    def specs(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """The specs of the samples after the change.

        Args:
            specs: The specs before the change, without the batch dimension.

        Raises:
            UsageError: The transform does not apply to them.
        """
        spec = _part(specs, self.part, type(self).__name__)
        return {**specs, self.part: self.spec(spec)}

    @abstractmethod
    def spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of the part after the change; see `specs`.

        Args:
            spec: The spec of the part before the change, without the batch dimension.
        """

    @abstractmethod
    def apply(self, array: np.ndarray, ids: np.ndarray | None, epoch: int) -> np.ndarray:
        """The changed part; see `__call__`.

        Args:
            array: The part of all samples, batch dimension first; not modified.
            ids: Identities of the samples, int64, shape (batch,), or None if they are unknown.
            epoch: Counted from 0.

        Returns:
            The changed part, batch dimension first.
        """

    def describe(self) -> dict[str, Any]:
        """The content of a recipe's hash."""
        return described(self)


@dataclasses.dataclass(frozen=True)
class RandomTransform(Transform):
    """A random transform: its draws are a function of (seed, epoch, sample).

    Attributes:
        seed: None: the sampler derives one from its own seed and the transform's position.

    >>> import numpy as np
    >>> from dataclasses import dataclass
    >>> import deep5 as d5
    >>> @dataclass(frozen=True)
    ... class Dim(d5.RandomTransform):
    ...     def spec(self, spec): return spec
    ...     def apply(self, array, ids, epoch):
    ...         return array // (1 + self.words(ids, epoch)[0] % 4)[:, None].astype(np.uint8)
    >>> dim, images = Dim(seed=0), np.full((4, 1), 240, np.uint8)
    >>> [dim({"input": images}, np.arange(4), epoch)["input"].ravel().tolist() for epoch in (0, 1)]
    [[240, 120, 80, 80], [80, 240, 120, 240]]
    >>> dim({"input": images[:1]}, np.array([2]), epoch=0)["input"].item()  # of sample 2, whatever the batch
    80
    """

    seed: int | None = dataclasses.field(default=None, kw_only=True)

    def seeded(self, seed: int) -> Self:
        """The same transform with this seed, if it does not have one.

        Args:
            seed: The seed, an integer.
        """
        return dataclasses.replace(self, seed=seed) if self.seed is None else self

    def words(self, ids: np.ndarray | None, epoch: int, block: int = 0) -> np.ndarray:
        """Four random words per sample, uint32, shape (4, batch); another block gives other words.

        Args:
            ids: Identities of the samples, int64, shape (batch,).
            epoch: Counted from 0.
            block: The number of the block, from 0.

        Raises:
            UsageError: The samples have no identities.
        """
        if ids is None:
            raise UsageError(
                f"{type(self).__name__}: got samples without identities, by which it draws; allowed: batches of a "
                "d5.Sampler; remedy: let the loader that makes these batches change its samples itself"
            )
        return kernels.words(ids, block=block, key=_key(self.seed or 0, type(self).__name__, epoch))


def described(transform: Any) -> dict[str, Any]:
    """The name and the fields of a transform that is a data class, for a recipe's hash."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(transform).__name__).lower()
    fields = {field.name: getattr(transform, field.name) for field in dataclasses.fields(transform)}
    return {"transform": name, **{key: value for key, value in fields.items() if value is not None}}


@functools.lru_cache(maxsize=256)
def _key(seed: int, purpose: str, epoch: int) -> int:
    return derive_seed(seed, purpose, epoch)


def _part(parts: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in parts:
        raise UsageError(
            f"{what}: the samples have no part {name!r}; allowed: {', '.join(parts) or 'none'}; remedy: "
            f"{what}(…, part={next(iter(parts), 'input')!r}), say"
        )
    return parts[name]


def image(spec: TensorSpec, what: str) -> tuple[int, int]:
    """Height and width of samples that are images, (channels, height, width).

    Raises:
        UsageError: They are not images.
    """
    if len(spec.shape) != 3 or not all(isinstance(extent, int) and extent > 0 for extent in spec.shape):
        raise UsageError(f"{what}: samples are {spec}; allowed: images, (channels, height, width), all of one size")
    return int(spec.shape[1]), int(spec.shape[2])


def extents(size: object, what: str, name: str = "size") -> tuple[int, int]:
    """Height and width from one number or a pair.

    Raises:
        UsageError: They are not integers of at least 1.
    """
    pair = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if len(pair) != 2 or any(isinstance(item, bool) or not isinstance(item, int) or item < 1 for item in pair):
        raise UsageError(f"{what}: got {name}={brief(size)}; allowed: an integer of at least 1, or two (height, width)")
    return pair


def check_fill(what: str, fill: object, dtype: str) -> None:
    """Reject a fill value that the pixels' dtype cannot hold.

    Raises:
        UsageError: It is not a number, or an integer dtype cannot hold it.
    """
    number = isinstance(fill, (int, float)) and not isinstance(fill, bool)
    whole = np.dtype(dtype) if dtype in np.sctypeDict else None
    if whole is not None and whole.kind in "iu" and isinstance(fill, (int, float)):
        bounds = np.iinfo(whole)
        number = number and (isinstance(fill, int) or fill.is_integer()) and bounds.min <= fill <= bounds.max
    if not number:
        raise UsageError(f"{what}: got fill={brief(fill)}; allowed: a number that {dtype} holds")
