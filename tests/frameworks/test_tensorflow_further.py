"""TensorFlow: operators that run one by one, those that XLA refuses, and gradients that no table of cases covers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from backends import BACKENDS
from control_flow_cases import GRAPHS, HEAD, X
from deep5.core.errors import NetworkError, Unsupported
from deep5.networks import Network, NetworkBuilder
from executor_cases import executor as shared_executor
from executor_cases import normal

TF: Any = d5.framework("tensorflow")
XLA: Any = d5.framework("tensorflow:xla")
executor = functools.partial(shared_executor, BACKENDS["tensorflow"])

COMPUTED = {
    "axes": "g (float[2,3] x, int64[1] a) => (float[2,1] y) { y = ReduceSum(x, a) }",
    "a rank that is not known": """g (float[2,3] x, int64[k] a) => (float[r] y) {
        s = ReduceSum<keepdims = 0>(x, a) e = Exp(s) m = Constant<value = int64[1] {-1}>() y = Reshape(e, m) }""",
    "a list": """g (float[2,3] x) => (float[4,3] y) {
        s = SequenceConstruct(x) n = Neg(x) t = SequenceInsert(s, n) y = ConcatFromSequence<axis = 0>(t) }""",
}


def network(text: str) -> Network:
    return Network.from_onnx(onnx.parser.parse_model(HEAD + text))


def fed(net: Network) -> dict[str, np.ndarray]:
    return {name: X if name == "x" else np.array([1]) for name in net.inputs}


@pytest.mark.parametrize("name", COMPUTED)
def test_what_must_be_known_on_the_host_runs_operator_by_operator(name: str) -> None:
    net = network(COMPUTED[name])
    run = executor(net)
    want = {"axes": X.sum(1, keepdims=True), "a list": np.concatenate([X, -X])}.get(name, np.exp(X.sum(1)))
    for _ in range(2):
        # A sum of three float32 numbers, and one exponential.
        np.testing.assert_allclose(run.inference(fed(net))["y"].numpy(), want, rtol=1e-6)
    assert run._functions["forward", False].traces == 0
    with pytest.raises(Unsupported, match="operator by operator; there is no graph"):
        _ = run.graph


@pytest.mark.parametrize("name", COMPUTED)
def test_xla_refuses_what_must_be_known_on_the_host(name: str) -> None:
    with pytest.raises(Unsupported, match=r"XLA compiles a network before it runs; remedy: 'tensorflow'"):
        XLA.executor(network(COMPUTED[name]))


def test_xla_refuses_settings_and_shapes_that_are_computed() -> None:
    for text in (
        "g (float[2,3] x, int64[1] a, int64[1] b) => (float[p,q] y) { y = Slice(x, a, b) }",
        "g (float[2,3] x, int64[4] a) => (float[p,q] y) { y = Pad(x, a) }",
        "g (float[2,3] x) => (int64[2,n] y) { y = NonZero(x) }",
        "g (float[2,3] x, int64[2,3] i) => (float[2,3] y) { y = GatherElements(x, i) }",
    ):
        with pytest.raises(Unsupported, match="XLA compiles a network before it runs"):
            XLA.executor(network(text))
        assert TF.executor(network(text))


@pytest.mark.parametrize("name", GRAPHS)
def test_control_flow_and_its_gradient(name: str) -> None:
    """Matches the reference: forward, and by central differences."""
    model = onnx.parser.parse_model(HEAD + GRAPHS[name])
    ours, theirs = executor(Network.from_onnx(model)), d5.framework("reference").executor(Network.from_onnx(model))
    want = theirs.inference({"x": X})
    for key, value in ours.inference({"x": X}).items():
        # A few float32 operations in one order.
        np.testing.assert_allclose(value.numpy(), want[key], rtol=1e-5, atol=1e-6)


WIDE = '<ir_version: 10, opset_import: ["": 21]> '
LOOPED = """g (double[2,3] x, int64 n) => (double loss) {
    y, all = Loop(n, , x) < body = b (int64 i, bool go, double[2,3] s) => (bool on, double[2,3] t, double[2,3] kept) {
        on = Identity(go) m = Mul(s, x) t = Sin(m) kept = Tanh(t) }>
    p = ReduceSum<keepdims = 0>(y) q = ReduceSum<keepdims = 0>(all) loss = Add(p, q) }"""
BRANCHED = """g (double[2,3] x, bool c) => (double loss) {
    y = If(c) < then_branch = t () => (double[2,3] a) { a = Sin(x) },
        else_branch = e () => (double[2,3] b) { b = Exp(x) }>
    loss = ReduceSum<keepdims = 0>(y) }"""
FURTHER = {
    "loop": (LOOPED, {"n": np.array(3)}),
    "then": (BRANCHED, {"c": np.array(True)}),
    "else": (BRANCHED, {"c": np.array(False)}),
    "list": (
        """g (double[2,3] x, int64[2] n) => (double loss) {
            s = SplitToSequence<axis = 1>(x, n) p = Constant<value = int64 {1}>() e = SequenceAt(s, p) m = Sin(e)
            loss = ReduceSum<keepdims = 0>(m) }""",
        {"n": np.array([1, 2])},
    ),
    "top": (
        """g (double[2,3] x, int64[1] k) => (double loss) {
            y, i = TopK<largest = 0>(x, k) m = Sin(y) loss = ReduceSum<keepdims = 0>(m) }""",
        {"k": np.array([2])},
    ),
    "product": (
        """g (double[2,3] x, int64 a) => (double loss) {
            y = CumProd<exclusive = 1>(x, a) m = Sin(y) loss = ReduceSum<keepdims = 0>(m) }""",
        {"a": np.array(1)},
    ),
    "written": (
        """g (double[2,3] x, double[2,2] u, int64[2] i) => (double loss) {
            y = TensorScatter<axis = -1, mode = "circular">(x, u, i) m = Sin(y) loss = ReduceSum<keepdims = 0>(m) }""",
        {"u": np.array([[0.3, 0.7], [1.1, -0.2]]), "i": np.array([2, 0])},
    ),
}


@pytest.mark.parametrize("name", FURTHER)
def test_gradient(name: str) -> None:
    text, further = FURTHER[name]
    head = WIDE.replace("21", "26") if name in ("product", "written") else WIDE
    run = executor(Network.from_onnx(onnx.parser.parse_model(head + text)))
    x, step = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]]), 1e-6
    wanted = ["x"] + [key for key, value in further.items() if value.dtype == np.float64]
    run.inference_and_backprop({"x": x, **further}, wrt=wanted)
    for key in wanted:
        got, value = run.gradients()[key].numpy(), {"x": x, **further}[key]
        for place in np.ndindex(value.shape):
            around = []
            for sign in (1, -1):
                moved = value.copy()
                moved[place] += sign * step
                around.append(float(run.inference({"x": x, **further, key: moved})["loss"]))
            # Accurate to the square of the step, and to rounding over the step.
            assert got[place] == pytest.approx((around[0] - around[1]) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_gradient_of_a_cumulative_product_with_zeros(exclusive: int, reverse: int) -> None:
    """TensorFlow's own gradient divides by the zeros."""
    text = f"""g (double[2,4] x) => (double loss) {{ a = Constant<value = int64 {{1}}>()
        y = CumProd<exclusive = {exclusive}, reverse = {reverse}>(x, a) m = Exp(y)
        loss = ReduceSum<keepdims = 0>(m) }}"""
    run = executor(Network.from_onnx(onnx.parser.parse_model(WIDE.replace("21", "26") + text)))
    x, step = np.array([[0.5, 0.0, 1.5, 2.0], [0.0, 0.7, 0.0, 1.0]]), 1e-6
    run.inference_and_backprop({"x": x}, wrt=["x"])
    got = run.gradients()["x"].numpy()
    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        ends = [float(run.inference({"x": each})["loss"]) for each in (up, down)]
        # As above.
        assert got[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)


