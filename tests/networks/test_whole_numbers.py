"""Integers on every back-end: exact, or refused with a reason, over all element types and their full range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError
from deep5.networks import NetworkBuilder

Build = Callable[[NetworkBuilder, ir.Value, ir.Value], ir.Value]
Exact = Callable[[np.ndarray, np.ndarray], Any]

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "tensorflow:xla", "jax", "onnxruntime", "openvino")
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SHAPE = (3, 4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def truncated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Division toward zero, as ONNX defines it; in Python's own integers."""
    quotients = [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x.flat, y.flat, strict=True)]
    return np.array([int(entry) for entry in quotients], object).astype(x.dtype).reshape(x.shape)


def kind(dtype: np.dtype[Any]) -> ir.DataType:
    return ir.DataType.from_numpy(dtype)


def cast(dtype: str) -> tuple[Build, Exact]:
    target = np.dtype(dtype)
    return lambda b, x, y: b.op("Cast", x, to=int(kind(target))), lambda x, y: x.astype(target)


def plain(op_type: str, exact: Exact) -> tuple[Build, Exact]:
    return lambda b, x, y: b.op(op_type, x, y), exact


def single(op_type: str, exact: Callable[[np.ndarray], Any], **attributes: Any) -> tuple[Build, Exact]:
    return lambda b, x, y: b.op(op_type, x, **attributes), lambda x, y: exact(x)


def total(op_type: str, function: Any) -> tuple[Build, Exact]:
    return (
        lambda b, x, y: b.op(op_type, x, b.constant(f"{op_type}_axes", ints(1)), keepdims=0),
        lambda x, y: function(x, axis=1, **({"dtype": x.dtype} if function in (np.sum, np.prod) else {})),
    )


