"""`ServerMemory`: the parameters of a parameter server, updated in place on the host and sent as they lie there."""

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
"""Numbers of eight bytes at the head of a block."""
# Where an array of another dtype begins, so that every one is aligned.
_ALIGNED = 64
_NOTHING = np.empty(0)


class Block:
    """A message: a head of numbers, and behind it parameters, or their gradients, in one piece for each dtype.

    The layout is a function of the specifications alone, so that ranks agree on it without a word.

    Args:
        specs: By name, of known extents.

    Attributes:
        memory: All of it, uint8.
        head: Numbers that come with it, int64, shape (`HEAD`,).
        reals: The same memory as float64.
        views: Where each array lies, in its shape.
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
        """Take the executor's parameters."""
        for names, section in self._sections:
            executor.read(names, section)

    def write(self, executor: GraphExecutor) -> None:
        """Put these in the place of the executor's parameters."""
        for names, section in self._sections:
            executor.write(names, section)

    def put(self, gradients: Arrays) -> None:
        """Take arrays by name, all of those that have a place here."""
        for name, view in self.views.items():
            np.copyto(view, to_numpy(gradients[name]))


class ServerMemory:
    """What an update rule is bound to in place of an executor: parameters on the host, with gradients of others.

    Its training step has the rule's kernel, with groups, pipeline and modifier, and no forward and backward pass.

    Args:
        executor: The network's.
        specs: The parameters that are trained.
        serves: Whether updates are made here; else the step keeps no state and does nothing.

    Attributes:
        network: The executor's.
        block: The parameters.
    """

    def __init__(self, executor: GraphExecutor, specs: Mapping[str, TensorSpec], *, serves: bool) -> None:
        self.network, self._serves = executor.network, serves
        self.block = Block(specs)

    def parameters(self) -> Arrays:
        """The live parameters; those that are not trained have none here."""
        return {name: self.block.views.get(name, _NOTHING) for name in self.network.parameter_specs}

    def inference_and_backprop(self, inputs: Arrays, loss: str = "loss", **options: Any) -> Arrays:
        """Nothing: the gradients are the workers'."""
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

        `backprop({}, info)` puts the point of the gradient in the place of the parameters, where the rule has one.
        """
        if not self._serves:
            return _Elsewhere()
        from deep5.training.step import KernelStep

        memory: Any = self
        return KernelStep(memory, rule, loss=loss, groups=groups, modifier=modifier, pipeline=pipeline)


class _Elsewhere:
    """The step of a rank whose updates another one makes: it has no state."""

    how = "of another rank"
    traces = skipped_steps = 0
    loss_scale = 1.0

    def __call__(self, inputs: Arrays, info: StepInfo) -> Arrays:
        raise UsageError("another rank makes the updates; remedy: call the step of the scheme")

    def regroup(self, groups: Sequence[ParameterGroup], pipeline: Any) -> None:
        """Groups are the other rank's matter."""

    @contextmanager
    def averaged(self) -> Iterator[None]:
        yield

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is none."""
