"""Whether the arrays that a network would make for inputs of some shapes fit into the memory that is left.

An array that does not fit makes the system end the process, or another one, without a message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.core.memory import most_array_bytes
from deep5.networks.network import Network

__all__ = ["MemoryBound"]

# Arrays up to this size are not compared with the memory that is left.
_SMALL_BYTES = 1 << 28
# Operators whose outputs may be far larger than their inputs, and are really made: a back-end may fuse products and
# elementwise functions with what reads them, and Expand copies nothing.
_MAKING = frozenset({
    "BlackmanWindow", "Col2Im", "Concat", "ConstantOfShape", "ConvTranspose", "DFT", "DepthToSpace", "EyeLike",
    "HammingWindow", "HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Pad", "RandomNormal", "RandomNormalLike",
    "RandomUniform", "RandomUniformLike", "Range", "Resize", "SpaceToDepth", "Tile",
})  # fmt: skip


class MemoryBound:
    """The largest arrays of a network, by the symbolic dimensions that they depend on.

    Args:
        network: The network.
    """

    def __init__(self, network: Network) -> None:
        self._largest: dict[tuple[str, ...], tuple[int, str, str]] = {}
        for node in network.nodes:
            for value in node.outputs:
                if node.op_type in _MAKING or value.is_graph_output():
                    self._note(node, value)

    def check(self, extents: Mapping[str, int]) -> None:
        """Compare the largest arrays with the memory that is left.

        Args:
            extents: Symbolic dimensions of the inputs.

        Raises:
            NetworkError: One does not fit.
        """
        for symbols, (factor, name, operator) in self._largest.items():
            if any(symbol not in extents for symbol in symbols):
                continue
            size = factor * math.prod(extents[symbol] for symbol in symbols)
            if size > _SMALL_BYTES and size > (most := most_array_bytes()):
                given = ", ".join(f"{symbol} = {extents[symbol]}" for symbol in symbols)
                raise NetworkError(
                    f"{name!r} ({operator}) takes {size:.2g} bytes{f' for {given}' if given else ''}; allowed: "
                    f"{most:.2g}, three quarters of what is free; remedy: smaller {'inputs' if given else 'sizes'}"
                )

    def _note(self, node: ir.Node, value: ir.Value) -> None:
        kind = value.dtype
        if value.shape is None or kind is None or kind == ir.DataType.STRING:
            return
        size, symbols = math.ceil(kind.itemsize), list[str]()
        for extent in value.shape:
            if isinstance(extent, int):
                size *= extent
            elif extent.value is None:
                return
            else:
                symbols.append(extent.value)
        key = tuple(sorted(symbols))
        if size > self._largest.get(key, (0, "", ""))[0]:
            self._largest[key] = size, str(value.name), node.op_type
