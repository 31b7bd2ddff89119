"""Nodes for which deep5 makes ONNX Runtime use other kernels, compared with the reference or NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported

DRAW = np.random.default_rng(5)


def network(
    op_type: str,
    values: list[Any],
    *,
    outputs: int = 1,
    fixed: tuple[int, ...] = (),
    shape: Any = None,
    **attributes: Any,
) -> d5.Network:
    """One node in the newest opset; the inputs in `fixed` are constants, the dimensions of the first have names."""
    names = ["" if value is None else f"x{number}" for number, value in enumerate(values)]
    results = [f"y{number}" for number in range(outputs)]
    held = [numpy_helper.from_array(values[number], f"x{number}") for number in fixed]
    declared = [
        helper.make_tensor_value_info(
            f"x{number}",
            helper.np_dtype_to_tensor_dtype(value.dtype),
            [
                f"N{number}_{axis}" if extent > 1 and not number and not shape else extent
                for axis, extent in enumerate(value.shape)
            ],
        )
        for number, value in enumerate(values)
        if value is not None and number not in fixed
    ]
    node = helper.make_node(op_type, names, results, **attributes)
    free = [onnx.ValueInfoProto(name=name) for name in results]
    if shape is not None:
        free = [helper.make_tensor_value_info(results[0], onnx.TensorProto.FLOAT, shape)]
    model = helper.make_model(
        helper.make_graph([node], op_type, declared, free, held), opset_imports=[helper.make_opsetid("", 28)]
    )
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return d5.Network.from_onnx(inferred)


def run(framework: str, net: d5.Network, values: list[Any]) -> list[np.ndarray]:
    feed = {f"x{number}": value for number, value in enumerate(values) if f"x{number}" in net.inputs}
    return [d5.to_numpy(value) for value in d5.framework(framework).executor(net).inference(feed).values()]


def shifted(x: int, count: int, bits: int, signed: bool, left: bool) -> int:
    """ONNX's definition, in Python's numbers."""
    if not 0 <= count < bits:
        return -1 if x < 0 and not left else 0
    found = (x << count if left else x >> count) & ((1 << bits) - 1)
    return found - (1 << bits) if signed and found >> (bits - 1) else found


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_shifts_of_every_type_by_any_count(dtype: str, direction: str) -> None:
    limits = np.iinfo(dtype)
    counts = [0, 1, limits.bits - 1, limits.bits, min(limits.max, 65)] + ([-1, limits.min] if limits.min else [])
    numbers = [limits.min, limits.max, 0, 1, 5, limits.max // 3] + ([-1, -6] if limits.min else [])
    x, count = (
        np.array(each, dtype).reshape(-1) for each in np.meshgrid(*[np.array(v, dtype) for v in (numbers, counts)])
    )
    wanted = [
        shifted(int(a), int(b), limits.bits, bool(limits.min), direction == "LEFT")
        for a, b in zip(x, count, strict=True)
    ]
    (found,) = run("onnxruntime", network("BitShift", [x, count], direction=direction), [x, count])
    np.testing.assert_array_equal(found, np.array(wanted, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_remainder_of_floats_has_the_sign_of_the_divisor(dtype: str) -> None:
    sides = [0.0, -0.0, 1.5, -1.5, 4.0, -4.0, math.inf, -math.inf, math.nan]
    x, y = (side.reshape(-1).astype(dtype) for side in np.meshgrid(sides, sides))
    (found,) = run("onnxruntime", network("Mod", [x, y]), [x, y])
    with np.errstate(invalid="ignore"):
        wanted = np.mod(x, y)
    np.testing.assert_array_equal(found, wanted)
    known = wanted == 0
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(y[known]))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_a_remainder_of_large_whole_numbers_has_the_sign_of_the_dividend(dtype: str) -> None:
    x = np.array([2**62 + 1, 7, 9, 2**63 - 1], dtype)
    y = np.array([10, 3, 3, 2**61 + 3], dtype)
    if dtype == "int64":
        x, y = np.concatenate([x, -x, x, -x]), np.concatenate([y, y, -y, -y])
    (found,) = run("onnxruntime", network("Mod", [x, y], fmod=1), [x, y])
    wanted = [abs(int(a)) % abs(int(b)) * (1 if a >= 0 else -1) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(found, np.array(wanted, dtype))


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_extremes_of_short_whole_numbers(op_type: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = [np.array([limits.min, limits.max, 3], dtype), np.array([4, 4, 2], dtype)]
    wanted = (np.maximum if op_type == "Max" else np.minimum)(*values)
    np.testing.assert_array_equal(run("onnxruntime", network(op_type, values), values)[0], wanted)


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_extremes_of_truths_over_some_and_over_nothing(op_type: str) -> None:
    axes = np.array([1])
    for count in (3, 0):
        x = DRAW.integers(0, 2, (4, count)).astype(bool)
        (found,) = run("onnxruntime", network(op_type, [x, axes], fixed=(1,), keepdims=0), [x, axes])
        np.testing.assert_array_equal(found, x.any(1) if op_type == "ReduceMax" else x.all(1))


def test_the_largest_of_unsigned_numbers_are_ranked_beyond_the_signed_ones() -> None:
    x, k = np.array([2**63, 5, 2**64 - 1, 0], np.uint64), np.array([3])
    values, places = run("onnxruntime", network("TopK", [x, k], outputs=2, fixed=(1,)), [x, k])
    np.testing.assert_array_equal(values, np.array([2**64 - 1, 2**63, 5], np.uint64))
    np.testing.assert_array_equal(places, [2, 0, 1])


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_powers_to_unsigned_exponents(dtype: str) -> None:
    x, y = np.array([-1.0, -1.0, 2.0], np.float32), np.array([2**31 + 1, 2, 10], dtype)
    np.testing.assert_array_equal(run("onnxruntime", network("Pow", [x, y]), [x, y])[0], np.array([-1, 1, 1024.0]))


@pytest.mark.parametrize(("op_type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_with_batches_first(op_type: str, gates: int) -> None:
    directions, batch, steps, features, hidden = 2, 3, 4, 5, 6
    x = DRAW.normal(size=(batch, steps, features)).astype(np.float32)
    weights = [DRAW.normal(size=(directions, gates * hidden, n)).astype(np.float32) for n in (features, hidden)]
    bias = DRAW.normal(size=(directions, 2 * gates * hidden)).astype(np.float32)
    states = [DRAW.normal(size=(batch, directions, hidden)).astype(np.float32) for _ in range(1 + (gates == 4))]
    values = [x, *weights, bias, None, *states]
    call: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional"}
    outputs = 2 + (gates == 4)
    found = run("onnxruntime", network(op_type, values, outputs=outputs, layout=1, **call), values)
    turned = [value if value is None or i in (1, 2, 3) else value.transpose(1, 0, 2) for i, value in enumerate(values)]
    wanted = run("onnxruntime", network(op_type, turned, outputs=outputs, layout=0, **call), turned)
    states_fixed = network(op_type, values, outputs=outputs, fixed=tuple(range(5, len(values))), layout=1, **call)
    for own, other in zip(found, run("onnxruntime", states_fixed, values), strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(found[0], wanted[0].transpose(2, 0, 1, 3))
    for own, other in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(own, other.transpose(1, 0, 2))


def test_unpooling_into_a_larger_shape_counts_in_the_smaller_one() -> None:
    x, places = np.array([[[[1.0, 2.0], [3.0, 4.0]]]], np.float32), np.array([[[[5, 7], [13, 15]]]])
    shape = np.array([1, 1, 5, 6])
    (found,) = run(
        "onnxruntime",
        network("MaxUnpool", [x, places, shape], fixed=(2,), shape=shape.tolist(), kernel_shape=[2, 2], strides=[2, 2]),
        [x, places],
    )
    wanted = np.zeros((1, 1, 5, 6), np.float32)
    wanted[0, 0, [1, 1, 3, 3], [1, 3, 1, 3]] = [1, 2, 3, 4]
    np.testing.assert_array_equal(found, wanted)


def test_a_convolution_of_whole_numbers_has_zero_points_of_channels() -> None:
    x, w = (DRAW.integers(0, 255, shape).astype(np.uint8) for shape in ((2, 3, 5, 4), (4, 3, 2, 2)))
    points = [np.array(7, np.uint8), np.array([1, 200, 3, 0], np.uint8)]
    (found,) = run("onnxruntime", network("ConvInteger", [x, w, *points], pads=[1, 0, 1, 1]), [x, w, *points])
    wide = x.astype(np.float64) - points[0], w.astype(np.float64) - points[1].reshape(4, 1, 1, 1)
    (wanted,) = run("reference", network("Conv", list(wide), pads=[1, 0, 1, 1]), list(wide))
    np.testing.assert_array_equal(found, wanted.astype(np.int32))


def test_what_cancels_in_a_transform_is_near_0() -> None:
    x, length, axis = np.arange(20, dtype=np.float32).reshape(2, 10, 1), None, np.array(1)
    (found,) = run("onnxruntime", network("DFT", [x, length, axis], fixed=(2,)), [x])
    wanted = np.fft.fft(x[..., 0], axis=1)
    # Rounded once from float64; sums are at most 145.
    np.testing.assert_allclose(found, np.stack([wanted.real, wanted.imag], -1), rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_corners_are_aligned_by_whole_extents_alone(mode: str) -> None:
    x = DRAW.normal(size=(1, 1, 4, 4)).astype(np.float32)
    call: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    whole, part = (np.array([1, 1, *scale], np.float32) for scale in ((2, 1.5), (0.6, 2)))
    values = [x, None, whole]
    (found,) = run("onnxruntime", network("Resize", values, **call), values)
    assert found.shape == (1, 1, 8, 6)
    np.testing.assert_array_equal(found, run("onnxruntime", network("Resize", values, fixed=(2,), **call), values)[0])
    with pytest.raises(NetworkError, match=r"Resize: .* greater than 0"):
        run("onnxruntime", network("Resize", [x, None, part], **call), [x, None, part])
    with pytest.raises(Unsupported, match=r"ONNX Runtime rounds 4 · 0\.6.* to a whole extent"):
        run("onnxruntime", network("Resize", [x, None, part], fixed=(2,), shape=[1, 1, 2, 8], **call), [x])


@pytest.mark.parametrize("op_type", ["Add", "Div", "Less", "Compress", "Expand", "Where"])
def test_bfloat16_is_rounded_once_a_node(op_type: str) -> None:
    short = ml_dtypes.bfloat16
    x, y = (DRAW.normal(size=(6,)).astype(short) for _ in range(2))
    flags = DRAW.integers(0, 2, 6).astype(bool)
    values = {
        "Compress": [x, flags], "Expand": [x, np.array([3, 6])], "Where": [flags, x, y],
    }.get(op_type, [x, y])  # fmt: skip
    (found,) = run("onnxruntime", network(op_type, values), values)
    wide = [value.astype(np.float32) if value.dtype == short else value for value in values]
    wanted = {
        "Add": lambda: (wide[0] + wide[1]).astype(short), "Div": lambda: (wide[0] / wide[1]).astype(short),
        "Less": lambda: x < y, "Compress": lambda: x[flags], "Expand": lambda: np.broadcast_to(x, (3, 6)),
        "Where": lambda: np.where(flags, x, y),
    }[op_type]()  # fmt: skip
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_two_nodes_of_bfloat16_are_rounded_twice() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (bfloat16[N] x) => (bfloat16[N] y) {z = Mul(x, x) y = Mul(z, x)}"""
    net = d5.Network.from_onnx(onnx.parser.parse_model(text))
    value = DRAW.normal(size=200).astype(ml_dtypes.bfloat16)
    (found,) = d5.framework("onnxruntime").executor(net).inference({"x": value}).values()
    np.testing.assert_array_equal(found, (value * value) * value)
    assert (found != (value.astype(np.float32) ** 3).astype(ml_dtypes.bfloat16)).any()


def test_a_network_of_a_newer_opset_runs_where_its_nodes_are_older() -> None:
    x = DRAW.normal(size=(3, 8, 2, 2)).astype(np.float32)
    net = network("SpaceToDepth", [x], blocksize=2, mode="CRD")
    assert net.opset == 28
    np.testing.assert_array_equal(run("onnxruntime", net, [x])[0], run("reference", net, [x])[0])
