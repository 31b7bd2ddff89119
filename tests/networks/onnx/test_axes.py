"""A network with an axis that an operator's input does not have is refused when it is read or built."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deep5.core.errors import NetworkError
from deep5.networks import Network, NetworkBuilder
from deep5.networks.onnx.axes import _BEYOND

FLOAT, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8
# Of another opset than the others, or with sequences, which networks do not output.
APART = {"Scatter", "SplitToSequence", "ConcatFromSequence"}
# Operator: further inputs, outputs, attributes, element type of the first output.
NODES: dict[str, tuple[dict[str, np.ndarray], int, dict[str, Any], int]] = {
    "ArgMax": ({}, 1, {}, INT64),
    "ArgMin": ({}, 1, {}, INT64),
    "Concat": ({"other": np.ones((2, 3), np.float32)}, 1, {}, FLOAT),
    "Compress": ({"chosen": np.array([True, False])}, 1, {}, FLOAT),
    "DequantizeLinear": ({"scale": np.ones(3, np.float32)}, 1, {}, FLOAT),
    "Flatten": ({}, 1, {}, FLOAT),
    "Gather": ({"index": np.array([0, 1])}, 1, {}, FLOAT),
    "GatherElements": ({"index": np.zeros((2, 3), np.int64)}, 1, {}, FLOAT),
    "Hardmax": ({}, 1, {}, FLOAT),
    "LayerNormalization": ({"scale": np.ones(3, np.float32)}, 1, {}, FLOAT),
    "LogSoftmax": ({}, 1, {}, FLOAT),
    "LpNormalization": ({}, 1, {}, FLOAT),
    "OneHot": ({"depth": np.array([4]), "values": np.array([0, 1], np.float32)}, 1, {}, FLOAT),
    "QuantizeLinear": ({"scale": np.ones(3, np.float32)}, 1, {}, UINT8),
    "RMSNormalization": ({"scale": np.ones(3, np.float32)}, 1, {}, FLOAT),
    "ScatterElements": ({"index": np.zeros((1, 3), np.int64), "new": np.ones((1, 3), np.float32)}, 1, {}, FLOAT),
    "Softmax": ({}, 1, {}, FLOAT),
    "Split": ({}, 2, {"num_outputs": 2}, FLOAT),
    "TensorScatter": ({"update": np.ones((1, 1), np.float32)}, 1, {}, FLOAT),
    "TopK": ({"k": np.array([1])}, 2, {}, FLOAT),
    "Unique": ({}, 1, {}, FLOAT),
}


def model(operator: str, axis: int) -> Any:
    further, outputs, attributes, kind = NODES[operator]
    names = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(operator, ["x", *further], names, name="odd", axis=axis, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", UINT8 if operator == "DequantizeLinear" else FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y0", kind, ["A", "B", "C"] if operator == "OneHot" else ["A", "B"])],
        [numpy_helper.from_array(array, name) for name, array in further.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def test_every_operator_with_an_axis_is_tried() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain and "axis" in schema.attributes}
    assert set(NODES) == known - APART
    assert set(_BEYOND) == known - {"ConcatFromSequence"}


@pytest.mark.parametrize("operator", sorted(NODES))
@pytest.mark.parametrize("axis", [4, -5, -1 - 2**46])
def test_an_axis_that_is_not_there_is_refused(operator: str, axis: int) -> None:
    with pytest.raises(NetworkError) as caught:
        Network.from_onnx(model(operator, axis))
    assert "'odd'" in str(caught.value) or operator in str(caught.value)
    assert "xis" in str(caught.value)


def test_the_message_says_which_axes_there_are() -> None:
    # ONNX's own inference keeps only 32 bits of an axis: there this one becomes -1.
    axis = -1 - 2**46
    text = rf"the node 'odd' \(Softmax\): got axis {axis}; allowed: a dimension of its input"
    with pytest.raises(NetworkError, match=text):
        Network.from_onnx(model("Softmax", axis))
    text = r"the node 'odd' \(LpNormalization\): got axis 2 for 'x' of 2 dimensions; allowed: -2 to 1"
    with pytest.raises(NetworkError, match=text):
        Network.from_onnx(model("LpNormalization", 2))
    for axis in (-2, -1, 0, 1):
        assert Network.from_onnx(model("Softmax", axis)).nodes[0].op_type == "Softmax"
    build = NetworkBuilder("built")
    y = build.op("Softmax", build.input("x", ("N", 3)), axis=2**46)
    with pytest.raises(NetworkError, match=f"got axis {2**46} for 'x' of 2 dimensions; allowed: -2 to 1"):
        build.network({"y": y})


def test_axes_at_the_ends_of_what_is_allowed() -> None:
    for operator, least, most in (("Flatten", -2, 2), ("OneHot", -3, 2)):
        for axis in (least, most):
            assert Network.from_onnx(model(operator, axis)).nodes[-1].op_type == operator
        with pytest.raises(NetworkError):
            Network.from_onnx(model(operator, most + 1))


def test_an_older_softmax_is_held_to_it_too() -> None:
    old = model("Softmax", -1 - 2**46)
    old.opset_import[0].version = 11
    with pytest.raises(NetworkError, match="axis"):
        Network.from_onnx(old)


def test_one_scale_for_all_has_no_axis() -> None:
    build = NetworkBuilder("scaled")
    x, scale = build.input("x", ("N",)), build.constant("scale", np.array(0.5, np.float32))
    network = build.network(
        {"y": build.op("DequantizeLinear", build.op("QuantizeLinear", x, scale, axis=1), scale, axis=1)}
    )
    assert len(network.nodes) == 2
