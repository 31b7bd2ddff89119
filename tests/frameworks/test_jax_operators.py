"""Operators of the JAX table that need more than a sheet: computed settings, control flow, random values."""

from __future__ import annotations

import os

os.environ.setdefault("PJRT_NPROC", "1")  # JAX fixes its threads at start, once per process

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, ShapeError
from deep5.core.seeds import generator
from deep5.networks import Network

jax = pytest.importorskip("jax")

HEAD = '<ir_version: 10, opset_import: ["": {}, "ai.onnx.preview.training": 1]> '
TYPES = {"float32": "float", "float64": "double"}


def executor_of(body: str, opset: int = 24) -> Any:
    """An executor of a network in ONNX's textual form."""
    return d5.framework("jax").executor(Network.from_onnx(onnx.parser.parse_model(HEAD.format(opset) + body)))


def run(executor: Any, **feed: Any) -> Any:
    (value,) = executor.inference(feed).values()
    return d5.to_numpy(value)


def check_gradients(executor: Any, **feed: np.ndarray) -> dict[str, np.ndarray]:
    """Gradients of the output `loss` by all float64 inputs, compared with central differences along one direction."""
    names = [name for name, value in feed.items() if value.dtype == np.float64]
    executor.inference_and_backprop(feed, wrt=names)
    found = {name: np.array(value) for name, value in executor.gradients().items()}
    step, sides = 1e-6, []
    moves = {name: generator(0, name).standard_normal(feed[name].shape) for name in names}
    for sign in (1, -1):
        moved = {name: feed[name] + sign * step * moves[name] for name in names}
        sides.append(float(executor.inference({**feed, **moved})["loss"]))
    slope = sum(float(np.sum(found[name] * moves[name])) for name in names)
    # Truncation of the order of h² = 1e-12; roundings of the loss, 1e-15 times some ten, over h.
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-6, abs=1e-7)
    return found


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return generator(seed, "test_jax_operators").uniform(-1, 1, shape)


# ------------------------------------------------------------------------------------------------ settings


SETTINGS = {
    "Reshape": ("y = Reshape(x, s)", [3, 4], (3, 4)),
    "Expand": ("y = Expand(x, s)", [2, 2, 6], (2, 2, 6)),
    "Tile": ("y = Tile(x, s)", [2, 1], (4, 6)),
    "ReduceSum": ("y = ReduceSum(x, s)", [1], (2, 1)),
    "Pad": ("y = Pad(x, s)", [1, 0, 0, 2], (3, 8)),
    "Slice": ("e = Constant<value_ints = [5]>() a = Constant<value_ints = [1]>() y = Slice(x, s, e, a)", [2], (2, 3)),
}


@pytest.mark.parametrize("op", SETTINGS)
def test_settings_that_are_fed_are_read_on_the_host(op: str) -> None:
    body, given, shape = SETTINGS[op]
    axes = ", ".join("ABC"[: len(shape)])
    executor = executor_of(
        f"g (double[2, 6] x, int64[{len(given)}] s) => (double[{axes}] y, double loss) "
        f"{{ {body} q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }}"
    )
    assert executor.capabilities == {"float64"}
    feed = {"x": draw(2, 6), "s": np.array(given)}
    assert executor.inference(feed)["y"].shape == shape
    check_gradients(executor, **feed)


def test_networks_whose_settings_are_fed_train() -> None:
    executor = executor_of(
        "g (float[2, 6] x, int64[2] s) => (float loss) <float[6] w = {1, 1, 1, 1, 1, 1}> "
        "{ p = Mul(x, w) q = Reshape(p, s) loss = ReduceSum<keepdims = 0>(q) }"
    )
    step = executor.train_step(d5.Momentum(lr=0.5))
    feed = {"x": np.ones((2, 6), np.float32), "s": np.array([3, 4])}
    outputs = step(feed, d5.StepInfo(batch_size=2))
    assert float(outputs["loss"]) == 12
    np.testing.assert_array_equal(executor.state_dict()["w"], np.zeros(6))  # 1 - 0.5 * 2, two rows


