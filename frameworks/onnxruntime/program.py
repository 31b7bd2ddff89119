"""`Program`: a network in a session of ONNX Runtime, its parameters bound where they lie."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
from onnxruntime import OrtValue

from deep5.errors import Deep5Error, NetworkError, Unsupported
from deep5.frameworks.onnxruntime.custom import failure, with_kernels
from deep5.frameworks.onnxruntime.framework import EXACT, Numerics
from deep5.frameworks.onnxruntime.guards import guarded
from deep5.frameworks.onnxruntime.session import explanation, make_session, on_memory
from deep5.networks.engine import engine_model
from deep5.networks.network import Network
from deep5.tensors import Device, TensorSpec, aligned_empty
from deep5.training.gradient_executor import Notify

__all__ = ["Program"]

# A copy of this many bytes takes as long as ONNX Runtime takes to bind an array.
_SMALL_BYTES = 8192
_Shapes = tuple[tuple[int, ...], ...]


class Program:
    """A network made runnable; a `Run` of `GradientExecutor`.

    Parameters and buffers are inputs that are bound once, to the memory of the executor: a session that held them as
    constants would keep a copy of them, and compute with old values. Where nobody writes to them it may hold them so,
    which is faster: ONNX Runtime arranges constant weights as its kernels like them best. Gradients are bound to memory
    that stays the same from call to call; other outputs to memory of the program's own, from which they are copied.
    That memory serves one call at a time: threads that come at once wait for each other.

    Args:
        network: The network.
        values: Its live parameters and buffers.
        announced: Names of its last outputs, the gradients.
        threads: How many an operator may use.
        device: Where it runs.
        fixed: Whether the values stay as they are while the program is in use.
        numerics: What a graphics processor may do to the bits.

    Raises:
        Unsupported: ONNX Runtime cannot run the network.

    Attributes:
        session: The `onnxruntime.InferenceSession`.
    """

    def __init__(
        self,
        network: Network,
        values: Mapping[str, np.ndarray],
        announced: Sequence[str],
        *,
        threads: int,
        device: Device,
        fixed: bool = False,
        numerics: Numerics = EXACT,
    ) -> None:
        self._name = network.model.graph.name
        self._values = {name: on_memory(values[name]) for name in (*network.parameters, *network.buffers)}
        # The kernels of compiled operators live as long as the session that calls them.
        suited, self._kernels = with_kernels(guarded(network), device)
        try:
            model = engine_model(suited, fixed=fixed)
            held = self._values if fixed else None
            self.session = make_session(model, threads, device, held, numerics, custom=bool(self._kernels))
        except Exception as error:  # ONNX Runtime raises its own private classes
            raise Unsupported(f"onnxruntime cannot run the network {self._name!r}: {explanation(error)}") from error
        outputs = list(network.outputs.items())
        first = len(outputs) - len(announced)
        self._inputs, self._outputs, self._announced = tuple(network.inputs), outputs[:first], outputs[first:]
        # Where an extent with a name is read: number of the input, axis.
        self._extents = {
            extent: (number, axis)
            for number, spec in enumerate(network.inputs.values())
            for axis, extent in enumerate(spec.shape)
        }
        # Outputs whose extents nobody knows before the network runs: ONNX Runtime finds memory for them.
        self._unknown = [
            number
            for number, (_, spec) in enumerate(self._outputs)
            if any(isinstance(extent, str) and extent not in self._extents for extent in spec.shape)
        ]
        self._binding = self.session.io_binding()
        if not fixed:
            self._bind_values()
        self._on_host = device.kind == "cpu"
        # The host's memory is read where it lies; what a device has is as old as the binding.
        self._copied = not self._on_host and not fixed
        self._places: list[np.ndarray | None] = []
        self._held: dict[str, OrtValue] = {}
        self._shapes: _Shapes | None = None
        self._results: list[np.ndarray] = []
        self._gradients: Sequence[np.ndarray] = ()
        self._lock = threading.Lock()

    def __call__(
        self, inputs: Sequence[np.ndarray], notify: Notify | None = None, into: Sequence[np.ndarray] | None = None
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        """Run once; see `Run`.

        Raises:
            NetworkError: An operator failed; the message is ONNX Runtime's.
            OperatorError: A compiled operator failed; the message is its own.
        """
        shapes = tuple([value.shape for value in inputs])
        with self._lock:
            if shapes != self._shapes or (self._announced and into is not self._gradients):
                if shapes != self._shapes:
                    self._bind_small_inputs(inputs)
                self._bind_outputs(shapes, into)
            for name, value, place in zip(self._inputs, inputs, self._places, strict=True):
                if place is not None:
                    place[...] = value
                else:
                    usable = value.flags.c_contiguous and value.flags.aligned
                    self._bind_input(name, value if usable else np.array(value, order="C"))
            for number in self._unknown:
                self._binding.bind_output(self._outputs[number][0])
            if self._copied:
                self._bind_values()
            try:
                self.session.run_with_iobinding(self._binding)
            except Exception as error:  # ONNX Runtime raises its own private classes
                raise self._failed(error) from error
            results = [value.copy() for value in self._results]
            if self._unknown:
                values = self._binding.get_outputs()
                for number in self._unknown:
                    results[number] = np.array(values[number].numpy())
            gradients = self._gradients
        # Whoever is notified may call this again.
        if notify is not None:
            for number, gradient in enumerate(gradients):
                notify(number, gradient)
        return results, gradients

    def _failed(self, error: Exception) -> Deep5Error:
        """What went wrong in a run."""
        return failure(error, self._kernels) or NetworkError(
            f"onnxruntime failed in the network {self._name!r}: {explanation(error)}"
        )

    def _bind_values(self) -> None:
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)

    def _bind_input(self, name: str, value: np.ndarray) -> None:
        if value.dtype.name == "bfloat16":
            held = self._held[name] = on_memory(value)  # a binding keeps memory alive that it binds itself, no other
            self._binding.bind_ortvalue_input(name, held)
        else:
            self._binding.bind_cpu_input(name, value)

    def _bind_small_inputs(self, inputs: Sequence[np.ndarray]) -> None:
        """Give small inputs memory that stays: to copy them into it takes less time than to bind them anew."""
        self._shapes = None  # should this fail
        self._places = []
        for name, value in zip(self._inputs, inputs, strict=True):
            place = aligned_empty(value.shape, value.dtype) if self._on_host and value.nbytes <= _SMALL_BYTES else None
            self._places.append(place)
            if place is not None:
                self._binding.bind_ortvalue_input(name, on_memory(place))

    def _bind_outputs(self, shapes: _Shapes, into: Sequence[np.ndarray] | None) -> None:
        """Give the outputs memory for inputs of these shapes; all of them in order, which is that of `get_outputs`."""
        if shapes != self._shapes:
            self._shapes = None  # should this fail
            self._results = [self._bind(name, spec, shapes) for name, spec in self._outputs]
        old: Sequence[np.ndarray | None] = [None] * len(self._announced) if into is None else into
        arrays = [self._bind(name, spec, shapes, kept) for (name, spec), kept in zip(self._announced, old, strict=True)]
        unchanged = into is not None and all(new is kept for new, kept in zip(arrays, into, strict=True))
        self._gradients = into if into is not None and unchanged else arrays
        self._shapes = shapes

    def _bind(self, name: str, spec: TensorSpec, shapes: _Shapes, kept: np.ndarray | None = None) -> np.ndarray:
        """Bind an output to the array that is kept, or to a new one where it does not fit."""
        places = [self._extents.get(extent) for extent in spec.shape]
        shape = tuple(
            extent if isinstance(extent, int) else 0 if place is None else shapes[place[0]][place[1]]
            for extent, place in zip(spec.shape, places, strict=True)
        )
        array: np.ndarray = kept if kept is not None and kept.shape == shape else aligned_empty(shape, spec.dtype)
        self._binding.bind_ortvalue_output(name, on_memory(array))
        return array
