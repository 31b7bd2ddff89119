"""PyTorch's operators beyond ONNX's own suite: gradients, element types, computed settings, nested graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported
from deep5.networks import Network, NetworkBuilder
from operator_cases import Case, checked_gradients, converted, named, normal, single, with_loss

TORCH = d5.framework("pytorch")
X, P, M = normal(2, 3, 4), np.abs(normal(2, 3, 4)) + 0.3, normal(1, 2, 5, 6)
UNIT = np.tanh(normal(2, 3, 4))
PLACES = np.array([[0, -1, 2], [1, 2, 0]])
MANY = np.array([2**63, 2**64 - 1, 2**63 + 5, 7], np.uint64)
FEW = np.array([3, 2**63 + 1, 2**64 - 1, 2], np.uint64)

# Operators that have a gradient, in addition to those that other back-ends share.
DIFFERENTIABLE: list[Case] = [
    *((op, (UNIT,), {}) for op in ("Acos", "Asin", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Mish", "Softsign")),
    *((op, (P,), {}) for op in ("Asinh", "ReduceLogSum")),
    ("Acosh", (P + 1,), {}),
    *((op, (X,), {"constants": ([1],)}) for op in ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare")),
    ("Selu", (X,), {}),
    ("ThresholdedRelu", (X,), {"alpha": 0.4}),
    ("Shrink", (X,), {"bias": 0.2, "lambd": 0.3}),
    ("PRelu", (X, normal(3, 1)), {}),
    ("Mean", (X, normal(3, 1), normal(4)), {}),
    ("Det", (normal(2, 3, 3),), {}),
    ("CumSum", (X, np.array(1)), {"exclusive": 1, "reverse": 1}),
    ("CumSum", (X,), {"constants": (np.array(-1),)}),
    ("Einsum", (normal(2, 3), normal(3, 4)), {"equation": "ij, jk -> ki"}),
    ("GatherElements", (normal(2, 3), PLACES), {"axis": -1}),
    ("GatherND", (X, np.array([[0, -1], [1, 2]])), {}),
    ("GatherND", (X, np.array([[1], [-1]])), {"batch_dims": 1}),
    ("ScatterElements", (normal(2, 3), np.array([[0, 1, -1], [1, 2, 0]]), normal(2, 3)), {"axis": 1}),
    ("ScatterElements", (normal(2, 3), PLACES, normal(2, 3)), {"axis": 1, "reduction": "add"}),
    *(
        ("ScatterElements", (P[0], np.array([[0, 0, 1, -1]]), P[1, :1] + 1), {"reduction": r})
        for r in ("mul", "max", "min")
    ),
    *(("ScatterND", (X, np.array([[1, 0], [0, -1]]), normal(2, 4)), {"reduction": r}) for r in ("none", "add", "max")),
    ("ScatterND", (P, np.array([[1, 0], [1, 0]]), P[0, :2]), {"reduction": "mul"}),
    ("Compress", (X, np.array([True, False, True])), {"axis": 1}),
    ("Trilu", (X, np.array(1)), {"upper": 0}),
    ("OneHot", (PLACES, np.array([4]), normal(2)), {"axis": 0}),
    ("ReverseSequence", (X, np.array([3, 1])), {"time_axis": 1, "batch_axis": 0}),
    ("Reshape", (X, np.array([0, -1])), {}),
    ("Expand", (normal(3, 1), np.array([2, 3, 4])), {}),
    ("Tile", (X, np.array([2, 1, 3])), {}),
    ("Slice", (X, np.array([2, -1]), np.array([0, -9]), np.array([1, 2]), np.array([-1, -2])), {}),
    *(("Pad", (X,), {"constants": ([0, 1, 2, 0, 2, 3],), "mode": m}) for m in ("edge", "reflect", "wrap")),
    ("Pad", (X, np.array([1, 2]), np.array(0.5, np.float32), np.array([-1])), {}),
    ("Split", (normal(2, 6), np.array([1, 5])), {"axis": 1, "outputs": 2}),
    ("Squeeze", (normal(1, 3, 1), np.array([-1])), {}),
    ("Unsqueeze", (X, np.array([0, -1])), {}),
    ("ReduceSum", (X, np.array([0, -1])), {"keepdims": 0}),
    ("DepthToSpace", (normal(1, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", (normal(1, 2, 4, 6),), {"blocksize": 2}),
    ("CenterCropPad", (X, np.array([5, 2])), {"axes": [1, 2]}),
    ("InstanceNormalization", (M, normal(2), normal(2)), {}),
    ("LpNormalization", (X,), {"axis": 1}),
    ("LpNormalization", (X,), {"p": 1}),
    ("GlobalLpPool", (M,), {"p": 3}),
    ("LpPool", (M,), {"kernel_shape": [2, 3], "pads": [0, 1, 1, 0], "strides": [2, 1]}),
    ("AveragePool", (M,), {"kernel_shape": [2, 2], "dilations": [2, 3], "pads": [1, 0, 0, 1]}),
    ("AveragePool", (M,), {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER", "strides": [2, 2], "ceil_mode": 1}),
    ("ConvTranspose", (M, normal(2, 3, 3, 2), normal(3)), {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
    ("ConvTranspose", (M, normal(2, 1, 3, 3)), {"group": 2, "output_padding": [1, 0], "strides": [2, 1]}),
    ("ConvTranspose", (M, normal(2, 1, 3, 3)), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("ConvTranspose", (M, normal(2, 1, 3, 3)), {"output_shape": [11, 12], "strides": [2, 2]}),
    ("Col2Im", (normal(1, 4, 12), np.array([4, 5]), np.array([2, 2])), {}),
    ("Col2Im", (normal(1, 4, 16), np.array([4, 5]), np.array([2, 2])), {"pads": [1, 0, 0, 0]}),
    ("GridSample", (M, UNIT[:1, :, :2].reshape(1, 3, 1, 2)), {"padding_mode": "border"}),
    ("DeformConv", (M, normal(3, 2, 2, 2), normal(1, 8, 4, 5), normal(3), normal(1, 4, 4, 5)), {}),
    ("RoiAlign", (M, np.array([[0.3, 0.2, 4, 3]], np.float32), np.array([0])), {"output_height": 2}),
    *(
        ("Resize", (M,), {"constants": (None, None, [1, 2, 7, 9]), "mode": mode, **options})
        for mode, options in (
            ("linear", {}),
            ("cubic", {"coordinate_transformation_mode": "align_corners"}),
            ("linear", {"coordinate_transformation_mode": "asymmetric"}),
            ("cubic", {"exclude_outside": 1, "cubic_coeff_a": -0.5}),
            ("nearest", {"nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"}),
        )
    ),
    ("Resize", (M, None, None, np.array([1, 2, 3, 4])), {"mode": "linear", "antialias": 1}),
    *(
        (
            op,
            (normal(3, 2, 3), normal(d, 4 * gates, 3), normal(d, 4 * gates, 4), normal(d, 8 * gates)),
            {"hidden_size": 4, "outputs": 2, "direction": way, "clip": 2.0, **options},
        )
        for op, gates, options in (("RNN", 1, {}), ("GRU", 3, {}), ("LSTM", 4, {}))
        for d, way in ((1, "reverse"), (2, "bidirectional"))
    ),
    (
        "LSTM",
        (normal(5, 2, 3), normal(1, 16, 3), normal(1, 16, 4), normal(1, 32), np.array([3, 5], np.int32)),
        {"hidden_size": 4, "outputs": 3, "constants": (normal(1, 2, 4), normal(1, 2, 4), normal(1, 12))},
    ),
    ("GRU", (normal(5, 2, 3), normal(1, 12, 3), normal(1, 12, 4)), {"hidden_size": 4, "outputs": 2}),
]
# Shapes known only at run time, or no ONNX Runtime kernel; ONNX's own suite tests the values.
_UNKNOWN_TO_RUNTIME = {"CenterCropPad", "ReduceSum", "ReverseSequence", "Split", "Squeeze", "Unsqueeze"}
smooth = pytest.mark.parametrize(
    ("op", "values", "options"), DIFFERENTIABLE, ids=[f"{case[0]}-{at}" for at, case in enumerate(DIFFERENTIABLE)]
)


def runtime(network: Network, feeds: dict[str, np.ndarray]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString(), options)
    return list(session.run(list(network.outputs), feeds))


def fed(values: tuple[Any, ...], options: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Inputs by name, and options: after an omitted input, all are constants."""
    left_out = [at for at, value in enumerate(values) if value is None]
    if not left_out:
        return named(values), options
    return named(values[: left_out[0]]), {**options, "constants": values[left_out[0] :]}


