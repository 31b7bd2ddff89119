"""Kernels of the reference compared with ONNX's reference implementation, in float32 and float64, and on views."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from deep5.core.errors import NetworkError, ShapeError
from deep5.frameworks.reference.emit import compile_network
from deep5.frameworks.reference.kernels.memory import Scratch
from deep5.frameworks.reference.kernels.pooling import max_pool_with_indices, max_unpool
from deep5.frameworks.reference.kernels.shape import split
from deep5.frameworks.reference.operators import OPERATORS
from deep5.networks import Network, NetworkBuilder
from deep5.networks.window import Window

RNG = np.random.default_rng(13)
TWO_BY_TWO: dict[str, Any] = {
    "kernel": (2, 2),
    "strides": (2, 2),
    "dilations": (1, 1),
    "begins": (0, 0),
    "ends": (0, 0),
}
X, Y = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((3, 1))
SIGNED_ZEROS = np.array([-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5])
TRUTH = np.array([[True, False], [False, False]])

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((op, (X,), {}) for op in ("Abs", "Ceil", "Cos", "Erf", "Floor", "IsInf", "IsNaN", "Reciprocal", "Round", "Sign")),
    *((op, (X,), {}) for op in ("Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax", "Sin")),
    *((op, (SIGNED_ZEROS,), {}) for op in ("Abs", "Round", "Sign", "Floor", "Ceil", "Elu", "LeakyRelu", "HardSwish")),
    ("Softplus", (np.array([-1e3, -30.0, 0.0, 1.0, 30.0, 1e3]),), {}),
    ("Elu", (X,), {"alpha": 1.5}),
    ("Gelu", (X,), {"approximate": "tanh"}),
    ("HardSigmoid", (X,), {"alpha": 0.3, "beta": 0.4}),
    ("LeakyRelu", (X,), {"alpha": -0.5}),
    ("LogSoftmax", (9 * X,), {"axis": 1}),
    ("Clip", (X, np.array(-0.5), np.array(0.5)), {}),
    ("Clip", (X, None, np.array(0.5)), {}),
    ("Clip", (X, np.array(0.5)), {}),
    ("Clip", (X,), {}),
    ("Pow", (np.abs(X), Y), {}),
    ("Pow", (X, np.array(2.0)), {}),
    ("Pow", (X, np.array([2])), {}),
    ("Pow", (np.abs(X), np.array(0.5)), {}),
    ("Pow", (X, np.array(-1, np.int64)), {}),
    *((op, values, {}) for op in ("Max", "Min", "Sum") for values in ((X,), (X, Y), (Y, X[0], X, Y))),
    *((op, (X, Y), {}) for op in ("Equal", "GreaterOrEqual", "LessOrEqual")),
    ("Mod", (np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])), {}),
    ("Mod", (np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])), {"fmod": 1}),
    ("Mod", (X, Y), {"fmod": 1}),
    *((op, (TRUTH, TRUTH.T), {}) for op in ("And", "Or", "Xor")),
    ("Not", (TRUTH,), {}),
    *(
        (op, (X, *axes), {"keepdims": keep})
        for op in ("ReduceMean", "ReduceMin", "ReduceSumSquare", "ReduceL2")
        for axes in ((), (np.array([0, -1]),))
        for keep in (0, 1)
    ),
    ("ReduceMean", (X, np.array([], np.int64)), {"noop_with_empty_axes": 1}),
    ("Split", (X, np.array([1, 2])), {"axis": 1, "outputs": 2}),
    ("Split", (X,), {"axis": -1, "num_outputs": 3, "outputs": 3}),
    ("Split", (X,), {"axis": 0, "num_outputs": 2, "outputs": 2}),
    ("Tile", (X, np.array([1, 2, 3])), {}),
    ("Tile", (X, np.array([1, 1, 1])), {}),
    *(("Trilu", (X, *k), {"upper": upper}) for k in ((), (np.array(1),), (np.array(-1),)) for upper in (0, 1)),
    ("Range", (np.array(2), np.array(11), np.array(3)), {}),
    ("Range", (np.array(5), np.array(-2), np.array(-2)), {}),
    ("Range", (np.array(0.0), np.array(1.0), np.array(0.25)), {}),
    ("Range", (np.array(3), np.array(3), np.array(1)), {}),
    *(("Gather", (X, np.array([1, -1])), {"axis": axis}) for axis in (0, 1, -1)),
    *(("Gather", (X, np.array([[0, 1]])), {"axis": axis}) for axis in (0, 1, -1)),
    ("Gather", (X, np.array(1)), {"axis": 1}),
    ("Gather", (X, np.array([0, 1], np.int32)), {}),
    ("GatherElements", (X, RNG.integers(-2, 2, (1, 3, 4))), {}),
    ("GatherElements", (X, RNG.integers(-3, 3, (2, 2, 4))), {"axis": 1}),
    ("GatherElements", (X[0, 0], np.array([3, 0, -1])), {}),
    ("GatherND", (X, np.array([[0, 1], [1, -1]])), {}),
    ("GatherND", (X, np.array([[[0, 1, 2]], [[1, 2, 3]]])), {}),
    ("GatherND", (X, np.array([[1], [2]])), {"batch_dims": 1}),
    ("GatherND", (X, np.array([[[1], [2]], [[0], [2]]])), {"batch_dims": 1}),
    ("ScatterND", (X, np.array([[1], [0]]), RNG.standard_normal((2, 3, 4))), {}),
    *(
        ("ScatterND", (X, np.array([[0, 1], [1, 2], [0, 1]]), RNG.standard_normal((3, 4))), {"reduction": reduction})
        for reduction in ("add", "mul", "min", "max")
    ),
    # As many samples as channels: onnx 1.23's own evaluator normalizes no more channels than there are samples.
    *(
        ("LRN", (RNG.standard_normal((4, 4, 2, 3)),), {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5})
        for size in (1, 2, 3, 7)
    ),
    *(
        ("LayerNormalization", (X, scale, *bias), {"axis": axis, "epsilon": 1e-3})
        for axis, scale in ((-1, RNG.standard_normal(4)), (1, RNG.standard_normal((3, 4))), (1, RNG.standard_normal(4)))
        for bias in ((), (RNG.standard_normal(4),))
    ),
]


# In float64 ONNX's own reference computes these, or reads one of their attributes, in float32.
ROUNDED = ("Erf", "Gelu", "HardSigmoid", "HardSwish", "LRN", "LayerNormalization", "LeakyRelu")
# Without their second input as a constant, ONNX does not even infer the rank of the result.
SHAPING = ("ReduceL2", "ReduceMean", "ReduceMin", "ReduceSumSquare", "Split", "Tile")


def network_of(op: str, values: tuple[Any, ...], outputs: int, views: bool, **attributes: Any) -> Network:
    """One operator on inputs, which are computed views of the fed values if `views`."""
    build = NetworkBuilder("single")
    inputs: list[Any] = []
    for index, value in enumerate(values):
        if value is None:
            inputs.append(None)
            continue
        if op in SHAPING and index == len(values) - 1 and index:
            inputs.append(build.constant(f"x{index}", value))
            continue
        fed = build.input(f"x{index}", (value.shape[::-1] if views else value.shape), str(value.dtype))
        inputs.append(build.op("Transpose", fed) if views else fed)
    results = build.op(op, *inputs, outputs=outputs, **attributes)
    results = (results,) if outputs == 1 else results
    return build.network({f"y{i}": value for i, value in enumerate(results)})


def run(network: Network, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    program = compile_network(network, {}, Scratch())
    return [np.asarray(value) for value in program.run(*(feeds[name] for name in network.inputs), None)]


@pytest.mark.parametrize(("op", "values", "options"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("views", [False, True])
def test_kernels(op: str, values: tuple[Any, ...], options: dict[str, Any], dtype: Any, views: bool) -> None:
    values = tuple(v.astype(dtype) if v is not None and v.dtype == np.float64 else v for v in values)
    attributes = {key: value for key, value in options.items() if key != "outputs"}
    network = network_of(op, values, options.get("outputs", 1), views, **attributes)
    given = {f"x{i}": v.T.copy() if views else v for i, v in enumerate(values) if v is not None}
    feeds = {name: given[name] for name in network.inputs}
    before = {name: value.copy() for name, value in feeds.items()}
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(network.to_onnx()).run(None, feeds)
    for name, got, want in zip(network.outputs, run(network, feeds), expected, strict=True):
        assert str(got.dtype) == network.outputs[name].dtype
        assert got.shape == np.shape(want)
        # some operations, each of one unit in the last place, on values of size 1
        tolerance = 1e-5 if dtype == np.float32 or op in ROUNDED else 1e-13
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    for name, value in feeds.items():
        np.testing.assert_array_equal(value, before[name], err_msg="an input was written to")


EXACT: dict[str, tuple[dict[str, Any], Callable[[float], float]]] = {
    "Erf": ({}, math.erf),
    "Gelu": ({}, lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    "HardSigmoid": ({"alpha": 0.25, "beta": 0.375}, lambda x: max(0.0, min(1.0, 0.25 * x + 0.375))),
    "HardSwish": ({}, lambda x: x * max(0.0, min(1.0, x / 6 + 0.5))),
    "LeakyRelu": ({"alpha": 0.125}, lambda x: x if x > 0 else 0.125 * x),
}


@pytest.mark.parametrize("op", EXACT)
def test_float64_is_exact(op: str) -> None:
    attributes, function = EXACT[op]
    x = np.concatenate([X.reshape(-1), SIGNED_ZEROS, [-30.0, 30.0]])
    (got,) = run(network_of(op, (x,), 1, False, **attributes), {"x0": x})
    np.testing.assert_allclose(got, [function(value) for value in x], rtol=1e-14, atol=1e-16)


def test_max_unpool_undoes_max_pool() -> None:
    """Every maximum at its place, zeros elsewhere; in the other test ONNX would not know the rank of the result."""
    x = RNG.standard_normal((2, 3, 4, 6))
    y, place = max_pool_with_indices(x, window=Window(**TWO_BY_TWO))
    result = max_unpool(y, place, np.array(x.shape), window=Window(**TWO_BY_TWO))
    blocks = x.reshape(2, 3, 2, 2, 3, 2)
    want = np.where(blocks == blocks.max((3, 5), keepdims=True), blocks, 0.0).reshape(x.shape)
    np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_layer_normalization_returns_its_statistics(dtype: str, axis: int) -> None:
    """In float32, ONNX's type for them; y itself has the precision of x."""
    x = X.astype(dtype)
    scale = np.ones(X.shape[axis % 3 :], dtype)
    network = network_of("LayerNormalization", (x, scale), 3, False, axis=axis, epsilon=0.25)
    y, mean, inverse = run(network, {"x0": x, "x1": scale})
    axes = tuple(range(axis % 3, 3))
    want = X.mean(axes, keepdims=True), 1 / np.sqrt(X.var(axes, keepdims=True) + 0.25)
    assert (y.dtype, mean.dtype, inverse.dtype) == (x.dtype, np.float32, np.float32)
    tolerance = 1e-6 if dtype == "float32" else 1e-14  # rounding of a mean of at most 24 values of size 1
    np.testing.assert_allclose(y, (X - want[0]) * want[1], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(mean, want[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(inverse, want[1], rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2), (2, 3, 4, 5)])
@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("batch_last", [False, True])
def test_batch_normalization_in_training(shape: tuple[int, ...], outputs: int, batch_last: bool) -> None:
    """Also on an input whose batch lies innermost in memory, as convolutions leave it."""
    x = RNG.standard_normal(shape)
    values = tuple(RNG.uniform(0.5, 1.5, 3) for _ in range(4))
    attributes = {"training_mode": 1, "momentum": 0.75, "epsilon": 2**-6}
    full = network_of("BatchNormalization", (x, *values), 3, False, **attributes)
    feeds = {f"x{i}": value for i, value in enumerate((x, *values))}
    expected = ReferenceEvaluator(full.to_onnx()).run(None, feeds)
    network = full.with_outputs([f"y{i}" for i in range(outputs)])
    if batch_last:
        feeds["x0"] = np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0)
    for got, want in zip(run(network, feeds), expected, strict=False):
        # float64 means of at most 40 values of size 1
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("op", "values", "message"),
    [
        ("Gather", (X, np.array([0, 2])), "Gather: an index is outside the axis; allowed: -2 to 1"),
        ("GatherElements", (X, np.array([[[-3]]])), "GatherElements: an index is outside the axis; allowed: -2 to 1"),
        ("GatherND", (X, np.array([[2, 0]])), r"GatherND: .* allowed: indices within shape \(2, 3, 4\)"),
        ("ScatterND", (X, np.array([[5]]), RNG.standard_normal((1, 3, 4))), r"ScatterND: .* allowed: indices within"),
    ],
)
def test_indices_outside_are_refused(op: str, values: tuple[Any, ...], message: str) -> None:
    network = network_of(op, values, 1, False)
    with pytest.raises(NetworkError, match=message):
        run(network, {f"x{i}": value for i, value in enumerate(values)})