def whole_mean(x: np.ndarray, axis: int) -> np.ndarray:
    """Toward zero, as integers are divided; the sum does not wrap around."""
    sums = [sum(map(int, row)) for row in x]
    return np.array([abs(s) // x.shape[axis] * (1 if s >= 0 else -1) for s in sums], x.dtype)


def product(b: NetworkBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.op("MatMul", x, b.op("Transpose", y, perm=[1, 0]))


def part(op_type: str, inputs: dict[str, np.ndarray], exact: Callable[[np.ndarray], Any], **attributes: Any) -> Any:
    return (
        lambda b, x, y: b.op(
            op_type, x, *(b.constant(f"{op_type}_{name}", value) for name, value in inputs.items()), **attributes
        ),
        lambda x, y: exact(x),
    )


CASES: dict[str, tuple[Build, Exact]] = {
    "Add": plain("Add", np.add),
    "Sub": plain("Sub", np.subtract),
    "Mul": plain("Mul", np.multiply),
    "Div": plain("Div", truncated),
    "Mod": plain("Mod", np.mod),
    "fmod": (lambda b, x, y: b.op("Mod", x, y, fmod=1), np.fmod),
    "Max": plain("Max", np.maximum),
    "Min": plain("Min", np.minimum),
    "Sum": plain("Sum", np.add),
    "Equal": plain("Equal", np.equal),
    "Less": plain("Less", np.less),
    "LessOrEqual": plain("LessOrEqual", np.less_equal),
    "Greater": plain("Greater", np.greater),
    "GreaterOrEqual": plain("GreaterOrEqual", np.greater_equal),
    "near": (lambda b, x, y: b.op("Equal", x, b.op("Identity", x)), lambda x, y: np.ones(x.shape, bool)),
    "Neg": single("Neg", np.negative),
    "Abs": single("Abs", np.abs),
    "Sign": single("Sign", np.sign),
    "Relu": single("Relu", lambda x: np.maximum(x, 0)),
    "Clip": (lambda b, x, y: b.op("Clip", x, *bounds(b, x)), lambda x, y: np.clip(x, *limits(x.dtype))),
    "Where": (lambda b, x, y: b.op("Where", b.op("Less", x, y), x, y), np.minimum),
    "Concat": (lambda b, x, y: b.op("Concat", x, y, axis=1), lambda x, y: np.concatenate([x, y], 1)),
    "Transpose": single("Transpose", np.transpose, perm=[1, 0]),
    "ReduceSum": total("ReduceSum", np.sum),
    "ReduceProd": total("ReduceProd", np.prod),
    "ReduceMax": total("ReduceMax", np.max),
    "ReduceMin": total("ReduceMin", np.min),
    "ArgMax": single("ArgMax", lambda x: np.argmax(x, 1), axis=1, keepdims=0),
    "ArgMin": single("ArgMin", lambda x: np.argmin(x, 1), axis=1, keepdims=0),
    "power": (
        lambda b, x, y: b.op("Pow", x, b.constant("third", np.array(3, x.dtype.numpy()))),
        lambda x, y: x * x * x,
    ),
    "ReduceMean": total("ReduceMean", whole_mean),
    "MatMul": (product, lambda x, y: x @ y.T),
    "Gather": part("Gather", {"indices": ints(2, -1)}, lambda x: x[:, [2, -1]], axis=1),
    "Slice": part(
        "Slice", {"starts": ints(1), "ends": ints(2**62), "axes": ints(1), "steps": ints(2)}, lambda x: x[:, 1::2]
    ),
    "Pad": part("Pad", {"pads": ints(1, 0, 0, 2)}, lambda x: np.pad(x, [(1, 0), (0, 2)])),
    "Expand": part("Expand", {"shape": ints(2, *SHAPE)}, lambda x: np.broadcast_to(x, (2, *SHAPE))),
    "Tile": part("Tile", {"repeats": ints(2, 1)}, lambda x: np.tile(x, (2, 1))),
    "Reshape": part("Reshape", {"shape": ints(-1)}, lambda x: x.reshape(-1)),
    "constant": (lambda b, x, y: b.op("Max", x, b.constant("large", large(x))), lambda x, y: np.maximum(x, top(x))),
    **{f"to {dtype}": cast(dtype) for dtype in (*DTYPES, "bool", "float32", "float64")},
}


def limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    info = np.iinfo(dtype)
    return dtype.type(info.min // 2), dtype.type(info.max // 2)


def bounds(b: NetworkBuilder, x: ir.Value) -> list[ir.Value]:
    return [b.op("Constant", value=ir.tensor(np.array(bound))) for bound in limits(x.dtype.numpy())]  # type: ignore


def top(x: np.ndarray) -> Any:
    return x.dtype.type(np.iinfo(x.dtype).max // 2 + 1)


def large(x: ir.Value) -> np.ndarray:
    return np.array(top(np.empty(0, x.dtype.numpy())))  # type: ignore[union-attr]


def network(dtype: str, names: list[str]) -> d5.Network:
    build = NetworkBuilder("whole")
    x, y = (build.input(name, SHAPE, dtype) for name in "xy")
    return build.network({name: CASES[name][0](build, x, y) for name in names})


def values(dtype: str, seed: int, most: int = 1 << 64) -> dict[str, np.ndarray]:
    """Numbers over the full range up to a magnitude, and close to one another; divisors are not 0."""
    draw, info = np.random.default_rng(seed), np.iinfo(dtype)
    low, high = max(int(info.min), -most), min(int(info.max), most)
    x, y = (draw.integers(low, high, SHAPE, dtype=dtype, endpoint=True) for _ in range(2))
    x[0], y[0] = draw.integers(1, 20, (2, SHAPE[1]))
    y[1] = np.where(x[1] > low + 1, x[1] - np.array(1, dtype), high)
    # The smallest number divided by -1 has no quotient.
    y[(y == 0) | ((low < 0) & (y == np.array(-1).astype(dtype)))] = 3
    return {"x": x, "y": y}


# OpenVINO supports integers only up to this magnitude; others have no bound.
MOST = {"openvino": 1 << 24}
# Sums that overflow the type are not tested here: ONNX Runtime saturates, others wrap around.
NO_OVERFLOW = {("onnxruntime", "int32"): {"ReduceSum", "ReduceProd"}}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_whole_numbers_are_exact_or_refused(framework: str, dtype: str) -> None:
    found = d5.framework(framework)
    left_out = NO_OVERFLOW.get((framework, dtype), set())
    names = [name for name in CASES if name not in left_out and valid(dtype, name)]
    for name in list(names):
        if reasons := found.unsupported(network(dtype, [name]).nodes):
            assert all(len(reason.split("): ")[1]) > 5 for reason in reasons), reasons
            names.remove(name)
    if framework in ("reference", "onnxruntime", "openvino") or dtype in ("int32", "int64"):
        assert len(names) > len(CASES) // 2, names
    if not names:
        return
    executor = found.executor(network(dtype, names))
    for seed in range(3):
        inputs = values(dtype, seed, MOST.get(framework, 1 << 64))
        outputs = executor.inference(inputs)
        for name in names:
            with np.errstate(all="ignore"):
                want = np.asarray(CASES[name][1](inputs["x"], inputs["y"]))
            got = d5.to_numpy(outputs[name])
            assert (got.dtype, got.shape) == (want.dtype, want.shape), name
            np.testing.assert_array_equal(got, want, err_msg=name)


def valid(dtype: str, name: str) -> bool:
    """Whether ONNX has the operator for this type."""
    try:
        network(dtype, [name])
    except NetworkError:
        return False
    return True


def test_a_wrong_number_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers in float64, as an engine might compute them."""
    exact = CASES["Add"][1]
    monkeypatch.setitem(
        CASES, "Add", (CASES["Add"][0], lambda x, y: exact(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype))
    )
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match="Add"):
        test_whole_numbers_are_exact_or_refused("reference", "int64")
