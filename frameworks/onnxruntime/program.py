"""`Program`: a network in a session of ONNX Runtime that is bound to the memory of its parameters."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnxruntime import OrtValue

from deep5.core.errors import Deep5Error, NetworkError, Unsupported
from deep5.core.tensors import Device, TensorSpec, aligned_empty, is_bfloat16, numpy_dtype
from deep5.core.time_limit import current_limit
from deep5.frameworks.onnxruntime.custom import failure, with_kernels
from deep5.frameworks.onnxruntime.fusions import left_out
from deep5.frameworks.onnxruntime.guards import guarded
from deep5.frameworks.onnxruntime.numerics import EXACT, Numerics
from deep5.frameworks.onnxruntime.padding import has_gaps
from deep5.frameworks.onnxruntime.reductions import open_reduction
from deep5.frameworks.onnxruntime.session import (
    Profile,
    copied,
    explanation,
    make_session,
    newest_opset,
    on_memory,
    widened,
    with_remedy,
)
from deep5.frameworks.onnxruntime.stopping import is_open_ended, run_stoppable
from deep5.networks.diagnostics.failures import allowed_for
from deep5.networks.engine import engine_model
from deep5.networks.network import Network
from deep5.training.buffer_pool import Lender, Lent
from deep5.training.gradient_executor import Notify

__all__ = ["Program"]

# Copying this many bytes takes as long as binding an array in ONNX Runtime, and less than creating one.
_SMALL_BYTES = 8192
_NUMBERS = itertools.count()
_Shapes = tuple[tuple[int, ...], ...]


class Program:
    """A runnable network; a `Run` of `GradientExecutor`.

    Parameters and buffers are inputs bound once, to the executor's memory: a session with constants would keep a copy
    of them, and use stale values. If they do not change, the session may hold them as constants, which is faster: ONNX
    Runtime repacks constant weights for its kernels. Gradients are bound to memory that stays the same across calls.
    Small other outputs are copied; large ones are written to lent memory (`Lender`). A binding serves one call at a
    time: concurrent threads wait for each other.

    Args:
        network: The network.
        values: The live parameters and buffers.
        announced: Names of the last outputs, the gradients.
        threads: The number of threads per operator.
        device: The device of the session.
        fixed: Whether the values do not change while the program is in use.
        numerics: Numerical settings of a GPU.
        profiles: A folder for the session's profile; None: no profile.

    Raises:
        Unsupported: ONNX Runtime cannot run the network.

    Attributes:
        session: The `onnxruntime.InferenceSession`.
        profile: The session's profile; None: no profile.
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
        profiles: Path | None = None,
    ) -> None:
        self._name = network.model.graph.name
        self._values = {name: on_memory(values[name]) for name in (*network.parameter_specs, *network.buffer_specs)}
        # Keeps the kernels of compiled operators alive as long as the session that calls them.
        suited, self._kernels = with_kernels(guarded(widened(network)), device)
        self._reduction = open_reduction(suited)
        # onnx infers too small a result of these.
        self._unsure = any(node.op_type == "ConvTranspose" and has_gaps(node) for node in network.nodes)
        self.profile = None if profiles is None else Profile(profiles / f"{next(_NUMBERS)}.onnx", suited)
        try:
            model = engine_model(suited, fixed=fixed, newest=newest_opset(suited.model.graph.all_nodes()))
            held = self._values if fixed else None
            self.session = make_session(
                model,
                threads,
                device,
                held,
                numerics,
                custom=bool(self._kernels),
                left_out=left_out(suited.model),
                profile=self.profile,
            )
        except Exception as error:  # ONNX Runtime raises private classes
            said = with_remedy(explanation(error))
            raise Unsupported(f"onnxruntime cannot run the network {self._name!r}: {said}") from error
        # Whether a run has to look at the time limit, and at interruptions, as only the run determines its length.
        self._open_ended = is_open_ended(suited.model.graph.all_nodes())
        outputs = list(network.outputs.items())
        first = len(outputs) - len(announced)
        self._inputs, self._outputs, self._announced = tuple(network.inputs), outputs[:first], outputs[first:]
        self._passed = {name for name in network.outputs if name in network.inputs or name in self._values}
        # Where to read a symbolic dimension: index of the input, axis.
        self._extents = {
            extent: (number, axis)
            for number, spec in enumerate(network.inputs.values())
            for axis, extent in enumerate(spec.shape)
            if isinstance(extent, str)
        }
        self._binding = self.session.io_binding()
        for name, _ in outputs:
            self._binding.bind_output(name)  # defines the order of `get_outputs`
        if not fixed:
            self._bind_values()
        self._on_host = device.kind == "cpu"
        # Host memory is read in place; a device holds a copy from the time of binding.
        self._copied = not self._on_host and not fixed
        # By input: the array whose memory it is bound to; the buffer that a small one is copied to; the buffer, while
        # it is bound to that; the last array.
        self._bound: list[np.ndarray | None] = []
        self._small: list[np.ndarray | None] = []
        self._places: list[np.ndarray | None] = []
        self._last: list[np.ndarray | None] = []
        self._held: dict[str, OrtValue] = {}
        self._shapes: _Shapes | None = None
        # Small outputs and the arrays they are copied from; outputs of unknown size, allocated by ONNX Runtime.
        self._copies: list[tuple[int, np.ndarray | None]] = []
        self._unknown: list[str] = []
        # The other outputs, in lent memory.
        self._large: list[str] = []
        self._lender: Lender[OrtValue] = Lender((), on_memory)
        self._lent: Lent[OrtValue] = self._lender.lend()[0]
        self._gradients: Sequence[np.ndarray] = ()
        self._lock = threading.Lock()

    def __call__(
        self, inputs: Sequence[np.ndarray], notify: Notify | None = None, into: Sequence[np.ndarray] | None = None
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        """Run once; see `Run`.

        Raises:
            NetworkError: An operator failed; with ONNX Runtime's message.
            OperatorError: A compiled operator failed; with its own message.
        """
        shapes = tuple([value.shape for value in inputs])
        with self._lock:
            if shapes != self._shapes or (self._announced and into is not self._gradients):
                try:
                    self._prepare(inputs, shapes, into)
                except Deep5Error:
                    raise
                except Exception as error:  # out of memory, or a shape error of ONNX Runtime
                    raise self._failed(error) from error
            # Keep these steps few: after a large matrix product the caches are cold, and each step takes ten times as
            # long.
            for number, value in enumerate(inputs):
                if value is self._bound[number]:
                    if value.flags.c_contiguous:
                        continue
                elif (place := self._places[number]) is not None and value is not self._last[number]:
                    place[...] = value
                    self._last[number] = value
                    continue
                self._bind_input(number, value)
            results = self._lent.lend() if self._large else []
            if results is None:
                results = self._bind_outputs()
            for name in self._unknown:
                self._binding.bind_output(name)
            if self._copied:
                self._bind_values()
            try:
                if self._open_ended:
                    run_stoppable(self.session, self._binding, current_limit())
                else:
                    self.session.run_with_iobinding(self._binding)
            except (Deep5Error, TimeoutError):  # the latter from a signal handler of the caller
                raise
            except Exception as error:  # ONNX Runtime raises private classes
                raise self._failed(error) from error
            for number, place in self._copies:
                found = copied(self._binding.get_outputs()[number]) if place is None else place.copy()
                results.insert(number, found)
            gradients = self._gradients
        # The notified function may call this again.
        if notify is not None:
            for number, gradient in enumerate(gradients):
                notify(number, gradient)
        return results, gradients

    def _failed(self, error: Exception) -> Deep5Error:
        """The error of a run."""
        return failure(error, self._kernels) or NetworkError(
            f"onnxruntime failed in the network {self._name!r}: {(said := explanation(error)).rstrip('.')}; "
            f"{allowed_for(said)}"
        )

    def _bind_values(self) -> None:
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)

    def _bind_input(self, number: int, value: np.ndarray) -> None:
        """Bind an array in place, or a copy of a small one: faster unless it comes twice in a row."""
        name, usable = self._inputs[number], value.flags.c_contiguous and value.flags.aligned
        again, self._last[number] = value is self._last[number], None  # in case this fails
        self._bound[number], self._places[number] = None, None
        place = None if again and usable else self._small[number]
        array = place if place is not None else value if usable else np.array(value, order="C")
        if is_bfloat16(value):
            held = self._held[name] = on_memory(array)  # a binding only keeps memory alive that it binds itself
            self._binding.bind_ortvalue_input(name, held)
        else:
            self._binding.bind_cpu_input(name, array)
        if place is not None:
            place[...] = value
            self._places[number] = place
        elif usable and self._on_host:  # a device holds a copy of the array
            self._bound[number] = value
        self._last[number] = value

    def _bind_outputs(self) -> list[np.ndarray]:
        """Bind the large outputs to memory that is not in use, and return its views."""
        shapes, self._shapes = self._shapes, None  # in case this fails
        self._lent, views = self._lender.lend()
        for name, value in zip(self._large, self._lent.bound, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        self._shapes = shapes
        return views

    def _prepare(self, inputs: Sequence[np.ndarray], shapes: _Shapes, into: Sequence[np.ndarray] | None) -> None:
        """Allocate memory for inputs of these shapes."""
        known, self._shapes = self._shapes, None  # in case this fails
        if self._reduction is not None and any(0 in shape for shape in shapes):
            raise NetworkError(
                f"onnxruntime cannot run the network {self._name!r} on an input without elements, of shape "
                f"{next(shape for shape in shapes if 0 in shape)}: of an empty set, the node {self._reduction} is "
                "wrong there; allowed: inputs with elements; remedy: framework 'pytorch', 'jax', 'tensorflow' or "
                "'reference', or fixed sizes"
            )
        if shapes != known:
            count = len(inputs)
            self._bound, self._places, self._last = [None] * count, [None] * count, [None] * count
            self._small = [
                aligned_empty(value.shape, value.dtype) if self._on_host and value.nbytes <= _SMALL_BYTES else None
                for value in inputs
            ]
            self._place_outputs(shapes)
            self._bind_outputs()
        self._bind_gradients(shapes, into)
        self._shapes = shapes

    def _place_outputs(self, shapes: _Shapes) -> None:
        """Allocate memory for the outputs that are not announced, given inputs of these shapes."""
        self._copies, self._large, self._unknown, large = [], [], [], []
        for number, (name, spec) in enumerate(self._outputs):
            # ONNX Runtime does not write outputs that no node computes to bound memory, either.
            shape = None if name in self._passed or self._unsure else self._shape(spec, shapes)
            if shape is None:
                self._copies.append((number, None))
                self._unknown.append(name)
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
            shape = self._shape(spec, shapes) or ()  # the known shape of a parameter or an input
            array: np.ndarray = kept if kept is not None and kept.shape == shape else aligned_empty(shape, spec.dtype)
            self._binding.bind_ortvalue_output(name, on_memory(array))
            arrays.append(array)
        unchanged = into is not None and all(new is kept for new, kept in zip(arrays, into, strict=True))
        self._gradients = into if into is not None and unchanged else arrays

    def _shape(self, spec: TensorSpec, shapes: _Shapes) -> tuple[int, ...] | None:
        """The shape of an output for inputs of these shapes; None if it is unknown before the network runs."""
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