def test_arithmetic_of_extents_stays_in_the_compiled_function() -> None:
    executor = executor_of(
        "g (float[N, 4] x) => (float[M, 2] y) { s = Shape(x) i = Constant<value_ints = [0]>() n = Gather(s, i) "
        "two = Constant<value_ints = [2]>() m = Mul(n, two) z = NonZero(two) k = Concat<axis = 0>(m, two) "
        "f = ConstantOfShape(k) r = Reshape(x, k) y = Add(r, f) }"
    )
    assert "whole_step" in executor.capabilities
    for rows in (1, 3):
        x = np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 4)
        np.testing.assert_array_equal(run(executor, x=x), x.reshape(2 * rows, 2))


def test_constant_settings_are_literals() -> None:
    executor = executor_of(
        "g (float[2, 6] x) => (float[3, 4] y) { s = Constant<value_ints = [3, 4]>() y = Reshape(x, s) }"
    )
    assert "(3, 4)" in executor.source
    assert "host" not in executor.source


def test_what_does_not_fit_is_told() -> None:
    executor = executor_of("g (float[2, 6] x, int64[2] s) => (float[A, B] y) { y = Reshape(x, s) }")
    told = r"jax cannot run the network on these inputs \(the node 'Reshape' \(Reshape\)"
    with pytest.raises(NetworkError, match=told):
        executor.inference({"x": np.ones((2, 6), np.float32), "s": np.array([5, 5])})


@pytest.mark.parametrize(
    "body",
    ["y = Gather(x, i)", "y = GatherElements(x, i)", "y = ScatterElements(x, i, x)"],
)
def test_places_outside_are_refused_or_nan(body: str) -> None:
    places = np.array([0, 9, 1])
    whole = executor_of(f"g (int64[3] x, int64[3] i) => (int64[3] y) {{ {body} }}")
    with pytest.raises(ShapeError, match="the index 9 is outside its axis; allowed: -3 to 2"):
        whole.inference({"x": np.arange(3), "i": places})
    floating = executor_of(f"g (float[3] x, int64[3] i) => (float[3] y) {{ {body} }}")
    assert np.isnan(run(floating, x=np.ones(3, np.float32), i=places)).any()


def test_shapes_that_depend_on_values() -> None:
    x = np.array([[3.0, 0.0, 1.0], [1.0, 3.0, 3.0]])
    executor = executor_of("g (double[2, 3] x) => (int64[2, N] y) { y = NonZero(x) }")
    np.testing.assert_array_equal(run(executor, x=x), np.stack(np.nonzero(x)))
    executor = executor_of(
        "g (double[2, 3] x) => (double[A] u, int64[B] i, int64[C] v, int64[D] c, double loss) "
        "{ u, i, v, c = Unique<sorted = 0>(x) q = Mul(u, u) loss = ReduceSum<keepdims = 0>(q) }"
    )
    found = {name: np.asarray(value).tolist() for name, value in executor.inference({"x": x}).items()}
    assert found == {"u": [3, 0, 1], "i": [0, 1, 2], "v": [0, 1, 2, 2, 0, 0], "c": [3, 1, 2], "loss": 10}
    executor.inference_and_backprop({"x": x}, wrt=["x"])
    np.testing.assert_array_equal(executor.gradients()["x"], [[6, 0, 2], [0, 0, 0]])


# ---------------------------------------------------------------------------------------------- control flow


CHOICE = (
    "g (double[3] x, bool c{}) => (double loss) {{ {} y = If (c) <then_branch = t () => (double[{}] a) "
    "{{ a = Mul(q, q) }}, else_branch = e () => (double[L] b) {{ b = Neg(x) }}> loss = ReduceSum<keepdims = 0>(y) }}"
)


