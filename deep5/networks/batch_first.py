"""Recurrent layers whose first axis is the batch (`layout=1`), for engines that have only the other order."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from deep5.networks.draft import Draft
from deep5.networks.onnx.attributes import attribute

__all__ = ["is_batch_first", "write_batch_second"]

# The inputs of a recurrent layer with a batch axis, and the permutations from batch first to batch second.
_STATES = (0, 5, 6)
_SWAPPED, _ALL = [1, 0, 2], [2, 0, 1, 3]


def is_batch_first(node: ir.Node) -> bool:
    """Whether a recurrent layer has the batch before the steps."""
    return bool(attribute(node, "layout", 0) == 1)


def write_batch_second(draft: Draft, node: ir.Node, **changes: Any) -> None:
    """The layer in the other layout, between transpositions, and with other attributes; see `Draft.same`."""
    inputs = [
        draft.op("Transpose", draft.setting(value), perm=_SWAPPED)
        if value is not None and position in _STATES
        else value
        for position, value in enumerate(node.inputs)
    ]
    made = draft.same(inputs, layout=0, **changes)
    turned = [
        None if value is None else draft.op("Transpose", value, perm=_ALL if position == 0 else _SWAPPED)
        for position, value in enumerate(made)
    ]
    draft.replace(*turned)
