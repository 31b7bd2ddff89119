"""`HostStep`: the training step where torch's parameters are in the host's memory."""

from __future__ import annotations

from typing import Any

import torch

from deep5.core.tensors import Arrays, TensorSpec, dtype_name
from deep5.training.kernel import RuleKernel
from deep5.training.step import KernelStep

__all__ = ["HostStep"]


class HostStep(KernelStep):
    """`KernelStep` that reads torch's own gradients where they lie, and a modifier's, without a view of NumPy's."""

    def _found(self, kernel: RuleKernel, gradients: Arrays) -> list[tuple[int, Any]]:
        specs, live = self._executor.network.parameter_specs, self._live
        tensors = [_fitting(gradients.get(name), specs[name], live[name]) for name in kernel.names]
        if all(tensor is not None for tensor in tensors):
            return [(tensor.data_ptr(), tensor) for tensor in tensors]
        # Arrays of somebody else's, or some that do not fit, which the kernel refuses.
        return super()._found(kernel, gradients)


def _fitting(value: Any, spec: TensorSpec, live: Any) -> Any:
    """A gradient of torch's in contiguous memory of the host; None where it is none for this parameter."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    # What a modifier gives is nearly always as its parameter is: then nothing else is asked.
    if (
        value.is_cpu
        and value.dtype is live.dtype
        and value.shape == live.shape
        and value.is_contiguous()
        and not value.is_neg()
    ):
        return value
    if spec.mismatch(tuple(value.shape), dtype_name(value.dtype)):
        return None
    return value.detach().cpu().resolve_neg().contiguous()
