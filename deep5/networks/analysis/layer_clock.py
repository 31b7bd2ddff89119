"""`Owners`: map each node that runs to the layer it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import onnx_ir as ir

from deep5.core.layer_clock import Group
from deep5.networks.network import Network

__all__ = ["WARMUPS", "Owner", "Owners", "without_gaps"]


WARMUPS = 3
"""Warm-up passes of each kind, which are not counted."""


class Owner(NamedTuple):
    """A layer, and whether the node belongs to its gradient."""

    layer: str
    backward: bool


class Owners:
    """Maps each node that runs to the layer it belongs to.

    A node created for another node has that node's name as a prefix: `LSTM_1/Mul_3` for an expanded layer,
    `Conv_1/backward_7_Gemm` in its gradient. A node without such a name belongs to the layer that reads its output.

    Args:
        network: The network that defines the layers.
        run: The network derived from it that runs, with or without gradients.
    """

    def __init__(self, network: Network, run: Network) -> None:
        layers = [node for node in network.nodes if node.op_type != "Constant" or node.domain]
        self._order = {str(node.name): number for number, node in enumerate(layers)}
        self._made = {str(value.name): str(node.name) for node in layers for value in node.outputs if value.name}
        self._found: dict[str, Owner] = {}
        nodes = run.nodes
        self._writer = {str(value.name): str(node.name) for node in nodes for value in node.outputs}
        for node in reversed(nodes):
            readers = (reader for value in node.outputs for reader in value.consumers())
            self._keep(node, [str(reader.name) for reader in readers])
        for node in nodes:  # a node without readers belongs to the layer of its inputs
            sources = (value.producer() for value in node.inputs if value is not None)
            self._keep(node, [str(source.name) for source in sources if source is not None])

    def _keep(self, node: ir.Node, neighbours: Iterable[str]) -> None:
        name = str(node.name)
        if name not in self._found:
            own = self.of(name) or next(filter(None, (self.of(str(value.name)) for value in node.outputs)), None)
            found = own or next((self._found[other] for other in neighbours if other in self._found), None)
            if found is not None:
                self._found[name] = found

    def of(self, name: str) -> Owner | None:
        """The owner for the name of a node, or of a value that a layer computes; None if unknown."""
        backward = False
        while True:
            found = self._found.get(name) or self._found.get(self._writer.get(name, ""))
            if found is not None:
                return Owner(found.layer, backward or found.backward)
            if name in self._order or name in self._made:
                return Owner(name if name in self._order else self._made[name], backward)
            name, slash, last = name.rpartition("/")
            if not slash:
                return None
            backward = backward or last.startswith("backward_")

    def group(self, owners: Iterable[Owner | None]) -> Group | None:
        """The group for nodes with these owners, forward or backward by majority; None without owners."""
        known = [owner for owner in owners if owner is not None]
        if not known:
            return None
        backward = 2 * sum(owner.backward for owner in known) > len(known)
        layers = {owner.layer for owner in known if owner.backward == backward}
        return Group(tuple(sorted(layers, key=self._order.__getitem__)), backward)


def without_gaps(groups: Sequence[Group | None], readers: Sequence[Sequence[int]]) -> list[Group | None]:
    """The groups of kernels; kernels that an engine added get the group of a reader, or else of a source.

    Args:
        groups: Groups of kernels in execution order; None if unknown.
        readers: For each kernel, the indices of the kernels that read its results.
    """
    found = list(groups)
    sources: list[list[int]] = [[] for _ in groups]
    for number, each in enumerate(readers):
        for reader in each:
            sources[reader].append(number)
    for number in reversed(range(len(found))):
        found[number] = found[number] or next((found[reader] for reader in readers[number] if found[reader]), None)
    for number, group in enumerate(found):
        found[number] = group or next((found[source] for source in sources[number] if found[source]), None)
    return found