@pytest.mark.parametrize("traced", [True, False])
def test_if_differentiates_the_branch_that_is_taken(traced: bool) -> None:
    """JAX's own conditional where both branches give the same shape, otherwise Python's."""
    body = CHOICE.format("", "q = Identity(x)", "L").replace("[L]", "[3]")
    executor = executor_of(body if traced else CHOICE.format(", bool[3] m", "q = Compress(x, m)", "K"))
    assert ("whole_step" in executor.capabilities) == traced
    x, kept = draw(3), np.array([True, traced, True])
    more = {} if traced else {"m": kept}
    found = check_gradients(executor, x=x, c=np.array(True), **more)
    np.testing.assert_allclose(found["x"], 2 * x * kept, rtol=1e-15)
    np.testing.assert_array_equal(check_gradients(executor, x=x, c=np.array(False), **more)["x"], -np.ones(3))


LOOP = (
    "g (double[3] x{0}) => (double[3] last, double[T, 3] rows, double loss) {{ {1} t = Constant<value = bool {{1}}>() "
    "last, rows = Loop (n, t, x) <body = b (int64 i, bool go, double[3] h) "
    "=> (bool again, double[3] new, double[3] row) {{ again = Identity(go) new = Mul(h, x) row = Sin(h) }}> "
    "both = Mul(last, last) a = ReduceSum<keepdims = 0>(both) c = ReduceSum<keepdims = 0>(rows) loss = Add(a, c) }}"
)


@pytest.mark.parametrize("traced", [True, False])
def test_loops_are_scans_where_their_length_is_known(traced: bool) -> None:
    executor = executor_of(LOOP.format("", "n = Constant<value_int = 3>()") if traced else LOOP.format(", int64 n", ""))
    assert ("whole_step" in executor.capabilities) == traced
    x = draw(3)
    feed = {"x": x} if traced else {"x": x, "n": np.array(3)}
    outputs = executor.inference(feed)
    np.testing.assert_allclose(outputs["last"], x**4, rtol=1e-14)  # three roundings
    np.testing.assert_allclose(outputs["rows"], np.sin([x, x**2, x**3]), rtol=1e-14)
    check_gradients(executor, **feed)
    if not traced:
        assert executor.inference({"x": x, "n": np.array(0)})["rows"].shape == (0, 3)


def test_loops_end_when_their_condition_says_so() -> None:
    executor = executor_of(
        "g (double x) => (double last, double loss) { n = Constant<value_int = 100>() t = Constant<value = bool {1}>() "
        "last = Loop (n, t, x) <body = b (int64 i, bool go, double h) => (bool again, double new) "
        "{ new = Add(h, h) most = Constant<value = double {10}>() again = Less(new, most) }> loss = Mul(last, last) }"
    )
    assert float(executor.inference({"x": np.array(1.0)})["last"]) == 16
    assert float(check_gradients(executor, x=np.array(1.0))["x"]) == 2 * 16 * 16


def test_scan_goes_both_ways() -> None:
    executor = executor_of(
        "g (double[2] h, double[3, 2] x) => (double[2] last, double[3, 2] rows, double loss) { last, rows = Scan (h, x)"
        " <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1], "
        "body = b (double[2] s, double[2] r) => (double[2] new, double[2] out) { "
        "m = Mul(s, r) new = Add(m, r) out = Mul(new, new) }> "
        "loss = ReduceSum<keepdims = 0>(rows) }"
    )
    h, x = draw(2), draw(3, 2, seed=1)
    state, rows = h, []
    for row in x[::-1]:
        state = state * row + row
        rows.insert(0, state**2)
    outputs = executor.inference({"h": h, "x": x})
    np.testing.assert_allclose(outputs["last"], state, rtol=1e-14)
    np.testing.assert_allclose(outputs["rows"], rows, rtol=1e-14)
    check_gradients(executor, h=h, x=x)


# ------------------------------------------------------------------------------------- gradients of single operators


