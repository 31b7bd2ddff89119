"""Resize and Upsample by factors: sizes are those of float32, as in ONNX Runtime; onnx 1.23 infers others."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import Unsupported
from deep5.networks.onnx.factors import resized_extent
from original import compared

FRAMEWORKS = ["reference", "pytorch", "onnxruntime", "jax", "tensorflow", "openvino"]
X = np.arange(70, dtype=np.float32).reshape(1, 1, 7, 10)


def parsed(body: str, *, opset: int = 19, result: str = "float[1,1,a,b] y") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[1,1,7,10] x) => ({result}) {body}'
    )


NETWORKS = {
    "resize": parsed('<float[4] s = {1, 1, 0.7, 0.7}> { y = Resize <mode = "nearest"> (x, , s) }'),
    "axes": parsed("<float[1] s = {1.3}> { y = Resize <axes = [-1]> (x, , s) }"),
    "upsample": parsed("<float[4] s = {1, 1, 1.3, 1.3}> { y = Upsample (x, s) }", opset=9),
    "attribute": parsed("{ y = Upsample <scales = [1.0, 1.0, 1.3, 1.3]> (x) }", opset=7),
    "twice": parsed(
        "<float[4] s = {1, 1, 0.7, 0.7}, float[4] t = {1, 1, 1, 0.7}>"
        ' { z = Resize <mode = "linear"> (x, , t) w = Resize <mode = "linear"> (z, , s) y = Relu (w) }'
    ),
    "declared": parsed(
        '<float[4] s = {1, 1, 1, 0.7}> { y = Resize <mode = "nearest"> (x, , s) }', result="float[1,1,7,7] y"
    ),
    "a shape of it": parsed(
        '<float[4] s = {1, 1, 1, 0.7}> { z = Resize <mode = "nearest"> (x, , s) y = Shape (z) }', result="int64[4] y"
    ),
    "its elements": parsed(
        "<float[4] s = {1, 1, 1, 0.7}, int64[2] flat = {1, -1}>"
        ' { z = Resize <mode = "nearest"> (x, , s) y = Reshape (z, flat) }',
        result="float[1,k] y",
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", NETWORKS)
def test_sizes_by_factors_are_those_of_float32(name: str, framework: str) -> None:
    """10 times 0.7 is 7, and 10 times 1.3 is 13: float64 gives less."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = d5.Network.from_onnx(NETWORKS[name])
    if (name, framework) == ("axes", "openvino"):
        with pytest.raises(Unsupported, match="Resize"):  # its importer has no axes
            d5.framework(framework).executor(network)
        return
    compared(network, NETWORKS[name], framework, {"x": X})


def test_a_shape_that_onnx_inferred_is_corrected_without_a_warning() -> None:
    inferred = onnx.shape_inference.infer_shapes(NETWORKS["twice"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert d5.Network.from_onnx(inferred).outputs["y"].shape == (1, 1, 4, 4)


@pytest.mark.parametrize(("extent", "factor", "size"), [(10, 0.7, 7), (10, 1.3, 13), (3, 1 / 3, 1), (7, 0.99, 6)])
def test_a_declared_size_is_announced(extent: int, factor: float, size: int) -> None:
    assert resized_extent(extent, factor) == size
    build = d5.networks.NetworkBuilder("by a factor")
    x = build.input("x", (1, 1, extent))
    y = build.op("Resize", x, None, build.constant("s", np.array([1, 1, factor], np.float32)), mode="nearest")
    assert build.network({"y": y}).outputs["y"].shape == (1, 1, size)
