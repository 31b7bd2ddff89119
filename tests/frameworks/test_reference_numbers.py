"""The reference's conversions, quantization, bits, noise, strings and trees, where ONNX's suite does not test."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx_ir import DataType
from test_reference_order import network, run

import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported
from deep5.frameworks.reference.kernels.casting import cast

RNG = np.random.default_rng(23)
FLOAT8 = {
    DataType.FLOAT8E4M3FN: (ml_dtypes.float8_e4m3fn, 448.0),
    DataType.FLOAT8E4M3FNUZ: (ml_dtypes.float8_e4m3fnuz, 240.0),
    DataType.FLOAT8E5M2: (ml_dtypes.float8_e5m2, 57344.0),
    DataType.FLOAT8E5M2FNUZ: (ml_dtypes.float8_e5m2fnuz, 57344.0),
}


@pytest.mark.parametrize("kind", FLOAT8, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32])
def test_what_a_float8_does_not_hold(kind: DataType, dtype: Any) -> None:
    """According to the tables in ONNX's Cast."""
    held, most = FLOAT8[kind]
    assert float(ml_dtypes.finfo(held).max) == most
    x = np.array([0, 1, -3, most / 2, -most]).astype(dtype)
    np.testing.assert_array_equal(cast(x, kind=kind).astype(np.float64), x.astype(np.float64))
    far = np.array([60000, -60000]).astype(dtype)
    np.testing.assert_array_equal(cast(far, kind=kind).astype(np.float64), [most, -most])
    lost = cast(far, kind=kind, saturate=False).astype(np.float64)
    if kind == DataType.FLOAT8E5M2:
        np.testing.assert_array_equal(lost, [57344, -57344])  # 60000 is nearer to it than to the next power of two
    else:
        np.testing.assert_array_equal(lost, [57344, -57344] if most > 448 else [np.nan, np.nan])
    if dtype is not np.int32:
        odd = np.array([np.inf, -np.inf, np.nan]).astype(dtype)
        np.testing.assert_array_equal(cast(odd, kind=kind).astype(np.float64), [most, -most, np.nan])
        ends = [np.inf, -np.inf, np.nan] if kind == DataType.FLOAT8E5M2 else [np.nan] * 3
        np.testing.assert_array_equal(cast(odd, kind=kind, saturate=False).astype(np.float64), ends)


@pytest.mark.parametrize(
    ("mode", "want"),
    [("up", [1, 2, 2, 4, 2**127]), ("down", [1, 1, 1, 2, 2**127]), ("nearest", [1, 1, 2, 4, 2**127])],
)
def test_powers_of_two(mode: str, want: list[float]) -> None:
    x = np.array([1.0, 1.25, 1.5, 3.0, 2.0**127])
    got = cast(x, kind=DataType.FLOAT8E8M0, round_mode=mode)
    np.testing.assert_array_equal(got.astype(np.float64), want)
    ends = cast(np.array([0.0, np.inf, np.nan, 1e-300]), kind=DataType.FLOAT8E8M0, round_mode=mode)
    np.testing.assert_array_equal(ends.astype(np.float64), [2.0**-127, 2.0**127, np.nan, 2.0**-127])
    lost = cast(np.array([0.0, np.inf, 1e300]), kind=DataType.FLOAT8E8M0, round_mode=mode, saturate=False)
    assert np.isnan(lost.astype(np.float64)).all()


@pytest.mark.parametrize("kind", [DataType.INT4, DataType.UINT4, DataType.INT2, DataType.UINT2], ids=lambda k: k.name)
def test_the_lower_bits_stay(kind: DataType) -> None:
    bits, signed = int(kind.name[-1]), kind.name.startswith("INT")
    x = np.arange(-20, 20)
    want = x % (1 << bits)
    want = np.where(signed & (want >= 1 << (bits - 1)), want - (1 << bits), want)
    for dtype in (np.int8, np.int64, np.float32, np.float64):
        got = cast(x.astype(dtype), kind=kind)
        np.testing.assert_array_equal(got.astype(np.int8), want)
        for back in (DataType.INT64, DataType.FLOAT16, DataType.BFLOAT16, DataType.BOOL):
            np.testing.assert_array_equal(cast(got, kind=back), want.astype(back.numpy()))