SINGLE: dict[str, tuple[str, str, dict[str, np.ndarray]]] = {
    "CumProd": (
        "26",
        "a = Constant<value_int = 0>() y = CumProd<exclusive = 1>(x, a)",
        {"x": np.array([0.5, 0.0, 2.0])},
    ),
    "Compress": (
        "22",
        "c = Constant<value = bool[4] {1, 0, 1, 1}>() y = Compress(x, c)",
        {"x": draw(2, 3)},
    ),
    "ConvTranspose": (
        "22",
        "y = ConvTranspose<group = 2, strides = [2], output_padding = [1]>(x, w)",
        {"x": draw(2, 4, 5), "w": draw(4, 2, 3)},
    ),
    "LpNormalization": ("22", "y = LpNormalization<p = 1, axis = 0>(x)", {"x": draw(2, 3)}),
    **{
        f"ScatterElements with {zeros} zeros": (
            "18",
            'i = Constant<value = int64[1, 3] {1, 1, 1}>() y = ScatterElements<axis = 1, reduction = "mul">(x, i, u)',
            {"x": draw(2, 3), "u": np.array([[0.5, -2.0, 3.0]]) * (np.arange(3) >= zeros)},
        )
        for zeros in (0, 1, 2)
    },
    "LpPool": ("22", "y = LpPool<kernel_shape = [2], p = 3>(x)", {"x": draw(1, 2, 5)}),
    "MaxPool": (
        "22",
        "m, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) y = MaxUnpool<kernel_shape = [2, 2], strides = "
        "[2, 2]>(m, i)",
        {"x": draw(1, 2, 4, 4)},
    ),
    "DeformConv": (
        "22",
        "y = DeformConv<pads = [1, 0, 0, 1], offset_group = 2>(x, w, o, b, m)",
        {
            "x": draw(1, 4, 4, 5),
            "w": draw(2, 4, 2, 2),
            "o": draw(1, 16, 4, 5),
            "b": draw(2),
            "m": draw(1, 8, 4, 5),
        },
    ),
    **{
        f"GridSample {mode} {padding}": (
            "22",
            f'y = GridSample<mode = "{mode}", padding_mode = "{padding}">(x, grid)',
            {"x": draw(1, 2, 3, 4), "grid": 1.4 * draw(1, 2, 3, 2, seed=3)},
        )
        for mode in ("linear", "cubic")
        for padding in ("zeros", "border", "reflection")
    },
    **{
        f"RoiAlign {mode} {ratio}": (
            "22",
            f'i = Constant<value_ints = [0, 0]>() y = RoiAlign<mode = "{mode}", output_height = 2, output_width = 2, '
            f"sampling_ratio = {ratio}>(x, r, i)",
            {"x": draw(1, 2, 5, 5), "r": np.array([[0.3, 0.2, 3.1, 4.4], [1.1, 0.4, 2.3, 2.9]])},
        )
        for mode, ratio in (("avg", 2), ("max", 2), ("avg", 0))
    },
    "TensorScatter": (
        "24",
        'i = Constant<value_ints = [1, 2]>() y = TensorScatter<mode = "circular", axis = 1>(x, u, i)',
        {"x": draw(2, 3, 2), "u": draw(2, 2, 2, seed=1)},
    ),
    "BitCast": ("26", "i = BitCast<to = 7>(x) f = BitCast<to = 11>(i) y = Add(x, f)", {"x": draw(3)}),
    "Adam": (
        "22",
        "t = Constant<value_int = 3>() r = Constant<value = double {0.1}>() "
        "y, v1, h1 = ai.onnx.preview.training.Adam<epsilon = 1e-2>(r, t, x, w, v, h)",
        {"x": draw(3), "w": draw(3, seed=1), "v": draw(3, seed=2), "h": draw(3, seed=3) ** 2},
    ),
}


