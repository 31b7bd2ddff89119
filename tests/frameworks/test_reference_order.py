"""The reference's kernels for order, parts, products and signals, in cases that ONNX's own suite does not cover."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import Deep5Error, NetworkError, ShapeError, Unsupported
from deep5.networks import Network

RNG = np.random.default_rng(17)
X = RNG.standard_normal((2, 3, 4))
TIES = np.array([[1, 3, 3, 0], [2, 2, 2, 2]])
NAN = np.array([1.0, np.nan, 2.0, np.nan])


def network(op: str, values: tuple[np.ndarray, ...], outputs: int = 1, domain: str = "", **attributes: Any) -> Network:
    """One operator in the newest opset; the dimensions of the inputs stay unknown."""
    names = [f"x{i}" for i in range(len(values))]
    node = onnx.helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for value in values]
    inputs = [
        onnx.helper.make_tensor_value_info(name, kind, [f"{name}_{axis}" for axis in range(value.ndim)])
        for name, kind, value in zip(names, kinds, values, strict=True)
    ]
    given = [onnx.ValueInfoProto(name=name) for name in node.output]
    opsets = [onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    if domain:
        opsets.append(onnx.helper.make_opsetid(domain, onnx.defs.get_schema(op, domain).since_version))
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "single", inputs, given), opset_imports=opsets)
    model = onnx.shape_inference.infer_shapes(model)
    for value in model.graph.output:  # for some, ONNX infers nothing if no dimension is known
        own = value.type.tensor_type
        if not own.HasField("shape"):
            rank = {"STFT": 4, "ReduceMax": 1, "ReduceMin": 1}.get(op, values[0].ndim)
            shape = [f"{value.name}_{axis}" for axis in range(rank)]
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(own.elem_type or kinds[0], shape))
    return Network.from_onnx(model)


def run(op: str, *values: Any, outputs: int = 1, domain: str = "", **attributes: Any) -> list[np.ndarray]:
    arrays = tuple(np.asarray(value) for value in values)
    made = network(op, arrays, outputs, domain, **attributes)
    found = d5.framework("reference").executor(made).inference(dict(zip(made.inputs, arrays, strict=True)))
    results = [np.asarray(value) for value in found.values()]
    assert [str(result.dtype) for result in results] == [
        spec.dtype.replace("string", "object") for spec in made.outputs.values()
    ]
    return results


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_sums_and_products_so_far(dtype: str, axis: int, reverse: int) -> None:
    x = RNG.integers(1, 3, (2, 3, 4)).astype(dtype)
    for op, function in (("CumSum", np.cumsum), ("CumProd", np.cumprod)):
        turned = np.flip(x, axis) if reverse else x
        want = function(turned, axis=axis, dtype=dtype)
        (got,) = run(op, x, np.array(axis), reverse=reverse)
        np.testing.assert_array_equal(got, np.flip(want, axis) if reverse else want)
        (before,) = run(op, x, np.array(axis), reverse=reverse, exclusive=1)
        # Inclusive is exclusive, combined with the element itself.
        np.testing.assert_array_equal(before + x if op == "CumSum" else before * x, got)


def test_sums_of_nothing() -> None:
    assert run("CumSum", np.zeros((2, 0)), np.array(1), exclusive=1)[0].shape == (2, 0)
    with pytest.raises(NetworkError, match=r"CumSum\): got the axis 2 of 2 dimensions; allowed: -2 to 1"):
        run("CumSum", np.zeros((2, 1)), np.array(2))


@pytest.mark.parametrize(("largest", "want"), [(1, [[1, 2], [0, 1]]), (0, [[3, 0], [0, 1]])])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_of_equal_elements_the_first_few_stand_first(largest: int, want: list[list[int]], dtype: str) -> None:
    values, places = run("TopK", TIES.astype(dtype), np.array([2]), outputs=2, largest=largest)
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(TIES, places, 1))


def test_a_nan_is_the_greatest() -> None:
    assert run("TopK", NAN, np.array([3]), outputs=2)[1].tolist() == [1, 3, 2]
    assert run("TopK", NAN, np.array([2]), outputs=2, largest=0)[1].tolist() == [0, 2]
    assert run("ArgMax", NAN)[0].tolist() == [1]
    assert run("ArgMax", NAN, select_last_index=1, keepdims=0)[0] == 3


def test_unique_parts() -> None:
    x = np.array([[3, 1], [2, 2], [3, 1], [0, 9]])
    y, first, inverse, counts = run("Unique", x, outputs=4, axis=0, sorted=0)
    np.testing.assert_array_equal(y, x[[0, 1, 3]])
    assert (first.tolist(), inverse.tolist(), counts.tolist()) == ([0, 1, 3], [0, 1, 0, 2], [2, 1, 1])
    np.testing.assert_array_equal(run("Unique", x.T, outputs=4, axis=-1, sorted=0)[0], x[[0, 1, 3]].T)
    texts = np.array([["b", "a"], ["b", "a"], ["a", "c"]], object)
    y, first, inverse, counts = run("Unique", texts, outputs=4, axis=0)
    assert (y.tolist(), first.tolist(), inverse.tolist()) == ([["a", "c"], ["b", "a"]], [2, 0], [1, 1, 0])


@pytest.mark.parametrize("time_axis", [0, 1])
def test_sequences_of_their_own_length_are_turned(time_axis: int) -> None:
    x = RNG.standard_normal((4, 3, 2))
    lengths = np.array([0, 1, 4]) if time_axis == 0 else np.array([3, 1, 2, 0])
    (got,) = run("ReverseSequence", x, lengths, time_axis=time_axis, batch_axis=1 - time_axis)
    want = np.moveaxis(x, time_axis, 1).copy()
    for sample, length in zip(want, lengths, strict=True):
        sample[:length] = sample[:length][::-1].copy()
    np.testing.assert_array_equal(got, np.moveaxis(want, 1, time_axis))


def test_a_cache_goes_on_at_its_beginning() -> None:
    past, update = np.zeros((2, 3, 1)), np.array([[[1.0], [2.0]], [[3.0], [4.0]]])
    (got,) = run("TensorScatter", past, update, np.array([2, 0]), mode="circular")
    assert got[..., 0].tolist() == [[2, 0, 1], [3, 4, 0]]
    with pytest.raises(NetworkError, match=r"TensorScatter: a place is outside the cache; allowed: 0 to 2"):
        run("TensorScatter", past, update, np.array([2, 0]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
        ("ii->i", ((3, 3),)),
        ("...a, a", ((2, 3, 4), (4,))),
        ("aB,Bc,c->a", ((2, 3), (3, 4), (4,))),
        ("ij->", ((2, 3),)),
    ],
)
def test_sums_of_products(equation: str, shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    values = [RNG.integers(-3, 4, shape).astype(dtype) for shape in shapes]
    (got,) = run("Einsum", *values, equation=equation)
    np.testing.assert_array_equal(got, np.einsum(equation, *(value.astype(np.int64) for value in values)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [5, 4, 7])
def test_there_and_back(dtype: str, length: int) -> None:
    """A transform and its inverse, two-sided and one-sided, over another axis than the last."""
    x = RNG.standard_normal((length, 2, 1)).astype(dtype)
    size, axis = np.array(length), np.array(0)
    tolerance = 1e-5 if dtype == "float32" else 1e-13  # some ten roundings of numbers of size one
    (spectrum,) = run("DFT", x, size, axis)
    want = np.fft.fft(x[..., 0], axis=0)
    np.testing.assert_allclose(spectrum, np.stack([want.real, want.imag], -1), atol=tolerance)
    (back,) = run("DFT", spectrum, size, axis, inverse=1)
    np.testing.assert_allclose(back, np.concatenate([x, 0 * x], -1), atol=tolerance)
    (half,) = run("DFT", x, size, axis, onesided=1)
    np.testing.assert_allclose(half, spectrum[: length // 2 + 1], atol=tolerance)
    np.testing.assert_allclose(run("DFT", half, size, axis, onesided=1, inverse=1)[0], x, atol=tolerance)


def test_frames_of_a_complex_signal() -> None:
    x = RNG.standard_normal((2, 9, 2))
    (got,) = run("STFT", x, np.array(2), np.hanning(4), onesided=0)
    signal = x[..., 0] + 1j * x[..., 1]
    for frame in range(3):
        want = np.fft.fft(signal[:, 2 * frame : 2 * frame + 4] * np.hanning(4))
        np.testing.assert_allclose(got[:, frame], np.stack([want.real, want.imag], -1), atol=1e-13)
    assert got.shape == (2, 3, 4, 2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_normalisations(dtype: str) -> None:
    x, scale, bias = (RNG.standard_normal(shape).astype(dtype) for shape in ((2, 6, 3, 2), (6,), (6,)))
    wide, tolerance = (6, 1, 1), {"float16": 4e-3, "float32": 1e-5, "float64": 1e-13}[dtype]  # some roundings
    a, s, b = x.astype(np.float64), scale.astype(np.float64).reshape(wide), bias.astype(np.float64).reshape(wide)
    for groups, op in ((2, "GroupNormalization"), (6, "InstanceNormalization")):
        parts = a.reshape(2, groups, -1)
        normal = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 0.25)
        more = {"num_groups": groups} if groups == 2 else {}
        (got,) = run(op, x, scale, bias, epsilon=0.25, **more)
        np.testing.assert_allclose(got, normal.reshape(x.shape) * s + b, rtol=tolerance, atol=tolerance)
    mean = np.square(a).mean((2, 3), keepdims=True)
    (got,) = run("RMSNormalization", x, scale[:2], axis=2, epsilon=0.25)
    np.testing.assert_allclose(got, a / np.sqrt(mean + 0.25) * s[:2, 0, 0], rtol=tolerance, atol=tolerance)
    for order in (1, 2):
        zero = np.concatenate([x, 0 * x[:, :, :1]], 2)[:, :, -1:]
        (got,) = run("LpNormalization", np.concatenate([x, zero], 2), p=order, axis=2)
        norm = np.linalg.norm(a, order, axis=2, keepdims=True)
        np.testing.assert_allclose(got[:, :, :3], a / norm, rtol=tolerance, atol=tolerance)
    assert (run("LpNormalization", np.zeros((2, 3), dtype))[0] == 0).all()


@pytest.mark.parametrize(
    ("op", "values", "attributes", "message"),
    [
        ("ArgMax", (np.zeros((2, 0)),), {"axis": 1}, r"ArgMax: axis 1 of shape \(2, 0\) has no elements"),
        ("TopK", (X, np.array([5])), {}, r"TopK: got k 5 for an axis of 4 elements; allowed: 0 to 4"),
        ("Compress", (X, np.array([False] * 3 + [True])), {"axis": 1}, r"Compress: .* holds at 3; allowed: below 3"),
        ("ReverseSequence", (X, np.array([1, 2, 3])), {}, r"ReverseSequence: got lengths .*; allowed: 3 of them, 0 to"),
        ("Det", (X,), {}, r"Det: got shape \(2, 3, 4\); allowed: square"),
        ("Einsum", (X, X), {"equation": "abc,cba->a"}, r"Einsum: got 'abc,cba->a' for shapes \(2, 3, 4\), \(2, 3, 4\)"),
        ("DFT", (X[..., :1], np.array(4), np.array(2)), {}, r"DFT: got axis 2 of 3 dimensions"),
        ("DFT", (X[..., :2],), {"onesided": 1}, r"DFT: got shape \(2, 3, 2\) for one side"),
        ("DFT", (X,), {}, r"DFT: got shape \(2, 3, 4\); allowed: a last axis of 1, or of 2"),
        ("STFT", (X[..., :1], np.array(1), np.ones(5)), {}, r"STFT: got frames of 5 by 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    op: str, values: tuple[np.ndarray, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        run(op, *values, outputs=2 if op == "TopK" else 1, **attributes)


def test_a_step_of_frames_is_refused_before_the_network_runs() -> None:
    with pytest.raises(NetworkError, match=r"STFT\): got 0; allowed: at least 1"):
        run("STFT", X[..., :1], np.array(0), np.ones(2))


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("LpNormalization", {"p": 3}, "got p=3; allowed: 1, 2"),
        ("TensorScatter", {"mode": "round"}, "got mode='round'; allowed: linear, circular"),
    ],
)
def test_attributes_that_are_none_are_refused(op: str, attributes: dict[str, Any], message: str) -> None:
    values = (X, X) if op == "TensorScatter" else (X,)
    with pytest.raises(Unsupported, match=message):
        run(op, *values, **attributes)


@pytest.mark.parametrize(("op", "real", "whole"), [("ReduceMax", -np.inf, -128), ("ReduceMin", np.inf, 127)])
def test_extremes_of_nothing(op: str, real: float, whole: int) -> None:
    for dtype, want in (("float16", real), ("float64", real), ("int8", whole)):
        assert run(op, np.zeros((2, 0), dtype), np.array([1]), keepdims=0)[0].tolist() == [want, want]


@pytest.mark.parametrize(
    ("op", "values", "more"),
    [
        ("GroupNormalization", (X, np.ones(3), np.ones(3)), {"num_groups": 3}),
        ("InstanceNormalization", (X, np.ones(3), np.ones(3)), {}),
        ("RMSNormalization", (X, np.ones(4)), {}),
        ("RandomNormal", (), {"shape": [3], "seed": 1.0}),
        ("RandomNormalLike", (X,), {"seed": 1.0}),
        ("RandomUniform", (), {"shape": [3], "seed": 1.0}),
        ("RandomUniformLike", (X,), {"seed": 1.0}),
    ],
)
def test_defaults_are_what_they_are_when_written_out(op: str, values: tuple[np.ndarray, ...], more: Any) -> None:
    known = onnx.defs.get_schema(op).attributes.items()
    kind = onnx.defs.OpSchema.AttrType.FLOAT
    written = {name: a.default_value.f for name, a in known if a.type == kind and a.default_value.name}
    np.testing.assert_array_equal(run(op, *values, **more)[0], run(op, *values, **more, **written)[0])
    assert written


def test_only_errors_of_ours_come_out() -> None:
    """Axes and lengths with all kinds of errors."""
    rng, tried = np.random.default_rng(3), 0
    for op in ("CumSum", "TopK", "Compress", "DFT", "ReverseSequence"):
        for _ in range(8):
            x = rng.standard_normal(tuple(rng.integers(0, 3, 3)))
            second = {
                "Compress": rng.integers(0, 2, int(rng.integers(0, 30))).astype(bool),
                "CumSum": np.array(rng.integers(-5, 5)),
                "DFT": np.array(rng.integers(-2, 4)),
                "ReverseSequence": rng.integers(-2, 4, int(rng.integers(0, 3))),
                "TopK": rng.integers(-2, 4, 1),
            }[op]
            try:
                run(op, x, second, outputs=2 if op == "TopK" else 1)
            except Deep5Error:
                tried += 1
    assert tried
