"""`RunningStatistics`: those of batch normalization, which change only after a pass has succeeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from deep5.frameworks.pytorch.table import attribute
from deep5.networks.network import Network

__all__ = ["RunningStatistics"]


class RunningStatistics:
    """The running statistics of a network as ONNX defines them: momentum weights the old value, population variance.

    Args:
        network: The training network.
        buffers: Live values by name.

    Attributes:
        names: Names of the program's outputs for it, in the order that `settle` expects: means of batches, and
            reciprocals of their standard deviations.
    """

    def __init__(self, network: Network, buffers: Mapping[str, Any]) -> None:
        nodes: dict[tuple[float, float], list[Any]] = {}
        for node in network.nodes:
            if node.op_type == "BatchNormalization" and not node.domain:
                key = attribute(node, "momentum", 0.9), attribute(node, "epsilon", 1e-5)
                nodes.setdefault(key, []).append(node)
        names: list[str] = []
        self._groups: list[tuple[float, float, list[Any], int]] = []
        for (momentum, epsilon), own in nodes.items():
            live = [buffers[node.inputs[position].name] for position in (3, 4) for node in own]
            names += [str(node.outputs[position].name) for position in (1, 2) for node in own]
            self._groups.append((momentum, epsilon, live, len(own)))
        self.names = tuple(names)

    def settle(self, fresh: Sequence[Any]) -> None:
        """Update the live values.

        Args:
            fresh: The program's outputs, in the order of `names`.
        """
        start = 0
        for momentum, epsilon, live, count in self._groups:
            if count == 1:  # torch's multi-tensor functions take longer for one
                (mean, variance), batch_mean, inverse = live, fresh[start], fresh[start + 1]
                mean.mul_(momentum).add_(batch_mean, alpha=1 - momentum)
                variance.mul_(momentum).add_(inverse.pow(-2).sub_(epsilon).clamp_(min=0), alpha=1 - momentum)
                start += 2
                continue
            means, inverses = fresh[start : start + count], fresh[start + count : start + 2 * count]
            variances = torch._foreach_pow(inverses, -2)
            torch._foreach_sub_(variances, epsilon)
            torch._foreach_clamp_min_(variances, 0)
            torch._foreach_mul_(live, momentum)
            torch._foreach_add_(live, (*means, *variances), alpha=1 - momentum)
            start += 2 * count
