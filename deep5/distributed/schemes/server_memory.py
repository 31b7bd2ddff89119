"""`ServerMemory`: the parameters of a parameter server, updated in place on the host and sent without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, ParameterGroup
from deep5.core.tensors import Array, Arrays, TensorSpec, aligned_empty, numpy_dtype, to_numpy
from deep5.training.rule import UpdateRule

__all__ = ["HEAD", "Block", "ServerMemory"]

HEAD = 8
"""Number of 8-byte values in the head of a block."""
# Alignment of the first array of each dtype.
_ALIGNED = 64
_NOTHING = np.empty(0)


class Block:
    """A message: a head of numbers, then parameters or their gradients, contiguous for each dtype.

    The layout depends only on the specifications, so that ranks agree on it without communication.

    Args:
        specs: Specifications by name, with known sizes.

    Attributes:
        memory: The whole block, uint8.
        head: The numbers of the head, int64, shape (`HEAD`,).
        reals: The head's memory as float64.
        views: Each array, a view in its shape.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        groups: dict[str, list[str]] = {}
        for name, spec in specs.items():
            groups.setdefault(spec.dtype, []).append(name)
        places, end = [], HEAD * 8
        for dtype, names in groups.items():
            begin = -(-end // _ALIGNED) * _ALIGNED
            end = begin + sum(specs[name].size for name in names) * numpy_dtype(dtype).itemsize
            places.append((tuple(names), numpy_dtype(dtype), begin, end))
        self.memory: np.ndarray = aligned_empty((end,), np.uint8)
        self.memory[...] = 0
        self.head = self.memory[: HEAD * 8].view(np.int64)
        self.reals = self.head.view(np.float64)
        self.views: dict[str, np.ndarray] = {}
        self._sections: list[tuple[tuple[str, ...], np.ndarray]] = []
        for members, kind, begin, stop in places:
            section = self.memory[begin:stop].view(kind)
            self._sections.append((members, section))
            offset = 0
            for name in members:
                size = specs[name].size
                self.views[name] = section[offset : offset + size].reshape(tuple(map(int, specs[name].shape)))
                offset += size

    def read(self, executor: GraphExecutor) -> None:
        """Copy the executor's parameters into the block."""
        for names, section in self._sections:
            executor.read(names, section)

    def write(self, executor: GraphExecutor) -> None:
        """Copy the block into the executor's parameters."""
        for names, section in self._sections:
            executor.write(names, section)

    def put(self, gradients: Arrays) -> None:
        """Copy arrays by name; those without a place in the block are ignored."""
        for name, view in self.views.items():
            np.copyto(view, to_numpy(gradients[name]))


class ServerMemory:
    """Replaces the executor to which an update rule is bound: parameters on the host, with gradients of other ranks.

    Its training step has the rule's kernel, with groups, pipeline and modifier, and no forward and backward pass.

    Args:
        executor: The network's executor.
        specs: The trained parameters.
        serves: Whether updates are made here; otherwise the step keeps no state and does nothing.

    Attributes:
        network: The executor's network.
        block: The parameters.
    """

    def __init__(self, executor: GraphExecutor, specs: Mapping[str, TensorSpec], *, serves: bool) -> None:
        self.network, self._serves = executor.network, serves
        self.block = Block(specs)

    def parameters(self) -> Arrays:
        """The live trained parameters; others are not in this memory."""
        return {name: self.block.views.get(name, _NOTHING) for name in self.network.parameter_specs}

    def inference_and_backprop(self, inputs: Arrays, loss: str = "loss", **options: Any) -> Arrays:
        """Do nothing: the workers compute the gradients."""
        return {}

    def train_step(
        self,
        rule: UpdateRule,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
        pipeline: Any = None,
    ) -> Any:
        """The second half of a training step, in place on this memory; see `GraphExecutor.train_step`.

        `backprop({}, info)` replaces the parameters by the point of the gradient, if the rule has one.
        """
        if not self._serves:
            return _Elsewhere()
        from deep5.training.step import KernelStep

        memory: Any = self
        return KernelStep(memory, rule, loss=loss, groups=groups, modifier=modifier, pipeline=pipeline)


class _Elsewhere:
    """The step of a rank whose updates another rank makes: it has no state."""

    how = "of another rank"
    traces = skipped_steps = 0
    loss_scale = 1.0

    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        raise UsageError("another rank makes the updates; remedy: call the step of the scheme")

    def regroup(self, groups: Sequence[ParameterGroup], pipeline: Any) -> None:
        """Do nothing: the other rank applies the groups."""

    @contextmanager
    def averaged(self) -> Iterator[None]:
        yield

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""