@smooth
def test_gradient_by_central_differences(op: str, values: tuple[Any, ...], options: dict[str, Any]) -> None:
    feeds, options = fed(values, options)
    feeds = {name: converted(value, "float64") for name, value in feeds.items()}
    checked_gradients(TORCH.executor(with_loss(op, feeds, "float64", **options)), feeds)


@smooth
def test_against_onnxruntime(op: str, values: tuple[Any, ...], options: dict[str, Any]) -> None:
    if op in _UNKNOWN_TO_RUNTIME or (op == "Pad" and len(values) > 1):
        return
    feeds, options = fed(values, options)
    network = single(op, feeds, **options)
    outputs = TORCH.executor(network).inference(feeds)
    for got, want in zip(outputs.values(), runtime(network, feeds), strict=True):
        # Sums of at most a hundred float32 products of size one.
        np.testing.assert_allclose(got.detach().numpy(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("op", "constants", "options"),
    [
        ("TopK", (np.array([2]),), {"largest": 0}),
        ("MaxPool", (), {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
        ("MaxPool", (), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "auto_pad": "SAME_UPPER"}),
    ],
)
def test_gradient_beside_places(op: str, constants: tuple[Any, ...], options: dict[str, Any]) -> None:
    build = NetworkBuilder("places", dtype="float64")
    settings = [build.constant("k", value) for value in constants]
    y, _ = build.op(op, build.input("x", M.shape), *settings, outputs=2, **options)
    flat = build.op("Reshape", build.op("Mul", y, y), build.constant("flat", np.array([-1])))
    run = TORCH.executor(build.network({"loss": build.op("ReduceSum", flat, keepdims=0)}))
    x, direction = M.astype(np.float64), np.random.default_rng(2).standard_normal(M.shape)
    up, down = (float(run.inference({"x": x + sign * 1e-6 * direction})["loss"]) for sign in (1, -1))
    run.inference_and_backprop({"x": x}, wrt=["x"])
    slope = float(np.sum(run.gradients()["x"].numpy() * direction))
    # A central difference is accurate to the square of the step, and to rounding (1e-16 of the loss) over the step.
    assert slope == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("op", ["Div", "Mod", "Greater", "LessOrEqual", "Max", "Min", "Add", "Mul", "Sub", "Equal"])
def test_unsigned_numbers_of_64_bits_beyond_the_signed_ones(op: str) -> None:
    feeds = {"x0": MANY, "x1": FEW}
    network = single(op, feeds)
    want = ReferenceEvaluator(network.to_onnx()).run(None, feeds)[0]
    (got,) = TORCH.executor(network).inference(feeds).values()
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_unsigned_numbers_are_moved_and_reduced(dtype: str) -> None:
    build = NetworkBuilder("unsigned")
    x = build.input("x", ("N", 3), dtype)
    axes = build.constant("axes", np.array([1]))
    outputs = {
        "sum": build.op("ReduceSum", x, axes),
        "max": build.op("ReduceMax", x, axes),
        "rows": build.op("Gather", x, build.constant("i", np.array([1, 0]))),
        "scaled": build.op("Mul", x, x),
    }
    values = np.array([[1, 2, 3], [4, 65535, 6]], dtype)
    got = TORCH.executor(build.network(outputs)).inference({"x": values})
    for name, want in (
        ("sum", values.sum(1, keepdims=True, dtype=dtype)),
        ("max", values.max(1, keepdims=True)),
        ("rows", values[[1, 0]]),
        ("scaled", values * values),
    ):
        np.testing.assert_array_equal(got[name].numpy(), want)


LOOP = """<ir_version: 10, opset_import: ["": 21]>
g (float[N] x, int64 n) => (float[N] y, float[M, N] all, float loss) {
    go = Constant<value = bool {1}>()
    y, all = Loop(n, go, x)<body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t, float[N] u) {
        d = Identity(c)
        w = Mul(s, x)
        t = Tanh(w)
        u = Add(t, x)
    }>
    a = ReduceSum<keepdims = 0>(all)
    b2 = ReduceSum<keepdims = 0>(y)
    loss = Add(a, b2)
}"""


def test_gradient_through_a_loop_whose_length_a_run_tells() -> None:
    run = TORCH.executor(Network.from_onnx(onnx.parser.parse_model(LOOP)))
    x = np.array([0.3, -0.7, 1.1], np.float32)

    def loss(values: np.ndarray, count: int) -> float:
        state, total = values, 0.0
        for _ in range(count):
            state = np.tanh(state * values)
            total += float(np.sum(state + values))
        return total + float(np.sum(state))

    for count in (1, 3):
        feeds = {"x": x, "n": np.array(count)}
        run.inference_and_backprop(feeds, wrt=["x"])
        step, wide = 1e-6, x.astype(np.float64)
        want = [(loss(wide + e, count) - loss(wide - e, count)) / (2 * step) for e in step * np.eye(3)]
        # Some ten float32 operations in sequence.
        np.testing.assert_allclose(run.gradients()["x"].numpy(), want, rtol=1e-5, atol=1e-6)
    assert run.inference({"x": x, "n": np.array(0)})["all"].shape[0] == 0


def test_branches_that_share_names_and_read_what_is_around_them() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[N] x, bool c) => (float[N] y) {
        twice = Add(x, x)
        y = If(c)<then_branch = a () => (float[N] r) { k = Constant<value = float {2.0}>() r = Mul(twice, k) },
                  else_branch = b () => (float[N] r) { k = Constant<value = float {5.0}>() r = Sub(twice, k) }>
    }"""
    run = TORCH.executor(Network.from_onnx(onnx.parser.parse_model(text)))
    x = np.array([1.0, -3.0], np.float32)
    np.testing.assert_array_equal(run.inference({"x": x, "c": np.array(True)})["y"], 4 * x)
    np.testing.assert_array_equal(run.inference({"x": x, "c": np.array(False)})["y"], 2 * x - 5)


def test_a_node_that_cannot_run_inside_a_graph_is_named() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[1, 1, 2, 2, 2, 2] x, float[1, 1, 1, 1, 1, 1] w, bool c) => (float[1, 1, 2, 2, 2, 2] y) {
        y = If(c)<then_branch = a () => (float[1, 1, 2, 2, 2, 2] r) { r = Conv(x, w) },
                  else_branch = b () => (float[1, 1, 2, 2, 2, 2] r) { r = Neg(x) }>
    }"""
    with pytest.raises(Unsupported, match=r"If \(If\): Conv \(Conv\) inside it: 4 spatial axes"):
        TORCH.executor(Network.from_onnx(onnx.parser.parse_model(text)))


@pytest.mark.parametrize(
    ("op", "values", "options"),
    [
        ("Reshape", (X, np.array([4, 6])), {}),
        ("TopK", (X, np.array([2])), {"outputs": 2}),
        ("NonZero", (X,), {}),
        ("Unique", (X,), {"outputs": 1}),
    ],
)
def test_what_a_run_tells_is_refused_where_torch_compiles(op: str, values: Any, options: dict[str, Any]) -> None:
    network = single(op, named(values), **options)
    assert TORCH.supports(network.nodes[0])
    answer = d5.framework("pytorch:compiled").supports(network.nodes[0])
    assert not answer
    assert "computed" in answer.reason


def test_settings_that_are_constants_are_literals_in_the_source() -> None:
    run = TORCH.executor(single("TopK", {"x0": X}, (np.array([2]),), outputs=2))
    assert "tolist" not in run.source
    assert "[2]" in run.source


def test_random_numbers_follow_the_seed() -> None:
    draws = [
        next(iter(TORCH.executor(single("RandomNormal", {}, shape=[2000], seed=seed)).inference({}).values())).numpy()
        for seed in (1.0, 1.0, 2.0)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    # Of 2000 draws the mean has the deviation 1 / sqrt(2000) = 0.022: five of them.
    assert abs(float(draws[0].mean())) < 0.11


def test_numbers_drawn_in_the_shape_of_others_within_bounds() -> None:
    build = NetworkBuilder("drawn")
    x = build.input("x", ("N", 2000))
    outputs = {
        "uniform": build.op("RandomUniformLike", x, low=2.0, high=3.0),
        "normal": build.op("RandomNormalLike", x, mean=5.0, scale=0.1),
        "plain": build.op("RandomUniform", shape=[3], low=-1.0, high=0.0),
        "classes": build.op("Multinomial", x, sample_size=7),
    }
    given = np.full((2, 2000), -100, np.float32)
    given[0, 3] = given[1, 8] = 0
    got = TORCH.executor(build.network(outputs)).inference({"x": given})
    assert got["uniform"].shape == (2, 2000)
    assert 2 <= float(got["uniform"].min()) <= float(got["uniform"].max()) <= 3
    # Of 4000 draws the mean has the deviation 0.1 / sqrt(4000) = 0.0016: five of them.
    assert abs(float(got["normal"].mean()) - 5) < 0.008
    assert -1 <= float(got["plain"].min()) <= float(got["plain"].max()) <= 0
    np.testing.assert_array_equal(got["classes"], np.repeat([[3], [8]], 7, axis=1))


def test_sequences_lose_and_join_their_elements() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (seq(float[N]) s, int64 p) => (float[M] y, float[2, K] z) {
        t = SequenceErase(s, p)
        y = ConcatFromSequence<axis = 0>(t)
        z = ConcatFromSequence<axis = 0, new_axis = 1>(t)
    }"""
    run = TORCH.executor(Network.from_onnx(onnx.parser.parse_model(text)))
    parts = [np.array([value, value + 1], np.float32) for value in (1, 3, 5)]
    got = run.inference({"s": parts, "p": np.array(-2)})
    assert got["y"].tolist() == [1, 2, 5, 6]
    assert got["z"].tolist() == [[1, 2], [5, 6]]
    with pytest.raises(NetworkError, match="the position 3 in a sequence of 3; allowed: -3 to 2"):
        run.inference({"s": parts, "p": np.array(3)})


def test_saturating_casts_to_eight_bits() -> None:
    values = np.array([1.0, 500.0, -1e6, np.nan, np.inf, 460.0], np.float32)
    for kind in (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2):
        for saturate in (0, 1):
            build = NetworkBuilder("narrow")
            narrow = build.op("Cast", build.input("x", (6,)), to=kind.value, saturate=saturate)
            network = build.network({"y": build.op("Cast", narrow, to=1)})
            want = ReferenceEvaluator(network.to_onnx()).run(None, {"x": values})[0]
            np.testing.assert_array_equal(TORCH.executor(network).inference({"x": values})["y"].numpy(), want)


def test_a_sequence_holds_what_it_was_given() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (seq(float[N]) s, float[N] x) => (seq(float[N]) t, float[N] y) {
        t = SequenceInsert(s, x)
        p = Constant<value = int64 {-1}>()
        y = SequenceAt(t, p)
    }"""
    run = TORCH.executor(Network.from_onnx(onnx.parser.parse_model(text)))
    x = np.array([1.0, 2.0], np.float32)
    got = run.inference({"s": [x + 1, x + 2], "x": x})
    np.testing.assert_array_equal(got["y"], x)
    assert [value.tolist() for value in got["t"]] == [[2.0, 3.0], [3.0, 4.0], [1.0, 2.0]]
    assert got["y"].data_ptr() != x.ctypes.data


def test_an_index_outside_is_told() -> None:
    run = TORCH.executor(single("GatherND", {"x0": X, "x1": np.array([[5, 0]])}))
    with pytest.raises(NetworkError, match="torch cannot run the network on these inputs"):
        run.inference({"x0": X, "x1": np.array([[5, 0]])})


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("kind", ["distinct", "equal", "nan", "whole", "float16"])
def test_few_of_many_numbers_are_those_that_a_stable_sort_gives(kind: str, largest: int) -> None:
    """torch chooses differently among equal elements, and among NaNs, which count as the largest."""
    rng = np.random.default_rng(3)
    x = rng.permutation(8 * 1024).reshape(8, 1024).astype(np.float32)
    x = {"equal": x // 1000, "whole": (x // 9).astype(np.int64), "float16": (x / 8).astype(np.float16)}.get(kind, x)
    if kind == "nan":
        x[2, [5, 700]] = np.nan
        x[3, :1000] = x[3, 0]
    network = single("TopK", {"x": x}, constants=([5],), outputs=2, largest=largest)
    values, indices = (value.numpy() for value in TORCH.executor(network).inference({"x": x}).values())
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[:, :5]
    if kind == "nan" and largest:  # NumPy puts NaN last either way
        order[2] = [5, 700, *order[2, :3]]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_few_of_many_numbers_send_their_gradients_back() -> None:
    x = np.random.default_rng(4).permutation(4 * 2048).reshape(4, 2048).astype(np.float64)
    build = NetworkBuilder("few", dtype="float64")
    values, _ = build.op("TopK", build.input("x", x.shape), build.constant("k", np.array([3])), outputs=2)
    network = build.network({"loss": build.op("ReduceSum", build.op("Mul", values, values), keepdims=0)})
    run = TORCH.executor(network)
    run.inference_and_backprop({"x": x}, wrt=["x"])
    (gradient,) = run.gradients().values()
    wanted, places = np.zeros_like(x), np.argsort(-x, axis=-1)[:, :3]
    np.put_along_axis(wanted, places, 2 * np.take_along_axis(x, places, -1), -1)
    np.testing.assert_array_equal(gradient.numpy(), wanted)


def test_a_score_that_is_no_number_ends_only_its_own_class() -> None:
    boxes = np.tile(np.array([[0, 0, 1, 1], [0, 2, 1, 3], [0, 2, 1, 3.1]], np.float32), (2, 1, 1))
    scores = np.array([[[np.nan, 0.5, 0.4]], [[0.1, 0.2, 0.3]]], np.float32)
    feeds = named((boxes, scores))
    network = single("NonMaxSuppression", feeds, constants=(np.array([3]), np.array([0.5], np.float32)))
    found = d5.to_numpy(TORCH.executor(network).inference(feeds)["y0"])
    assert [row.tolist() for row in found if row[0] == 1] == [[1, 0, 2], [1, 0, 0]]
