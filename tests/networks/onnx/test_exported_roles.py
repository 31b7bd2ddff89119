"""Roles of initial values in torch.export files written here: parameters, constants, and values computed from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deep5 as d5

SIGNATURE = """
# inputs
p_weight: PARAMETER target='weight'
p_gain: PARAMETER target='gain'
p_projection: PARAMETER target='projection'
b_places: BUFFER target='places' persistent=True
c_shift: CONSTANT_TENSOR target='shift'
x: USER_INPUT

# outputs
add: USER_OUTPUT
"""
VALUES = {
    "weight": np.eye(3) * 2,
    "gain": np.array(3.0),  # one number, and a parameter
    "joined": np.eye(3) * 5,  # computed from a parameter
    "places": np.arange(3) + 1,
    "shift": np.arange(3) - 1,
    "made": np.ones(3) * 7,  # computed, not from a parameter
    "root": np.array(np.sqrt(2)),
    "mask": np.array([0, -np.inf, 0]),
    "renamed": np.ones(3) * 4,  # by another tool
}
LEARNED = {"weight", "gain", "joined", "renamed"}


def exported(*, signature: str | None = SIGNATURE, opset: int = 20) -> onnx.ModelProto:
    operators = {"weight": "MatMul", "joined": "MatMul", "gain": "Mul", "root": "Mul", "mask": "Max"}
    nodes, last = [], "x"
    for name in VALUES:
        nodes.append(helper.make_node(operators.get(name, "Add"), [last, name], [f"after_{name}"]))
        last = f"after_{name}"
    told = {"joined": "['projection', 'val_1']", "made": "['val_2', 'val_3']"}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in VALUES.items()],
        value_info=[helper.make_tensor_value_info(name, TensorProto.FLOAT, VALUES[name].shape) for name in told],
    )
    for info in graph.value_info:
        info.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=told[info.name])
    if signature is not None:
        graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("opset", [18, 20, 23])
def test_only_parameters_and_what_is_made_of_them_are_trained(opset: int) -> None:
    network = d5.Network.from_onnx(exported(opset=opset))
    assert network.parameter_specs.keys() == LEARNED
    assert not network.constants


def test_without_a_signature_slots_names_and_numbers_decide() -> None:
    found = d5.Network.from_onnx(exported(signature=None)).parameter_specs.keys()
    assert found == VALUES.keys() - {"root", "mask"}


def test_outputs_stay_the_same() -> None:
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    networks = [d5.Network.from_onnx(exported(signature=signature)) for signature in (SIGNATURE, None)]
    found, wanted = (d5.framework("reference").executor(network).inference({"x": x}) for network in networks)
    np.testing.assert_array_equal(d5.to_numpy(found["after_renamed"]), d5.to_numpy(wanted["after_renamed"]))


def test_a_saved_network_has_the_same_parameters(tmp_path: Path) -> None:
    network = d5.Network.from_onnx(exported())
    network.save(tmp_path / "saved.onnx")
    for again in (d5.Network.from_onnx(tmp_path / "saved.onnx"), d5.Network.from_onnx(network.to_onnx())):
        assert again.parameter_specs == network.parameter_specs
        assert again.structure_hash() == network.structure_hash()


def test_what_is_added_later_is_a_parameter_as_ever(tmp_path: Path) -> None:
    network = d5.Network.from_onnx(exported())
    node = network.nodes[-1]
    added = network.add_parameter("scale", np.array(2.0, np.float32)).add_node(
        "Mul", [node.outputs[0].name, "scale"], ["scaled"]
    )
    added.with_outputs(["scaled"]).save(tmp_path / "saved.onnx")
    assert d5.Network.from_onnx(tmp_path / "saved.onnx").parameter_specs.keys() == {*LEARNED, "scale"}


def test_folded_constants_are_none_of_a_saved_network_either(tmp_path: Path) -> None:
    """A precomputed constant stays a constant when the network is written and read again."""
    shape = numpy_helper.from_array(np.array([3]), "shape")
    nodes = [
        helper.make_node("Constant", [], ["one"], value_float=1.0),
        helper.make_node("Expand", ["one", "shape"], ["ones"]),
        helper.make_node("Add", ["x", "ones"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [shape])
    network = d5.Network.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    assert not network.parameter_specs
    network.save(tmp_path / "saved.onnx")
    assert not d5.Network.from_onnx(tmp_path / "saved.onnx").parameter_specs
