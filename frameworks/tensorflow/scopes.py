"""`Scopes`: the layers of a network as the names of TensorFlow's operations."""

from __future__ import annotations

import re
from typing import Any

from deep5.core.layer_clock import Group
from deep5.networks.analysis.layer_clock import Owners
from deep5.networks.network import Network

__all__ = ["Scopes"]

_SCOPE = re.compile(r"(?:^|[/-])deep5_layer_(\d+)/")
# The prefix that TensorFlow gives to the gradient of operations in a scope.
_GRADIENT = "gradient_tape/"


class Scopes:
    """Name scopes, one per layer; TensorFlow names the operations of a gradient after the layer's scope.

    Args:
        network: The network with the layers.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._numbers: dict[Group, int] = {}
        self._owners: tuple[Network, Owners] | None = None

    def scope(self, run: Network, node: Any) -> str | None:
        """The scope of a node of the network that runs; None if it belongs to no layer."""
        if self._owners is None or self._owners[0] is not run:
            self._owners = run, Owners(self.network, run)
        owners = self._owners[1]
        group = owners.group([owners.of(str(node.name))])
        return None if group is None else f"deep5_layer_{self._numbers.setdefault(group, len(self._numbers))}"

    def group(self, operation: str) -> Group | None:
        """The layer of an operation, from its name."""
        found = _SCOPE.search(operation)
        if found is None:
            return None
        return list(self._numbers)[int(found[1])]._replace(backward=_GRADIENT in operation)

    def groups(self, graph: Any) -> dict[str, Group | None]:
        """The layers of the operations of a graph, by name.

        An operation without a scope belongs to the layer of its inputs: to the gradient of a layer if it reads both
        that layer's results and gradients, as a custom gradient does; else to the last input's, as a sum of gradients.
        """
        found: dict[str, Group | None] = {}
        for operation in graph.get_operations():  # in tracing order
            group = self.group(operation.name)
            if group is None:
                sources = [each for value in operation.inputs if (each := found.get(value.op.name)) is not None]
                forward = [each for each in sources if not each.backward]
                mixed = 0 < len(forward) < len(sources)
                group = forward[-1]._replace(backward=True) if mixed else sources[-1] if sources else None
            found[operation.name] = group
        return found
