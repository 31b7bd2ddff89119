"""Dropout masks that a compiled step draws itself: those of `deep5.networks.masks`, bit for bit.

The host passes a few numbers for each step instead of arrays, whose drawing took longer than a small network's step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deep5.core.events import StepInfo
from deep5.core.memo import remember
from deep5.core.tensors import numpy_dtype
from deep5.networks.masks import mask_key, threshold_and_scale
from deep5.networks.philox import halves, words
from deep5.networks.run_modes import TrainingForm

__all__ = ["StepMasks"]


class StepMasks:
    """The masks of a training form, drawn from a few numbers for each step.

    Args:
        form: The training form.
    """

    def __init__(self, form: TrainingForm) -> None:
        self._masks = form.masks
        self._specs = list(form.network.inputs.values())[: -len(form.masks)]
        self._keys: dict[int, list[int]] = {}

    def numbers(self, info: StepInfo) -> np.ndarray:
        """What selects the masks of a step: its number and the key of each mask, each as two halves.

        Returns:
            uint32, shape (2 + 2 masks,).
        """
        keys = self._keys.get(info.seed)
        if keys is None:
            made = [half for mask in self._masks for half in halves(mask_key(info.seed, mask.node))]
            keys = remember(self._keys, info.seed, made, room=16)
        return np.array([*halves(info.step), *keys], np.uint32)

    def given(self, inputs: Sequence[Any]) -> list[Any]:
        """What the training form takes: the inputs of the network, the masks, and what follows.

        Args:
            inputs: Inputs of the network, the numbers, and what follows; traced by JAX.
        """
        count = len(self._specs)
        extents: dict[str | int, int] = {}
        for spec, value in zip(self._specs, inputs, strict=False):
            if not spec.collection:
                extents.update(zip(spec.shape, value.shape, strict=True))
        numbers = inputs[count]
        drawn = [
            _mask(tuple(extents.get(each, each) for each in mask.shape), mask.ratio, mask.dtype, numbers[:2], key)
            for mask, key in zip(self._masks, numbers[2:].reshape(-1, 2), strict=True)
        ]
        return [*inputs[:count], *drawn, *inputs[count + 1 :]]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _mask(shape: tuple[int, ...], ratio: float, dtype: str, step: Any, key: Any) -> Any:
    """As `deep5.networks.masks.dropout_mask`; compiled by itself in a network that JAX cannot trace."""
    size = math.prod(shape)
    index = jnp.arange(-(-size // 4), dtype=np.uint32)
    counter = index, jnp.zeros_like(index), *(jnp.full_like(index, half) for half in step)
    # The forward and the backward pass read it: without the barrier, XLA would draw it in each.
    drawn = jax.lax.optimization_barrier(jnp.stack(words(counter, key), axis=-1).reshape(-1)[:size].reshape(shape))
    threshold, scale = threshold_and_scale(ratio)
    wide = dtype if dtype in ("float32", "float64") else "float32"
    return jnp.where(drawn >= np.uint32(threshold), np.array(scale, wide), np.array(0, wide)).astype(numpy_dtype(dtype))
