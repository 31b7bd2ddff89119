"""Master weights: parameters of a short floating-point type, updated in float32.

The update rule sees float32 parameters, gradients and states. The network's own parameter is the master weight, rounded
once per step. A parameter that was written since the last step (loaded, averaged with those of other ranks) takes
effect: where it differs from the rounded master weight, the master weight is replaced by it.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import NetworkWarning, RuleError
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.kernel_memory import KernelMemory, address_of
from deep5.training.state_check import checked_state
from deep5.training.trace import TracedRule

__all__ = ["MASTER", "SHORT_FLOATS", "HostMasters", "update_dtype", "warn_of_zeros", "widened"]

SHORT_FLOATS = ("bfloat16", "float16")
"""Element types of parameters that have master weights."""

MASTER = "master_weight"
"""The name of the master weights in a step's `state_dict`, `"master_weight/<parameter>"`."""


def update_dtype(specs: Iterable[TensorSpec], master_weights: bool | None) -> str | None:
    """The element type in which parameters of short types are updated; None if there are none.

    Args:
        specs: The trained parameters.
        master_weights: `GradientPipeline.master_weights`; None is the default, master weights.
    """
    short = sorted({spec.dtype for spec in specs} & set(SHORT_FLOATS))
    if not short:
        return None
    return "float32" if master_weights is not False else ", ".join(short)


def warn_of_zeros(rule: Any, dtype: str) -> None:
    """Warn of hyperparameters that are 0 in the element types in which parameters are updated.

    Args:
        rule: The update rule.
        dtype: The result of `update_dtype`.
    """
    if "float16" not in dtype.split(", "):  # bfloat16 has the range of float32
        return
    values = {name: getattr(rule, name, None) for name in getattr(rule, "hyper", ())}
    for name, value in values.items():
        if isinstance(value, float) and value and not np.float16(value):
            least = float(np.finfo(np.float16).smallest_subnormal)
            warnings.warn(
                f"{type(rule).__name__} computes in float16, where {name}={value:g} is 0, and what is divided by it "
                f"infinite or NaN; allowed: {least:.1g} and more; remedy: {name}=1e-4, or "
                "GradientPipeline(master_weights=True)",
                NetworkWarning,
                stacklevel=4,
            )


def widened(specs: Mapping[str, TensorSpec], traced: TracedRule, rule: object) -> dict[str, TensorSpec]:
    """The specs of the master weights of parameters.

    Raises:
        RuleError: The rule has a state with the name of the master weights.
    """
    if MASTER in traced.states:
        raise RuleError(
            f"{type(rule).__name__} has a state {MASTER!r}, under which deep5 stores the float32 parameters; allowed: "
            "another name; remedy: rename the state"
        )
    return {name: TensorSpec(shape=spec.shape, dtype="float32") for name, spec in specs.items()}


class HostMasters:
    """The master weights of a kernel's parameters in host memory, and their gradients in float32.

    Args:
        held: The memory of the kernel; its gradients are those of the master weights from now on.
        names: The parameters.
        dtype: Their element type, one of `SHORT_FLOATS`.

    Attributes:
        masters: The master weights, flat, one for each parameter.
    """

    def __init__(self, held: KernelMemory, names: Sequence[str], dtype: str) -> None:
        self._names, self._shapes, self._sizes, self._dtype = names, held.shapes, held.sizes, numpy_dtype(dtype)
        self.masters, self._gradients = held.packed(), held.packed()
        held.grad[:] = [address_of(view) for view in self._gradients]
        self._stored: Sequence[np.ndarray] = ()

    def attach(self, stored: Sequence[np.ndarray]) -> None:
        """Bind the network's own parameters, flat views of live memory; the master weights start from their values."""
        self._stored = stored
        for master, own in zip(self.masters, stored, strict=True):
            master[...] = own

    def absorb(self) -> None:
        """Take over what was written into the network's parameters since `publish`."""
        for master, own in zip(self.masters, self._stored, strict=True):
            written = self._rounded(master) != own
            if written.any():
                master[written] = own[written]

    def publish(self) -> None:
        """Round the master weights into the network's parameters."""
        for master, own in zip(self.masters, self._stored, strict=True):
            own[...] = self._rounded(master)

    def read_gradients(self, addresses: Sequence[int]) -> None:
        """Copy gradients of the parameters' element type into the float32 memory.

        Args:
            addresses: Of contiguous gradients, one for each parameter.
        """
        for address, size, gradient in zip(addresses, self._sizes, self._gradients, strict=True):
            if size:
                memory = (ctypes.c_byte * (size * self._dtype.itemsize)).from_address(int(address))
                gradient[...] = np.ndarray((size,), dtype=self._dtype, buffer=memory)

    def views(self) -> dict[str, np.ndarray]:
        """The live master weights by `"master_weight/<parameter>"`, in the parameters' shapes."""
        own = zip(self._names, self.masters, self._shapes, strict=True)
        return {f"{MASTER}/{name}": master.reshape(shape) for name, master, shape in own}

    def load_state(self, state: Mapping[str, Any], load_rest: Callable[[Mapping[str, Any]], None]) -> None:
        """Restore the values of `views`, which the network's parameters refine at the next step; see `absorb`.

        Args:
            state: The state of the step.
            load_rest: Restores the other entries of the state.

        Raises:
            ShapeError: An entry is missing, or of another shape or dtype; as for `load_rest`.
        """
        views = self.views()
        expected = {key: (view.shape, "float32") for key, view in views.items()}
        own = checked_state({key: state[key] for key in expected if key in state}, expected)
        load_rest({key: value for key, value in state.items() if key not in expected})
        for key, view in views.items():
            view[...] = own[key]

    def _rounded(self, master: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return master.astype(self._dtype)
