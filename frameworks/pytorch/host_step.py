"""`HostStep`: the training step where torch's parameters are in the host's memory."""

from __future__ import annotations

from typing import Any

import torch

from deep5.events import StepInfo
from deep5.networks.executor import check_info
from deep5.tensors import Arrays, TensorSpec, to_numpy
from deep5.training.kernel import RuleKernel
from deep5.training.step import KernelStep

__all__ = ["HostStep"]


class HostStep(KernelStep):
    """`KernelStep` that reads torch's own gradients where they lie, without a view of NumPy's."""

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        """The update; see `TrainStep`.

        Raises:
            ShapeError: A gradient is missing, or of another shape or dtype than its parameter.
        """
        check_info(info)
        if self._modifier is not None:
            parameters = self._executor.parameters()
            gradients = {
                name: self._modifier(name, parameters[name], grad)
                for name, grad in gradients.items()
                if name in parameters
            }
        # All are looked at before the first update, and what is copied has to outlive it, as in KernelStep.
        kept = [self._found(kernel, gradients) for kernel in self._kernels]
        self._update_from([[address for address, _ in own] for own in kept], info)

    def _found(self, kernel: RuleKernel, gradients: Arrays) -> list[tuple[int, Any]]:
        """The gradients of a kernel, each with its address."""
        specs = self._executor.network.parameters
        tensors = [_fitting(gradients.get(name), specs[name]) for name in kernel.names]
        if all(tensor is not None for tensor in tensors):
            return [(tensor.data_ptr(), tensor) for tensor in tensors]
        # Arrays of somebody else's, or some that do not fit, which the kernel refuses.
        given = {name: to_numpy(gradients[name]) for name in kernel.names if name in gradients}
        return [(array.__array_interface__["data"][0], array) for array in kernel.check_gradients(given)]


def _fitting(value: Any, spec: TensorSpec) -> Any:
    """A gradient of torch's in contiguous memory of the host; None where it is none for this parameter."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if spec.mismatch(tuple(value.shape), str(value.dtype).removeprefix("torch.")):
        return None
    return value.detach().cpu().resolve_neg().contiguous()
