"""Which numbers the settings of an operator may hold: sizes, axes, steps and factors that a file or a caller gives.

Engines differ in what they do with others: some raise, some wrap an axis, some return an empty array, and some end the
process. So they are refused before an engine sees them, where they are constants or inputs of the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from deep5.core.errors import NetworkError
from deep5.core.memory import most_array_bytes
from deep5.networks.constants import constant_value
from deep5.networks.nodes import RESHAPING, origin
from deep5.networks.onnx.element_types import called

__all__ = ["FedSetting", "check_constants", "fed_settings"]

# Arrays up to this size are not compared with the memory that is left.
_SMALL_BYTES = 1 << 28
# Values of up to so many bytes, up to so many of them, are checked once.
_SHORT, _MANY = 128, 256
_Rule = Callable[[ir.Node, np.ndarray], str | None]
_Elements = Callable[[ir.Node, np.ndarray], float]


def _at_least(least: int, most: int = 1 << 62) -> _Rule:
    def rule(node: ir.Node, given: np.ndarray) -> str | None:
        wrong = given[(given < least) | (given > most)]
        if not wrong.size:
            return None
        return f"got {wrong.flat[0]}; allowed: {f'at least {least}' if most == 1 << 62 else f'{least} to {most}'}"

    return rule


def _factors(node: ir.Node, given: np.ndarray) -> str | None:
    wrong = given[~(np.isfinite(given) & (given > 0))]
    return f"got {wrong.flat[0]}; allowed: finite factors above 0" if wrong.size else None


def _finite(node: ir.Node, given: np.ndarray) -> str | None:
    return None if np.isfinite(given).all() else f"got {given.flat[0]}; allowed: a finite number"


def _not_zero(node: ir.Node, given: np.ndarray) -> str | None:
    return None if given.all() else "got the step 0; allowed: any other"


def _axes(node: ir.Node, given: np.ndarray) -> str | None:
    data = node.inputs[0]
    if data is None or data.shape is None:
        return None
    rank = len(data.shape) + (given.size if node.op_type == "Unsqueeze" else 0)
    wrong = given[(given < -rank) | (given >= rank)]
    if not wrong.size:
        return None
    return f"got the axis {wrong.flat[0]} of {rank} dimensions; allowed: {-rank} to {rank - 1}"


def _product(node: ir.Node, given: np.ndarray) -> float:
    return float(np.prod(given[given > 0], dtype=float))


def _repeated(node: ir.Node, given: np.ndarray) -> float:
    return _product(node, given) * _elements(node.inputs[0])


def _padded(node: ir.Node, given: np.ndarray) -> float:
    """Elements, as if all pads stood along one axis: a lower bound, as every other axis has at least one element."""
    return float(np.maximum(given, 0).max(initial=0))


def _range(node: ir.Node, given: np.ndarray) -> float:
    """Elements of a Range that begins at 0 and steps by 1, where the other two are not known."""
    start, limit, step = (
        (constant_value(value), other) for value, other in zip(node.inputs, (0, None, 1), strict=True)
    )
    first, last, by = (
        float(known.reshape(())) if known is not None and known.size == 1 else other
        for known, other in (start, limit, step)
    )
    end = float(given.reshape(-1)[0]) if last is None else last
    return (end - float(first or 0)) / float(by) if by else 0.0


def _elements(value: ir.Value | None) -> int:
    """The least number of elements: an unknown dimension counts as 1."""
    shape = () if value is None or value.shape is None else value.shape
    return math.prod(extent for extent in shape if isinstance(extent, int))


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_SIZE = _at_least(0)
# What the inputs of operators may hold.
_RULES: Mapping[str, Mapping[int, _Rule]] = {
    "AffineGrid": {1: _SIZE},
    "BlackmanWindow": {0: _SIZE},
    "CenterCropPad": {1: _SIZE},
    "Col2Im": {1: _at_least(1), 2: _at_least(1)},
    "ConstantOfShape": {0: _SIZE},
    "CumSum": {1: _axes},
    "DFT": {1: _at_least(1), 2: _axes},
    "Expand": {1: _at_least(-1)},
    "HammingWindow": {0: _SIZE},
    "HannWindow": {0: _SIZE},
    "MaxUnpool": {2: _SIZE},
    "MelWeightMatrix": {0: _at_least(1), 1: _at_least(1), 2: _at_least(1)},
    "OneHot": {1: _SIZE},
    "Pad": {3: _axes},
    "Range": {0: _finite, 1: _finite, 2: _finite},
    "Reshape": {1: _at_least(-1)},
    "Resize": {2: _factors, 3: _at_least(1)},
    "STFT": {1: _at_least(1), 3: _at_least(1)},
    "Slice": {3: _axes, 4: _not_zero},
    "Split": {1: _SIZE},
    "Squeeze": {1: _axes},
    "Tile": {1: _SIZE},
    "TopK": {1: _at_least(0, (1 << 31) - 1)},
    "Unsqueeze": {1: _axes},
    **{f"Reduce{name}": {1: _axes} for name in _REDUCTIONS},
}
# The least number of elements of the output, where an input determines it.
_ELEMENTS: Mapping[str, Mapping[int, _Elements]] = {
    "AffineGrid": {1: _product},
    "BlackmanWindow": {0: _product},
    "Col2Im": {1: _product},
    "ConstantOfShape": {0: _product},
    "DFT": {1: _product},
    "HammingWindow": {0: _product},
    "HannWindow": {0: _product},
    "MaxUnpool": {2: _product},
    "MelWeightMatrix": {0: _product, 1: _product},
    "OneHot": {1: _repeated},
    "Pad": {1: _padded},
    "Range": {1: _range},
    "Resize": {2: _repeated, 3: _product},
    "Tile": {1: _repeated},
}


@dataclass(frozen=True, kw_only=True)
class FedSetting:
    """A network input that is a setting of an operator.

    Attributes:
        position: Index of the input among the network's inputs.
        name: Its name.
        node: The node that it configures.
        place: Index of the input among the node's.
    """

    position: int
    name: str
    node: ir.Node
    place: int
    _accepted: set[bytes] = field(default_factory=set, repr=False, compare=False)

    def check(self, value: np.ndarray) -> None:
        """Check the numbers before the network runs.

        Raises:
            NetworkError: They are not allowed.
        """
        if (given := value.tobytes()) in self._accepted:
            return
        reason = _wrong(self.node, self.place, value)
        size = 0.0 if reason else _bytes(self.node, self.place, value)
        reason = reason or _too_large(size, value)
        if reason is not None:
            raise NetworkError(f"input {self.name!r}, a setting of {_named(self.node)}: {reason}; remedy: another one")
        if not size > _SMALL_BYTES and len(given) <= _SHORT and len(self._accepted) < _MANY:
            self._accepted.add(given)


def fed_settings(inputs: Iterable[str], nodes: Iterable[ir.Node]) -> list[FedSetting]:
    """The inputs that are settings of nodes, outside nested graphs.

    Args:
        inputs: Names of the network's inputs.
        nodes: Its nodes.
    """
    positions = {name: position for position, name in enumerate(inputs)}
    found = []
    for node in nodes:
        for place in _places(node):
            value = origin(node.inputs[place] if place < len(node.inputs) else None, RESHAPING)
            if value is not None and value.producer() is None and value.name in positions:
                name = str(value.name)
                found.append(FedSetting(position=positions[name], name=name, node=node, place=place))
    return found


def check_constants(model: ir.Model, what: str) -> None:
    """Reject constant settings that are not allowed; those in nested graphs may belong to a branch that never runs.

    Args:
        model: The model, with inferred shapes.
        what: Its name in messages.

    Raises:
        NetworkError: The first such node, what it got, and what is allowed.
    """
    for node in model.graph:
        for place in _places(node):
            known = constant_value(node.inputs[place]) if place < len(node.inputs) else None
            if known is not None and (reason := _wrong(node, place, known)) is not None:
                name = node.inputs[place].name  # type: ignore[union-attr]  # it is known
                raise NetworkError(
                    f"{what}: {_named(node)}: the input {name!r}: {reason}; remedy: change it in the file"
                )


def _places(node: ir.Node) -> list[int]:
    if node.domain:
        return []
    return sorted({*_RULES.get(node.op_type, ()), *_ELEMENTS.get(node.op_type, ())})


def _wrong(node: ir.Node, place: int, given: np.ndarray) -> str | None:
    """Why a setting is not allowed."""
    rule = _RULES.get(node.op_type, {}).get(place)
    return None if rule is None or given.dtype.kind not in "iufV" or not given.size else rule(node, given)


def _bytes(node: ir.Node, place: int, given: np.ndarray) -> float:
    """The size of the output, as far as this setting determines it; otherwise 0."""
    count, kind = _ELEMENTS.get(node.op_type, {}).get(place), node.outputs[0].dtype
    if count is None or given.dtype.kind not in "iufV" or not given.size:
        return 0.0
    return count(node, given) * (1 if kind in (None, ir.DataType.STRING) else math.ceil(kind.itemsize))


def _too_large(size: float, given: np.ndarray) -> str | None:
    """Why an output of this size does not fit into memory."""
    if not size > _SMALL_BYTES or size <= (most := most_array_bytes()):
        return None
    takes = f"got {_shown(given)}, with which the output takes {size:.2g} bytes"
    return f"{takes}; allowed: {most:.2g}, three quarters of what is free"


def _named(node: ir.Node) -> str:
    return called(node.name, node.op_type, [value.name for value in node.outputs])


def _shown(given: np.ndarray) -> str:
    return str(given.reshape(-1)[:8].tolist() if given.ndim else given.item())
