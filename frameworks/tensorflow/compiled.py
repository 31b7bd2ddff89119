"""C++ operators as one TensorFlow operation: no copy, no Python, in eager calls and in graphs.

`shim.c` registers the operation, "Deep5Operator"; one of its attributes selects the kernel.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import secrets
import threading
import types
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from deep5.core.compiler import load_library
from deep5.core.errors import Deep5Error, OperatorError, Unsupported
from deep5.core.tensors import TensorSpec
from deep5.frameworks.tensorflow.contract import Expected, described, known_extents
from deep5.operators.contract import check_inputs, is_floating, specs_of
from deep5.operators.cpp import CppOperator
from deep5.operators.kernel import Kernel
from deep5.operators.plan import INCLUDE

__all__ = ["OPERATION", "Compiled", "CompiledBackward", "failure"]

OPERATION = "Deep5Operator"
"""The operation that runs every kernel."""
_KEPT = "deep5_kernels"
_LOCK = threading.Lock()
_LOADED: list[tuple[Any, Any]] = []
# Starts at a random number, so that a graph saved in another process finds no kernel here.
_NUMBERS = itertools.count(secrets.randbits(62))
_BOUND: weakref.WeakValueDictionary[int, _Bound] = weakref.WeakValueDictionary()


class Compiled:
    """A `CppOperator` on host tensors; TensorFlow differentiates it by the operation's registered gradient.

    Args:
        operator: The operator.
    """

    def __init__(self, operator: CppOperator) -> None:
        self.operator = operator
        self._by_dtypes: dict[tuple[Any, ...], tuple[_Bound, Expected]] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """The outputs.

        Raises:
            ShapeError: The operator does not accept the inputs.
            OperatorError: The operator does not compile, or failed.
            Unsupported: The inputs are on a GPU.
        """
        bound, known = self._bound(inputs)
        expected = known(inputs)
        if not (tf.executing_eagerly() and could_possibly_record()):
            return bound(inputs, expected)

        # For a tape that outlives this object: the closure keeps the kernel alive, as `_keep` does for a graph.
        @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
        def recorded(*inputs: Any) -> Any:
            outputs = bound(inputs, expected)
            needs = tuple(value.dtype.is_floating for value in inputs)
            return outputs, lambda *grads: bound.gradients(grads, inputs, outputs, needs)

        return tuple(recorded(*inputs))

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """The outputs, for callers that use `backward` for the gradients; raises the same errors as a call."""
        bound, expected = self._bound(inputs)
        return bound(inputs, expected(inputs))

    def backward(
        self, output_grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], needs: Sequence[bool]
    ) -> tuple[Any, ...]:
        """The gradients with respect to the inputs, None where not needed; see `Operator.backward`.

        Raises:
            Unsupported: The operator has no gradient.
        """
        return self._bound(inputs)[0].gradients(output_grads, inputs, outputs, tuple(map(bool, needs)))

    def _bound(self, inputs: Sequence[Any]) -> tuple[_Bound, Expected]:
        dtypes = tuple([value.dtype for value in inputs])
        found = self._by_dtypes.get(dtypes)
        if found is None:
            check_inputs(self.operator, len(inputs))
            bound = _Bound(self.operator, self.operator.kernel(tuple(dtype.name for dtype in dtypes)))
            found = self._by_dtypes[dtypes] = bound, Expected(self.operator, bound.specs)
        return found


class CompiledBackward:
    """The backward pass of a `CppOperator` on tensors, the equivalent of `Backward`; it has no gradient itself.

    Args:
        operator: The operator.
        needs: Which of its inputs need a gradient.
        floating: Which of its outputs are floating-point.
    """

    def __init__(self, operator: CppOperator, needs: Sequence[bool], floating: Sequence[bool]) -> None:
        self._forward, self._needs, self._floating = Compiled(operator), tuple(needs), tuple(floating)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """The gradients of the inputs that need one; raises the same errors as `Compiled`."""
        lead, count = sum(self._floating), len(self._needs)
        left = iter(inputs[:lead])
        grads = [next(left) if floating else None for floating in self._floating]
        found = self._forward.backward(grads, inputs[lead : lead + count], inputs[lead + count :], self._needs)
        return tuple(gradient for gradient in found if gradient is not None)


class _Bound:
    """A kernel that the operation finds by its number."""

    def __init__(self, operator: CppOperator, kernel: Kernel, *, backward: bool = False) -> None:
        self._operator, self.kernel, self.is_backward = operator, kernel, backward
        self._made = [tf.as_dtype(dtype) for dtype in kernel.dtypes[kernel.inputs :]]
        self._backward: dict[tuple[bool, ...], _Bound] = {}
        library, self._apply = _operation()
        self._number = next(_NUMBERS)
        if library.deep5_enter(self._number, kernel.pointer, kernel.name.encode()):
            raise OperatorError(f"{kernel.name}: no memory")
        # Runs before the kernel is freed, which this object keeps alive.
        weakref.finalize(self, library.deep5_forget, self._number)
        _BOUND[self._number] = self

    def specs(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """The specs of the outputs; some input dimensions may be unknown."""
        if all(isinstance(extent, int) for spec in inputs for extent in spec.shape):
            return self.kernel.plan(inputs).outputs
        return specs_of(self._operator, inputs)

    def __call__(self, inputs: Sequence[Any], expected: Sequence[TensorSpec] | None) -> tuple[Any, ...]:
        """The outputs, which have the expected shapes."""
        eager = tf.executing_eagerly()
        if eager:
            _on_host(self.kernel.name, inputs)
        elif GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise Unsupported(
                f"{self.kernel.name} is already compiled, and XLA does not compile such kernels; remedy: tf.function "
                "without jit_compile=True"
            )
        else:
            _keep(self)
        outputs = self._apply(inputs=list(inputs), Tout=self._made, kernel=self._number)
        if not eager and expected is not None:
            for value, spec in zip(outputs, expected, strict=True):
                value.set_shape(known_extents(spec))
        return tuple(outputs)

    def gradients(
        self, output_grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], needs: tuple[bool, ...]
    ) -> tuple[Any, ...]:
        """One gradient per input; None where none is needed."""
        if not any(needs):
            return (None,) * len(needs)
        if not self._operator.differentiable:
            raise Unsupported(f"{self.kernel.name} has no backward in C++; remedy: write one, or request no gradient")
        bound = self._backward.get(needs)
        if bound is None:
            kernel = self._operator.kernel(self.kernel.dtypes[: self.kernel.inputs], needs=needs)
            bound = self._backward[needs] = _Bound(self._operator, kernel, backward=True)
        given = [
            tf.zeros_like(value) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, value in zip(output_grads, outputs, strict=True)
            if is_floating(value.dtype.name)
        ]
        specs = [described(value) for value, needed in zip(inputs, needs, strict=True) if needed]
        known = [spec for spec in specs if spec is not None]
        found = iter(bound([*given, *inputs, *outputs], known if len(known) == len(specs) else None))
        return tuple(next(found) if needed else None for needed in needs)


def failure(error: Exception) -> Deep5Error | None:
    """The error of a compiled operator that caused this TensorFlow exception; None if no operator caused it.

    Args:
        error: An exception of `tf.errors`.
    """
    said = re.search(r"deep5: (.*?) \[deep5\]", str(error), re.DOTALL)
    if said is None:
        return None
    if said[1].endswith("the shapes of the outputs cannot be found"):
        for bound in list(_BOUND.values()):
            reported = bound.kernel.failure
            if said[1].startswith(f"{bound.kernel.name}:") and isinstance(reported, Deep5Error):
                return reported
    return OperatorError(said[1])


@tf.RegisterGradient(OPERATION)  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
def _gradient(op: Any, *output_grads: Any) -> Any:
    """The gradient of the operation, in the form that TensorFlow expects."""
    bound = _BOUND.get(op.get_attr("kernel"))
    if bound is None:
        raise OperatorError("a compiled operator whose gradient is requested was freed; remedy: keep a reference to it")
    if bound.is_backward:
        raise Unsupported(f"{bound.kernel.name} has no second derivative")
    inputs = tuple(op.inputs)
    # Set when a tape requests the gradient: the inputs that the tape does not watch.
    unwanted = getattr(op, "skip_input_indices", None) or ()
    needs = tuple(value.dtype.is_floating and at not in unwanted for at, value in enumerate(inputs))
    return bound.gradients(output_grads, inputs, tuple(op.outputs), needs)


def _operation() -> tuple[Any, Any]:
    """The shim, and the function that applies the operation.

    Raises:
        Unsupported: TensorFlow rejects the operation.
    """
    with _LOCK:
        if not _LOADED:
            _LOADED.append(_load())
    return _LOADED[0]


def _load() -> tuple[Any, Any]:
    # tf.load_op_library uses the same source; here the operation belongs to no library that TensorFlow opened.
    from tensorflow.core.framework.op_def_pb2 import OpList
    from tensorflow.python.framework import op_def_registry
    from tensorflow.python.framework._pywrap_python_op_gen import GetPythonWrappers

    source = (Path(__file__).parent / "shim.c").read_text(encoding="utf-8")
    library = load_library(source, what="deep5's part of TensorFlow", include=(INCLUDE,))
    library.deep5_register.argtypes, library.deep5_register.restype = (ctypes.c_char_p,), ctypes.c_char_p
    library.deep5_enter.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)
    library.deep5_forget.argtypes, library.deep5_forget.restype = (ctypes.c_int64,), None
    home = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    if wrong := library.deep5_register(str(home).encode()):
        raise Unsupported(f"tensorflow {tf.__version__} takes no compiled operators: {wrong.decode(errors='replace')}")
    module = types.ModuleType("deep5.frameworks.tensorflow.operation")
    code = GetPythonWrappers(OpList(op=[op_def_registry.get(OPERATION)]).SerializeToString())
    exec(code, module.__dict__)  # noqa: S102 - TensorFlow's own text
    return library, module.deep5_operator


def _keep(bound: _Bound) -> None:
    """Keep a kernel alive as long as the graph being traced and its outer graphs."""
    graph = tf.compat.v1.get_default_graph()
    while True:
        kept = getattr(graph, _KEPT, None)
        if kept is None:
            kept = set()
            setattr(graph, _KEPT, kept)
        kept.add(bound)
        graph = getattr(graph, "outer_graph", None)
        if not getattr(graph, "building_function", False):
            return


def _on_host(name: str, inputs: Sequence[Any]) -> None:
    if not _processors():
        return
    for number, value in enumerate(inputs):
        if "GPU" in value.device:
            raise Unsupported(
                f"{name}: got input {number} on {value.device}; allowed: tensors on the host, because deep5 does "
                "not support CUDA kernels in TensorFlow; remedy: with tf.device('/CPU:0'): tf.identity(x)"
            )


@functools.cache
def _processors() -> list[Any]:
    found: list[Any] = tf.config.list_logical_devices("GPU")
    return found
