"""Inputs whose elements select rows of an initial value, such as the tokens and categories of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from deep5.networks.labels import source_of
from deep5.networks.network import Network

__all__ = ["TableInput", "table_inputs"]


@dataclass(frozen=True, kw_only=True)
class TableInput:
    """An input, or one column of it, that selects rows of a table.

    Attributes:
        name: Its name.
        column: The column; None: all elements.
        rows: Number of rows of the table.
    """

    name: str
    column: int | None
    rows: int

    def fault(self, sample: Mapping[str, np.ndarray]) -> str | None:
        """Why a sample selects no row, or None.

        Args:
            sample: Arrays by input, without the batch dimension.
        """
        found = sample[self.name] if self.column is None else sample[self.name][self.column : self.column + 1]
        outside = (found < 0) | (found >= self.rows)
        if not outside.any():
            return None
        where = "" if self.column is None else f" in column {self.column}"
        return f"input {self.name!r} has the element {found[outside].flat[0]}{where}; allowed: 0 to {self.rows - 1}"


def table_inputs(network: object) -> tuple[TableInput, ...]:
    """The inputs that select rows of tables; none for native code.

    ONNX counts negative indices from the end; no token or category means that.

    >>> import deep5 as d5
    >>> table_inputs(d5.networks.gpt(vocabulary=27, length=8, width=8, heads=1, layers=1))
    (TableInput(name='input', column=None, rows=27),)
    """
    if not isinstance(network, Network):
        return ()
    found: dict[TableInput, None] = {}
    for node in network.nodes:
        if not _gathers(node, 0) or (table := node.inputs[0]) is None or not _is_constant(table):
            continue
        rows = table.shape[0] if table.shape is not None and len(table.shape) == 2 else None
        source, column = _origin(node.inputs[1])
        if isinstance(rows, int) and source is not None and source.name in network.inputs:
            found[TableInput(name=str(source.name), column=column, rows=rows)] = None
    return tuple(found)


def _origin(indices: ir.Value | None) -> tuple[ir.Value | None, int | None]:
    """Where indices come from, and which column of it they are."""
    source = source_of(indices)
    node = None if source is None else source.producer()
    if node is None or not _gathers(node, 1) or (chosen := node.inputs[1]) is None or chosen.const_value is None:
        return source, None
    column = chosen.const_value.numpy()
    whole = source_of(node.inputs[0])
    if column.size != 1 or int(column.flat[0]) < 0 or whole is None or whole.shape is None or len(whole.shape) != 2:
        return None, None
    return whole, int(column.flat[0])


def _is_constant(value: ir.Value) -> bool:
    node = value.producer()
    return value.const_value is not None or (node is not None and node.op_type == "Constant")


def _gathers(node: ir.Node, axis: int) -> bool:
    return node.op_type == "Gather" and not node.domain and node.attributes.get_int("axis", 0) == axis
