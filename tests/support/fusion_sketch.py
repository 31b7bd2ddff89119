"""`Sketch`: a small model of a pattern that an optimization looks for, drawn with all that surrounds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["Sketch"]

_MICROSOFT = "com.microsoft"


class Sketch:
    """A model that grows node by node; what a pattern leaves open is drawn.

    Args:
        seed: The seed of all draws.
        constants: How constants are given: "initializer", "node" (a Constant), "input" (fed); None: drawn for each.

    Attributes:
        draw: The generator.
        opset: Of ONNX, drawn; patterns may set it.
    """

    def __init__(self, seed: Sequence[int], constants: str | None = None) -> None:
        self.draw = np.random.default_rng(seed)
        self.opset = int(self.draw.choice([20, 20, 20, 21, 23]))
        self.ml = 0
        self.feeds: dict[str, np.ndarray] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._initial: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._given = constants or self.one("initializer", "initializer", "initializer", "", "node")
        self._known = bool(self.draw.integers(3))
        self._plain = bool(self.draw.integers(2))
        self._number = 0

    def one(self, *values: Any) -> Any:
        """One of these."""
        return values[int(self.draw.integers(len(values)))]

    def chance(self, part: float) -> bool:
        return bool(self.draw.random() < part)

    def rare(self, part: float) -> bool:
        """A deviation from the pattern; half of all sketches have none."""
        return not self._plain and self.chance(part)

    def size(self, *more: int) -> int:
        """A size of an axis: 1, small, odd, or one of `more`."""
        return int(self.one(1, 2, 3, 5, *more))

    def sizes(self, rank: int, *more: int) -> list[int]:
        return [self.size(*more) for _ in range(rank)]

    def numbers(self, shape: Sequence[int], dtype: str = "float32", *, special: bool = False) -> np.ndarray:
        """Numbers of both signs; special: with infinities, NaN and zeros of both signs."""
        if np.dtype(dtype).kind in "iu":
            least = -9 if np.dtype(dtype).kind == "i" else 0
            return self.draw.integers(least, 10, shape).astype(dtype)
        found = np.asarray(self.draw.standard_normal(shape), dtype)
        if special and found.size and self.chance(0.5):
            found = np.array(found)
            for value in (np.nan, np.inf, -np.inf, -0.0, 0.0):
                if self.chance(0.5):
                    found.reshape(-1)[int(self.draw.integers(found.size))] = value
        return found

    def x(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        *,
        special: bool = False,
        array: Any = None,
        declared: Sequence[int | str] | None = None,
    ) -> str:
        """An input; `declared` are its sizes in the file, else drawn."""
        name = self._name("x")
        self.feeds[name] = self.numbers(shape, dtype, special=special) if array is None else np.asarray(array)
        kind = helper.np_dtype_to_tensor_dtype(self.feeds[name].dtype)
        extents = self.feeds[name].shape
        sizes: Sequence[int | str] = declared or [
            extent if self._known or self.chance(0.5) else f"{name}_{axis}" for axis, extent in enumerate(extents)
        ]
        self._inputs.append(helper.make_tensor_value_info(name, kind, sizes))
        return name

    def c(self, array: Any, dtype: str | None = None, *, fixed: bool = False) -> str:
        """A constant; fixed: never an input."""
        value = np.asarray(array, dtype)
        given = self._given or self.one("initializer", "initializer", "initializer", "node", "input")
        if given == "input" and fixed:
            given = "initializer"
        if given == "input":
            return self.x((), array=value)
        name = self._name("c")
        if given == "node":
            self._nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value)))
        else:
            self._initial.append(numpy_helper.from_array(value, name))
        return name

    def tensor(self, tensor: onnx.TensorProto) -> str:
        """An initializer."""
        name = self._name("c")
        tensor.name = name
        self._initial.append(tensor)
        return name

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return its output."""
        return self.ops(op_type, 1, *inputs, domain=domain, **attributes)[0]

    def ops(self, op_type: str, count: int, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        """Add a node, and return its outputs."""
        made = [self._name("v") for _ in range(count)]
        self._nodes.append(helper.make_node(op_type, list(inputs), made, domain=domain, **attributes))
        return made

    def axes(self, op_type: str, x: str, axes: Sequence[int], *, since: int = 13, **attributes: Any) -> str:
        """A node whose axes are an attribute before an opset, and an input from it on."""
        if self.opset < since:
            return self.op(op_type, x, axes=list(axes), **attributes)
        return self.op(op_type, x, self.c(list(axes), "int64", fixed=True), **attributes)

    def either(self, op_type: str, a: str, b: str) -> str:
        """A commutative node, its inputs in either order."""
        return self.op(op_type, *((a, b) if self.chance(0.5) else (b, a)))

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The model; values in the middle may also be outputs, or be read twice."""
        made = [name for node in self._nodes for name in node.output if name and node.op_type != "Constant"]
        names = list(dict.fromkeys(outputs))
        if made and self.rare(0.3):
            names.append(self.one(*made))
        if made and self.rare(0.25):
            names.append(self.op("Identity", self.one(*made)))
        names = list(dict.fromkeys(names))
        self.draw.shuffle(self._initial)  # type: ignore[arg-type]
        graph = helper.make_graph(
            self._nodes, "pattern", self._inputs, [onnx.ValueInfoProto(name=name) for name in names], self._initial
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == _MICROSOFT for node in self._nodes):
            opsets.append(helper.make_opsetid(_MICROSOFT, 1))
        if any(node.domain == "ai.onnx.ml" for node in self._nodes):
            opsets.append(helper.make_opsetid("ai.onnx.ml", self.ml or 2))
        return helper.make_model(graph, opset_imports=opsets, ir_version=8 if self.opset < 21 else 10)

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"
