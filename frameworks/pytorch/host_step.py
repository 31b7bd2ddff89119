"""`HostStep`: the training step for torch parameters in host memory."""

from __future__ import annotations

from typing import Any

import torch

from deep5.core.tensors import Arrays, TensorSpec, dtype_name
from deep5.training.kernel import RuleKernel
from deep5.training.step import KernelStep

__all__ = ["HostStep"]


class HostStep(KernelStep):
    """`KernelStep` that reads torch's own gradients in place, and a modifier's, without a NumPy view."""

    def _found(self, kernel: RuleKernel, gradients: Arrays) -> list[tuple[int, Any]]:
        specs, live = self._executor.network.parameter_specs, self._live
        tensors = [_fitting(gradients.get(name), specs[name], live[name]) for name in kernel.names]
        if all(tensor is not None for tensor in tensors):
            return [(tensor.data_ptr(), tensor) for tensor in tensors]
        # Arrays of other libraries, or inconsistent ones, which the kernel rejects.
        return super()._found(kernel, gradients)


def _fitting(value: Any, spec: TensorSpec, live: Any) -> Any:
    """A torch gradient in contiguous host memory; None if it does not fit this parameter."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    # A modifier's result nearly always matches its parameter: then no other checks are needed.
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
