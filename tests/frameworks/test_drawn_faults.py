"""What drawn cases found wrong, with right values from the specification."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import deep5 as d5
from deep5.core.errors import MissingDependency, Unsupported
from deep5.networks import NetworkBuilder
from original import BACK_ENDS, declared, graph_model

FLOAT, INTS = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
IMAGE = np.array([[[[2, -2, 2, -3, -2], [1, -1, 3, 2, -1]]]], np.float32)


def network(
    op_type: str, values: list[Any], *, fixed: dict[int, np.ndarray] | None = None, outputs: int = 1, **attributes: Any
) -> tuple[d5.Network, dict[str, Any]]:
    """One node of opset 19, and what to feed it; dimensions have names."""
    initial = {f"x{at}": value for at, value in (fixed or {}).items()}
    given = {f"x{at}": value for at, value in enumerate(values) if value is not None}
    names = [
        f"x{at}" if f"x{at}" in {**given, **initial} else "" for at in range(max(len(values), *(fixed or {0: 0})) + 1)
    ]
    while not names[-1]:
        names.pop()
    results = [f"y{at}" for at in range(outputs)]
    inputs = [
        declared(name, [f"{name}_{axis}" for axis in range(value.ndim)], helper.np_dtype_to_tensor_dtype(value.dtype))
        for name, value in given.items()
    ]
    free = [onnx.ValueInfoProto(name=name) for name in results]
    node = helper.make_node(op_type, names, results, **attributes)
    model = graph_model([node], inputs, free, initial, opset=19, ir_version=9)
    return d5.Network.from_onnx(onnx.shape_inference.infer_shapes(model)), given


def run(framework: str, made: tuple[d5.Network, dict[str, Any]]) -> np.ndarray:
    try:
        executor = d5.framework(framework).executor(made[0], device="cpu")
    except MissingDependency as error:
        pytest.skip(str(error))
    return d5.to_numpy(executor.inference(made[1])["y0"])


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("framework", ["reference", "pytorch", "jax", "tensorflow", "onnxruntime"])
def test_a_region_without_a_height_is_0(framework: str, mode: str) -> None:
    """ "An adaptive number of grid points are used (computed as ceil(roi_width / output_width), and likewise for
    height)": there are none. The other region has one sample, at an element.
    """
    rois = np.array([[1, 2, 3, 2], [3, 1, 1, 1], [2, 1, 3, 2], [3, 2, 1, 1]], np.float32)
    made = network("RoiAlign", [3 + IMAGE, rois, np.zeros(4, np.int64)], mode=mode, spatial_scale=1.0)
    np.testing.assert_allclose(run(framework, made).ravel(), [0, 0, 6, 0], rtol=1e-6)


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_the_nearest_index_is_reflected(framework: str) -> None:
    """ "The reflected value at index -1 will be the same as the value at index 1": of two rows, the positions -1.5, 2.5
    and 3.5 are the indices -2, 2 and 4, hence 1, 1 and 0.
    """
    grid = np.array([[[[3, 0], [3, 2], [0, 2], [0, -2], [0, 3]]]], np.float32)
    node = helper.make_node("GridSample", ["x", "grid"], ["y0"], mode="nearest", padding_mode="reflection")
    inputs = [declared("x", IMAGE.shape), declared("grid", grid.shape)]
    model = graph_model([node], inputs, [declared("y0", (1, 1, 1, 5))], opset=16)
    got = run(framework, (d5.Network.from_onnx(model), {"x": IMAGE, "grid": grid}))
    np.testing.assert_array_equal(got.ravel(), [2, 1, 3, 3, 2])


@pytest.mark.parametrize(("mode", "kind"), [("cubic", "float32"), ("linear", "float64"), ("linear", "float16")])
def test_torch_samples_what_its_own_function_does_not(mode: str, kind: str) -> None:
    """Cubic in three dimensions, and a grid of another element type than the image."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 3, 3, 4, 5)).astype(np.float32)
    grid = rng.uniform(-1, 1, (2, 2, 2, 3, 3)).astype(kind)
    node = helper.make_node("GridSample", ["x", "grid"], ["y0"], mode=mode)
    inputs = [declared("x", x.shape), declared("grid", grid.shape, helper.np_dtype_to_tensor_dtype(grid.dtype))]
    model = graph_model([node], inputs, [declared("y0", (2, 3, 2, 2, 3))], opset=22, ir_version=10)
    made = d5.Network.from_onnx(model), {"x": x, "grid": grid}
    np.testing.assert_allclose(run("pytorch", made), run("reference", made), atol=2e-6)