def test_gradients_where_an_element_is_zero_are_finite() -> None:
    """For the determinant of a singular matrix, the cofactors; for the norm of zeros, zero."""
    build = NetworkBuilder("zeros", dtype="float64")
    x = build.input("x", (2, 2), "float64")
    norm = build.op("LpNormalization", x, axis=1)
    loss = build.op("Sum", build.op("Det", x), build.op("ReduceSum", norm, keepdims=0))
    run = executor(build.network({"loss": loss}))
    run.inference_and_backprop({"x": np.zeros((2, 2))}, wrt=["x"])
    assert np.isfinite(run.gradients()["x"].numpy()).all()
    build = NetworkBuilder("singular", dtype="float64")
    x = build.input("x", (2, 2), "float64")
    run = executor(build.network({"loss": build.op("Det", x)}))
    run.inference_and_backprop({"x": np.array([[1.0, 2.0], [2.0, 4.0]])}, wrt=["x"])
    # For numbers of size 4, in float64.
    np.testing.assert_allclose(run.gradients()["x"].numpy(), [[4, -2], [-2, 1]], atol=1e-14)


RANDOM = {
    "RandomNormal": ("RandomNormal<shape = [4000], mean = 1.0, scale = 2.0, seed = {seed}>()", 1.0, 2.0),
    "RandomUniform": ("RandomUniform<shape = [4000], low = -1.0, high = 3.0, seed = {seed}>()", 1.0, 4 / 12**0.5),
    "RandomNormalLike": ("RandomNormalLike<seed = {seed}>(x)", 0.0, 1.0),
    "RandomUniformLike": ("RandomUniformLike<seed = {seed}>(x)", 0.5, 1 / 12**0.5),
    "Bernoulli": ("Bernoulli<seed = {seed}>(x)", 0.25, 0.75**0.5 / 2),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers(name: str) -> None:
    text, mean, spread = RANDOM[name]
    draws: dict[str, Any] = {}
    for seed in ("1.0", "2.0"):
        call = text.format(seed=seed)
        given = network(
            f"g (float[4000] x) => (float[4000] y) {{ z = {call} w = Mul(x, x) v = Sub(w, w) y = Add(z, v) }}"
        )
        run = executor(given)
        x = np.full(4000, 0.25, np.float32)
        draws[seed] = run.inference({"x": x})["y"].numpy()
        assert np.array_equal(draws[seed], run.inference({"x": x})["y"].numpy())
        # Five standard errors of the mean of 4000 random values, and as much for the deviation.
        assert abs(draws[seed].mean() - mean) < 5 * spread / 4000**0.5
        assert abs(draws[seed].std() - spread) < 5 * spread / 4000**0.5
    assert not np.array_equal(draws["1.0"], draws["2.0"])


def test_draws_from_a_distribution() -> None:
    run = executor(
        network("g (float[1,3] x) => (int32[1,4000] y) { y = Multinomial<sample_size = 4000, seed = 3.0>(x) }")
    )
    shares = np.array([0.2, 0.5, 0.3])
    got = run.inference({"x": np.log(shares)[None].astype(np.float32)})["y"].numpy()
    # Five standard errors of a proportion.
    np.testing.assert_allclose(np.bincount(got[0], minlength=3) / 4000, shares, atol=5 * 0.5 / 4000**0.5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_whole_numbers_of_every_width(dtype: str) -> None:
    build = NetworkBuilder("whole")
    x, y = (build.input(name, (3,), dtype) for name in "xy")
    ops = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "Pow", "BitwiseXor")
    outputs = {op: build.op(op, x, y) for op in ops if op != "Pow" or dtype in ("int32", "int64")}
    outputs["Mod"] = build.op("Mod", x, y, fmod=1)
    run = executor(build.network(outputs))
    top = np.iinfo(dtype).max
    a, b = np.array([top, 7, 100], dtype), np.array([3, 2, 2], dtype)
    got = {name: value.numpy() for name, value in run.inference({"x": a, "y": b}).items()}
    with np.errstate(over="ignore"):
        want = {"Add": a + b, "Sub": a - b, "Mul": a * b, "Div": a // b, "Mod": a % b, "BitwiseXor": a ^ b}
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_indices_outside_are_refused() -> None:
    cases = {
        "GatherElements(x, i)": "int64[1,3]",
        "GatherND(x, i)": "int64[1,2]",
        'ScatterElements<reduction = "mul">(x, i, u)': "int64[1,3]",
    }
    for call, kind in cases.items():
        extent = kind[-2]
        shape = "float[1]" if "ND" in call else "float[1,3]" if "Gather" in call else "float[2,3]"
        run = executor(network(f"g (float[2,3] x, {kind} i, float[1,3] u) => ({shape} y) {{ y = {call} }}"))
        with pytest.raises(NetworkError, match="indices within their range"):
            run.inference({"x": X, "i": np.full((1, int(extent)), 9), "u": normal(1, 3)})