def test_texts_of_numbers() -> None:
    texts = np.array([["1.5", "-INF", "NaN"], ["1e3", "+INF", "-0.25"]], object)
    (got,) = run("Cast", texts, to=onnx.TensorProto.DOUBLE)
    np.testing.assert_array_equal(got, [[1.5, -np.inf, np.nan], [1e3, np.inf, -0.25]])
    assert run("Cast", np.array(["9007199254740993", "7.0"], object), to=onnx.TensorProto.INT64)[0].tolist() == [
        9007199254740993,
        7,
    ]
    (told,) = run("Cast", got.astype(np.float32), to=onnx.TensorProto.STRING)
    assert told.tolist() == [["1.5", "-INF", "NaN"], ["1000.0", "INF", "-0.25"]]
    with pytest.raises(NetworkError, match="Cast: could not convert string to float: 'many'"):
        run("Cast", np.array(["many"], object), to=onnx.TensorProto.FLOAT)


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16", "int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_quantised_and_back(kind: str, shape: tuple[int, ...]) -> None:
    """With one scale, with one per position along the axis, and with blocks of two."""
    dtype = np.dtype(getattr(ml_dtypes, kind)) if kind[-1] in "24" else np.dtype(kind)
    least, most = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    scale = RNG.uniform(0.5, 1, shape).astype(np.float32)
    zero = RNG.integers(0, 2, shape).astype(dtype)
    more = {"block_size": 2} if len(shape) == 2 else {}
    (got,) = run("QuantizeLinear", x, scale, zero, axis=1, **more)
    wide = [np.repeat(v, 2, 1)[:, :3] if more else v for v in (scale, zero.astype(np.int64))]
    want = np.clip(np.rint(x / wide[0]) + wide[1], least, most)
    np.testing.assert_array_equal(got.astype(np.int64), want)
    (back,) = run("DequantizeLinear", got, scale, zero, axis=1, **more)
    np.testing.assert_array_equal(back, (want.astype(np.float32) - wide[1]).astype(np.float32) * wide[0])
    far = np.array([1e9, -1e9], np.float32)
    (ends,) = run("QuantizeLinear", far, np.float32(1), np.zeros((), dtype))
    assert ends.astype(np.int64).tolist() == [most, least]


def test_products_of_integers_do_not_overflow() -> None:
    a, b = np.full((2, 3, 50), 255, np.uint8), np.full((50, 4), -128, np.int8)
    zero_a, zero_b = np.array([0, 1, 2], np.uint8), np.array([0, -1, 2, 3], np.int8)
    (got,) = run("MatMulInteger", a[0], b, zero_a, zero_b)
    want = (a[0].astype(np.int64) - zero_a[:, None]) @ (b.astype(np.int64) - zero_b)
    np.testing.assert_array_equal(got, want)
    (got,) = run("MatMulInteger", a, b)
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


