"""Gradient accumulation: several micro-batches learned from as one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from deep5.errors import ShapeError, UsageError, brief
from deep5.events import StepInfo, check_info
from deep5.executors import GraphExecutor
from deep5.seeds import derive_seed
from deep5.tensors import Array, Arrays, TensorSpec, array_namespace

__all__ = ["Halves", "accumulated_step"]


class Halves(Protocol):
    """A training step in two halves, as every `TrainStep` has them.

    What it returns is computed with inside its `arithmetic()`, a context manager, if it has one.
    """

    def backprop(self, inputs: Arrays, info: StepInfo, *, accumulate: bool, loss_scale: float) -> Arrays:
        """The outputs, with gradients left in the executor; see `TrainStep.backprop`."""
        ...

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The update from these gradients; see `TrainStep.apply`."""
        ...


def accumulated_step(step: Halves, executor: GraphExecutor, batches: Sequence[Arrays], info: StepInfo) -> Arrays:
    """One update from the gradient of the mean over the samples of all micro-batches.

    The loss of a micro-batch has to be the mean over its samples; it is weighted by its share of all samples. Dropout
    draws other masks for each micro-batch, the first of which has those of a plain step. Batch normalisation takes its
    statistics from each micro-batch by itself, and its running ones move once a micro-batch: with it, the step is not
    that of the whole batch.

    Args:
        step: The training step.
        executor: What runs the network.
        batches: A dict of inputs a micro-batch; they may differ in size.
        info: Of the whole step.

    Returns:
        The network's outputs: floating-point scalars, such as the loss, as the weighted mean; what has a row a sample,
        of all samples, in order; anything else of the last micro-batch.

    Raises:
        UsageError: No micro-batch, or no list of them.
        ShapeError: As for `GraphExecutor.inference_and_backprop`.
    """
    check_info(info)
    if isinstance(batches, Mapping) or not isinstance(batches, Sequence) or not batches:
        raise UsageError(f"batches: got {brief(batches)}; allowed: a list of at least one dict of inputs")
    sizes = [_samples(executor.network.inputs, inputs) for inputs in batches]
    total, found = sum(sizes), []
    for index, (inputs, size) in enumerate(zip(batches, sizes, strict=True)):
        # The rule's point is one for all, so nothing differs but the seed of masks.
        own = info._replace(seed=derive_seed(info.seed, "micro-batch", index)) if index else info
        found.append(step.backprop(inputs, own, accumulate=index > 0, loss_scale=size / total))
    step.apply(executor.gradients(), info)
    weights = [size / total for size in sizes]
    # JAX has 64-bit types only where they are asked for.
    with getattr(step, "arithmetic", nullcontext)():
        return {
            name: _combined(spec, [outputs[name] for outputs in found], weights)
            for name, spec in executor.network.outputs.items()
        }


def _samples(specs: Mapping[str, TensorSpec], inputs: Arrays) -> int:
    """Rows of the first input that has a symbolic number of them; 1 where all shapes are fixed: all weigh the same."""
    for name, spec in specs.items():
        if spec.shape and isinstance(spec.shape[0], str):
            shape = getattr(inputs.get(name), "shape", None) if isinstance(inputs, Mapping) else None
            if not shape or not int(shape[0]):
                raise ShapeError(f"a micro-batch without samples: got {brief(inputs)}; allowed: an array as {name!r}")
            return int(shape[0])
    return 1


def _combined(spec: TensorSpec, values: Sequence[Array], weights: Sequence[float]) -> Array:
    if len(values) == 1:
        return values[0]
    if spec.shape == () and "float" in spec.dtype:
        mean: Any = values[0] * weights[0]
        for value, weight in zip(values[1:], weights[1:], strict=True):
            mean = mean + value * weight
        return mean
    if spec.shape and isinstance(spec.shape[0], str):
        return array_namespace(values[0]).concat(list(values), axis=0)
    return values[-1]
