"""What a network refuses before a run: settings that are fed, long loops, and arrays larger than the memory."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.tensors import Device
from deep5.networks.memory_bound import MemoryBound
from deep5.networks.network import Network
from deep5.networks.onnx.bounds import Count, fed_counts
from deep5.networks.onnx.setting_values import FedSetting, fed_settings

__all__ = ["Limits"]


class Limits:
    """The checks of one network.

    Args:
        network: The network.
        device: Where it runs; only the memory of the host is checked.

    Attributes:
        fed: A check for each input that sets the iterations of a loop or configures an operator.
    """

    def __init__(self, network: Network, device: Device) -> None:
        counts = fed_counts(network.inputs, network.nodes)
        self.fed: tuple[Count | FedSetting, ...] = (*counts, *fed_settings(network.inputs, network.nodes))
        self._memory = MemoryBound(network) if device.kind == "cpu" else None

    def check_sizes(self, extents: Mapping[str, int]) -> None:
        """Compare the largest arrays with the memory that is left.

        Args:
            extents: Symbolic dimensions of the inputs.

        Raises:
            NetworkError: One does not fit.
        """
        if self._memory is not None:
            self._memory.check(extents)
