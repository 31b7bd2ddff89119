"""Gradient accumulation: one update from several micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from deep5.core.errors import ShapeError, Unsupported, UsageError, brief
from deep5.core.events import StepInfo, check_info
from deep5.core.executors import GraphExecutor
from deep5.core.seeds import derive_seed
from deep5.core.tensors import Array, Arrays, TensorSpec, array_namespace

__all__ = ["BatchLayout", "Halves", "accumulated_step", "batch_layout"]


_UNNAMED = "?"


class Halves(Protocol):
    """A training step in two halves, as every `TrainStep` provides them.

    Computations on its results run inside its `arithmetic()`, a context manager, if it has one.
    """

    def backprop(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        """The outputs; gradients stay in the executor. See `TrainStep.backprop`."""
        ...

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The update from these gradients; see `TrainStep.apply`."""
        ...


class BatchLayout:
    """The sample dimension of a network's inputs and outputs.

    The symbolic dimension that leads the labels counts the samples; without known labels, the one that leads every
    input with a symbolic first dimension. It may be any axis of an array, as in a recurrent network's (T, N, F).

    Args:
        network: The network.

    Raises:
        Unsupported: Several symbolic dimensions lead, and no label decides.

    Attributes:
        network: As given.
        symbol: The dimension; None if all shapes are fixed.
    """

    def __init__(self, network: Any) -> None:
        self.network = network
        labels = _labels(network)
        self.symbol = symbol = _batch_symbol(network, labels)
        known = {extent for name in network.inputs for extent in _extents(network, network.inputs[name])}
        # An unnamed dimension may be any number: use that of the labels, if there are labels.
        counted = labels if labels and symbol == _UNNAMED else network.inputs
        self._place = next(
            (
                (name, _extents(network, network.inputs[name]).index(symbol))
                for name in counted
                if symbol is not None and symbol in _extents(network, network.inputs[name])
            ),
            None,
        )
        self._axes = {
            name: _axis(_extents(network, spec), symbol, known - {_UNNAMED}) for name, spec in network.outputs.items()
        }

    def samples(self, inputs: Arrays) -> int:
        """The number of samples of a micro-batch; 1 if all shapes are fixed: all have the same weight.

        Raises:
            ShapeError: The input that determines the count is missing or has no such dimension.
        """
        if self._place is None:
            return 1
        name, axis = self._place
        shape = getattr(inputs.get(name), "shape", None) if isinstance(inputs, Mapping) else None
        if not shape or len(shape) <= axis or not int(shape[axis]):
            raise ShapeError(f"a micro-batch without samples: got {brief(inputs)}; allowed: an array as {name!r}")
        return int(shape[axis])

    def combined(self, name: str, values: Sequence[Array], weights: Sequence[float]) -> Array:
        """One output combined over all micro-batches; see `accumulated_step`."""
        if len(values) == 1:
            return values[0]
        spec: TensorSpec = self.network.outputs[name]
        if spec.shape == () and "float" in spec.dtype:
            mean: Any = values[0] * weights[0]
            for value, weight in zip(values[1:], weights[1:], strict=True):
                mean = mean + value * weight
            return mean
        axis = self._axes[name]
        return values[-1] if axis is None else array_namespace(values[0]).concat(list(values), axis=axis)


def batch_layout(network: Any, known: BatchLayout | None) -> BatchLayout:
    """The layout of a network; `known` if it belongs to this network.

    Raises:
        Unsupported: See `BatchLayout`.
    """
    return known if known is not None and known.network is network else BatchLayout(network)


def accumulated_step(
    step: Halves, executor: GraphExecutor, batches: Sequence[Arrays], info: StepInfo, layout: BatchLayout
) -> Arrays:
    """One update from the gradient of the mean over the samples of all micro-batches.

    The loss of a micro-batch has to be the mean over its samples; its weight is its share of all samples. Dropout draws
    different masks for each micro-batch; the first has those of a plain step. Batch normalization uses the statistics
    of each micro-batch separately and updates its running statistics once per micro-batch, so the step differs from
    that of the whole batch.

    Args:
        step: The training step.
        executor: Runs the network.
        batches: A dict of inputs per micro-batch; sizes may differ.
        info: The whole step's.
        layout: The layout of the executor's network.

    Returns:
        The network's outputs: floating-point scalars, such as the loss, as the weighted mean; outputs with a sample
        dimension concatenated in order; all others from the last micro-batch.

    Raises:
        UsageError: `batches` is empty or not a list.
        ShapeError: As for `GraphExecutor.inference_and_backprop`.
    """
    check_info(info)
    if isinstance(batches, Mapping) or not isinstance(batches, Sequence) or not batches:
        raise UsageError(f"batches: got {brief(batches)}; allowed: a list of at least one dict of inputs")
    sizes = [layout.samples(inputs) for inputs in batches]
    total, found = sum(sizes), []
    for index, (inputs, size) in enumerate(zip(batches, sizes, strict=True)):
        # The rule's point is the same for all, so only the mask seed differs.
        own = info._replace(seed=derive_seed(info.seed, "micro-batch", index)) if index else info
        found.append(step.backprop(inputs, own, accumulate=index > 0, loss_scale=size / total))
    step.apply(executor.gradients(), info)
    weights = [size / total for size in sizes]
    # JAX has 64-bit types only if they are enabled.
    with getattr(step, "arithmetic", nullcontext)():
        return {
            name: layout.combined(name, [outputs[name] for outputs in found], weights)
            for name in executor.network.outputs
        }


def _labels(network: Any) -> list[str]:
    """The inputs that a loss uses as labels; native code of a framework does not declare them."""
    if not hasattr(network, "nodes"):
        return []
    from deep5.networks.labels import label_inputs

    return [found.name for found in label_inputs(network)]


def _extents(network: Any, spec: TensorSpec) -> tuple[int | str, ...]:
    """A shape; an input's leading dimension without a name in the file, which `Network` makes a value, is symbolic."""
    nameless = {f"{name}:0" for name in network.inputs}
    return tuple(_UNNAMED if extent in nameless else extent for extent in spec.shape)


def _batch_symbol(network: Any, labels: Sequence[str]) -> str | None:
    leads = [_extents(network, network.inputs[name])[:1] for name in labels or network.inputs]
    symbols = list(dict.fromkeys(extent for lead in leads for extent in lead if isinstance(extent, str)))
    named = [symbol for symbol in symbols if symbol != _UNNAMED]
    if len(named) > 1:
        what = "labels" if labels else "inputs"
        raise Unsupported(
            f"several micro-batches as one step: the {what} of this network lead with {', '.join(named)}, and it is "
            "not known which of them counts the samples; allowed: one; remedy: one name for the batch dimension, the "
            "first one, or step(inputs, info) on all samples at once"
        )
    return next(iter(named or symbols), None)


def _axis(extents: Sequence[int | str], symbol: str | None, known: Container[int | str]) -> int | None:
    """The sample axis of an output; None if it has none."""
    if symbol is not None and symbol in extents:
        return list(extents).index(symbol)
    # A dimension that no input has is derived, such as samples times positions: its rows belong to samples.
    return 0 if extents and isinstance(extents[0], str) and extents[0] not in known else None
