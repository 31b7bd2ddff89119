"""Gradient accumulation: several micro-batches learned from as one step."""

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
    """A training step in two halves, as every `TrainStep` has them.

    What it returns is computed with inside its `arithmetic()`, a context manager, if it has one.
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
        """The outputs, with gradients left in the executor; see `TrainStep.backprop`."""
        ...

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The update from these gradients; see `TrainStep.apply`."""
        ...


class BatchLayout:
    """Where the samples of a batch stand in a network's inputs and outputs.

    What counts them is the symbolic extent that leads the labels; without labels that are known as such, the one that
    leads every input with a symbolic first axis. It may stand on any axis, as in a recurrent network's (T, N, F).

    Args:
        network: The network.

    Raises:
        Unsupported: Several symbolic extents lead, and no label decides.

    Attributes:
        network: As given.
        symbol: The extent; None where all shapes are fixed.
    """

    def __init__(self, network: Any) -> None:
        self.network = network
        labels = _labels(network)
        self.symbol = symbol = _batch_symbol(network, labels)
        known = {extent for name in network.inputs for extent in _extents(network, network.inputs[name])}
        # An extent without a name may be any number: it is that of the labels where there are some.
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
        """Samples of a micro-batch; 1 where all shapes are fixed: all weigh the same.

        Raises:
            ShapeError: The input that they are counted in is missing, or has none.
        """
        if self._place is None:
            return 1
        name, axis = self._place
        shape = getattr(inputs.get(name), "shape", None) if isinstance(inputs, Mapping) else None
        if not shape or len(shape) <= axis or not int(shape[axis]):
            raise ShapeError(f"a micro-batch without samples: got {brief(inputs)}; allowed: an array as {name!r}")
        return int(shape[axis])

    def combined(self, name: str, values: Sequence[Array], weights: Sequence[float]) -> Array:
        """One output of all micro-batches; see `accumulated_step`."""
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
    """The layout of a network; the one that is known where it is of this network.

    Raises:
        Unsupported: See `BatchLayout`.
    """
    return known if known is not None and known.network is network else BatchLayout(network)


def accumulated_step(
    step: Halves, executor: GraphExecutor, batches: Sequence[Arrays], info: StepInfo, layout: BatchLayout
) -> Arrays:
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
        layout: Of the executor's network.

    Returns:
        The network's outputs: floating-point scalars, such as the loss, as the weighted mean; what has the samples on
        an axis, of all samples, in order; anything else of the last micro-batch.

    Raises:
        UsageError: No micro-batch, or no list of them.
        ShapeError: As for `GraphExecutor.inference_and_backprop`.
    """
    check_info(info)
    if isinstance(batches, Mapping) or not isinstance(batches, Sequence) or not batches:
        raise UsageError(f"batches: got {brief(batches)}; allowed: a list of at least one dict of inputs")
    sizes = [layout.samples(inputs) for inputs in batches]
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
            name: layout.combined(name, [outputs[name] for outputs in found], weights)
            for name in executor.network.outputs
        }


def _labels(network: Any) -> list[str]:
    """The inputs that a loss takes as labels; what a framework alone can run does not say which these are."""
    if not hasattr(network, "nodes"):
        return []
    from deep5.networks.labels import label_inputs

    return [found.name for found in label_inputs(network)]


def _extents(network: Any, spec: TensorSpec) -> tuple[int | str, ...]:
    """A shape; whatever leads an input and has no name in the file, of which `Network` makes one a value, is one."""
    nameless = {f"{name}:0" for name in network.inputs}
    return tuple(_UNNAMED if extent in nameless else extent for extent in spec.shape)


def _batch_symbol(network: Any, labels: Sequence[str]) -> str | None:
    leads = [_extents(network, network.inputs[name])[:1] for name in labels or network.inputs]
    symbols = list(dict.fromkeys(extent for lead in leads for extent in lead if isinstance(extent, str)))
    named = [symbol for symbol in symbols if symbol != _UNNAMED]
    if len(named) > 1:
        what = "labels" if labels else "inputs"
        raise Unsupported(
            f"several micro-batches as one step: the {what} of this network lead with {', '.join(named)}, and nothing "
            "says which of them counts the samples; allowed: one; remedy: the batch's extent under one name on the "
            "first axis, or step(inputs, info) on all samples at once"
        )
    return next(iter(named or symbols), None)


def _axis(extents: Sequence[int | str], symbol: str | None, known: Container[int | str]) -> int | None:
    """Where an output has the samples; None where it has none."""
    if symbol is not None and symbol in extents:
        return list(extents).index(symbol)
    # An extent that no input has was made of others, such as samples times places: its rows are of the samples.
    return 0 if extents and isinstance(extents[0], str) and extents[0] not in known else None
