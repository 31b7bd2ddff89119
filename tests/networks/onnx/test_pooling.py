"""Pooling with SAME padding, strides and dilations: the windows of the specification, on every back-end."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import deep5 as d5

FRAMEWORKS = ["reference", "pytorch", "onnxruntime", "jax", "tensorflow", "openvino"]
X = np.random.default_rng(3).standard_normal((1, 2, 6, 7)).astype(np.float32)


def maxima(x: np.ndarray, kernel: int, stride: int, dilation: int, *, upper: bool) -> np.ndarray:
    """The maxima along the last axis, over windows that lie inside the axis where they can."""
    size, span = x.shape[-1], (kernel - 1) * dilation + 1
    count = -(-size // stride)
    total = max((count - 1) * stride + span - size, 0)
    before = total // 2 if upper else total - total // 2
    places = [[at * stride - before + index * dilation for index in range(kernel)] for at in range(count)]
    kept = [[place for place in row if 0 <= place < size] for row in places]
    return np.stack([x[..., row].max(-1) for row in kept], -1)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "strides", "dilations"), [((3, 2), (2, 1), (2, 1)), ((2, 3), (1, 2), (3, 2))])
def test_dilated_maxima_with_same_padding(
    kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], padding: str, framework: str
) -> None:
    how = f'auto_pad = "{padding}", kernel_shape = {list(kernel)}, strides = {list(strides)}'
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 19]> g (float[1,2,6,7] x) => (float[1,2,a,b] y) '
        f"{{ y = MaxPool <{how}, dilations = {list(dilations)}> (x) }}"
    )
    got = d5.framework(framework).executor(d5.Network.from_onnx(model), device="cpu").inference({"x": X})["y"]
    right = X
    for axis in (0, 1):
        along = np.swapaxes(right, -1, axis - 2)
        found = maxima(along, kernel[axis], strides[axis], dilations[axis], upper=padding == "SAME_UPPER")
        right = np.swapaxes(found, -1, axis - 2)
    np.testing.assert_array_equal(d5.to_numpy(got), right)