@pytest.mark.parametrize("case", SINGLE)
def test_gradients_are_central_differences(case: str) -> None:
    opset, body, feed = SINGLE[case]
    inputs = ", ".join(f"{TYPES[value.dtype.name]}{list(value.shape)} {name}" for name, value in feed.items())
    weighed = "k = Sin(y) q = Mul(y, k) loss = ReduceSum<keepdims = 0>(q)"
    executor = executor_of(f"g ({inputs}) => (double loss) {{ {body} {weighed} }}", int(opset))
    if case == "BitCast":
        executor.inference_and_backprop(feed, wrt=["x"])
        x = feed["x"]  # bits have no gradient: the second summand counts as a constant
        np.testing.assert_allclose(executor.gradients()["x"], np.sin(2 * x) + 2 * x * np.cos(2 * x), rtol=1e-13)
        return
    found = check_gradients(executor, **feed)
    assert all(np.isfinite(value).all() for value in found.values())


def test_scales_of_quantised_numbers_have_gradients() -> None:
    executor = executor_of(
        "g (float[3] s) => (float loss) { n = Constant<value = int8[3] {3, -4, 100}>() "
        "y = DequantizeLinear<axis = 0>(n, s) loss = ReduceSum<keepdims = 0>(y) }"
    )
    executor.inference_and_backprop({"s": np.ones(3, np.float32)}, wrt=["s"])
    np.testing.assert_array_equal(executor.gradients()["s"], [3, -4, 100])


def test_zeros_have_finite_gradients() -> None:
    for body in ("y = LpPool<kernel_shape = [2]>(x)", "y = LpNormalization(x)"):
        executor = executor_of(f"g (double[1, 1, 4] x) => (double loss) {{ {body} loss = ReduceSum<keepdims = 0>(y) }}")
        executor.inference_and_backprop({"x": np.zeros((1, 1, 4))}, wrt=["x"])
        np.testing.assert_array_equal(executor.gradients()["x"], 0)


# --------------------------------------------------------------------------------------------- recurrent layers


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_sequences_that_end_early_are_shorter_sequences(op: str, gates: int) -> None:
    """Each sequence, run separately at its own length, matches unrolled cells."""
    shapes = f"double[2, {gates * 3}, 2] w, double[2, {gates * 3}, 3] r, double[2, {gates * 6}] b"
    layer = f'{op}<hidden_size = 3, direction = "bidirectional">'
    weights = {"w": draw(2, gates * 3, 2), "r": draw(2, gates * 3, 3, seed=1), "b": draw(2, gates * 6, seed=2)}
    whole = executor_of(
        f"g (double[4, 2, 2] x, {shapes}, int32[2] n) => (double[4, 2, 2, 3] y, double loss) "
        f"{{ y = {layer}(x, w, r, b, n) q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }}"
    )
    x, lengths = draw(4, 2, 2, seed=3), np.array([4, 2], np.int32)
    got = np.asarray(whole.inference({"x": x, **weights, "n": lengths})["y"])
    for row, steps in enumerate(lengths):
        part = executor_of(
            f"g (double[{steps}, 1, 2] x, {shapes}) => (double[{steps}, 2, 1, 3] y) {{ y = {layer}(x, w, r, b) }}"
        )
        np.testing.assert_allclose(
            got[:steps, :, row], run(part, x=x[:steps, row : row + 1], **weights)[:, :, 0], rtol=1e-12
        )
        assert not got[steps:, :, row].any()
    check_gradients(whole, x=x, **weights, n=lengths)


def test_peepholes_clipping_and_batch_first_have_gradients() -> None:
    executor = executor_of(
        "g (double[2, 3, 2] x, double[1, 8, 2] w, double[1, 8, 2] r, double[1, 6] p) => (double loss) { y, h, c = LSTM"
        '<hidden_size = 2, layout = 1, clip = 0.9, activations = ["HardSigmoid", "Softsign", "Tanh"]>(x, w, r, , , , '
        ", p) q = Mul(y, y) a = ReduceSum<keepdims = 0>(q) e = ReduceSum<keepdims = 0>(c) loss = Add(a, e) }"
    )
    check_gradients(executor, x=draw(2, 3, 2), w=draw(1, 8, 2), r=draw(1, 8, 2, seed=1), p=draw(1, 6))


# ------------------------------------------------------------------------------------------------- random values


