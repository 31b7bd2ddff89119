"""The array API on an ONNX graph under construction: every function against NumPy, where engines run it."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import deep5 as d5
from deep5.core.errors import Deep5Error, ShapeError, Unsupported
from deep5.core.tensors import TensorSpec
from deep5.networks import Network
from deep5.networks.onnx.shapes import infer_shapes
from deep5.networks.tracing import namespace, traced
from deep5.networks.tracing.array import TracedArray
from deep5.networks.tracing.extents import evaluated, leaf, product, quotient
from deep5.networks.tracing.shapes import broadcast_shapes, named, sliced
from processors import AVX512
from tracing_cases import CASES, Case, arrays


def network_of(call: Callable[..., Any], specs: Sequence[TensorSpec]) -> tuple[Network, tuple[TracedArray, ...]]:
    """A network from a call of functions of a namespace and of arrays: `x0`, … to `y0`, …."""
    inputs = [
        ir.Value(
            name=f"x{i}", shape=ir.Shape(spec.shape), type=ir.TensorType(ir.DataType.from_numpy(np.dtype(spec.dtype)))
        )
        for i, spec in enumerate(specs)
    ]
    nodes, results = traced(lambda *given: call(d5.array_namespace(*given), *given), inputs, specs)
    graph = ir.Graph(inputs, [], nodes=nodes, name="traced", opset_imports={"": 20})
    for number, result in enumerate(results):
        graph.append(ir.node("Identity", [result.value], name=f"last_{number}"))
        value = graph[-1].outputs[0]
        value.name, value.type = f"y{number}", result.value.type
        graph.outputs.append(value)
    model = ir.Model(graph, ir_version=10)
    infer_shapes(model, "traced")
    return Network(model), results


def on_onnxruntime(network: Network, feed: Sequence[np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString())
    return [np.asarray(value) for value in session.run(None, {f"x{i}": x for i, x in enumerate(feed)})]


def by_numpy(case: Case, feed: Sequence[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mean of nothing
        return np.asarray(case.call(np, *feed))


def of(feed: Sequence[np.ndarray]) -> list[TensorSpec]:
    return [TensorSpec(shape=x.shape, dtype=str(x.dtype)) for x in feed]


def same(got: np.ndarray, want: np.ndarray, ulps: float, tiny: float = 0.0) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind == "f":
        limits = np.finfo(want.dtype)
        np.testing.assert_allclose(got, want, rtol=ulps * limits.eps, atol=tiny)
    else:
        np.testing.assert_array_equal(got, want)


def check(name: str, dtype: str) -> None:
    case = CASES[name]
    feed = arrays(case, dtype)
    want = by_numpy(case, feed)
    network, (result, *_) = network_of(case.call, of(feed))
    assert (result.dtype, result.shape) == (want.dtype, want.shape)  # deep5's own shape inference
    same(on_onnxruntime(network, feed)[0], want, case.ulps)


# Every function


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_numpys_on_onnxruntime(name: str) -> None:
    for dtype in CASES[name].dtypes:
        check(name, dtype)


# Operators that the reference refuses in any network.
NO_KERNEL = r"the reference has no kernel for (A\w+|Bitwise\w+|Cosh|CumSum|IsInf|Range|Sinh|Tan|Trilu)\b"


def test_functions_are_numpys_on_the_reference() -> None:
    engine, wrong, refused, ran = d5.framework("reference"), list[str](), list[str](), 0
    for name, case in CASES.items():
        for dtype in {"float32", "int64", "bool"}.intersection(case.dtypes):
            if name.startswith("power 0"):
                continue  # reads no input
            feed = arrays(case, dtype)
            network, _ = network_of(case.call, of(feed))
            try:
                executor = engine.executor(network)
            except Unsupported as error:
                refused.append(str(error))
                continue
            got = np.asarray(executor.inference({f"x{i}": x for i, x in enumerate(feed)})["y0"])
            ran += 1
            try:
                same(got, by_numpy(case, feed), case.ulps + 2)  # its kernels are compiled C
            except AssertionError as error:
                wrong.append(f"{name} {dtype}: {error}")
    assert not wrong, "\n".join(wrong)
    assert [reason for reason in refused if not re.search(NO_KERNEL, reason)] == []
    assert ran > 250


# Deviations of OpenVINO's own operators and refusals of its executor, in any network.
OPENVINO = {
    "exp": "it gives infinity for NaN",
    "remainder": "its Mod of floating-point numbers is x - y * trunc(x / y), which loses digits",
    "promotion": "it computes float64 in float32, which is refused",
    "linspace": "of float64 too",
    "astype of numbers": "it casts to int64 by 32 bits, which is refused",
    "count_nonzero": "it sums int64 in float32, which is refused",
    "power 0": "it reads no input",
}


def test_functions_are_numpys_on_openvino() -> None:
    """All in one network, which OpenVINO compiles in a second; one network per function would take half a minute."""
    names, feeds = list[str](), list[list[np.ndarray]]()
    for name, case in CASES.items():
        wanted = "float32" if "float32" in case.dtypes else "bool" if case.dtypes == ("bool",) else None
        if wanted is None or name in OPENVINO or name.startswith(("count_nonzero", "power 0 ")):
            continue
        feed = arrays(case, wanted)
        if all(x.size for x in feed) and np.size(by_numpy(case, feed)):  # its executor refuses arrays without elements
            names.append(name)
            feeds.append(feed)

    def every(xp: Any, *given: Any) -> tuple[Any, ...]:
        left = iter(given)
        return tuple(CASES[name].call(xp, *[next(left) for _ in feed]) for name, feed in zip(names, feeds, strict=True))

    together = [x for feed in feeds for x in feed]
    network, _ = network_of(every, of(together))
    got = d5.framework("openvino").executor(network).inference({f"x{i}": x for i, x in enumerate(together)})
    wrong = []
    for number, (name, feed) in enumerate(zip(names, feeds, strict=True)):
        try:
            # Quotients by reciprocals; numbers below the smallest normal number become zero.
            tiny = float(np.finfo(np.float32).tiny) * 4
            same(np.asarray(got[f"y{number}"]), by_numpy(CASES[name], feed), CASES[name].ulps + 2, tiny)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)
    assert len(names) > 150


# Wrong mappings are caught


def plain(op_type: str, dtype: Any = None, **attributes: int) -> Callable[..., Any]:
    """A function as a careless table would map it: one node."""

    def function(trace: Any, *given: Any) -> Any:
        dtypes = [x.dtype for x in given if isinstance(x, TracedArray)]
        inputs = [x if isinstance(x, TracedArray) else trace.constant(np.asarray(x, dtypes[0])) for x in given]
        shape = broadcast_shapes(*(x.shape for x in inputs))
        return trace.emit(op_type, inputs, dtype or dtypes[0], shape, **attributes)

    return function


CARELESS: dict[str, tuple[str, str, str, Callable[..., Any]]] = {
    "C's sign of a remainder": ("remainder", "remainder", "float32", plain("Mod", fmod=1)),
    "truncation for floor": ("floor_divide", "// and % -3", "int32", plain("Div")),
    "a quotient's floor": (
        "floor_divide",
        "floor_divide",
        "float64",
        lambda trace, x, y: trace.namespace.floor(x / y),
    ),
    "exp - 1": ("expm1", "expm1", "float32", lambda trace, x: trace.namespace.exp(x) - 1),
    "log of 1 + x": ("log1p", "log1p", "float64", lambda trace, x: trace.namespace.log(1 + x)),
    "one half of the plane": ("atan2", "atan2", "float32", lambda trace, y, x: trace.namespace.atan(y / x)),
    "arguments swapped": ("subtract", "subtract", "float32", lambda trace, x, y: plain("Sub")(trace, y, x)),
    "half away from zero": (
        "round",
        "round",
        "float32",
        lambda trace, x: trace.namespace.sign(x) * trace.namespace.floor(trace.namespace.abs(x) + 0.5),
    ),
    "squares that overflow": (
        "hypot",
        "hypot of large numbers",
        "float32",
        lambda trace, x, y: trace.namespace.sqrt(x * x + y * y),
    ),
}


@pytest.mark.parametrize("wrong", CARELESS)
def test_a_wrong_mapping_is_caught(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    name, case, dtype, function = CARELESS[wrong]
    check(case, dtype)
    monkeypatch.setitem(namespace._FUNCTIONS, name, function)
    with pytest.raises(AssertionError):
        check(case, dtype)


@pytest.mark.parametrize("name", ["maximum", "greater"])
def test_why_nan_is_not_left_to_an_engine(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One node, on OpenVINO: a NaN that is lost, and one that every number is greater than."""
    if name == "greater" and not AVX512:
        pytest.skip("OpenVINO takes NaN for greater where the processor has AVX-512, and this one has none")
    careless = {"maximum": plain("Max"), "greater": plain("Greater", np.bool_)}[name]
    for function, nan_is_kept in ((namespace._FUNCTIONS[name], True), (careless, False)):
        monkeypatch.setitem(namespace._FUNCTIONS, name, function)
        feed = arrays(CASES[name], "float32")
        network, _ = network_of(CASES[name].call, of(feed))
        executor = d5.framework("openvino").executor(network)
        got = executor.inference({f"x{i}": x for i, x in enumerate(feed)})["y0"]
        assert np.array_equal(got, by_numpy(CASES[name], feed), equal_nan=name == "maximum") == nan_is_kept