@pytest.mark.parametrize("framework", BACK_ENDS)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op_type", ["AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool"])
def test_same_padding_is_not_below_0(op_type: str, auto_pad: str, framework: str) -> None:
    """Padding "can take any value greater than or equal to 0": windows of one element with a stride of 4 begin at the
    first element, as TensorFlow's do.
    """
    if (framework, op_type) == ("openvino", "ConvInteger"):
        return  # OpenVINO has no integers of this kind
    kind = np.uint8 if op_type == "ConvInteger" else np.float32
    x = np.arange(1, 9, dtype=kind).reshape(1, 1, 8)
    settings: dict[str, Any] = {"auto_pad": auto_pad, "strides": [4]}
    fixed = {"w": np.ones((1, 1, 1), kind)} if "Conv" in op_type else {}
    settings |= {} if fixed else {"kernel_shape": [1]}
    node = helper.make_node(op_type, ["x", *fixed], ["y0"], **settings)
    inputs = [declared("x", x.shape, helper.np_dtype_to_tensor_dtype(x.dtype))]
    outputs = [declared("y0", (1, 1, 2), onnx.TensorProto.INT32 if op_type == "ConvInteger" else FLOAT)]
    model = graph_model([node], inputs, outputs, fixed)
    got = run(framework, (d5.Network.from_onnx(model), {"x": x}))
    np.testing.assert_allclose(got.ravel(), [1, 5], rtol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(3, 0), (2, 3, 0)])
def test_onnxruntime_multiplies_vectors_of_nothing(shape: tuple[int, ...], kind: str) -> None:
    """Each result is a sum of no products; ONNX Runtime returns what was in memory."""
    made = network("MatMul", [np.zeros(shape, kind), np.zeros(0, kind)])
    executor = d5.framework("onnxruntime").executor(made[0])
    for _ in range(3):
        np.full(64, np.nan)  # what the memory may have
        np.testing.assert_array_equal(d5.to_numpy(executor.inference(made[1])["y0"]), np.zeros(shape[:-1], kind))


def test_onnxruntime_multiplies_vectors_of_unknown_size() -> None:
    x, vector = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 10, 100], np.float32)
    np.testing.assert_array_equal(run("onnxruntime", network("MatMul", [x, vector])), [210, 543])


@pytest.mark.parametrize("framework", [each for each in BACK_ENDS if each != "openvino"])
def test_a_policy_of_dimensions_from_the_back(framework: str) -> None:
    """ONNX Runtime copies the image."""
    settings = {"axes": [-1], "keep_aspect_ratio_policy": "not_smaller", "mode": "nearest"}
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y0"], **settings)
    x = np.array([[[3, 1, 2], [2, 1, 3]]], np.float32)
    model = graph_model(
        [node], [declared("x", x.shape)], [declared("y0", (1, 2, 6))], {"sizes": np.array([6])}, opset=19
    )
    got = run(framework, (d5.Network.from_onnx(model), {"x": x}))
    np.testing.assert_array_equal(got, np.repeat(x, 2, axis=2))


def test_onnxruntime_refuses_what_it_reads_otherwise() -> None:
    """Dilations of three dimensions, which its Col2Im ignores; and SAME of unknown sizes where indices are wanted."""
    image, block = np.array([4, 4, 4]), np.array([1, 2, 1])
    made = network("Col2Im", [np.zeros((1, 2, 32), np.float32)], fixed={1: image, 2: block}, dilations=[1, 2, 1])
    with pytest.raises(Unsupported, match="ignores dilations of more than two dimensions"):
        run("onnxruntime", made)
    settings = {"kernel_shape": [1], "strides": [4], "auto_pad": "SAME_UPPER"}
    x = np.zeros((1, 1, 8), np.float32)
    with pytest.raises(Unsupported, match="below its strides, which ONNX Runtime pads otherwise"):
        run("onnxruntime", network("MaxPool", [x], outputs=2, **settings))


def test_onnxruntime_does_not_compute_softplus_of_layers_with_the_batch_first() -> None:
    """Softplus(100) is 100; ONNX Runtime has infinity there, also once the batch is second."""
    w, r = np.full((1, 1, 1), 100, np.float32), np.zeros((1, 1, 1), np.float32)
    node = helper.make_node("RNN", ["x", "w", "r"], ["y0"], hidden_size=1, layout=1, activations=["Softplus"])
    model = graph_model([node], [declared("x", (1, 1, 1))], [declared("y0", (1, 1, 1, 1))], {"w": w, "r": r})
    x = np.ones((1, 1, 1), np.float32)
    for framework in ("onnxruntime", "reference"):
        try:
            got = run(framework, (d5.Network.from_onnx(model), {"x": x}))
        except Unsupported:
            assert framework == "onnxruntime"
        else:
            np.testing.assert_array_equal(got.ravel(), [100])


