"""`SharedExecutor`: the loss over all ranks' samples, for optimizers that evaluate it several times per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from deep5.core.communicator import Communicator
from deep5.core.errors import Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, ParameterGroup, StepOptimizer
from deep5.core.network_spec import NetworkSpec
from deep5.core.tensors import Array, Arrays, numpy_dtype, to_numpy
from deep5.distributed.borrowed import without_samples
from deep5.distributed.buckets import Buckets
from deep5.training.native_optimizer import NativeOptimizer

__all__ = ["SharedExecutor", "Sharing", "check_shareable", "owns_step"]


class Sharing(Protocol):
    """Computes sums over the ranks; implemented by a bound `DistributedOptimizer`.

    Attributes:
        timeout_s: Time limit of every wait for other ranks.
    """

    timeout_s: float

    @property
    def executor(self) -> GraphExecutor:
        """The executor that runs the network on this rank."""
        ...

    @property
    def sharers(self) -> Communicator:
        """The ranks whose samples make up the gradient of a step."""
        ...

    def share(self, info: StepInfo) -> float:
        """This rank's fraction of the step's samples."""
        ...

    def sum_for_all(self, buffer: np.ndarray, info: StepInfo) -> None:
        """The sum over all ranks, in place on every rank."""
        ...

    def undisturbed(self, info: StepInfo) -> AbstractContextManager[None]:
        """While inside, a rank without samples does not change its running statistics."""
        ...


def owns_step(optimizer: StepOptimizer) -> bool:
    """Whether an optimizer's step has no two halves between which gradients could be exchanged."""
    try:
        return getattr(optimizer, "halves", None) is None
    except UsageError:
        return False  # it has halves once bound


def check_shareable(name: str, optimizer: StepOptimizer, *, compressed: bool) -> None:
    """Check that an optimizer that owns its step can take it on a `SharedExecutor`.

    Args:
        name: Name of the scheme, for messages.
        optimizer: An optimizer that owns its step.
        compressed: Whether gradients would be compressed.

    Raises:
        Unsupported: It cannot; the message gives the reason.
    """
    kind = type(optimizer).__name__
    if compressed:
        raise Unsupported(
            f"{name}: got a compression with {kind}, which owns its step and treats its input as the gradient "
            "of the loss; allowed: an update rule, or no compression"
        )
    if isinstance(optimizer, NativeOptimizer) and not optimizer.closures:
        raise Unsupported(
            f"{name} adds up the gradients of all ranks at every evaluation of the loss, and {kind} owns its step, "
            f"within which {optimizer.framework} evaluates it out of reach of deep5; allowed: an update rule, "
            "d5.LBFGS, or a scheme that averages parameters"
        )