def test_parts_that_do_not_add_up_are_refused() -> None:
    got = split(X, np.array([1, 2]), axis=1, parts=2)
    assert [part.shape for part in got] == [(2, 1, 4), (2, 2, 4)]
    with pytest.raises(ShapeError, match=r"Split: got parts of \[1, 1\], expected a sum of 3"):
        split(X, np.array([1, 1]), axis=1, parts=2)


RESIZE = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


@pytest.mark.parametrize("scales", [[1.0, 2.0, 3.0], [2.0, 1.0, 1.0]])
@pytest.mark.parametrize("batch_last", [False, True])
def test_resize_by_whole_factors(scales: list[float], batch_last: bool) -> None:
    build = NetworkBuilder("resize", dtype="float64")
    factors = build.op("Constant", value=ir.tensor(np.array(scales, np.float32)))
    network = build.network({"y": build.op("Resize", build.input("x", X.shape), None, factors, **RESIZE)})
    (want,) = ReferenceEvaluator(network.to_onnx()).run(None, {"x": X})
    x = np.moveaxis(np.moveaxis(X, 0, -1).copy(), -1, 0) if batch_last else X
    np.testing.assert_array_equal(run(network, {"x": x})[0], want)


def test_infinities_are_values_not_warnings() -> None:
    """1 / 0, log 0 and the like; a warning would fail the suite."""
    build = NetworkBuilder("odd", dtype="float64")
    x = build.input("x", (3,))
    network = build.network({"y": build.op("Log", x), "z": build.op("Reciprocal", build.op("Mul", x, x))})
    y, z = run(network, {"x": np.array([0.0, 1.0, -1.0])})
    np.testing.assert_array_equal(y, [-np.inf, 0.0, np.nan])
    np.testing.assert_array_equal(z, [np.inf, 1.0, 1.0])