# Symbolic dimensions


SYMBOLIC: dict[str, Callable[..., Any]] = {
    "softmax": lambda xp, x: xp.exp(x - xp.max(x, axis=0)) / xp.sum(xp.exp(x - xp.max(x, axis=0)), axis=0),
    "reshape": lambda xp, x: xp.reshape(x, (x.shape[0] * 2, x.shape[1] // 2)),
    "reshape to -1": lambda xp, x: xp.reshape(xp.reshape(x, (-1,)), (x.shape[0], -1)),
    "reshape to -1 in the middle": lambda xp, x: xp.reshape(x, (2, -1, 3)),
    "mean by hand": lambda xp, x: xp.sum(x) / (x.shape[0] * x.shape[1]) + x.shape[0],
    "var": lambda xp, x: xp.var(x, axis=0, correction=1) + xp.std(x),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x[:1], x.shape) + xp.zeros(x.shape, dtype=x.dtype),
    "slices": lambda xp, x: xp.concat([x[1:], x[:-1], x[-2:], x[::-1], x[:2], x[: x.shape[0] // 2]], axis=0),
    "difference": lambda xp, x: x[1:] - x[:-1],
    "first and last": lambda xp, x: x[0] + x[-1],
    "arange": lambda xp, x: x * xp.arange(x.shape[0], dtype=x.dtype)[:, None] + xp.eye(x.shape[0], 6, dtype=x.dtype),
    "roll": lambda xp, x: xp.roll(x, 7, axis=0) + xp.roll(x, -1),
    "repeat and tile": lambda xp, x: xp.repeat(x, 2, axis=0) + xp.tile(x, (2, 1)),
    "matmul": lambda xp, x: x @ x.mT,
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=((0,), (0,))),
    "tril": lambda xp, x: xp.tril(x),
    "argmax": lambda xp, x: xp.argmax(x, axis=0),
    "full_like": lambda xp, x: xp.full_like(x, 2.5) * xp.ones_like(x, dtype=xp.float32),
    "concat": lambda xp, x: xp.concat([x, x * 2], axis=0) + xp.concat([x * 2, x], axis=0),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_one_graph_serves_every_batch(name: str) -> None:
    call = SYMBOLIC[name]
    network, (result, *_) = network_of(call, [TensorSpec(shape=("N", 6))])
    for batch in (3, 8, 1):
        x = np.random.default_rng(batch).standard_normal((batch, 6)).astype(np.float32)
        if name == "var" and batch == 1:
            continue  # NaN, and a NumPy warning
        want = np.asarray(call(np, x))
        # Sums of up to 48 numbers of size one, in another order.
        np.testing.assert_allclose(on_onnxruntime(network, [x])[0], want, rtol=1e-5, atol=1e-5)
        assert tuple(evaluated(extent, {"N": batch}) for extent in result.shape) == want.shape


def test_two_batches_that_may_differ_are_stretched_when_the_network_runs() -> None:
    call = lambda xp, x, y: xp.reshape(x * y, (-1,)) + xp.zeros(((x + y).shape[0],), dtype=x.dtype)  # noqa: E731
    network, (result,) = network_of(call, [TensorSpec(shape=("N",)), TensorSpec(shape=("M",))])
    for first, second in ((4, 4), (4, 1), (1, 4), (1, 1)):
        x, y = np.arange(first, dtype=np.float32), np.arange(second, dtype=np.float32) + 1
        np.testing.assert_array_equal(on_onnxruntime(network, [x, y])[0], x * y)
        assert evaluated(result.shape[0], {"N": first, "M": second}) == max(first, second)


def test_extents() -> None:
    n, m = leaf("N"), leaf("M")
    assert (str(n * 2 + 1), str((n - 3) // 2), n - n, str(m * n * 2)) == ("2*N+1", "(N-3)//2", 0, "2*M*N")
    assert (n * 6) // 3 == leaf("2*N")
    assert quotient((n, 12), (n, 4)) == 3
    assert (product((n, 0)), product(())) == (0, 1)
    assert [evaluated(n * 5 % 3 - (7 - m) + 1, {"N": 4, "M": 2})] == [20 % 3 - 5 + 1]
    assert broadcast_shapes((n, 1), (5, 1, 3)) == (5, n, 3)
    assert [sliced(10, 1, -2, 3), str(sliced(n, 1, None, 1)), str(sliced(n, None, -1, 1))] == [3, *["max(N-1, 0)"] * 2]
    parsed, names = named("2*N+M")
    assert (names, evaluated(parsed, {"N": 3, "M": 4})) == ({"N", "M"}, 10)
    assert named("batch size")[1] == {"batch size"}
    for decision in (lambda: n == 3, lambda: n != m, lambda: n < 3, lambda: bool(n), lambda: range(n), lambda: 1 / n):
        with pytest.raises(Unsupported, match="symbolic dimension N"):
            decision()
    with pytest.raises(ShapeError, match=r"the shapes \[2\], \[3\] do not fit together"):
        broadcast_shapes((2,), (3,))


# Element types


def test_element_types_and_constants() -> None:
    asked: list[Any] = []

    def call(xp: Any, x: TracedArray) -> Any:
        asked.extend(
            [xp.finfo(x).eps, xp.finfo(xp.float64).bits, xp.iinfo(xp.int8).max, xp.isdtype(x.dtype, "integral")]
        )
        asked.extend([xp.isdtype(x.dtype, ("real floating", "bool")), xp.result_type(x, xp.float64), xp.pi, xp.newaxis])
        asked.extend(
            [x.dtype == np.float32, xp.can_cast(x, xp.float64), x.device, x.ndim, x.size, len(x), "exp" in dir(xp)]
        )
        return x

    network_of(call, [TensorSpec(shape=(2, 3))])
    wanted = [np.finfo(np.float32).eps, 64, 127, False, True, np.dtype(np.float64), math.pi, None]
    assert asked == [*wanted, True, True, "cpu", 2, 6, 2, True]


REFUSALS: dict[str, tuple[Callable[..., Any], str]] = {
    "a branch": (
        lambda xp, x: x if xp.sum(x) > 0 else -x,
        r"depends on the values of an array \(bool\[\]\).*xp.where, or",
    ),
    "float": (lambda xp, x: x * float(x[0, 0]), "depends on the values of an array"),
    "numpy": (lambda xp, x: np.asarray(x), "depends on the values of an array"),
    "a mask": (lambda xp, x: x[x > 0], r"it indexes with .*remedy: xp.take, xp.where"),
    "writing": (lambda xp, x: x.__setitem__(0, 1.0), "it writes into an array.*remedy: xp.where"),
    "mixed kinds": (
        lambda xp, x: x + xp.astype(x, xp.int64),
        "int64.*array API standard has a result; remedy: xp.astype",
    ),
    "whole exp": (
        lambda xp, x: xp.exp(xp.astype(x, xp.int32)),
        r"exp of int32\[2, 3\]; allowed: floating-point numbers",
    ),
    "a fraction": (lambda xp, x: xp.astype(x, xp.int32) + 0.5, r"add of int32 and the number 0.5"),
    "too large": (lambda xp, x: xp.astype(x, xp.int8) + 300, "int8 has no 300"),
    "numbers alone": (lambda xp, x: xp.maximum(1, 2), "maximum of only numbers; allowed: at least one array"),
    "no array": (lambda xp, x: xp.sum([x]), r"allowed: an array; remedy: xp.asarray"),
    "shapes": (lambda xp, x: x + x[:, :2], r"the shapes \[2, 3\], \[2, 2\] do not fit together"),
    "an axis": (
        lambda xp, x: xp.sum(x, axis=2),
        r"sum: got axis=2 for float32\[2, 3\]; allowed: integers from -2 to 1",
    ),
    "a size": (
        lambda xp, x: xp.reshape(x, (4,)),
        r"reshape: got \[4\] for float32\[2, 3\]; allowed: shapes of 6 elements",
    ),
    "an index": (lambda xp, x: x[2], r"got the index 2 for float32\[2, 3\]; allowed: -2 to 1 on axis 0"),
    "a product": (lambda xp, x: x @ x, "matmul of .* equal sizes"),
    "a place of nothing": (lambda xp, x: xp.max(x[:0], axis=0), "max of no elements"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_traced_is_refused(name: str) -> None:
    call, message = REFUSALS[name]
    with pytest.raises(Deep5Error, match=message):
        network_of(call, [TensorSpec(shape=(2, 3))])


def test_a_function_that_is_missing_is_named() -> None:
    with pytest.raises(AttributeError, match=r"array namespace for ONNX has no 'unique_values'; allowed: abs, acos"):
        network_of(lambda xp, x: xp.unique_values(x), [TensorSpec(shape=(2,))])


def test_numbers_and_arrays_of_numpy_may_stand_on_either_side() -> None:
    table = np.array([[1.0], [2.0]], np.float32)
    call = lambda xp, x: table * x + x / table - np.float32(3) + np.sqrt(2.0) * x  # noqa: E731
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    network, _ = network_of(call, of([x]))
    assert list(network.parameter_specs) == []  # an array that an operator holds is not trained
    got = on_onnxruntime(network, [x])[0]
    np.testing.assert_allclose(got, table * x + x / table - 3 + np.float32(math.sqrt(2)) * x, rtol=1e-6)  # float32


def test_array_api_compat_finds_the_namespace() -> None:
    import array_api_compat

    def call(xp: Any, x: TracedArray) -> Any:
        assert array_api_compat.array_namespace(x) is xp
        assert d5.array_namespace(x, 2.0) is xp
        return xp.exp(x)

    network_of(call, [TensorSpec(shape=(2,))])
    with pytest.raises(Unsupported, match="no array namespace for TracedArray, ndarray"):
        network_of(lambda xp, x: d5.array_namespace(x, np.zeros(1)), [TensorSpec(shape=(2,))])
