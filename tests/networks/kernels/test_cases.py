"""Operators on which back-ends differed, against the specification, ONNX Runtime and direct formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference
import onnxruntime
import pytest

import deep5 as d5

FRAMEWORKS = ("pytorch", "tensorflow", "jax")
every = pytest.mark.parametrize("framework", FRAMEWORKS)


def model(
    op: str, inputs: list[str], values: dict[str, np.ndarray], constants: dict[str, np.ndarray], **how: Any
) -> onnx.ModelProto:
    """A model of one operator, of opset 19, whose inputs have known shapes."""
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in values.items()}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, inputs, ["y"], **how)],
        "g",
        [onnx.helper.make_tensor_value_info(name, kinds[name], value.shape) for name, value in values.items()],
        [onnx.helper.make_tensor_value_info("y", kinds[next(iter(values))], None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made)


def computed(framework: str, made: onnx.ModelProto, values: dict[str, np.ndarray]) -> np.ndarray:
    executor = d5.framework(framework).executor(d5.Network.from_onnx(made), device="cpu")
    return np.asarray(d5.to_numpy(executor.inference(values)["y"]))


def by_runtime(made: onnx.ModelProto, values: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, values)[0])


# Positions in float32 may round to another element than in exact arithmetic: these do not, and ONNX Runtime agrees.
SCALES = [
    ("nearest", "asymmetric", 0.7, 10, {}),
    ("nearest", "asymmetric", 0.6, 8, {"nearest_mode": "floor"}),
    ("nearest", "half_pixel", 0.3, 20, {"nearest_mode": "round_prefer_ceil"}),
    ("nearest", "half_pixel", 2.0, 5, {}),
    ("nearest", "pytorch_half_pixel", 3.0, 4, {}),
    ("linear", "half_pixel", 0.7, 10, {}),
    ("linear", "pytorch_half_pixel", 0.15, 10, {}),
    ("linear", "asymmetric", 1.7, 6, {}),
    ("cubic", "half_pixel", 1.3, 7, {"exclude_outside": 1}),
    ("cubic", "asymmetric", 0.6, 9, {"cubic_coeff_a": -0.5}),
    ("linear", "half_pixel", 0.4, 12, {"antialias": 1}),
]


@every
@pytest.mark.parametrize(("mode", "how", "scale", "extent", "further"), SCALES)
def test_resize_by_scales_has_onnx_shape_and_values(
    framework: str, mode: str, how: str, scale: float, extent: int, further: dict[str, Any]
) -> None:
    x = np.arange(extent, dtype=np.float32).reshape(1, 1, 1, extent) ** 1.5
    scales = np.array([1, 1, 1, scale], np.float32)
    made = model(
        "Resize", ["x", "", "s"], {"x": x}, {"s": scales}, mode=mode, coordinate_transformation_mode=how, **further
    )
    want = by_runtime(made, {"x": x})
    got = computed(framework, made, {"x": x})
    assert got.shape == want.shape == (1, 1, 1, int(np.float32(extent) * np.float32(scale)))
    # ONNX Runtime computes positions in float32.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@every
@pytest.mark.parametrize(("scale", "extent"), [(0.3, 10), (0.15, 10), (1.3, 3)])
def test_resize_with_aligned_corners_by_scales(framework: str, scale: float, extent: int) -> None:
    """ONNX's own tests require the size before rounding; ONNX Runtime takes the rounded one."""
    x = np.arange(extent, dtype=np.float32).reshape(1, 1, extent) ** 1.5
    made = model(
        "Resize",
        ["x", "", "s"],
        {"x": x},
        {"s": np.array([1, 1, scale], np.float32)},
        mode="linear",
        coordinate_transformation_mode="align_corners",
    )
    goal = int(np.float32(extent) * np.float32(scale))
    places = np.arange(goal) * (extent - 1) / (float(np.float32(scale)) * extent - 1)
    want = np.interp(places, np.arange(extent), x.astype(np.float64).ravel())
    np.testing.assert_allclose(computed(framework, made, {"x": x}).ravel(), want, rtol=1e-5, atol=1e-5)


