"""The executor of the reference: NumPy arrays, generated code, gradients by an ONNX graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.backend import ParameterGroup, TrainStep
from deep5.errors import NetworkError, ShapeError, UnknownName, Unsupported, UsageError, suggestion
from deep5.events import StepInfo
from deep5.frameworks.reference.emit import Program, compile_network
from deep5.frameworks.reference.kernels.memory import Array, Scratch, aligned_copy
from deep5.networks.gradients import gradient_network
from deep5.networks.network import Network
from deep5.tensors import Arrays, Device, to_numpy

if TYPE_CHECKING:
    from deep5.training.rule import UpdateRule

__all__ = ["ReferenceExecutor"]


class ReferenceExecutor:
    """Runs a network with deep5's own NumPy kernels; the executor that the others are compared with.

    Args:
        network: The network; it is not changed.
        device: The host processor.
        seed: Of noise; no operator of the reference draws any.

    Raises:
        Unsupported: Nodes without a kernel, each with its reason.

    Attributes:
        network: As given; its initial values are those that the executor started from.
        device: As given.
        capabilities: `"float64"`, `"early_gradients"`.
    """

    capabilities = frozenset({"early_gradients", "float64"})

    def __init__(self, network: Network, *, device: Device | None = None, seed: int = 0) -> None:
        self.network = network
        self.device = Device() if device is None else device
        self.seed = seed
        self._parameters: dict[str, Array] = {n: aligned_copy(network.initial(n)) for n in network.parameters}
        self._buffers: dict[str, Array] = {n: aligned_copy(network.initial(n)) for n in network.buffers}
        self._values = {**self._parameters, **self._buffers}
        self._scratch = Scratch()
        self._forward = compile_network(network, self._values, self._scratch)
        self._backward: dict[tuple[str, tuple[str, ...]], tuple[Program, Any]] = {}
        self._gradients: dict[str, Array] | None = None
        self._step: weakref.ref[Any] | None = None

    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """Run forward; see `GraphExecutor.inference`.

        Raises:
            ShapeError: A missing, unknown or misshapen input.
            Unsupported: `training` with batch normalisation in the network.
        """
        if training:
            self._refuse_training()
        outputs = self._forward.run(*self._feed(inputs), None)
        return dict(zip(self.network.outputs, map(np.asarray, outputs), strict=True))

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
        """Run forward and backward in one generated function; see `GraphExecutor.inference_and_backprop`.

        Raises:
            ShapeError: A missing, unknown or misshapen input.
            UnknownName: No such loss, parameter or input.
            Unsupported: An operator without a gradient.
        """
        self._refuse_training()
        names = tuple(self.network.parameters) if wrt is None else tuple(dict.fromkeys(wrt))
        fed = self._feed(inputs)
        program, dtype = self._differentiated(loss, names)
        first = len(self.network.outputs)
        earlier = (self._gradients or {}) if accumulate else {}
        gradients: dict[str, Any] = dict(earlier)

        def total(index: int, gradient: Any) -> Any:
            name = names[index - first]
            gradients[name] = earlier[name] + gradient if name in earlier else gradient
            return gradients[name]

        def notify(index: int, gradient: Any) -> None:
            if on_gradient is not None:
                on_gradient(names[index - first], total(index, gradient))

        results = program.run(*fed, np.array(loss_scale, dtype=dtype), None if on_gradient is None else notify)
        if on_gradient is None:
            for index in range(first, len(results)):
                total(index, results[index])
        self._gradients = gradients
        return dict(zip(self.network.outputs, map(np.asarray, results[:first]), strict=True))

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`, C-contiguous NumPy arrays.

        Raises:
            Unsupported: Nothing has run backward yet.
        """
        if self._gradients is None:
            raise Unsupported("there are no gradients yet; remedy: call inference_and_backprop first")
        return dict(self._gradients)

    def parameters(self) -> Arrays:
        """The live parameters: C-contiguous NumPy arrays, 64-byte aligned; write into them in place."""
        return dict(self._parameters)

    def buffers(self) -> Arrays:
        """The live running statistics, as `parameters`."""
        return dict(self._buffers)

    def read(self, names: Sequence[str], out: Array) -> None:
        """Copy parameters or buffers into a packed array; see `GraphExecutor.read`.

        Raises:
            UnknownName: No such parameter or buffer.
            ShapeError: An array of another size or dtype.
        """
        for value, part in self._packed(names, out):
            part[...] = value.reshape(-1)

    def write(self, names: Sequence[str], packed: Array) -> None:
        """Copy a packed array back, as `read`."""
        for value, part in self._packed(names, packed):
            value.reshape(-1)[...] = part

    def train_step(
        self,
        rule: UpdateRule,
        loss: str = "loss",
        *,
        groups: Sequence[ParameterGroup] = (),
        modifier: Callable[[str, Array, Array], Array] | None = None,
    ) -> TrainStep:
        """The training step under an update rule, which runs in place on the parameters."""
        from deep5.training.step import KernelStep

        step: TrainStep = KernelStep(self, rule, loss=loss, groups=groups, modifier=modifier)
        self._step = weakref.ref(step)
        return step

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name, copied."""
        return {name: value.copy() for name, value in self._values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`, bit for bit.

        Raises:
            NetworkError: Names are missing or unknown.
            ShapeError: A value of another shape or dtype.
        """
        missing, unknown = sorted(self._values.keys() - state), sorted(state.keys() - self._values)
        if missing or unknown:
            raise NetworkError(
                f"the state does not fit: missing {missing}, unknown {unknown}; expected the network's own"
            )
        arrays = {name: np.asarray(state[name]) for name in self._values}
        for name, array in arrays.items():
            value = self._values[name]
            if (array.shape, array.dtype) != (value.shape, value.dtype):
                raise ShapeError(
                    f"the state of {name!r}: got {array.dtype}{array.shape}, expected {value.dtype}{value.shape}"
                )
        for name, array in arrays.items():
            self._values[name][...] = array

    def export(self, *, evaluation: bool = True) -> Network:
        """The network with the live parameters as its initial ones; see `GraphExecutor.export`."""
        step = None if self._step is None else self._step()
        averaging = evaluation and step is not None and bool(getattr(step, "averages", False))
        with step.averaged() if averaging and step is not None else nullcontext():
            return self.network.with_values(self._values)

    def synchronize(self) -> None:
        """Return at once: NumPy has finished when it returns."""

    def settings(self) -> dict[str, Any]:
        """Threads of the BLAS library as read back from it, dtype, TF32 and determinism."""
        from threadpoolctl import threadpool_info

        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        specs = (*self.network.parameters.values(), *self.network.inputs.values())
        return {
            "threads": max((pool["num_threads"] for pool in pools), default=1),
            "blas": ", ".join(sorted({f"{pool['internal_api']} {pool['version']}" for pool in pools})),
            "dtype": next((spec.dtype for spec in specs if spec.dtype.startswith("float")), "none"),
            "tf32": False,
            "deterministic": True,
        }

    def _differentiated(self, loss: str, names: tuple[str, ...]) -> tuple[Program, Any]:
        found = self._backward.get((loss, names))
        if found is None:
            network = gradient_network(self.network, loss, names)
            announced = [f"grad:{name}" for name in names]
            program = compile_network(network, self._values, self._scratch, announced=announced)
            found = self._backward[loss, names] = program, np.dtype(network.inputs["loss_scale"].dtype)
        return found

    def _refuse_training(self) -> None:
        nodes = [node.name for node in self.network.nodes if node.op_type == "BatchNormalization"]
        if nodes:
            raise Unsupported(f"the reference has no batch normalisation in training; got {', '.join(map(str, nodes))}")

    def _feed(self, inputs: Arrays) -> list[Array]:
        expected = self.network.inputs
        if not isinstance(inputs, Mapping):
            raise ShapeError(f"got {type(inputs).__name__} as inputs; expected a dict of arrays: {', '.join(expected)}")
        if inputs.keys() != expected.keys():
            for name in inputs:
                if name not in expected:
                    allowed = ", ".join(expected)
                    raise ShapeError(f"unknown input {name!r}; expected: {allowed}{suggestion(name, expected)}")
            missing = ", ".join(repr(name) for name in expected if name not in inputs)
            raise ShapeError(
                f"missing input {missing}; got: {', '.join(inputs) or 'none'}, expected: {', '.join(expected)}"
            )
        extents: dict[str, tuple[int, str]] = {}
        fed = []
        for name, spec in expected.items():
            array = to_numpy(inputs[name])
            reason = spec.mismatch(array.shape, str(array.dtype))
            if reason:
                raise ShapeError(f"input {name!r}: {reason}")
            for symbol, extent in zip(spec.shape, array.shape, strict=True):
                if isinstance(symbol, str) and extents.setdefault(symbol, (extent, name))[0] != extent:
                    known, other = extents[symbol]
                    raise ShapeError(
                        f"input {name!r}: got {symbol} = {extent} in shape {array.shape}, "
                        f"expected {symbol} = {known} as in input {other!r}"
                    )
            fed.append(array)
        return fed

    def _packed(self, names: Sequence[str], packed: Array) -> list[tuple[Array, Array]]:
        for name in names:
            if name not in self._values:
                raise UnknownName("parameter or buffer", name, self._values)
        flags = getattr(packed, "flags", None)
        if not getattr(flags, "c_contiguous", False):
            raise UsageError(f"got {type(packed).__name__} that is not contiguous; allowed: a C-contiguous NumPy array")
        values = [self._values[name] for name in names]
        total = sum(value.size for value in values)
        dtypes = {str(value.dtype) for value in values}
        if packed.size != total or dtypes - {str(packed.dtype)}:
            wanted = " and ".join(sorted(dtypes)) or "any dtype"
            raise ShapeError(
                f"packed array: got {packed.size} elements of {packed.dtype}, expected {total} of {wanted}"
            )
        flat, start, pairs = packed.reshape(-1), 0, []
        for value in values:
            pairs.append((value, flat[start : start + value.size]))
            start += value.size
        return pairs
