"""Slices with bounds out of range: the same elements on every back-end, those of ONNX's specification."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.networks.slicing import slice_of

FAR = 2**63 - 1
BOUNDS = (-FAR - 1, -FAR, -9, -4, -3, -1, 0, 1, 2, 3, 9, FAR)
FRAMEWORKS = ("reference", "pytorch", "pytorch:compiled", "tensorflow", "jax", "onnxruntime", "openvino")


def taken(start: int, end: int, step: int, extent: int) -> list[int]:
    """Positions as Slice-13 defines them: bounds from the end, then clamped."""
    first, behind = (bound + extent if bound < 0 else bound for bound in (start, end))
    first = max(0, min(first, extent if step > 0 else extent - 1))
    behind = max(0 if step > 0 else -1, min(behind, extent))
    return list(range(first, behind, step))


@pytest.mark.parametrize("step", [1, 2, -1, -2, FAR, -FAR])
@pytest.mark.parametrize("extent", [0, 1, 3])
def test_a_slice_of_python(extent: int, step: int) -> None:
    for start in BOUNDS:
        for end in BOUNDS:
            found = list(range(extent)[slice_of(start, end, step, extent)])
            assert found == (taken(start, end, step, extent) if extent else []), (start, end)
            if step > 0:
                assert list(range(extent)[slice_of(start, end, step, None)]) == found


@pytest.mark.parametrize(
    ("framework", "given"),
    # If the size is dynamic, OpenVINO's own kernel and shape inference disagree, and the back-end says so.
    [(each, given) for each in FRAMEWORKS for given in ("known", "fed") if (each, given) != ("openvino", "fed")],
)
def test_backwards_from_before_the_first_element(framework: str, given: str) -> None:
    name = framework.partition(":")[0]
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(name, name))
    cases = [(-9, -FAR, -1), (-9, -9, -2), (9, -FAR - 1, -1), (-9, FAR, 1), (1, -FAR, 1)]
    if framework == "openvino":  # refused by name: it gives results without elements another shape
        cases = [case for case in cases if taken(*case, 3)]
    x, names = np.arange(6.0, dtype=np.float32).reshape(2, 3), ("starts", "ends", "axes", "steps")
    nodes, constants, inputs = [], [], [onnx.helper.make_tensor_value_info("x", 1, [2, 3 if given == "known" else "n"])]
    for number, (start, end, step) in enumerate(cases):
        own = [f"{each}{number}" for each in names]
        for each, value in zip(own, (start, end, 1, step), strict=True):
            constants.append(onnx.numpy_helper.from_array(np.array([value], np.int64), each))
        nodes.append(onnx.helper.make_node("Slice", ["x", *own], [f"y{number}"]))
    outputs = [onnx.helper.make_tensor_value_info(f"y{number}", 1, [2, f"m{number}"]) for number in range(len(cases))]
    graph = onnx.helper.make_graph(nodes, "slices", inputs, outputs, constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    found = d5.framework(framework).executor(d5.Network.from_onnx(model)).inference({"x": x})
    for number, (start, end, step) in enumerate(cases):
        np.testing.assert_array_equal(
            d5.to_numpy(found[f"y{number}"]), x[:, taken(start, end, step, 3)], str(cases[number])
        )
