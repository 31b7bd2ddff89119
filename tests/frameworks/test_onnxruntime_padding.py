"""SAME padding that ONNX Runtime rejects or misplaces; expected values are those of ONNX's reference or of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import deep5 as d5
from deep5.core.errors import Unsupported
from original import plain

DRAW = np.random.default_rng(5)
WEIGHTS = DRAW.standard_normal((2, 2, 3)).astype(np.float32)


def model(op_type: str, sizes: Any, **attributes: Any) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(WEIGHTS, "w")] if op_type == "Conv" else []
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", *(each.name for each in weights)], ["y"], **attributes)],
        "same",
        [helper.make_tensor_value_info("x", 1, [1, 2, sizes])],
        [helper.make_tensor_value_info("y", 1, [1, 2, "o"])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def padded(x: np.ndarray, span: int, stride: int, upper: bool, value: float) -> torch.Tensor:
    """The input with SAME padding, by the equations of Conv-11."""
    total = max((-(-x.shape[2] // stride) - 1) * stride + span - x.shape[2], 0)
    small, large = total // 2, total - total // 2
    sides = (small, large) if upper else (large, small)
    return torch.nn.functional.pad(torch.from_numpy(x), sides, value=value)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("dilation", "stride"), [(2, 1), (2, 2), (3, 2), (1, 4)])
@pytest.mark.parametrize("size", [5, 6, 9])
@pytest.mark.parametrize("op_type", ["Conv", "MaxPool", "AveragePool"])
def test_same_padding(op_type: str, size: int, dilation: int, stride: int, auto_pad: str, known: bool) -> None:
    attributes = {"auto_pad": auto_pad, "dilations": [dilation], "strides": [stride]}
    x = DRAW.standard_normal((1, 2, size)).astype(np.float32)
    if op_type != "Conv":
        attributes["kernel_shape"] = [3]
    network = d5.Network.from_onnx(model(op_type, size if known else "l", **attributes))
    if op_type == "AveragePool" and ((not known and stride > 1) or dilation == 3):
        with pytest.raises(Unsupported, match="allowed: fixed sizes that need less padding than the kernel has"):
            d5.framework("onnxruntime").executor(network)
        return
    executor = d5.framework("onnxruntime").executor(network)
    value = -np.inf if op_type == "MaxPool" else 0.0
    given = padded(x, 2 * dilation + 1, stride, auto_pad == "SAME_UPPER", value)
    if op_type == "Conv":
        right = torch.nn.functional.conv1d(given, torch.from_numpy(WEIGHTS), stride=stride, dilation=dilation)
    elif op_type == "MaxPool":
        right = torch.nn.functional.max_pool1d(given, 3, stride, dilation=dilation)
    else:
        ones = padded(np.ones_like(x), 2 * dilation + 1, stride, auto_pad == "SAME_UPPER", 0.0)
        kernel = torch.ones((2, 1, 3))
        sums = [torch.nn.functional.conv1d(v, kernel, None, stride, 0, dilation, 2) for v in (given, ones)]
        right = sums[0] / sums[1]
    found = d5.to_numpy(executor.inference({"x": x})["y"])
    np.testing.assert_allclose(found, right.numpy(), rtol=1e-5, atol=1e-5)


def test_onnx_runtime_still_rejects_dilated_same_padding() -> None:
    given = model("Conv", "l", auto_pad="SAME_UPPER", dilations=[2])
    with pytest.raises(Exception, match=r"[Dd]ilation"):  # if it does not, the rules in padding.py can go
        plain(given, {"x": np.ones((1, 2, 5), np.float32)})


@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID"])
@pytest.mark.parametrize(("size", "stride", "dilation"), [(1, 2, 1), (2, 3, 2), (1, 5, 2)])
@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
def test_a_window_larger_than_its_image(op_type: str, size: int, stride: int, dilation: int, auto_pad: str) -> None:
    attributes = {"kernel_shape": [2], "strides": [stride], "dilations": [dilation], "auto_pad": auto_pad}
    made = model(op_type, size, **attributes)
    shape = plain(made, {"x": np.ones((1, 2, size), np.float32)})["y"].shape
    assert shape == (1, 2, 1), "ONNX Runtime rounds down: the refusal can go"
    with pytest.raises(Unsupported, match=f"a window of {dilation + 1} for {size} elements"):
        d5.framework("onnxruntime").executor(d5.Network.from_onnx(made))


@pytest.mark.parametrize(("size", "attributes", "count"), [(1, {}, 0), (1, {"strides": [2], "pads": [0, 1]}, 1)])
@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
def test_a_window_that_fits_with_padding_or_has_stride_1(
    op_type: str, size: int, attributes: dict[str, Any], count: int
) -> None:
    executor = d5.framework("onnxruntime").executor(
        d5.Network.from_onnx(model(op_type, size, kernel_shape=[2], **attributes))
    )
    assert executor.inference({"x": np.ones((1, 2, size), np.float32)})["y"].shape == (1, 2, count)