def test_openvino_refuses_indices_by_columns_of_padded_windows() -> None:
    x = np.zeros((1, 1, 8, 6), np.float32)
    settings = {"kernel_shape": [1, 3], "strides": [2, 2], "storage_order": 1}
    node = helper.make_node("MaxPool", ["x"], ["y0", "y1"], auto_pad="SAME_UPPER", **settings)
    outputs = [declared("y0", (1, 1, 4, 3)), declared("y1", (1, 1, 4, 3), INTS)]
    model = graph_model([node], [declared("x", x.shape)], outputs)
    with pytest.raises(Unsupported, match="OpenVINO counts indices by rows"):
        run("openvino", (d5.Network.from_onnx(model), {"x": x}))


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_reciprocals_are_rounded_once(framework: str) -> None:
    x = np.random.default_rng(0).uniform(-3, 3, 10_001).astype(np.float32)
    node = helper.make_node("Reciprocal", ["x"], ["y0"])
    model = graph_model([node], [declared("x", ["N"])], [declared("y0", ["N"])])
    np.testing.assert_array_equal(run(framework, (d5.Network.from_onnx(model), {"x": x})), np.float32(1) / x)


@pytest.mark.parametrize("framework", [each for each in BACK_ENDS if each != "openvino"])
def test_a_resize_by_a_scale_moves_coordinates_of_an_axis_whose_size_stays(framework: str) -> None:
    """Of two rows by 1.25 two remain, whose positions are -0.1 and 0.7; of four columns by 0.5 two at 0.5 and 2.5."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y0"], mode="linear")
    x = np.array([[[[0, 2, 4, 6], [10, 12, 14, 16]]]], np.float32)
    scales = {"scales": np.array([1, 1, 1.25, 0.5], np.float32)}
    model = graph_model([node], [declared("x", x.shape)], [declared("y0", (1, 1, 2, 2))], scales, opset=19)
    got = run(framework, (d5.Network.from_onnx(model), {"x": x}))
    np.testing.assert_allclose(got, [[[[1, 5], [8, 12]]]], rtol=1e-6)


@pytest.mark.parametrize("framework", [each for each in BACK_ENDS if each != "openvino"])
def test_thresholds_of_a_layer_are_reached(framework: str) -> None:
    """ "ThresholdedRelu(x) - x if x >= alpha else 0", unlike the operator of this name."""
    w, r = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    x = np.array([2, 1, 0.5], np.float32).reshape(3, 1, 1)
    settings = {"hidden_size": 1, "activations": ["ThresholdedRelu"], "activation_alpha": [1.0]}
    node = helper.make_node("RNN", ["x", "w", "r"], ["y0"], **settings)
    model = graph_model([node], [declared("x", x.shape)], [declared("y0", (3, 1, 1, 1))], {"w": w, "r": r})
    np.testing.assert_array_equal(run(framework, (d5.Network.from_onnx(model), {"x": x})).ravel(), [2, 1, 0])


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_constant_regions_among_other_nodes(framework: str) -> None:
    """JAX reads the regions while it traces the rest: they determine how many samples there are."""
    build = NetworkBuilder("regions", dtype="float32", seed=0)
    x = build.parameter("x", (1, 1, 2, 2), lambda rng, shape: np.array([[[[1, 2], [3, 4]]]], np.float32))
    regions = build.op("Constant", value=ir.tensor(np.array([[0, 0, 2, 2]], np.float32)))
    image = build.op("Constant", value=ir.tensor(np.array([0])))
    loss = build.op("ReduceSum", build.op("RoiAlign", x, regions, image), keepdims=0)
    try:
        executor = d5.framework(framework).executor(build.network({"loss": loss}))
    except MissingDependency as error:
        pytest.skip(str(error))
    except Unsupported as error:
        assert framework == "openvino" and "sampling_ratio=0" in str(error)  # noqa: PT017, PT018
        return
    # Four samples, at (0, 0) to (1, 1), each of one element.
    assert float(executor.inference_and_backprop({})["loss"]) == 2.5
    np.testing.assert_allclose(d5.to_numpy(executor.gradients()["x"]), np.full((1, 1, 2, 2), 0.25), rtol=1e-6)


@pytest.mark.parametrize("framework", BACK_ENDS)
@pytest.mark.filterwarnings("error::deep5.core.errors.NetworkWarning")
def test_a_transposed_convolution_that_leaves_gaps(framework: str) -> None:
    """ONNX infers a result of 1 element; with SAME padding it is the stride times the size of the input."""
    body = """
        y = ConvTranspose<auto_pad="SAME_LOWER", strides=[3]>(x, w)
        z = Relu(y)
        loss = ReduceSum<keepdims=0>(z)
    """
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[1,1,1] x, float[1,1,1] w) => (float[1,1,3] z, float loss)'
    network = d5.Network.from_onnx(onnx.parser.parse_model(f"{head} {{ {body} }}"))
    assert network.outputs["z"].shape == (1, 1, 3)
    try:
        executor = d5.framework(framework).executor(network)
    except MissingDependency as error:
        pytest.skip(str(error))
    given = {name: np.full((1, 1, 1), value, np.float32) for name, value in (("x", 2), ("w", 3))}
    outputs = executor.inference_and_backprop(given, loss="loss", wrt=["x", "w"])
    np.testing.assert_array_equal(d5.to_numpy(outputs["z"]), [[[6, 0, 0]]])
    gradients = {name: float(d5.to_numpy(value).reshape(())) for name, value in executor.gradients().items()}
    assert gradients == {"x": 3, "w": 2}


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "jax"])
def test_a_bfloat16_convolution_with_one_column(framework: str) -> None:
    """oneDNN 3.12 computes most rows from wrong elements; small integers are exact in bfloat16."""
    draw = np.random.default_rng(0)
    x, w = (draw.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 2, 6, 4), (3, 2, 2, 3)))
    node = helper.make_node("Conv", ["x", "w"], ["y0"], strides=[1, 2])
    kind = onnx.TensorProto.BFLOAT16
    values = [helper.make_tensor_value_info(name, kind, shape) for name, shape in (("x", x.shape), ("w", w.shape))]
    result = [helper.make_tensor_value_info("y0", kind, (2, 3, 5, 1))]
    graph = helper.make_graph([node], "g", values, result)
    network = d5.Network.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10))
    given = {"x": x.astype(ml_dtypes.bfloat16), "w": w.astype(ml_dtypes.bfloat16)}
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 3), axis=(2, 3))[:, :, :, ::2]
    right = np.einsum("ncijkl,ockl->noij", windows, w)
    got = d5.framework(framework).executor(network, device="cpu").inference(given)["y0"]
    np.testing.assert_array_equal(d5.to_numpy(got).astype(np.float32), right)


@pytest.mark.parametrize("framework", [each for each in BACK_ENDS if each != "openvino"])
def test_a_wrap_repeats_what_negative_pads_leave(framework: str) -> None:
    """The values of ONNX Runtime: a pad below 0 removes elements, and the others repeat what is left."""
    x = np.array([[1, 2, 3, 4, 5]], np.float32)
    for pads, right in (([0, -1, 0, 2], [2, 3, 4, 5, 2, 3]), ([0, 3, 0, -2], [1, 2, 3, 1, 2, 3])):
        made = network("Pad", [x], fixed={1: np.array(pads)}, mode="wrap")
        np.testing.assert_array_equal(run(framework, made), [right])


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_celu_of_a_negative_alpha(framework: str) -> None:
    """ "max(0,x) + min(0,alpha*(exp(x/alpha)-1))", as ONNX Runtime; ONNX's function has alpha elu(x / alpha)."""
    x = np.array([-1, 0, 1], np.float32)
    try:
        got = run(framework, network("Celu", [x], alpha=-2.0))
    except Unsupported:
        assert framework == "openvino"
        return
    np.testing.assert_allclose(got, [-2 * np.expm1(0.5), 0, 1], rtol=1e-6)