def test_parts_of_a_value_are_not_written_to() -> None:
    """Split's results are views: in-place computation must reach neither the other part nor the input."""
    build = NetworkBuilder("parts", dtype="float64")
    x = build.op("Tanh", build.input("x", (4, 2)))
    sizes = build.op("Constant", value=ir.tensor(np.array([2, 2])))
    first, second = build.op("Split", x, sizes, axis=0, outputs=2)
    network = build.network({"a": build.op("Exp", first), "b": build.op("Neg", second), "c": build.op("Add", x, x)})
    feed = RNG.standard_normal((4, 2))
    y = np.tanh(feed)
    for got, want in zip(run(network, {"x": feed}), (np.exp(y[:2]), -y[2:], y + y), strict=True):
        np.testing.assert_array_equal(got, want)


def test_every_kernel_is_tested() -> None:
    from pathlib import Path

    from conformance import cases, model_of

    here = Path(__file__).parent
    files = (*here.glob("test_reference*.py"), here.parent / "networks" / "transforms" / "test_control_flow.py")
    text = "".join(path.read_text() for path in files)
    suite = {node.op_type for case in cases("node").values() for node in model_of(case).graph.node}
    suite |= {node.op_type for case in cases("simple").values() for node in model_of(case).graph.node}
    assert [op for op in sorted(OPERATORS) if f'"{op}"' not in text and op not in suite and op != "Constant"] == []


def test_a_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "Erf", OPERATORS["Tanh"])
    with pytest.raises(AssertionError):
        test_kernels("Erf", (X,), {}, np.float64, False)
    monkeypatch.setitem(OPERATORS, "Abs", OPERATORS["Identity"])
    with pytest.raises(AssertionError):
        test_kernels("Abs", (X,), {}, np.float64, True)