def test_channels_with_scales_of_their_own() -> None:
    x, w = RNG.integers(0, 255, (1, 2, 4, 4)).astype(np.uint8), RNG.integers(-9, 9, (3, 2, 3, 3)).astype(np.int8)
    scales, zeros = np.array([0.1, 0.2, 0.4], np.float32), np.array([0, 1, -2], np.int8)
    bias = np.array([10, -20, 3000], np.int32)
    (got,) = run(
        "QLinearConv", x, np.float32(0.5), np.uint8(9), w, scales, zeros, np.float32(7), np.int8(-3), bias, pads=[1] * 4
    )
    inner = np.pad(x.astype(np.int64) - 9, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(inner, (3, 3), axis=(2, 3))
    total = np.einsum("nchwij,mcij->nmhw", windows, w.astype(np.int64) - zeros.reshape(3, 1, 1, 1))
    total += bias.reshape(3, 1, 1)
    real = total * (np.float64(0.5) * scales.reshape(3, 1, 1) / 7)
    # A tie in float64 may round the other way in float32.
    assert np.abs(got - np.clip(np.rint(real) - 3, -128, 127)).max() <= 1
    assert got.dtype == np.int8


def test_nothing_to_quantise() -> None:
    y, scale, zero = run("DynamicQuantizeLinear", np.zeros((2, 2), np.float32), outputs=3)
    assert (y.tolist(), float(scale), int(zero)) == ([[0, 0], [0, 0]], 0.0, 0)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_bits_leave(dtype: str) -> None:
    width = 8 * np.dtype(dtype).itemsize
    x = np.array([1, 3, 100, 127]).astype(dtype)
    x = np.concatenate([x, ~x])
    for shift in (0, 1, width - 1, width):
        by = np.full(x.shape, shift).astype(dtype)
        (left,), (right,) = (run("BitShift", x, by, direction=way) for way in ("LEFT", "RIGHT"))
        whole = [int(v) << shift for v in x]
        assert [int(v) % (1 << width) for v in left] == [v % (1 << width) for v in whole]
        assert right.tolist() == [int(v) >> shift for v in x]


def test_the_same_bits() -> None:
    x = np.array([1.0, -2.0, np.nan], np.float16)
    (bits,) = run("BitCast", x, to=onnx.TensorProto.UINT16)
    np.testing.assert_array_equal(bits, x.view(np.uint16))
    np.testing.assert_array_equal(run("BitCast", bits, to=onnx.TensorProto.FLOAT16)[0], x)
    few = np.arange(-8, 8).astype(ml_dtypes.int4)
    (got,) = run("BitCast", few, to=onnx.TensorProto.UINT4)
    np.testing.assert_array_equal(got.astype(np.int64), np.arange(-8, 8) % 16)
    np.testing.assert_array_equal(run("BitCast", got, to=onnx.TensorProto.INT4)[0], few)


@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16])
def test_random_numbers_are_a_function_of_the_seed(dtype: int) -> None:
    shape = {"shape": [200, 50], "dtype": dtype}
    first = run("RandomNormal", mean=3.0, scale=2.0, seed=1.0, **shape)[0]
    np.testing.assert_array_equal(first, run("RandomNormal", mean=3.0, scale=2.0, seed=1.0, **shape)[0])
    assert (first != run("RandomNormal", mean=3.0, scale=2.0, seed=2.0, **shape)[0]).any()
    # The mean of 10000 numbers is accurate to a hundredth of their deviation; six times that never occurs by chance.
    assert abs(first.astype(np.float64).mean() - 3) < 0.12
    assert abs(first.astype(np.float64).std() - 2) < 0.12
    even = run("RandomUniform", low=-1.0, high=3.0, seed=1.0, **shape)[0].astype(np.float64)
    assert (even.min() >= -1, even.max() <= 3, abs(even.mean() - 1) < 0.07) == (True,) * 3
    like = np.zeros((200, 50), np.float32)
    for op in ("RandomNormalLike", "RandomUniformLike"):
        (got,) = run(op, like, seed=1.0, dtype=dtype)
        assert (got.shape, got.dtype) == (like.shape, onnx.helper.tensor_dtype_to_np_dtype(dtype))