@pytest.mark.parametrize("framework", ["reference", "onnxruntime", "pytorch"])
@pytest.mark.parametrize("number", [0.0, 3.0])
def test_indices_of_a_scalar_have_no_rows(number: float, framework: str) -> None:
    """ "for scalar input, NonZero produces output shape (0, N) instead of (1, N)"."""
    got = run(framework, network("NonZero", [np.array(number, np.float32)]))
    assert got.shape == (0, int(number != 0))


@pytest.mark.parametrize("framework", ["reference", "onnxruntime", "pytorch"])
def test_a_score_at_the_threshold_is_dropped(framework: str) -> None:
    """The values of ONNX Runtime and of onnx.reference: scores must be above the threshold."""
    boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
    scores = np.array([[[0.25, 0.5]]], np.float32)
    limits = {2: np.array([5]), 3: np.array([0.5], np.float32), 4: np.array([0.25], np.float32)}
    made = network("NonMaxSuppression", [boxes, scores], fixed=limits)
    np.testing.assert_array_equal(run(framework, made), [[0, 0, 1]])


@pytest.mark.parametrize("framework", BACK_ENDS)
def test_a_transposed_convolution_to_a_shape(framework: str) -> None:
    """ "If (auto_pads == SAME_UPPER): pads[start_i] = total_padding[i]/2; pads[end_i] = total_padding[i] -
    (total_padding[i]/2)": of 9 elements, 8 are left without the last one.
    """
    x, weight = np.array([[[1, 2, 3, 4]]], np.float32), np.array([[[1, 10, 100]]], np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y0"], auto_pad="SAME_UPPER", strides=[2], output_shape=[8])
    model = graph_model([node], [declared("x", x.shape)], [declared("y0", (1, 1, 8))], {"w": weight}, opset=11)
    got = run(framework, (d5.Network.from_onnx(model), {"x": x}))
    np.testing.assert_array_equal(got.ravel(), [1, 10, 102, 20, 203, 30, 304, 40])


def test_onnxruntime_refuses_layers_without_steps() -> None:
    """It ends the process (GRU), or leaves the cell unwritten (LSTM)."""
    node = helper.make_node("GRU", ["x", "w", "r"], ["y0"], hidden_size=2)
    initial = {"w": np.ones((1, 6, 1), np.float32), "r": np.ones((1, 6, 2), np.float32)}
    model = graph_model([node], [declared("x", (0, 1, 1))], [declared("y0", (0, 1, 1, 2))], initial, opset=14)
    with pytest.raises(Unsupported, match="no time steps"):
        d5.framework("onnxruntime").executor(d5.Network.from_onnx(model))


def test_onnxruntime_computes_softplus_in_float64_without_overflow() -> None:
    x = np.array([1000, -1000, 0], np.float64)
    np.testing.assert_allclose(run("onnxruntime", network("Softplus", [x])), [1000, 0, np.log(2)], rtol=1e-15)


def test_jax_raises_integers_to_negative_powers() -> None:
    """1 / x^-y without its fraction, as all others."""
    x, y = np.array([-2, 2, 1, -1], np.int64), np.array([-1, -2, -3, -3], np.int64)
    np.testing.assert_array_equal(run("jax", network("Pow", [x, y])), [0, 0, 1, -1])


def test_jax_finds_zeros_of_both_signs_equal() -> None:
    """ "Given two equivalent values, this operator uses the indices along the axis as a tiebreaker"."""
    for largest, zeros in ((0, [0.0, -0.0]), (1, [-0.0, 0.0])):
        made = network("TopK", [np.array(zeros, np.float32)], fixed={1: np.array([2])}, outputs=2, largest=largest)
        executor = d5.framework("jax").executor(made[0])
        np.testing.assert_array_equal(d5.to_numpy(executor.inference(made[1])["y1"]), [0, 1])


def test_jax_slices_by_the_largest_step() -> None:
    fixed = {1: np.array([0]), 2: np.array([2**63 - 1]), 3: np.array([0]), 4: np.array([2**63 - 1])}
    np.testing.assert_array_equal(run("jax", network("Slice", [IMAGE[0, 0]], fixed=fixed)), IMAGE[0, 0, :1])


def test_tensorflow_multiplies_matrices_of_nothing() -> None:
    """Its own product, fused with the bias, ends the process."""
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y0"])
    inputs = [declared("a", (3, 0)), declared("b", (0, 4)), declared("c", (4,))]
    model = graph_model([node], inputs, [declared("y0", (3, 4))], opset=13)
    given = {"a": np.zeros((3, 0), np.float32), "b": np.zeros((0, 4), np.float32), "c": np.ones(4, np.float32)}
    np.testing.assert_array_equal(run("tensorflow", (d5.Network.from_onnx(model), given)), np.ones((3, 4)))


def test_openvino_counts_no_numbers_away_from_the_limit() -> None:
    made = network("Range", [np.array(number, np.float32) for number in (1, 0, 0.25)])
    assert run("openvino", made).shape == (0,)
    made = network("Range", [np.array(number, np.float32) for number in (1, 0, -0.25)])
    np.testing.assert_array_equal(run("openvino", made), [1, 0.75, 0.5, 0.25])


def test_openvino_expands_a_number_to_no_shape() -> None:
    got = run("openvino", network("Expand", [np.array(2, np.float32)], fixed={1: np.zeros(0, np.int64)}))
    np.testing.assert_array_equal(got, np.float32(2), strict=True)


def test_openvino_pads_bools_with_their_value() -> None:
    x, fixed = np.array([False, True]), {1: np.array([1, 1]), 2: np.array(True)}
    np.testing.assert_array_equal(run("openvino", network("Pad", [x], fixed=fixed)), [True, False, True, True])
