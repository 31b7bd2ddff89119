"""Indices and labels that are outside: an error or NaN on every back-end, never a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.errors import NetworkError, Unsupported
from deep5.networks import NetworkBuilder
from deep5.networks.labels import open_losses

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "tensorflow:xla", "jax", "onnxruntime", "openvino")
# Compiled by XLA nothing can raise.
POISONING = ("tensorflow:xla", "jax")


def rows(dtype: str, axis: int, kind: str) -> d5.Network:
    """Rows or columns of a table (3, 4): of parameters, of constants, or of an input with an extent of any size."""
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
    if kind == "int64" and framework in POISONING:
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
        if framework in POISONING:
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


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "kind"), [(0, "parameters"), (1, "parameters"), (0, "int64")])
def test_gather_where_torch_compiles(axis: int, kind: str) -> None:
    """What torch compiles counts a negative index from the end by itself, once more."""
    test_gather("pytorch:compiled", "int64", axis, kind)
