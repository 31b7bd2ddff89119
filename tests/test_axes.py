"""An axis that an operator's input does not have is refused where a network is read or built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from deep5.errors import NetworkError
from deep5.networks import Network, NetworkBuilder
from deep5.networks.axes import _WITHIN

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
# Operator: further inputs, outputs, attributes, element type of the first output.
NODES: dict[str, tuple[dict[str, np.ndarray], int, dict[str, Any], int]] = {
    "ArgMax": ({}, 1, {}, INT64),
    "ArgMin": ({}, 1, {}, INT64),
    "Compress": ({"chosen": np.array([True, False])}, 1, {}, FLOAT),
    "Gather": ({"index": np.array([0, 1])}, 1, {}, FLOAT),
    "GatherElements": ({"index": np.zeros((2, 3), np.int64)}, 1, {}, FLOAT),
    "Hardmax": ({}, 1, {}, FLOAT),
    "LayerNormalization": ({"scale": np.ones(3, np.float32)}, 1, {}, FLOAT),
    "LogSoftmax": ({}, 1, {}, FLOAT),
    "LpNormalization": ({}, 1, {}, FLOAT),
    "RMSNormalization": ({"scale": np.ones(3, np.float32)}, 1, {}, FLOAT),
    "ScatterElements": ({"index": np.zeros((1, 3), np.int64), "new": np.ones((1, 3), np.float32)}, 1, {}, FLOAT),
    "Softmax": ({}, 1, {}, FLOAT),
    "Split": ({}, 2, {"num_outputs": 2}, FLOAT),
    "TopK": ({"k": np.array([1])}, 2, {}, FLOAT),
}


def model(operator: str, axis: int) -> Any:
    further, outputs, attributes, kind = NODES[operator]
    names = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(operator, ["x", *further], names, name="odd", axis=axis, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y0", kind, ["A", "B"])],
        [numpy_helper.from_array(array, name) for name, array in further.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def test_every_operator_that_is_looked_at_is_tried() -> None:
    assert set(NODES) == _WITHIN


@pytest.mark.parametrize("operator", sorted(NODES))
@pytest.mark.parametrize("axis", [2, -3, -1 - 2**46])
def test_an_axis_that_is_not_there_is_refused(operator: str, axis: int) -> None:
    with pytest.raises(NetworkError) as caught:
        Network.from_onnx(model(operator, axis))
    assert "'odd'" in str(caught.value) or operator in str(caught.value)
    assert "xis" in str(caught.value)


def test_the_message_says_which_axes_there_are() -> None:
    # ONNX's own inference keeps 32 bits of an axis: this one counts as -1 there.
    axis = -1 - 2**46
    text = rf"the node 'odd' \(Softmax\): got axis {axis} for 'x' of 2 dimensions; allowed: -2 to 1"
    with pytest.raises(NetworkError, match=text):
        Network.from_onnx(model("Softmax", axis))
    for axis in (-2, -1, 0, 1):
        assert Network.from_onnx(model("Softmax", axis)).nodes[0].op_type == "Softmax"
    build = NetworkBuilder("built")
    y = build.op("Softmax", build.input("x", ("N", 3)), axis=2**46)
    with pytest.raises(NetworkError, match=f"got axis {2**46} for 'x' of 2 dimensions; allowed: -2 to 1"):
        build.network({"y": y})
