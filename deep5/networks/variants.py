"""`Variants`: executors of variants of a network, which share the live parameters of an executor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.memo import remember
from deep5.core.tensors import Arrays, TensorSpec, numpy_dtype
from deep5.networks.edit.taps import with_fed_values, with_perturbations
from deep5.networks.feeding import wrong_names
from deep5.networks.network import Network
from deep5.networks.onnx.specs import spec_of_value

__all__ = ["Lender", "Variants"]

# Executors to keep.
_KEPT = 8


class Lender(Protocol):
    """An executor that lets others use its live parameters and buffers."""

    def lend(self, other: GraphExecutor) -> None:
        """Before each call of another executor: it uses this executor's live values."""
        ...

    def take_back(self, other: GraphExecutor) -> None:
        """After each call in training: what it changed in buffers is in this executor."""
        ...


class Variants:
    """Runs variants of an executor's network, each compiled when it is first needed.

    Args:
        lender: The executor.
        network: Its network.
        make: Creates an executor of another network on the same back-end and device.

    Attributes:
        computed: Names of the values that nodes of the network compute, without those inside nested graphs.
        fed: Values to use in place of computed ones.
    """

    def __init__(self, lender: Lender, network: Network, make: Callable[[Network], GraphExecutor]) -> None:
        self._lender, self._network, self._make = lender, network, make
        self._values = {str(value.name): value for node in network.nodes for value in node.outputs if value.name}
        self.computed = self._values.keys()
        self.fed: dict[str, Any] = {}
        self._made: dict[Hashable, GraphExecutor] = {}
        self._lock = threading.Lock()

    def spec(self, name: str) -> TensorSpec:
        """The specification of a computed value.

        Raises:
            Unsupported: Its element type is unknown.
        """
        value = self._values[name]
        if value.type is None:
            raise Unsupported(
                f"the element type of {name!r} is not known; allowed: values of known type; remedy: a value before or "
                "after it"
            )
        if value.shape is None:
            unknown = ir.Value(name=name, shape=ir.Shape([None]), type=value.type)
            return replace(spec_of_value(unknown), ranked=False)
        return spec_of_value(value)

    def inference(self, names: Sequence[str], inputs: Arrays, training: bool, info: StepInfo | None) -> dict[str, Any]:
        """Values by name for a batch, with the fed values; running statistics change only if `names` are the outputs.

        Raises:
            ShapeError: As for `GraphExecutor.inference`.
            NetworkError: A fed value does not fit the nodes that read it.
        """
        if not isinstance(inputs, Mapping):
            raise wrong_names(inputs, self._network.inputs, None)
        wanted = tuple(name for name in names if name not in self.fed)
        found = {name: self.fed[name] for name in names if name in self.fed}
        if wanted:
            ranks = {name: np.ndim(value) for name, value in self.fed.items()}
            with self._lock:
                other = self._variant(
                    ("fed", wanted, tuple(ranks.items())),
                    lambda: with_fed_values(self._network.model, wanted, ranks),
                )
                given = {name: inputs[name] for name in inputs if name not in self.fed} | self.fed
                self._lender.lend(other)
                found |= other.inference(given, training=training, info=info)
        return {name: found[name] for name in names}

    def backprop(
        self,
        names: Sequence[str],
        between: Sequence[str],
        inputs: Arrays,
        loss: str,
        extents: Mapping[str, int],
        info: StepInfo | None,
        loss_scale: float,
    ) -> tuple[Arrays, dict[str, Any]]:
        """The outputs, and the gradients by parameters, inputs and computed values.

        An input of negative zeros is added to each computed value, which changes no bit of it; its gradient is the
        gradient by the value.

        Args:
            names: All names to differentiate by.
            between: Those of computed values.
            inputs: As for `inference_and_backprop`.
            loss: Likewise.
            extents: The symbolic dimensions of this batch.
            info: As for `inference_and_backprop`.
            loss_scale: Likewise.
        """
        taken = {*self.computed, *self._network.inputs, *self._network.model.graph.initializers}
        taps = {name: _fresh(f"{name}/perturbation", taken) for name in between}
        shapes, measured = self._shapes(between, inputs, extents, info)
        with self._lock:
            other = self._variant(
                ("perturbed", tuple(taps), tuple(measured.items())),
                lambda: with_perturbations(self._network.model, taps, measured),
            )
            zeros = {tap: np.full(shapes[name], -0.0, numpy_dtype(self.spec(name).dtype)) for name, tap in taps.items()}
            self._lender.lend(other)
            wrt = [taps.get(name, name) for name in names]
            outputs = other.inference_and_backprop(
                {**inputs, **zeros}, loss, info=info, wrt=tuple(wrt), loss_scale=loss_scale
            )
            gradients = other.gradients()
            self._lender.take_back(other)
        return outputs, {name: gradients[taps.get(name, name)] for name in names}

    def _shapes(
        self, names: Sequence[str], inputs: Arrays, extents: Mapping[str, int], info: StepInfo | None
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """The shapes of computed values in this batch; and those that only a run determines."""
        shapes = {}
        for name in names:
            spec = self.spec(name)
            dimensions = tuple(extents.get(one, one) if isinstance(one, str) else one for one in spec.shape)
            if spec.ranked and all(isinstance(one, int) for one in dimensions):
                shapes[name] = tuple(int(one) for one in dimensions)
        missing = [name for name in names if name not in shapes]
        measured = {}
        if missing:
            values = self.inference(missing, inputs, training=False, info=info)
            measured = {name: tuple(map(int, values[name].shape)) for name in missing}
        return {**shapes, **measured}, measured

    def _variant(self, key: Hashable, change: Callable[[], Any]) -> GraphExecutor:
        found = self._made.get(key)
        return found if found is not None else remember(self._made, key, self._make(Network(change())), room=_KEPT)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
