"""`fitted`: make transformed samples fit the inputs of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, UsageError, brief
from deep5.core.tensors import TensorSpec
from deep5.training.dataset import Dataset, StreamDataset
from deep5.training.dataset import fitted as fitted_dtypes
from deep5.training.sampler import seeded
from deep5.training.transforms.normalise import Cast

__all__ = ["fitted"]


def fitted(
    dataset: Dataset | StreamDataset,
    transforms: Sequence[Callable[..., Any]],
    inputs: Mapping[str, TensorSpec],
) -> tuple[Any, tuple[Callable[..., Any], ...]]:
    """A data set and transforms whose samples fit a network.

    Without transforms the data set is cast, once. With transforms, their output is cast if its floating-point dtypes
    differ from those of the network's inputs.

    Args:
        dataset: The samples.
        transforms: The sampler's transforms; a function without `specs` is tried on the first sample.
        inputs: The network's inputs, including the batch dimension.

    Returns:
        The data set and the transforms for a sampler.

    Raises:
        UsageError: The name or shape of a part differs from the network's input, integers would become floats, or a
            transform cannot be applied.

    >>> from deep5.training.dataset import ArrayDataset
    >>> from deep5.training.transforms.normalise import Normalise
    >>> data = ArrayDataset({"input": np.zeros((5, 3, 8, 8), np.uint8)})
    >>> wanted = {"input": TensorSpec(shape=("N", 3, 8, 8), dtype="float64")}
    >>> _, transforms = fitted(data, [Normalise(0.5, 0.5)], wanted)
    >>> [type(transform).__name__ for transform in transforms]
    ['Normalise', 'Cast']
    """
    seeded(transforms, 0)  # rejects anything that is not a list of transforms
    if not transforms:
        return dataset.cast(inputs), ()
    specs = dict(dataset.specs)
    for place, transform in enumerate(transforms):
        derive = getattr(transform, "specs", None)
        specs = dict(derive(specs)) if callable(derive) else _tried(dataset, transforms[: place + 1])
    try:
        dtypes = fitted_dtypes(specs, inputs)
    except UsageError as error:
        names = ", ".join(getattr(item, "__name__", type(item).__name__) for item in transforms)
        raise UsageError(f"after {names}: {error}") from error
    whole = [name for name, dtype in dtypes.items() if dtype != specs[name].dtype and not _floating(specs[name].dtype)]
    if whole:
        name = whole[0]
        raise UsageError(f"samples {name!r} are {specs[name].dtype} but the network takes {dtypes[name]}")
    casts = (Cast(dtypes[name], part=name) for name in specs if dtypes[name] != specs[name].dtype)
    return dataset, (*transforms, *casts)


def _tried(dataset: Dataset | StreamDataset, transforms: Sequence[Callable[..., Any]]) -> dict[str, TensorSpec]:
    """The specs of the first sample after the transforms."""
    ids = np.zeros(1, np.int64)
    if isinstance(dataset, Dataset):
        batch = dataset.batch(ids)
    else:
        batch = {name: np.asarray(array)[None] for name, array in next(iter(dataset.samples(0)), {}).items()}
    for transform in seeded(transforms, 0):
        name = getattr(transform, "__name__", type(transform).__name__)
        try:
            batch = transform(batch, ids, 0)
        except Deep5Error:
            raise
        except Exception as error:
            raise UsageError(
                f"the transform {name} raised {type(error).__name__} on the first sample: {error}"
            ) from error
        if not isinstance(batch, Mapping) or not all(np.shape(array)[:1] == (1,) for array in batch.values()):
            raise UsageError(
                f"the transform {name} made {brief(batch)} of a batch of one sample; allowed: a dict of arrays whose "
                "first dimension is the number of samples"
            )
    return {name: TensorSpec(shape=np.shape(array)[1:], dtype=str(array.dtype)) for name, array in batch.items()}


def _floating(dtype: str) -> bool:
    return dtype in {"float16", "bfloat16", "float32", "float64"}
