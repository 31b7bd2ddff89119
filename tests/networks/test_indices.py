"""Indices and labels out of range: an error or NaN on every back-end, never a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported
from deep5.networks import NetworkBuilder, zeros
from deep5.networks.labels import open_losses

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "tensorflow:xla", "jax", "onnxruntime", "openvino")
# Code compiled by XLA cannot raise errors.
POISONING = ("tensorflow:xla", "jax")


def rows(dtype: str, axis: int, kind: str) -> d5.Network:
    """Rows or columns of a table (3, 4): of parameters, of constants, or of an input with a symbolic dimension."""
    build = NetworkBuilder("rows")
    index = build.input("index", ("N", 2), dtype)
    if kind == "parameters":
        table = build.parameter("table", (3, 4))
    elif kind == "input":
        table = build.input("table", ("M", 4))
    else:
        table = build.constant("table", np.arange(12, dtype=kind).reshape(3, 4))
    return build.network({"y": build.op("Gather", table, build.op("Identity", index), axis=axis)})


@pytest.mark.parametrize(
    ("dtype", "axis", "kind"),
    [("int64", 0, "parameters"), ("int32", 1, "parameters"), ("int64", 0, "input"), ("int64", 0, "int64")],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gather(framework: str, dtype: str, axis: int, kind: str) -> None:
    network, extent = rows(dtype, axis, kind), (3, 4)[axis]
    poisoning = framework in POISONING
    if kind == "int64" and framework == "jax":
        poisoning = False  # it runs operator by operator, and checks the indices
    elif kind == "int64" and poisoning:
        with pytest.raises(Unsupported, match="an index outside its axis would give a number, since INT64 has no NaN"):
            d5.framework(framework).executor(network)
        return
    executor = d5.framework(framework).executor(network)
    table = {"table": np.arange(12, dtype=np.float32).reshape(3, 4)} if kind == "input" else {}
    right = np.array([[0, -extent], [extent - 1, 1]], dtype)
    whole = d5.to_numpy(executor.inference({"index": right, **table})["y"])
    assert np.isfinite(whole).all()
    for wrong in (extent, -extent - 1, -extent - 2, 2**30, -(2**31), *([2**33] if dtype == "int64" else [])):
        index = np.array([[0, -extent], [wrong, 1]], dtype)
        if poisoning:
            got = np.array(d5.to_numpy(executor.inference({"index": index, **table})["y"]))
            place: tuple[Any, ...] = (1, 0) if axis == 0 else (slice(None), 1, 0)
            assert np.isnan(got[place]).all()
            got[place] = whole[place]
            np.testing.assert_array_equal(got, whole)
        else:
            with pytest.raises(NetworkError):
                executor.inference({"index": index, **table})


@pytest.mark.parametrize("framework", ["tensorflow:xla", "tensorflow", "jax"])
def test_the_gradient_of_rows_is_exact(framework: str) -> None:
    build = NetworkBuilder("rows")
    picked = build.op("Gather", build.parameter("table", (3, 2)), build.input("index", ("N",), "int64"))
    executor = d5.framework(framework).executor(build.network({"loss": build.op("ReduceSum", picked, keepdims=0)}))
    executor.inference_and_backprop({"index": np.array([0, -1, 2])})
    np.testing.assert_array_equal(d5.to_numpy(executor.gradients()["table"]), [[1, 1], [0, 0], [2, 2]])


@pytest.mark.parametrize("index", [3, -4, [0, 5]])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_index_that_is_known_to_be_outside(framework: str, index: Any) -> None:
    build = NetworkBuilder("known")
    x = build.input("x", ("N", 3))
    network = build.network({"y": build.op("Gather", x, build.constant("index", np.array(index)), axis=1)})
    if framework.startswith(("tensorflow", "jax")):
        with pytest.raises(Unsupported, match=r"the index -?\d is outside its axis; allowed: -3 to 2"):
            d5.framework(framework).executor(network)
        return
    with pytest.raises((NetworkError, Unsupported)):
        d5.framework(framework).executor(network).inference({"x": np.ones((2, 3), np.float32)})


def elements(b: NetworkBuilder, x: ir.Value, i: ir.Value, u: ir.Value) -> ir.Value:
    value: ir.Value = b.op("GatherElements", x, i, axis=1)
    return value


SEVERAL: dict[str, Callable[[NetworkBuilder, ir.Value, ir.Value, ir.Value], ir.Value]] = {
    "GatherElements": elements,
    "GatherND": lambda b, x, i, u: b.op("GatherND", x, i),
    "GatherND in batches": lambda b, x, i, u: b.op("GatherND", x, b.op("Slice", i, *(ones(b, k) for k in "abc"))),
    "ScatterElements": lambda b, x, i, u: b.op("ScatterElements", x, i, u, axis=1),
    "ScatterElements adding": lambda b, x, i, u: b.op("ScatterElements", x, i, u, axis=1, reduction="add"),
    "ScatterND": lambda b, x, i, u: b.op("ScatterND", x, i, b.op("ReduceMax", u, ones(b, "axis"), keepdims=0)),
}


def ones(b: NetworkBuilder, name: str) -> ir.Value:
    return b.constant(name, np.array([{"a": 0, "b": 1}.get(name, 1)]))


@pytest.mark.parametrize("op_type", SEVERAL)
@pytest.mark.parametrize("framework", ["reference", "onnxruntime", "openvino"])
def test_elements(framework: str, op_type: str) -> None:
    """Operators that only some back-ends have."""
    build = NetworkBuilder("elements")
    x, index, u = build.input("x", ("M", 4)), build.input("index", (3, 2), "int64"), build.input("u", (3, 2))
    network = build.network({"y": SEVERAL[op_type](build, x, index, u)})
    executor = d5.framework(framework).executor(network)
    inputs = {"x": np.ones((3, 4), np.float32), "u": np.full((3, 2), 2, np.float32)}
    executor.inference({**inputs, "index": np.array([[1, 0], [-1, 2], [0, -2]])})
    for wrong in (4, -5, 10**6, 2**33):
        with pytest.raises(NetworkError):
            executor.inference({**inputs, "index": np.array([[wrong, 0], [1, 0], [1, 0]])})


LABELS: dict[str, tuple[tuple[int | str, ...], Callable[[NetworkBuilder, ir.Value], ir.Value]]] = {
    "as they are": (("N",), lambda b, label: label),
    "in another shape": (("N", 1), lambda b, label: b.op("Squeeze", label, b.constant("axis", np.array([1])))),
    "cast": (("N",), lambda b, label: b.op("Cast", label, to=int(ir.DataType.INT32))),
    "computed": (("N",), lambda b, label: b.op("Sub", label, b.constant("one", np.array(1)))),
}


@pytest.mark.parametrize("form", LABELS)
@pytest.mark.parametrize("ignored", [None, -7])
@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_labels(framework: str, op_type: str, ignored: int | None, form: str) -> None:
    shape, make = LABELS[form]
    build = NetworkBuilder("labels")
    x, label = build.input("x", ("N", 4)), build.input("label", shape, "int64")
    options = {} if ignored is None else {"ignore_index": ignored}
    network = build.network({"loss": build.op(op_type, x, make(build, label), **options)})
    assert bool(open_losses(network)) == (form == "computed")
    executor = d5.framework(framework).executor(network)
    shift, scores = form == "computed", np.ones((2, 4), np.float32)

    def loss(wrong: int) -> float:
        labels = np.array([shift, wrong + shift]).reshape(2, *[1] * (len(shape) - 1))
        return float(d5.to_numpy(executor.inference({"x": scores, "label": labels})["loss"]))

    assert np.isfinite(loss(3))
    assert ignored is None or np.isfinite(loss(ignored))
    for wrong in (4, -1, -8, -100, 10**6):
        if framework in POISONING:
            assert np.isnan(loss(wrong))
        else:
            with pytest.raises(NetworkError):
                loss(wrong)


def perceptron(op_type: str, weighted: bool, ignored: int | None) -> d5.Network:
    """Two layers and a loss without flat functions between them: every gradient depends on every sample."""
    build = NetworkBuilder("perceptron")
    x, label = build.input("x", ("N", 3)), build.input("label", ("N",), "int64")
    hidden = build.op("Tanh", build.op("Gemm", x, build.parameter("a", (3, 5)), build.parameter("b", (5,), zeros)))
    scores = build.op("Gemm", hidden, build.parameter("c", (5, 4)), build.parameter("d", (4,), zeros))
    if op_type == "NegativeLogLikelihoodLoss":
        scores = build.op("LogSoftmax", scores, axis=1)
    weight = [build.constant("weight", np.array([1, 2, 3, 4], np.float32))] if weighted else []
    options = {} if ignored is None else {"ignore_index": ignored}
    return build.network({"loss": build.op(op_type, scores, label, *weight, **options)})


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, -7])
@pytest.mark.parametrize(
    ("framework", "op_type"),
    [
        ("jax", "SoftmaxCrossEntropyLoss"),
        ("jax", "NegativeLogLikelihoodLoss"),
        ("tensorflow:xla", "SoftmaxCrossEntropyLoss"),
        ("tensorflow:xla", "NegativeLogLikelihoodLoss"),
    ],
)
def test_the_gradients_of_a_label_that_is_no_class(
    framework: str, op_type: str, ignored: int | None, weighted: bool
) -> None:
    """With a NaN loss and finite gradients the parameters would change, and training would continue."""
    network = perceptron(op_type, weighted, ignored)
    executor, expected = d5.framework(framework).executor(network), d5.framework("reference").executor(network)
    x = np.random.default_rng(0).standard_normal((3, 3), dtype=np.float32)

    def gradients(run: Any, label: list[int]) -> dict[str, np.ndarray]:
        outputs = run.inference_and_backprop({"x": x, "label": np.array(label)}, wrt=[*network.parameter_specs, "x"])
        return {name: d5.to_numpy(value) for name, value in {**outputs, **run.gradients()}.items()}

    for wrong in (4, -1, -8, 10**6):
        found = gradients(executor, [0, wrong, 3])
        sample = found.pop("x")
        assert np.isnan(sample[1]).all()
        assert all(np.isnan(value).all() for value in found.values()), {name: found[name] for name in found}
    right = [0, 2 if ignored is None else ignored, 3]
    for name, value in gradients(expected, right).items():
        # float32 sums of at most 5 terms of order 1
        np.testing.assert_allclose(gradients(executor, right)[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("framework", POISONING)
def test_a_step_with_a_label_that_is_no_class_leaves_no_number(framework: str) -> None:
    executor = d5.framework(framework).executor(perceptron("SoftmaxCrossEntropyLoss", False, None))
    step = executor.train_step(d5.Adam())
    step({"x": np.ones((2, 3), np.float32), "label": np.array([0, 4])}, d5.StepInfo(batch_size=2))
    assert all(np.isnan(value).all() for value in executor.state_dict().values())


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("framework", POISONING)
def test_the_gradient_of_an_index_outside(framework: str, dtype: str, axis: int) -> None:
    """Where NaN is filled in, the missing row has the gradient 0."""
    build = NetworkBuilder("rows")
    table, index = build.parameter("table", (3, 4)), build.input("index", ("N",), dtype)
    picked = build.op("Gather", table, index, axis=axis)
    executor = d5.framework(framework).executor(build.network({"loss": build.op("ReduceSum", picked, keepdims=0)}))
    for wrong in ((3, 4)[axis], -5, *([2**33] if dtype == "int64" else [])):
        outputs = executor.inference_and_backprop({"index": np.array([1, wrong], dtype)})
        assert np.isnan(d5.to_numpy(outputs["loss"]))
        assert np.isnan(d5.to_numpy(executor.gradients()["table"])).any()
    executor.inference_and_backprop({"index": np.array([1, -1, 1], dtype)})
    expected = np.zeros((3, 4), np.float32)
    np.add.at(expected if axis == 0 else expected.T, np.array([1, -1, 1]), 1)
    np.testing.assert_array_equal(d5.to_numpy(executor.gradients()["table"]), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "kind"), [(0, "parameters"), (1, "parameters"), (0, "int64")])
def test_gather_where_torch_compiles(axis: int, kind: str) -> None:
    """Code compiled by torch resolves a negative index itself, a second time."""
    test_gather("pytorch:compiled", "int64", axis, kind)