def test_draws_differ_from_call_to_call_and_are_those_of_the_seed() -> None:
    body = (
        "g (float[1000] x) => (float[1000] a, float[1000] b, float[1000] c, int64[1, 9] d, float[1000] e) "
        "{ a = RandomNormal<shape = [1000], mean = 1.0, scale = 0.5>() b = RandomUniformLike<low = -1.0>(x) "
        "c = Bernoulli(x) l = Log(x) f = Constant<value_ints = [1, -1]>() g = Reshape(l, f) "
        "d = Multinomial<dtype = 7, sample_size = 9>(g) e = RandomNormalLike(x) }"
    )
    first, second = executor_of(body), executor_of(body)
    feed = {"x": np.full(1000, 0.25, np.float32)}
    got = [{name: np.asarray(v) for name, v in run_.inference(feed).items()} for run_ in (first, first, second)]
    for name in "abcde":
        assert (got[0][name] != got[1][name]).any()
        np.testing.assert_array_equal(got[0][name], got[2][name])
    # Means and deviations of a thousand draws: within five standard errors.
    assert abs(got[0]["a"].mean() - 1) < 0.08
    assert abs(got[0]["a"].std() - 0.5) < 0.06
    assert abs(got[0]["b"].mean()) < 0.1
    assert abs(got[0]["c"].mean() - 0.25) < 0.07
    trained = [np.asarray(first.inference(feed, training=True, info=d5.StepInfo(step=s))["a"]) for s in (1, 1, 2)]
    np.testing.assert_array_equal(trained[0], trained[1])
    assert (trained[0] != trained[2]).any()


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("y = ScatterND (x, places, news)", [0, 7, 0, 8]),
        ("y = GatherND (x, places)", [0, 0]),
        ("flat = Squeeze (places, one) y = GatherElements (x, flat)", [0, 0]),
        ("flat = Squeeze (places, one) y = ScatterElements <axis = 0> (x, flat, news)", [0, 7, 0, 8]),
    ],
)
def test_integers_at_indices_that_follow_from_sizes(node: str, expected: list[int]) -> None:
    """Integers have no NaN for an index out of range, so the host reads the indices while JAX traces."""
    executor = executor_of(
        f"""g (float[n] z, int64[4] x, int64[2] news) => (int64[m] y) <int64[1] one = {{1}},
            int64 begin = {{1}}, int64 step = {{2}}> {{
            end = Size (z) all = Range (begin, end, step) places = Unsqueeze (all, one) {node} }}"""
    )
    feed = {"z": np.zeros(4, np.float32), "x": np.zeros(4, np.int64), "news": np.array([7, 8])}
    np.testing.assert_array_equal(run(executor, **feed), expected)


# ---------------------------------------------------------------------------------------------------- element types


@pytest.mark.parametrize(
    "kind", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4"]
)
def test_types_of_few_bits_are_cast_through(kind: str) -> None:
    dtype = next(each for each in ir.DataType if each.name.lower() in (kind.replace("_", ""), kind))
    executor = executor_of(
        f"g (float[4] x) => (float[4] y) {{ q = Cast<to = {dtype.value}>(x) y = Cast<to = 1>(q) }}", 23
    )
    x = np.array([0.0, 1.0, 3.0, 6.0], np.float32)  # all types hold these
    np.testing.assert_array_equal(run(executor, x=x), x)
    if kind.startswith("float"):
        largest = float(jax.numpy.finfo(kind).max)
        np.testing.assert_array_equal(run(executor, x=np.full(4, 1e9, np.float32)), largest)


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_large_whole_numbers_without_a_sign(kind: str) -> None:
    top = np.iinfo(kind).max
    executor = executor_of(f"g ({kind}[3] x, {kind}[3] z) => ({kind}[3] y) {{ a = Div(x, z) y = Max(a, z) }}")
    got = run(executor, x=np.array([top, 7, 5], kind), z=np.array([2, 2, top], kind))
    np.testing.assert_array_equal(got, np.array([top // 2, 3, top], kind))
