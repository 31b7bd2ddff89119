"""`Program`: a network in a session of ONNX Runtime, its parameters bound where they lie."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnxruntime import OrtValue

from deep5.errors import Deep5Error, NetworkError, Unsupported
from deep5.frameworks.onnxruntime.custom import failure, with_kernels
from deep5.frameworks.onnxruntime.framework import EXACT, Numerics
from deep5.frameworks.onnxruntime.guards import guarded
from deep5.frameworks.onnxruntime.session import explanation, make_session, on_memory
from deep5.networks.engine import engine_model
from deep5.networks.network import Network
from deep5.tensors import Device, TensorSpec, aligned_empty, numpy_dtype
from deep5.training.gradient_executor import Notify
from deep5.training.lending import Lender, Lent

__all__ = ["Program"]

# A copy of this many bytes takes as long as ONNX Runtime takes to bind an array, and less than to make one.
_SMALL_BYTES = 8192
_Shapes = tuple[tuple[int, ...], ...]


class Program:
    """A network made runnable; a `Run` of `GradientExecutor`.

    Parameters and buffers are inputs that are bound once, to the memory of the executor: a session that held them as
    constants would keep a copy of them, and compute with old values. Where nobody writes to them it may hold them so,
    which is faster: ONNX Runtime arranges constant weights as its kernels like them best. Gradients are bound to memory
    that stays the same from call to call; of the other outputs small ones are copied, and large ones go to memory that
    is lent (`Lender`). A binding serves one call at a time: threads that come at once wait for each other.

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
            if isinstance(extent, str)
        }
        self._binding = self.session.io_binding()
        for name, _ in outputs:
            self._binding.bind_output(name)  # in order, which stays that of `get_outputs`
        if not fixed:
            self._bind_values()
        self._on_host = device.kind == "cpu"
        # The host's memory is read where it lies; what a device has is as old as the binding.
        self._copied = not self._on_host and not fixed
        self._slots: list[_Slot] = []
        # The arrays that inputs are bound to where they lie.
        self._bound: list[np.ndarray | None] = []
        self._shapes: _Shapes | None = None
        # Small outputs and where they are copied from; those of unknown extents, for which ONNX Runtime finds memory.
        self._copies: list[tuple[int, np.ndarray | None]] = []
        # The others, which are lent.
        self._large: list[str] = []
        self._lender: Lender[OrtValue] = Lender((), on_memory)
        self._lent: Lent[OrtValue] = self._lender.lend()[0]
        self._gradients: Sequence[np.ndarray] = ()
        # Whether the same inputs need no more than a run.
        self._repeats = False
        self._lock = threading.Lock()

    def __call__(
        self, inputs: Sequence[np.ndarray], notify: Notify | None = None, into: Sequence[np.ndarray] | None = None
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        """Run once; see `Run`.

        Raises:
            NetworkError: An operator failed; the message is ONNX Runtime's.
            OperatorError: A compiled operator failed; the message is its own.
        """
        with self._lock:
            # In few steps: behind a product of large matrices each of them meets cold caches, for ten times its time.
            results = None
            if self._repeats:
                for value, bound in zip(inputs, self._bound, strict=True):
                    if value is not bound or not value.flags.c_contiguous:
                        break
                else:
                    results = self._lent.lend()
            if results is None:
                results = self._bind(inputs, into)
            try:
                self.session.run_with_iobinding(self._binding)
            except Exception as error:  # ONNX Runtime raises its own private classes
                raise self._failed(error) from error
            for number, place in self._copies:
                found = self._binding.get_outputs()[number].numpy() if place is None else place
                results.insert(number, np.array(found))
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

    def _bind(self, inputs: Sequence[np.ndarray], into: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        """Bind what changed; returns the outputs that are not announced."""
        shapes = tuple([value.shape for value in inputs])
        known, self._shapes, self._repeats = self._shapes, None, False  # should this fail
        if shapes != known:
            self._slots = [
                _Slot(self._binding, name, value, small=value.nbytes <= _SMALL_BYTES, stays=self._on_host)
                for name, value in zip(self._inputs, inputs, strict=True)
            ]
            self._place_outputs(shapes)
        self._bound = [slot.bind(value) for slot, value in zip(self._slots, inputs, strict=True)]
        lent, results = self._lender.lend()
        if lent is not self._lent:
            for name, value in zip(self._large, lent.bound, strict=True):
                self._binding.bind_ortvalue_output(name, value)
            self._lent = lent
        unknown = [self._outputs[number][0] for number, place in self._copies if place is None]
        for name in unknown:
            self._binding.bind_output(name)
        if shapes != known or (self._announced and into is not self._gradients):
            self._bind_gradients(shapes, into)
        if self._copied:
            self._bind_values()
        # ONNX Runtime takes inputs of fixed shapes and no other. A device has a copy of what an input held.
        self._shapes = shapes
        self._repeats = self._on_host and not (self._extents or self._announced or unknown)
        return results

    def _place_outputs(self, shapes: _Shapes) -> None:
        """Get memory for the outputs that are not announced, for inputs of these shapes."""
        self._copies, self._large, large = [], [], []
        for number, (name, spec) in enumerate(self._outputs):
            shape = self._shape(spec, shapes)
            if shape is None:
                self._copies.append((number, None))
            elif math.prod(shape) * numpy_dtype(spec.dtype).itemsize <= _SMALL_BYTES:
                place = aligned_empty(shape, spec.dtype)
                self._binding.bind_ortvalue_output(name, on_memory(place))
                self._copies.append((number, place))
            else:
                self._large.append(name)
                large.append((shape, spec.dtype))
        self._lender = Lender(large, on_memory)

    def _bind_gradients(self, shapes: _Shapes, into: Sequence[np.ndarray] | None) -> None:
        old: Sequence[np.ndarray | None] = [None] * len(self._announced) if into is None else into
        arrays = []
        for (name, spec), kept in zip(self._announced, old, strict=True):
            shape = self._shape(spec, shapes) or ()  # a parameter's or an input's, which is known
            array: np.ndarray = kept if kept is not None and kept.shape == shape else aligned_empty(shape, spec.dtype)
            self._binding.bind_ortvalue_output(name, on_memory(array))
            arrays.append(array)
        unchanged = into is not None and all(new is kept for new, kept in zip(arrays, into, strict=True))
        self._gradients = into if into is not None and unchanged else arrays

    def _shape(self, spec: TensorSpec, shapes: _Shapes) -> tuple[int, ...] | None:
        """The shape of an output for inputs of these shapes; None where nobody knows it before the network runs."""
        shape = []
        for extent in spec.shape:
            if isinstance(extent, int):
                shape.append(extent)
            elif extent in self._extents:
                number, axis = self._extents[extent]
                shape.append(shapes[number][axis])
            else:
                return None
        return tuple(shape)


class _Slot:
    """An input of a binding.

    An array that comes twice in a row is bound where it lies, and a small one that does not is copied to memory that
    stays.

    Args:
        binding: ONNX Runtime's.
        name: Of the input.
        value: An array of the shape and type that come.
        small: Whether a copy takes less time than to bind it.
        stays: Whether what is bound is read at every run; a device has a copy of it, made when it was bound.
    """

    def __init__(self, binding: Any, name: str, value: np.ndarray, *, small: bool, stays: bool) -> None:
        self._binding, self._name, self._stays = binding, name, stays
        self._place = aligned_empty(value.shape, value.dtype) if small and stays else None
        self._held: OrtValue | None = None
        # What the binding refers to, and what came last.
        self._bound: np.ndarray | None = None
        self._last: np.ndarray | None = None

    def bind(self, value: np.ndarray) -> np.ndarray | None:
        """Bind an array, or a copy of it; returns the array where nothing is to be done if it comes again."""
        usable = value.flags.c_contiguous and value.flags.aligned
        if usable and self._stays and value is self._bound:
            return value
        last, self._last = self._last, None  # should this fail
        if self._place is not None and not (usable and value is last):
            if self._bound is not self._place:
                self._refer(self._place)
            self._place[...] = value
        else:
            self._refer(value if usable else np.array(value, order="C"))
        self._last = value
        return value if self._stays and value is self._bound else None

    def _refer(self, array: np.ndarray) -> None:
        self._bound = None  # should this fail
        if array.dtype.name == "bfloat16":
            self._held = on_memory(array)  # a binding keeps memory alive that it binds itself, no other
            self._binding.bind_ortvalue_input(self._name, self._held)
        else:
            self._binding.bind_cpu_input(self._name, array)
        self._bound = array
