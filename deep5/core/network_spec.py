"""`NetworkSpec`: the view of a network in the core's contracts, whether a graph or a framework's native code."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from deep5.core.tensors import TensorSpec

__all__ = ["NetworkSpec"]


class NetworkSpec(Protocol):
    """Names, shapes and initial values; implemented by `deep5.networks.Network` and `NativeNetwork`."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, TensorSpec]:
        """Specifications of the inputs that a caller feeds, by name."""
        ...

    @property
    @abstractmethod
    def outputs(self) -> Mapping[str, TensorSpec]:
        """Specifications of the outputs, by name."""
        ...

    @property
    @abstractmethod
    def parameter_specs(self) -> Mapping[str, TensorSpec]:
        """Specifications of the trainable initial values, by name."""
        ...

    @property
    @abstractmethod
    def trained_specs(self) -> Mapping[str, TensorSpec]:
        """`parameter_specs` without those that are frozen."""
        ...

    @property
    @abstractmethod
    def buffer_specs(self) -> Mapping[str, TensorSpec]:
        """Specifications of the values that training changes without a gradient, by name."""
        ...

    @property
    @abstractmethod
    def frozen(self) -> frozenset[str]:
        """Names of the parameters that get no gradient."""
        ...

    @abstractmethod
    def parameters(self) -> Mapping[str, np.ndarray]:
        """The initial values of the parameters by name."""
        ...

    @abstractmethod
    def buffers(self) -> Mapping[str, np.ndarray]:
        """The initial values of the buffers by name."""
        ...

    @abstractmethod
    def initial(self, name: str) -> np.ndarray:
        """The initial value of a parameter or buffer; a fresh, writable array."""
        ...

    @abstractmethod
    def with_values(self, values: Mapping[str, np.ndarray]) -> NetworkSpec:
        """A copy with other initial values."""
        ...

    @abstractmethod
    def weights_hash(self) -> str:
        """SHA-256 over names, shapes, dtypes and bytes of all initial parameters and buffers."""
        ...

    @abstractmethod
    def structure_hash(self) -> str:
        """SHA-256 over the network's computation, without the weights."""
        ...
