"""`JAXOperatorExecutor`: one operator on JAX; forward is one compiled function, forward and backward another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from deep5.core.errors import Deep5Error, OperatorError, ShapeError, Unsupported
from deep5.core.executors import OperatorExecutor
from deep5.core.framework import Framework
from deep5.core.operator import Operator
from deep5.core.tensors import Array, Device, aligned_empty, to_numpy
from deep5.frameworks.jax.custom import on_arrays, types
from deep5.frameworks.jax.failures import failure
from deep5.frameworks.jax.operator_check import check_operator
from deep5.frameworks.jax.pending import Pending
from deep5.frameworks.jax.settings import find_device, read_settings
from deep5.operators.arguments import check_native, check_output_grads, wanted_gradients
from deep5.operators.contract import name_of
from deep5.operators.cpp import CppOperator

__all__ = ["JAXOperatorExecutor"]

_ARRAY = type(jnp.zeros(()))
# Exceptions of JAX and of traced functions for values that do not fit.
_UNFIT = (IndexError, RuntimeError, TypeError, ValueError, NotImplementedError)

Outputs = tuple[Any, ...]


class JAXOperatorExecutor(OperatorExecutor):
    """An operator on JAX; created by `JAX.operator_executor`. Implements `OperatorExecutor`.

    Calls return before the work is done; `synchronize` waits, and raises errors that occurred in the meantime.

    Args:
        operator: Any kind of operator that JAX runs.
        framework: The back-end, which determines which operators can run.
        device: The device to run on.

    Attributes:
        operator: As given.
        device: As given.

    Raises:
        Unsupported: The operator belongs to another framework, or does not run on the device; or JAX does not find the
            device.
    """

    def __init__(self, operator: Operator, framework: Framework, *, device: Device) -> None:
        check_operator(operator, device)
        self.operator, self.device = operator, device
        self._name, self._place, self._run = name_of(operator), find_device(device), on_arrays(operator, framework)
        self._forward = jax.jit(self._run)
        self._both: dict[tuple[bool, ...], Callable[..., Any]] = {}
        self._pending = Pending()

    def arrays(self, *values: Array) -> tuple[Array, ...]:
        """Aligned copies of NumPy arrays on the device; see `OperatorExecutor.arrays`."""
        return tuple(self._native(number, value) for number, value in enumerate(values))

    @override
    def inference(self, *inputs: Array) -> tuple[Array, ...]:
        for value in inputs:
            if type(value) is not _ARRAY:
                self._check("input", inputs)
        try:
            # Lowering needs the same context as tracing: some of JAX's rules choose their types only then.
            with jax.enable_x64(True):
                outputs: Outputs = self._forward(*inputs)
        except _UNFIT as error:
            raise self._failed(error) from error
        self._pending.results = outputs
        return outputs

    @override
    def inference_and_backprop(
        self, inputs: Sequence[Array], output_grads: Sequence[Array], *, needs: Sequence[bool] | None = None
    ) -> tuple[tuple[Array, ...], tuple[Array | None, ...]]:
        self._check("input", inputs)
        wanted = wanted_gradients(self._name, inputs, needs)
        # Values that are not arrays are reported when they are missed, during tracing.
        given = [gradient if type(gradient) is _ARRAY else None for gradient in output_grads]
        run = self._both.get(wanted) or self._differentiated(wanted)
        try:
            with jax.enable_x64(True):
                outputs, found = run(tuple(inputs), given)
        except _UNFIT as error:
            raise self._failed(error) from error
        self._pending.results = outputs, found
        return outputs, found

    def synchronize(self) -> None:
        """Wait until the results of this thread's last call exist.

        Raises:
            OperatorError: The operator failed.
        """
        try:
            jax.block_until_ready(self._pending.take())
        except _UNFIT as error:
            raise self._failed(error) from error

    @override
    def settings(self) -> dict[str, Any]:
        found = read_settings(self.device)
        found["device"] = "cpu" if self._place.platform == "cpu" else f"cuda:{self._place.id}"
        return found

    def _native(self, number: int, value: Any) -> Any:
        if isinstance(value, jax.Array):
            return value if value.device == self._place else jax.device_put(value, self._place)
        try:
            array = to_numpy(value)
            # The caller may write to the array later, and JAX uses aligned memory without a copy.
            own: np.ndarray = aligned_empty(array.shape, array.dtype.newbyteorder("="))
            own[...] = array
            with jax.enable_x64(True):
                return jax.device_put(own, self._place)
        except (TypeError, ValueError, Unsupported) as error:
            raise ShapeError(
                f"{self._name}: got {type(value).__name__} as value {number}, which JAX cannot take ({error}); "
                "allowed: arrays of numbers"
            ) from error

    def _check(self, what: str, values: Sequence[Any]) -> None:
        check_native(self._name, what, values, jax.Array, "an array of JAX")

    def _differentiated(self, wanted: tuple[bool, ...]) -> Callable[..., Any]:
        """The compiled function from (inputs, output gradients) to (outputs, gradients)."""
        if any(wanted) and isinstance(self.operator, CppOperator) and not self.operator.differentiable:
            raise Unsupported(f"{self._name} has no backward in C++; remedy: write one, or request no gradient")

        def run(inputs: Outputs, output_grads: Sequence[Any]) -> tuple[Outputs, Outputs]:
            def of_wanted(*chosen: Any) -> Outputs:
                left = iter(chosen)
                return self._run(*(next(left) if want else own for own, want in zip(inputs, wanted, strict=True)))

            chosen = [value for value, want in zip(inputs, wanted, strict=True) if want]
            with types(self.operator, inputs):
                outputs, pull = jax.vjp(of_wanted, *chosen) if chosen else (of_wanted(), None)
                cotangents = self._cotangents(outputs, output_grads)
                found = iter(pull(cotangents) if pull is not None else ())
            return outputs, tuple(next(found) if want else None for want in wanted)

        compiled: Callable[..., Any] = jax.jit(run)
        self._both[wanted] = compiled
        return compiled

    def _cotangents(self, outputs: Outputs, output_grads: Sequence[Any]) -> Outputs:
        """One gradient per output, as JAX requires: of dtype float0 for outputs that are not floating-point."""
        given = check_output_grads(self._name, outputs, output_grads, jax.Array)
        return tuple(
            np.zeros(value.shape, jax.dtypes.float0) if gradient is None else gradient
            for value, gradient in zip(outputs, given, strict=True)
        )

    def _failed(self, error: Exception) -> Deep5Error:
        if (said := failure(error)) is not None:
            return said
        reported = str(error).strip().splitlines() or [""]
        return OperatorError(f"{self._name} failed on JAX: {type(error).__name__}: {reported[0]}")
