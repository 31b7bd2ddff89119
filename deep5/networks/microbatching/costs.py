"""Measure the time and workspace of a layer, forward and backward, for micro-batches of several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError, Unsupported
from deep5.core.framework import Framework
from deep5.core.seeds import generator
from deep5.core.tensors import TensorSpec
from deep5.measuring import loops as timing
from deep5.measuring.samples import Interval, ratio_interval
from deep5.networks.custom import operator_of
from deep5.networks.microbatching.memory import resident_workspaces
from deep5.networks.microbatching.plan import Cost
from deep5.networks.microbatching.transform import micro_batched
from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute
from deep5.networks.onnx_operator import ONNXOperator
from deep5.networks.single import Single
from deep5.operators.cpp import CppOperator

__all__ = ["WORKSPACE", "MeasuredLayer"]

WORKSPACE = "workspace bytes"
"""The counter in which a C++ operator reports the most temporary memory that one call requested."""


class MeasuredLayer:
    """One layer of a network in isolation, on a framework, with the sum of squares of its outputs as loss.

    The measured time includes the loss and its gradient; their cost per sample does not depend on the parts, so they
    change no choice between divisions. Each part is a separate call, which costs more than a node.

    Args:
        network: The network.
        name: Name of a node with one output, whose first input has the minibatch along axis 0.
        framework: The framework that runs it.
        seed: Seed of the values.

    Attributes:
        threads: The framework's number of threads; None if it does not report it.

    Raises:
        NetworkError: An unknown node, or unknown dimensions other than the minibatch.
        Unsupported: The framework does not run it.
    """

    def __init__(self, network: Network, name: str, framework: Framework, seed: int = 0) -> None:
        node = next((node for node in network.nodes if node.name == name), None)
        if node is None:
            names = [str(node.name) for node in network.nodes]
            raise NetworkError(f"no node {name!r} to measure; allowed: {', '.join(names[:10])}, …")
        self.name, self.framework, self._seed = name, framework, seed
        self._specs = [_spec(value, name, batch=position == 0) for position, value in enumerate(node.inputs)]
        self._operator = operator_of(node)
        # The registration of an operator in the layer's network ends with this object.
        self._single = Single(self._operator or _of_onnx(node))
        made = self._single.network(self._specs)
        self._node = str(made.nodes[0].name)
        self._network = made.add_node("ReduceSumSquare", ["y0"], ["loss"], keepdims=0).with_outputs(["y0", "loss"])
        parameters = [f"x{place}" for place, value in enumerate(node.inputs) if _name(value) in network.trained_specs]
        first = node.inputs[0]
        # Inputs of the network need no gradient.
        self._wrt = [*(["x0"] if first is not None and first.producer() is not None else []), *parameters]
        self._executor = framework.executor(self._network)
        self.threads: int | None = self._executor.settings().get("threads")

    def costs(self, sizes: Sequence[int], rounds: int = 5) -> dict[int, Cost]:
        """Median time over rounds, each with the sizes in another order, and workspace.

        Args:
            sizes: Micro-batch sizes.
            rounds: Samples per size.
        """
        works = {size: self._work(self._executor, self._feed(size)) for size in sizes}
        workspaces = self._workspaces(works)
        calls: dict[int, int] = {}
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        draw = generator(self._seed, "microbatch_costs", self.name)
        with timing.collector_off():
            for size in sizes:
                calls[size], _ = timing.calibrate(works[size])
            for _ in range(rounds):
                for size in draw.permutation(list(sizes)):
                    seconds[int(size)].append(timing.time_loop(works[int(size)], calls[int(size)]))
        return {size: Cost(seconds=median(seconds[size]), workspace_bytes=workspaces[size]) for size in sorted(sizes)}

    def ratio(self, parts: Sequence[int], rounds: int = 11) -> Interval:
        """Interval of the time of the parts over the time undivided, as nodes of one network, in paired rounds.

        Args:
            parts: Sizes of the parts.
            rounds: At least 6.
        """
        batch = sum(parts)
        own = [f"{node.domain}.{node.op_type}" for node in self._network.nodes if node.domain]
        divided = micro_batched(self._network, {self._node: parts}, own=own)
        works = [self._work(self.framework.executor(each), self._feed(batch)) for each in (divided, self._network)]
        draw = generator(self._seed, "microbatch_costs", "rounds")
        seconds: tuple[list[float], list[float]] = [], []
        with timing.collector_off():
            for _ in range(rounds):
                for side in draw.permutation(2):
                    seconds[side].append(timing.time_loop(works[side], 1))
        return ratio_interval(*seconds)

    def _feed(self, size: int) -> dict[str, np.ndarray]:
        draw = generator(self._seed, "microbatch_costs", self.name, size)
        shapes = [tuple(size if isinstance(extent, str) else extent for extent in spec.shape) for spec in self._specs]
        return {
            f"x{place}": draw.standard_normal(shape).astype(spec.dtype)
            for place, (spec, shape) in enumerate(zip(self._specs, shapes, strict=True))
        }

    def _work(self, executor: Any, feed: Mapping[str, np.ndarray]) -> timing.Work:
        def step() -> None:
            executor.inference_and_backprop(feed, "loss", wrt=self._wrt)

        work = timing.Work(call=step, synchronize=executor.synchronize)
        timing.time_loop(work, 1)
        return work

    def workspaces(self, sizes: Sequence[int]) -> dict[int, int]:
        """Workspace in bytes by micro-batch size: as counted by the operator, or else from resident memory.

        Raises:
            Unsupported: A registered operator does not count its workspace.
        """
        return self._workspaces({size: self._work(self._executor, self._feed(size)) for size in sizes})

    def _workspaces(self, works: Mapping[int, timing.Work]) -> dict[int, int]:
        if self._operator is None:
            return resident_workspaces(self._network, self.framework.name, self.threads, self._wrt, list(works))
        found = {}
        for size, work in works.items():
            count = self._counted(work)
            if count is None:
                raise Unsupported(
                    f"node {self.name!r}: its operator does not say how much workspace it takes; remedy: "
                    f'report_largest("{WORKSPACE}", …) in its C++ source'
                )
            found[size] = count
        return found

    def _counted(self, work: timing.Work) -> int | None:
        operator = self._operator
        if not isinstance(operator, CppOperator):
            return None
        operator.report()
        timing.time_loop(work, 1)
        count = operator.report().get(WORKSPACE)
        return None if count is None else int(count)


def _of_onnx(node: ir.Node) -> ONNXOperator:
    return ONNXOperator(node.op_type, **{key: attribute(node, key) for key in node.attributes})


def _name(value: ir.Value | None) -> str | None:
    return None if value is None else value.name


def _spec(value: ir.Value | None, name: str, *, batch: bool) -> TensorSpec:
    if value is None or value.shape is None or value.dtype is None:
        raise NetworkError(
            f"node {name!r} has an input whose shape is not known; remedy: a network of known dimensions"
        )
    extents: list[Any] = [extent if isinstance(extent, int) else str(extent.value) for extent in value.shape]
    if batch:
        extents[0] = "N"
    if any(isinstance(extent, str) for extent in extents[1 if batch else 0 :]):
        raise NetworkError(
            f"node {name!r}: its input {value.name!r} has the shape {extents}; allowed: fixed dimensions beside the "
            "minibatch"
        )
    return TensorSpec(shape=tuple(extents), dtype=str(value.dtype.numpy()))
