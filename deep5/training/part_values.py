"""One number per sample, from an array, a named part or a function: lengths for sorting, weights for sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief, suggestion
from deep5.training.dataset import Dataset

__all__ = ["part_values"]

_CHUNK = 1024


def part_values(
    dataset: Dataset, given: str | np.ndarray | Callable[[Mapping[str, np.ndarray]], Any], what: str
) -> np.ndarray:
    """One finite nonnegative number per sample, float64, shape (samples,).

    Args:
        dataset: The samples.
        given: One number per sample; or the name of the part that holds it; or a function that maps samples by name,
            batch dimension first, to one number per sample: it sees every sample once.
        what: What the numbers are, for messages: "length", "weight".

    Raises:
        UsageError: Unknown part, or the values are not one finite nonnegative number per sample.
    """
    count = len(dataset)
    if isinstance(given, str):
        if given not in dataset.specs:
            parts = ", ".join(dataset.specs)
            raise UsageError(
                f"{what}: the samples have no part {given!r}; allowed: {parts}{suggestion(given, dataset.specs)}"
            )
        name = given
        held = dataset.labels(name)
        values = held if held is not None else _called(dataset, lambda inputs: inputs[name], what)
    elif callable(given):
        values = _called(dataset, given, what)
    else:
        values = given
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(())
    if array.shape != (count,) or not np.isfinite(array).all() or (array < 0).any():
        got = (
            brief(given) if array.shape != (count,) else f"{array[~(np.isfinite(array) & (array >= 0))][0]} among them"
        )
        shape = f" of the shape {array.shape}" if array.ndim and array.shape != (count,) else ""
        raise UsageError(
            f"{what}: got {got}{shape}; allowed: one finite number of at least 0 for each of the {count} samples, the "
            "name of a part that holds it, or a function of a batch's samples that gives one for each"
        )
    return array


def _called(dataset: Dataset, function: Callable[[Mapping[str, np.ndarray]], Any], what: str) -> np.ndarray:
    parts = []
    for begin in range(0, len(dataset), _CHUNK):
        ids = np.arange(begin, min(begin + _CHUNK, len(dataset)), dtype=np.int64)
        part = np.asarray(function(dataset.batch(ids)))
        if part.shape != ids.shape:
            raise UsageError(
                f"{what}: got numbers of the shape {part.shape} for {len(ids)} samples; allowed: one for each sample"
            )
        parts.append(part)
    return np.concatenate(parts)