class SharedExecutor:
    """Replaces this rank's executor for an optimizer that owns its step; a `GraphExecutor`.

    Each evaluation is of the mean over the samples of all ranks: gradients and scalar outputs are summed, weighted by
    each rank's samples, and bit-identical on every rank. So the optimizer makes the same number of evaluations and
    writes the same parameters on every rank, and its state is the same. Everything else is local to this rank.

    Args:
        scheme: Bound to this rank's executor; computes sums over the ranks.

    Attributes:
        own: This rank's executor.
        network: Its network.
        device: Its device.
        capabilities: Whether it supports float64; it neither compiles whole steps nor exposes gradients early.
    """

    def __init__(self, scheme: Sharing) -> None:
        self._scheme, self.own = scheme, scheme.executor
        self.network: Any = self.own.network
        self.device = self.own.device
        self.capabilities = self.own.capabilities & {"float64"}
        outputs = self.network.outputs.items()
        self._scalars = [name for name, spec in outputs if spec.shape == () and "float" in spec.dtype]
        self._buckets = Buckets(self.network.trained_specs)
        self._given: tuple[str, ...] | None = None
        # Scalar outputs of this rank's first pass in the current step.
        self._info: StepInfo | None = None
        self._first: dict[str, Array] = {}

    def step(self, optimizer: StepOptimizer, inputs: Arrays, info: StepInfo) -> Arrays:
        """A step of the optimizer; scalar outputs are those of this rank's samples in the first pass."""
        self._info, self._first = info, {}
        try:
            outputs = optimizer.step(inputs, info)
        finally:
            self._info = None
        return {**outputs, **self._first}

    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """Run forward; within a step, scalar outputs are means over all ranks. See `GraphExecutor.inference`."""
        if self._info is None:
            return self.own.inference(inputs, training=training, info=info)
        with self._scheme.undisturbed(self._step_info()):
            return self._means(self.own.inference(inputs, training=training, info=info or self._info))

    def inference_and_backprop(
        self,
        inputs: Arrays,
        loss: str = "loss",
        *,
        info: StepInfo | None = None,
        wrt: Sequence[str] | None = None,
        accumulate: bool = False,
        loss_scale: float = 1.0,
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        """Run forward and backward on this rank's part, and sum over ranks; see `GraphExecutor.inference_and_backprop`.

        Raises:
            Unsupported: `wrt` names an input: samples differ between ranks.
        """
        if other := [name for name in wrt or () if name not in self.network.trained_specs]:
            raise Unsupported(
                f"gradients by {', '.join(map(str, other))} cannot be added up over ranks, each of which has its own "
                "samples; allowed: parameters"
            )
        options: dict[str, Any] = {} if wrt is None else {"wrt": wrt}
        if accumulate or loss_scale != 1.0:
            options |= {"accumulate": accumulate, "loss_scale": loss_scale}
        self._given = None
        with self._scheme.undisturbed(self._step_info()):
            outputs = self.own.inference_and_backprop(inputs, loss, info=info or self._info, **options)
        self._add_up(self.own.gradients())
        found = self._means(outputs)
        if on_gradient is not None:
            for name, gradient in self.gradients().items():
                on_gradient(name, gradient)
        return found

    def _add_up(self, gradients: Arrays) -> None:
        buckets, scheme, info = self._buckets, self._scheme, self._step_info()
        for buffer in buckets.buffers:
            buffer[...] = 0
        buckets.begin(scheme.share(info))
        if not without_samples(info):
            for name, gradient in gradients.items():
                buckets.put(name, gradient)
        for buffer in buckets.buffers:
            scheme.sum_for_all(buffer, info)
        self._given = tuple(gradients)

    def _means(self, outputs: Arrays) -> dict[str, Array]:
        """The outputs, with scalars replaced by means over the samples of all ranks."""
        scheme, info = self._scheme, self._step_info()
        own = {name: outputs[name] for name in self._scalars}
        # A copy, because a later pass may reuse the memory.
        self._first = self._first or {name: _copied(value) for name, value in own.items()}
        means = np.zeros(len(own))
        if not without_samples(info):
            means += [scheme.share(info) * float(to_numpy(value)) for value in own.values()]
        if own:
            scheme.sum_for_all(means, info)
        specs = self.network.outputs
        return {
            **outputs,
            **{name: np.array(mean, numpy_dtype(specs[name].dtype)) for name, mean in zip(own, means, strict=True)},
        }

    def _step_info(self) -> StepInfo:
        return StepInfo() if self._info is None else self._info

    def gathered(self, rows: np.ndarray) -> np.ndarray:
        """The rows of all ranks, concatenated in rank order, which is the order of the batch's samples.

        Args:
            rows: This rank's rows, shape (its samples, …).
        """
        communicator, timeout_s = self._scheme.sharers, self._scheme.timeout_s
        counts = np.empty(communicator.size, np.int64)
        communicator.all_gather(np.array([len(rows)]), counts, timeout_s=timeout_s)
        padded = np.zeros((counts.max(), *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        every = np.empty((communicator.size, *padded.shape), rows.dtype)
        communicator.all_gather(padded, every, timeout_s=timeout_s)
        return np.concatenate([part[:count] for part, count in zip(every, counts, strict=True)])

    def gradients(self) -> Arrays:
        """Gradients of the mean over the samples of all ranks; the next evaluation reuses their memory.

        Raises:
            Unsupported: There are no gradients.
        """
        if self._given is None:
            raise Unsupported("there are no gradients; remedy: call inference_and_backprop first")
        views = self._buckets.views
        return {name: views[name] for name in self._given}

    def train_step(
        self,
        rule: Any,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
        pipeline: Any = None,
    ) -> Any:
        """Not supported: a step compiled as a whole cannot include the gradients of other ranks.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(
            "an optimizer that owns its step requests a whole training step, into which no gradients of other ranks "
            "come; allowed: inference_and_backprop and gradients; remedy: pass the update rule itself to the scheme"
        )

    def parameters(self) -> Arrays:
        """The live parameters; see `GraphExecutor.parameters`."""
        return self.own.parameters()

    def buffers(self) -> Arrays:
        """This rank's live running statistics; see `GraphExecutor.buffers`."""
        return self.own.buffers()

    def read(self, names: Sequence[str], out: Array) -> None:
        """See `GraphExecutor.read`."""
        self.own.read(names, out)

    def write(self, names: Sequence[str], packed: Array) -> None:
        """See `GraphExecutor.write`."""
        self.own.write(names, packed)

    def state_dict(self) -> dict[str, Any]:
        """See `GraphExecutor.state_dict`."""
        return self.own.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `GraphExecutor.load_state_dict`."""
        self.own.load_state_dict(state)

    def export(self, *, evaluation: bool = True) -> NetworkSpec:
        """See `GraphExecutor.export`."""
        return self.own.export(evaluation=evaluation)

    def synchronize(self) -> None:
        """See `GraphExecutor.synchronize`."""
        self.own.synchronize()

    def settings(self) -> dict[str, Any]:
        """See `GraphExecutor.settings`."""
        return self.own.settings()


def _copied(value: Array) -> Array:
    found: Any = np.array(to_numpy(value))
    return found
