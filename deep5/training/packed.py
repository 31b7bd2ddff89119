"""`Packed`: the parameters of any executor as one vector, for optimizers that own their step."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import Arrays, aligned_empty, to_numpy

__all__ = ["Packed", "vector"]


class Packed:
    """A network's parameters, and the gradient of its loss, each concatenated to a vector.

    Args:
        executor: Its parameters must be of one floating-point type that NumPy supports.
        loss: Name of the scalar output to differentiate.
        owner: The caller's name, for messages.

    Raises:
        UsageError: The parameters are of several types, or there are none.

    Attributes:
        executor: As given.
        names: The parameters in their order.
        size: Number of elements of all parameters.
        dtype: Their element type.
    """

    def __init__(self, executor: GraphExecutor, loss: str, owner: str) -> None:
        specs = executor.network.trained_specs
        dtypes = sorted({spec.dtype for spec in specs.values()})
        if len(dtypes) != 1 or dtypes[0] not in ("float32", "float64"):
            from deep5.networks.transforms.mixed_precision import AS_FLOAT32

            raise UsageError(
                f"{owner} cannot train parameters of {' and '.join(dtypes) or 'no network without any'}; allowed: all "
                f"float32, or all float64; remedy: an update rule, or {AS_FLOAT32}"
            )
        self.executor, self.names, self.dtype, self._loss = executor, list(specs), dtypes[0], loss
        self._sizes = [spec.size for spec in specs.values()]
        self.size = sum(self._sizes)
        self._buffers = {
            name: np.empty(spec.size, spec.dtype) for name, spec in executor.network.buffer_specs.items() if spec.size
        }

    def read(self) -> np.ndarray:
        """A copy of the parameters in their own type."""
        out = np.empty(self.size, self.dtype)
        self.executor.read(self.names, out)
        return out

    def write(self, values: np.ndarray) -> np.ndarray:
        """Set the parameters; returns them rounded to their type, in float64."""
        rounded = np.ascontiguousarray(values, self.dtype)
        self.executor.write(self.names, rounded)
        return rounded.astype(np.float64)

    def backprop(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Outputs of one forward and backward pass at the current parameters."""
        return self.executor.inference_and_backprop(inputs, self._loss, info=info)

    def loss(self, outputs: Arrays) -> float:
        """The loss among the outputs as a number."""
        return float(to_numpy(outputs[self._loss]))

    def gradient(self) -> np.ndarray:
        """The gradient of the last `backprop`, in the parameters' own type."""
        found, out = self.executor.gradients(), np.empty(self.size, self.dtype)
        begin = 0
        for name, size in zip(self.names, self._sizes, strict=True):
            out[begin : begin + size] = to_numpy(found[name]).reshape(-1)
            begin += size
        return out

    def keep_buffers(self) -> None:
        """Save the current running statistics."""
        for name, out in self._buffers.items():
            self.executor.read([name], out)

    def restore_buffers(self) -> None:
        """Restore the running statistics saved by `keep_buffers`."""
        for name, kept in self._buffers.items():
            self.executor.write([name], kept)


def vector(values: Any) -> np.ndarray:
    """A float64 copy in aligned memory: sums over two equal vectors are then bit-identical."""
    source: Any = np.asarray(values)
    out: np.ndarray = aligned_empty(source.shape, "float64")
    out[...] = source
    return out