def test_nodes_without_a_seed_draw_in_their_own_way() -> None:
    one = onnx.parser.parse_graph(
        "g (float[4] p) => (float[4] y, float[4] z) { y = RandomUniformLike(p) z = RandomUniformLike(p) }"
    )
    made = d5.Network.from_onnx(onnx.helper.make_model(one, opset_imports=[onnx.helper.make_opsetid("", 22)]))
    executor = d5.framework("reference").executor(made)
    first, again = (executor.inference({"p": np.zeros(4, np.float32)}) for _ in range(2))
    np.testing.assert_array_equal(first["y"], again["y"])
    assert (np.asarray(first["y"]) != np.asarray(first["z"])).any()


def test_drawn_classes_are_as_frequent_as_they_are_probable() -> None:
    odds = np.array([[0.1, 0.6, 0.3], [1.0, 0.0, 0.0]])
    (got,) = run("Multinomial", np.log(odds, where=odds > 0, out=np.full((2, 3), -np.inf)), sample_size=4000, seed=1.0)
    frequencies = [np.bincount(row, minlength=3) / 4000 for row in got]
    np.testing.assert_allclose(frequencies, odds, atol=0.05)  # six standard deviations of a frequency of one half
    assert got.dtype == np.int32
    (draws,) = run("Bernoulli", np.full(4000, 0.25), seed=1.0, dtype=onnx.TensorProto.BOOL)
    assert draws.dtype == bool
    assert abs(draws.mean() - 0.25) < 0.05
    with pytest.raises(NetworkError, match="Bernoulli: a probability is outside"):
        run("Bernoulli", np.array([1.5]))


def test_texts() -> None:
    words = np.array(["A", "b", "a"], object)
    assert run("StringNormalizer", words, stopwords=["a"], case_change_action="UPPER")[0].tolist() == ["B"]
    assert run("StringNormalizer", words, stopwords=["a"], is_case_sensitive=1)[0].tolist() == ["A", "b"]
    assert run("StringConcat", words, np.array("!", object))[0].tolist() == ["A!", "b!", "a!"]
    parts, counts = run("StringSplit", np.array([" a  b ", ""], object), outputs=2, maxsplit=1)
    assert (parts.tolist(), counts.tolist()) == ([["a", "b"], ["", ""]], [2, 0])
    more = {"mode": "TFIDF", "ngram_counts": [0, 2], "ngram_indexes": [2, 0, 1], "weights": [1.0, 2.0, 3.0]}
    spans = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1}
    row = np.array([["x", "y", "x", "x"]], object)
    (got,) = run("TfIdfVectorizer", row, pool_strings=["x", "y", "x", "x"], **more, **spans)
    # x three times, weight 1, at place 2; y once, weight 2, at 0; x before x twice (adjacent, and with one between).
    assert got.tolist() == [[2.0, 6.0, 3.0]]
    assert run("TfIdfVectorizer", row, pool_strings=["x", "y", "x", "x"], **{**more, "mode": "IDF"}, **spans)[
        0
    ].tolist() == [[2.0, 3.0, 1.0]]


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "a++", "(", r"\pL", "[[:alpha:]]"])
def test_patterns_that_mean_something_else_are_refused(pattern: str) -> None:
    with pytest.raises(Unsupported, match="RegexFullMatch"):
        run("RegexFullMatch", np.array(["a"], object), pattern=pattern)


LEARNING = "ai.onnx.ml"


