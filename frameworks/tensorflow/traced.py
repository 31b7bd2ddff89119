"""`Traced`: a `tf.function` that is traced once and called through its concrete function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from deep5.core.errors import CommunicationError, Unsupported
from deep5.frameworks.tensorflow.compiled import failure
from deep5.frameworks.tensorflow.placement import without_kernel
from deep5.networks.diagnostics.failures import failed

__all__ = ["Traced", "cause"]

# An error raised by a call to the host; TensorFlow's message adds the class and the location.
_RANKS = re.compile(r"CommunicationError: (.*)")


class Traced:
    """A function of tensors as one graph; traced at its first call, for all batch sizes at once.

    The concrete function is called directly: selecting a trace by the arguments takes as long as the call itself, and
    there is only one trace.

    Args:
        body: Takes and returns tensors; may assign to variables.
        signature: One `tf.TensorSpec` per argument; symbolic dimensions are None.
        device: The device to run on, as TensorFlow names it.
        xla: Whether XLA compiles it.
        eager: Whether to run in the calling thread without tracing.

    Attributes:
        traces: Number of traces of the body.
    """

    def __init__(
        self, body: Callable[..., Any], signature: Sequence[Any], *, device: str, xla: bool, eager: bool = False
    ) -> None:
        self._body, self._signature, self._device, self._xla = body, list(signature), device, xla
        self._eager = eager
        self._concrete: Callable[..., Any] | None = None
        self._shapes: set[tuple[Any, ...]] = set()
        self.traces = 0

    @property
    def compilations(self) -> int:
        """Number of XLA compilations: one for every combination of shapes."""
        return len(self._shapes)

    @property
    def graph(self) -> Any:
        """The traced `tf.Graph`.

        Raises:
            Unsupported: An operator has no gradient, or nothing is traced.
        """
        if self._eager:
            raise Unsupported("the network runs operator by operator; there is no graph")
        return (self._concrete or self._trace()).graph  # type: ignore[attr-defined]

    def __call__(self, *tensors: Any) -> Any:
        """Run with tensors in the signature's order.

        Raises:
            CommunicationError: Another rank is lost, or did not join.
            NetworkError: TensorFlow rejects the tensors' values.
            OperatorError: A compiled operator failed.
            Unsupported: An operator has no gradient, or no kernel for the device.
        """
        if self._xla:
            self._shapes.add(tuple([tensor.shape for tensor in tensors]))
        try:
            if self._eager:
                with tf.device(self._device):
                    return self._body(*tensors)
            return (self._concrete or self._trace())(*tensors)
        except tf.errors.OpError as error:
            if (said := failure(error)) is not None:
                raise said from error
            if (between := _RANKS.search(str(error))) is not None:
                raise CommunicationError(between[1]) from error
            if lacking := self._lacking():
                raise Unsupported(
                    f"tensorflow has no kernel for {self._device} of {', '.join(lacking)}; allowed: operators that run "
                    "there; remedy: run the network on the host, or on 'tensorflow:xla'"
                ) from error
            raise failed(error, "tensorflow", cause(error)) from error
        except (TypeError, ValueError) as error:  # shape errors, raised during tracing or the call
            raise failed(error, "tensorflow", cause(error)) from error

    def _lacking(self) -> list[str]:
        """The operators that cannot run on this device; XLA has its own kernels."""
        return without_kernel(self.graph) if "GPU" in self._device and not self._xla else []

    def _trace(self) -> Callable[..., Any]:
        def body(*tensors: Any) -> Any:
            self.traces += 1
            with tf.device(self._device):
                return self._body(*tensors)

        function = tf.function(
            body, input_signature=self._signature, autograph=False, jit_compile=True if self._xla else None
        )
        try:
            concrete: Callable[..., Any] = function.get_concrete_function()
        except LookupError as error:
            raise Unsupported(f"tensorflow cannot differentiate this network: {error}") from error
        self._concrete = concrete
        return concrete


def cause(error: Exception) -> str:
    """The cause from TensorFlow's message, without locations in its graph."""
    lines = [line.strip() for line in str(error).splitlines()]
    informative = [
        line for line in lines if line and not line.startswith(("File", "Detected", "Graph execution", "[["))
    ]
    return (informative or [type(error).__name__])[-1].partition("  Label values")[0].partition(" [Op:")[0]