@every
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_a_transposed_convolution_with_a_kernel_below_the_stride_has_input_times_stride(
    framework: str, auto_pad: str
) -> None:
    x, w = np.array([[[1, 2]]], np.float32), np.array([[[1, 10]]], np.float32)
    made = model("ConvTranspose", ["x", "w"], {"x": x}, {"w": w}, strides=[3], auto_pad=auto_pad)
    np.testing.assert_array_equal(computed(framework, made, {"x": x}), [[[1, 10, 0, 2, 20, 0]]])


@every
def test_mod_by_infinity_is_the_dividend(framework: str) -> None:
    a, b = np.array([1, -3, 5.5], np.float32), np.array([np.inf, -np.inf, 3], np.float32)
    made = model("Mod", ["a", "b"], {"a": a, "b": b}, {}, fmod=1)
    np.testing.assert_array_equal(computed(framework, made, {"a": a, "b": b}), np.fmod(a, b))


@every
def test_a_transform_of_half_precision_is_computed_in_float32(framework: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 1)).astype(np.float16)
    want = np.fft.fft(x.astype(np.float64)[..., 0])
    made = model("DFT", ["x"], {"x": x}, {}, axis=1)
    # Rounded once to 11 bits.
    np.testing.assert_allclose(
        computed(framework, made, {"x": x}), np.stack([want.real, want.imag], -1), rtol=1e-3, atol=1e-3
    )


@every
@pytest.mark.parametrize("x", [[0.0, 0.0, 0.0], [3.0, 0.0, -4.0]])
def test_the_gradient_of_a_norm_is_zero_at_zero(framework: str, x: list[float]) -> None:
    values = np.array(x, np.float32)
    made = model("ReduceL2", ["x"], {"x": values}, {}, keepdims=0)
    made.graph.output[0].name = made.graph.node[0].output[0] = "loss"
    executor = d5.framework(framework).executor(d5.Network.from_onnx(made), device="cpu")
    executor.inference_and_backprop({"x": values}, wrt=["x"])
    want = values / max(float(np.linalg.norm(values)), 1.0)
    np.testing.assert_allclose(d5.to_numpy(executor.gradients()["x"]), want, rtol=1e-6)


@every
@pytest.mark.parametrize("computed_sizes", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_images_of_unknown_size_are_resized(framework: str, mode: str, computed_sizes: bool) -> None:
    """By a scale, or to the size of another image."""
    images = [np.random.default_rng(0).standard_normal((2, 3, *size)).astype(np.float32) for size in ((4, 6), (7, 5))]
    like = np.zeros((1, 3, 9, 8), np.float32)
    helper = onnx.helper
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Resize", ["x", "", "", "sizes"] if computed_sizes else ["x", "", "s"], ["y"], mode=mode)]
    inputs = [value("x", 1, ["N", 3, "H", "W"])]
    if computed_sizes:
        made = [
            helper.make_node("Shape", ["like"], ["space"], start=2),
            helper.make_node("Shape", ["x"], ["first"], end=2),
            helper.make_node("Concat", ["first", "space"], ["sizes"], axis=0),
        ]
        nodes, inputs = [*made, *nodes], [*inputs, value("like", 1, [1, 3, "A", "B"])]
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 2.5, 1.5], np.float32), "s")
    graph = helper.make_graph(nodes, "g", inputs, [value("y", 1, ["N", 3, "P", "Q"])], [scales])
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    executor = d5.framework(framework).executor(d5.Network.from_onnx(network), device="cpu")
    for x in images:
        feeds = {"x": x, "like": like} if computed_sizes else {"x": x}
        got = d5.to_numpy(executor.inference(feeds)["y"])
        np.testing.assert_allclose(got, by_runtime(network, feeds), rtol=1e-4, atol=1e-4)