def test_labels_of_numbers() -> None:
    x = np.array([[1.5, np.nan], [2.0, 9.0]], np.float32)
    keys = {"keys_floats": [1.5, 2.0, math.nan, 2.0]}
    (got,) = run("LabelEncoder", x, domain=LEARNING, **keys, values_int64s=[1, 2, 3, 4], default_int64=7)
    assert got.tolist() == [[1, 3], [4, 7]]
    (got,) = run("LabelEncoder", x, domain=LEARNING, **keys, values_strings=["a", "b", "c", "d"])
    assert got.tolist() == [["a", "c"], ["d", "_Unused"]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("transform", [0, 1, 2, 3])
def test_trees(dtype: str, aggregate: int, transform: int) -> None:
    """Two trees of one split each: x0 <= 0 ? 1 : 2, and x1 > 1 ? 4 : 8, where a NaN counts as greater."""
    x = np.array([[-1, 0], [1, 2], [0, np.nan]], dtype)
    (got,) = run(
        "TreeEnsemble",
        x,
        domain=LEARNING,
        tree_roots=[0, 1],
        nodes_featureids=[0, 1],
        nodes_modes=onnx.numpy_helper.from_array(np.array([0, 3], np.uint8)),
        nodes_splits=onnx.numpy_helper.from_array(np.array([0, 1], dtype)),
        nodes_truenodeids=[0, 2],
        nodes_trueleafs=[1, 1],
        nodes_falsenodeids=[1, 3],
        nodes_falseleafs=[1, 1],
        nodes_missing_value_tracks_true=[0, 1],
        leaf_targetids=[0, 0, 0, 0],
        leaf_weights=onnx.numpy_helper.from_array(np.array([1, 2, 4, 8], dtype)),
        n_targets=2,
        aggregate_function=aggregate,
        post_transform=transform,
    )
    both = np.array([[1, 8], [2, 4], [1, 4]], dtype)
    first = (both.mean(1), both.sum(1), both.min(1), both.max(1))[aggregate]
    y = np.stack([first, 0 * first], 1)
    powers = np.exp(y - y.max(1, keepdims=True)) * (1 if transform != 3 else y != 0)
    want = (y, powers / powers.sum(1, keepdims=True), 1 / (1 + np.exp(-y)), powers / powers.sum(1, keepdims=True))
    np.testing.assert_allclose(got, want[transform], rtol=1e-6)  # float32's exponential


def test_update_rules_of_several_parameters_in_float64() -> None:
    """No parameter affects the other's numbers; the first step of Adam has the length of the rate."""
    xs, gradients = [RNG.standard_normal(shape) for shape in ((3,), (2, 2))], [np.ones(3), np.full((2, 2), -2.0)]
    zeros = [np.zeros(3), np.zeros((2, 2))]
    domain = "ai.onnx.preview.training"
    values = (np.float64(0.5), np.int64(0), *xs, *gradients, *zeros, *zeros)
    got = run("Adam", *values, outputs=6, domain=domain, alpha=0.0, beta=0.0, epsilon=0.0)
    for y, x, g in zip(got, xs, gradients, strict=False):
        np.testing.assert_allclose(y, x - 0.5 * np.sign(g), rtol=1e-12)
    more = {"alpha": 0.5, "beta": 9.0, "norm_coefficient": 0.0}
    got = run("Momentum", *values[:-2], outputs=4, domain=domain, mode="nesterov", **more)
    for y, v, x, g in zip(got[:2], got[2:], xs, gradients, strict=True):
        np.testing.assert_allclose(v, g)
        np.testing.assert_allclose(y, x - 0.5 * 1.5 * g)
    got = run("Adagrad", *values[:-2], outputs=4, domain=domain, epsilon=0.0)
    for y, x, g in zip(got, xs, gradients, strict=False):
        np.testing.assert_allclose(y, x - 0.5 * np.sign(g), rtol=1e-12)


@pytest.mark.parametrize(
    ("op", "values", "more", "message"),
    [
        ("BitCast", (np.zeros(2, np.float32),), {"to": onnx.TensorProto.INT64}, "BitCast"),
        ("BitShift", (np.ones(2, np.uint8), np.ones(2, np.uint8)), {"direction": "UP"}, "got direction='UP'"),
        ("Cast", (np.ones(2, np.float32),), {"to": onnx.TensorProto.FLOAT8E8M0, "round_mode": "in"}, "round_mode='in'"),
    ],
)
def test_what_is_not_known_is_refused(op: str, values: tuple[np.ndarray, ...], more: Any, message: str) -> None:
    with pytest.raises((Unsupported, NetworkError), match=message):
        d5.framework("reference").executor(network(op, values, **more))
