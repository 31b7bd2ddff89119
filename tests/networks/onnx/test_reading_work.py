"""How often reading a model serializes it, infers its shapes and visits its nodes; no test here measures time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import deep5 as d5
from chains import chain
from deep5.networks.engine import engine_model
from deep5.networks.transforms.lowering import lowered

# Weights of this size are too large to be constants of inference.
SIZE = 20


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the passes over a whole model, by name."""
    count = Counter[str]()

    def counted(owner: Any, name: str, label: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            count[label] += 1
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    counted(onnx.shape_inference, "infer_shapes", "inferences")
    counted(onnx.checker, "check_model", "checks")
    counted(ir.serde, "_deserialize_graph", "graphs read")
    counted(ir.serde, "serialize_graph_into", "graphs written")
    counted(ir.Model, "clone", "copies")
    return count


@pytest.mark.parametrize("opset", [18, 20])
def test_a_model_is_read_once_and_inferred_twice(work: Counter[str], opset: int) -> None:
    """Two inferences: of shapes, and of integers that are shapes. A model of an older opset is converted in between."""
    d5.Network.from_onnx(chain(10, size=SIZE, opset=opset))
    assert work == {"inferences": 2, "checks": 2, "graphs read": 1}


def test_of_a_chain_of_constants_only_the_last_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    node = ir.node

    def counted(op_type: str, *arguments: Any, **named: Any) -> ir.Node:
        made.append(op_type)
        return node(op_type, *arguments, **named)

    nodes = [onnx.helper.make_node("Constant", [], ["c0"], value_ints=[2, 6])]
    nodes += [onnx.helper.make_node("Identity", [f"c{number}"], [f"c{number + 1}"]) for number in range(50)]
    nodes += [onnx.helper.make_node("Add", [f"c{number}", "zero"], [f"c{number + 1}"]) for number in range(50, 60)]
    nodes += [onnx.helper.make_node("Reshape", ["x", "c60"], ["y"])]
    graph = onnx.helper.make_graph(
        nodes,
        "chain",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 4))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 6))],
        [onnx.helper.make_tensor("zero", onnx.TensorProto.INT64, (), [0])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    monkeypatch.setattr(ir, "node", counted)
    network = d5.Network.from_onnx(model)
    assert made == ["Constant"]
    assert [each.op_type for each in network.nodes] == ["Reshape"]
    (result,) = d5.framework("reference").executor(network).inference({"x": np.ones((3, 4), np.float32)}).values()
    assert result.shape == (2, 6)


def test_shapes_are_inferred_without_reading_the_graph_again(work: Counter[str]) -> None:
    build = d5.NetworkBuilder("network")
    network = build.network({"y": build.op("Gelu", build.input("x", ("N", 4)))})
    work.clear()
    assert len(lowered(network, lambda node: d5.Support(node.op_type != "Gelu", "left out")).nodes) > 1
    assert work["inferences"] > 0
    assert work["graphs read"] == 0


def test_an_engine_s_model_is_written_without_a_copy(work: Counter[str]) -> None:
    network = d5.Network.from_onnx(chain(10, size=SIZE))
    before = list(network.model.graph.inputs), dict(network.model.graph.initializers)
    work.clear()
    made = onnx.ModelProto.FromString(engine_model(network))
    assert work == {"graphs written": 1}
    assert [value.name for value in made.graph.input] == ["x", *(f"w{number}" for number in range(10))]
    assert not made.graph.initializer
    held = onnx.ModelProto.FromString(engine_model(network, fixed=True))
    assert [tensor.name for tensor in held.graph.initializer] == [f"w{number}" for number in range(10)]
    assert all(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in held.graph.initializer)
    assert before == (list(network.model.graph.inputs), dict(network.model.graph.initializers))
    assert all(isinstance(network.initial(name), np.ndarray) for name in network.parameter_specs)
