"""Gradients through If, Loop and Scan whose branch, or number of steps, is known only at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError
from deep5.core.tensors import to_numpy

# Back-ends that run deep5's gradient graphs, and those with their own automatic differentiation.
WRITTEN, OWN = ["reference", "onnxruntime"], ["pytorch", "tensorflow", "jax"]
HEAD = '<ir_version: 10, opset_import: ["": 21]> '
RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 1.5, (2, 3))
LONG = RNG.uniform(-1, 1, (4, 2, 3))
START = "<double[2,3] w = {1, 2, 3, 4, 5, 6}, double[3] v = {0.5, -1, 2}, double[3,3] m = {1,-2,3,1,5,-1,2,3,1}>"
END = "loss = ReduceSum<keepdims = 0>(z)"

BRANCH = f"""g (bool c, double[2,3] x) => (double loss) {START} {{
    s = Sin(x)
    y = If(c) <
    then_branch = t () => (double[2,3] a) {{ p = Mul(s, w) a = Mul(p, x) }},
    else_branch = e () => (double[2,3] b) {{ q = Exp(v) r = Mul(q, w) b = Add(r, s) }}>
    z = Mul(y, w) {END} }}"""
PASSED_ON = f"""g (bool c, double[2,3] x) => (double loss) {START} {{
    y, other = If(c) <
    then_branch = t () => (double[2,3] a, double[3] a2) {{ a = Identity(w) a2 = Identity(v) }},
    else_branch = e () => (double[2,3] b, double[3] b2) {{ b = Mul(x, w) b2 = Mul(v, v) }}>
    n = Mul(y, y) z = Add(n, other) {END} }}"""
INSIDE = f"""g (bool c, bool d, double[2,3] x) => (double loss) {START} {{
    y = If(c) <
    then_branch = t () => (double[2,3] a) {{
        k = Tanh(w)
        a = If(d) <
        then_branch = tt () => (double[2,3] aa) {{ aa = Mul(k, x) }},
        else_branch = te () => (double[2,3] ab) {{ l = Mul(k, v) ab = Mul(l, w) }}> }},
    else_branch = e () => (double[2,3] b) {{ b = Mul(x, w) }}>
    z = Mul(y, x) {END} }}"""
LOOP = f"""g (int64 n, double[2,3] x) => (double loss) {START} {{
    zero = Constant<value = int64 {{2}}>() quarter = Constant<value = double {{0.25}}>()
    y, count, rows, more = Loop(n, , x, zero) <
    body = b (int64 i, bool go, double[2,3] s, int64 k) =>
        (bool on, double[2,3] t, int64 l, double[2,3] row, double[3] other) {{
        on = Identity(go) one = Constant<value = int64 {{1}}>() l = Add(k, one)
        f = Cast<to = 11>(k) h = Cast<to = 11>(i) p = MatMul(s, m) q = Mul(p, f) r = Mul(q, quarter) u = Tanh(r)
        t = Mul(u, w) row = Mul(t, s) g1 = Add(h, v) other = Mul(g1, v) }}>
    a = ReduceSum<keepdims = 0>(rows) b0 = Mul(more, more) c0 = ReduceSum<keepdims = 0>(b0)
    d = Add(a, c0) z0 = Mul(y, w) z = Add(z0, d) {END} }}"""
UNTIL = f"""g (int64 n, double[2,3] x) => (double loss) {START} {{
    y = Loop(n, , x) <
    body = b (int64 i, bool go, double[2,3] s) => (bool on, double[2,3] t) {{
        t = Mul(s, w) total = ReduceSum<keepdims = 0>(t) most = Constant<value = double {{500}}>()
        on = Less(total, most) }}>
    z = Mul(y, x) {END} }}"""
SCAN = f"""g (double[T,2,3] x) => (double loss) {START} {{
    y, rows = Scan<num_scan_inputs = 1,
    body = b (double[2,3] s, double[2,3] r) => (double[2,3] t, double[2,3] row) {{
        p = MatMul(s, m) q = Add(p, r) t = Tanh(q) row = Mul(t, r) }}>(w, x)
    a = Sin(rows) b0 = ReduceSum<keepdims = 0>(a) z = Add(y, b0) {END} }}"""
TURNED = f"""g (double[2,T,3] x, double[T,2,3] u) => (double loss) {START} {{
    y, rows, more = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
    scan_output_axes = [2, 0], scan_output_directions = [0, 1],
    body = b (double[2,3] s, double[2,3] r, double[2,3] q) => (double[2,3] t, double[2,3] row, double[3] other) {{
        p = Mul(s, v) a = Mul(r, q) t = Add(p, a) row = Mul(t, q)
        first = Constant<value = int64[1] {{0}}>() other = ReduceSum<keepdims = 0>(r, first) }}>(w, x, u)
    turned = Transpose<perm = [0, 2, 1]>(rows) part = Mul(turned, x) b0 = ReduceSum<keepdims = 0>(part)
    at = Constant<value = int64[1] {{1}}>() u0 = ReduceSum<keepdims = 0>(u, at) c0 = Mul(more, u0)
    d = ReduceSum<keepdims = 0>(c0) e = Add(b0, d) z = Add(y, e) {END} }}"""
DEEP = f"""g (int64 n, int64 k, bool c, double[2,3] x) => (double loss) {START} {{
    y = Loop(n, , x) <
    body = b (int64 i, bool go, double[2,3] s) => (bool on, double[2,3] t) {{
        on = Identity(go) h = Mul(s, v)
        t = If(c) <
        then_branch = tt () => (double[2,3] a) {{
            a = Loop(k, , h) <
            body = d (int64 j, bool go2, double[2,3] p) => (bool on2, double[2,3] q) {{
                on2 = Identity(go2) q0 = Mul(p, s) q = Sin(q0) }}> }},
        else_branch = te () => (double[2,3] a2) {{ a2 = Mul(h, w) }}> }}>
    z = Mul(y, w) {END} }}"""
GATHERED = f"""g (int64 n, int64[4] index, double[2,3] x) => (double loss) {START} {{
    y = Loop(n, , x) <
    body = b (int64 i, bool go, double[2,3] s) => (bool on, double[2,3] t) {{
        on = Identity(go) a = Gather(w, index) b0 = ReduceSum<keepdims = 0>(a) t = Mul(s, b0) }}>
    z = Sqrt(y) {END} }}"""
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "the one branch": (BRANCH, {"c": np.array(True), "x": X}),
    "the other branch": (BRANCH, {"c": np.array(False), "x": X}),
    "what a branch hands on": (PASSED_ON, {"c": np.array(True), "x": X}),
    "what a branch computes": (PASSED_ON, {"c": np.array(False), "x": X}),
    "a branch in a branch": (INSIDE, {"c": np.array(True), "d": np.array(True), "x": X}),
    "another branch in a branch": (INSIDE, {"c": np.array(True), "d": np.array(False), "x": X}),
    "no branch in the other branch": (INSIDE, {"c": np.array(False), "d": np.array(False), "x": X}),
    **{f"a loop, {n} times": (LOOP, {"n": np.array(n), "x": X}) for n in (0, 1, 4)},
    "a loop until its condition fails": (UNTIL, {"n": np.array(100), "x": X}),
    "a scan": (SCAN, {"x": LONG}),
    "a scan of one step": (SCAN, {"x": LONG[:1]}),
    "a scan along other axes and backwards": (TURNED, {"x": LONG.transpose(1, 0, 2).copy(), "u": LONG[::-1] + 1}),
    "a loop in a branch of a loop": (
        DEEP, {"n": np.array(2), "k": np.array(3), "c": np.array(True), "x": X}),
    "the other branch of a loop": (
        DEEP, {"n": np.array(2), "k": np.array(3), "c": np.array(False), "x": X}),
    "a sum at repeated indices": (GATHERED, {"n": np.array(2), "index": np.array([0, 1, 1, 0]), "x": X}),
}  # fmt: skip


def network_of(text: str) -> d5.Network:
    return d5.Network.from_onnx(onnx.parser.parse_model(HEAD + text))


def gradients_of(framework: str, text: str, feed: dict[str, Any]) -> dict[str, np.ndarray]:
    executor = d5.framework(framework).executor(network_of(text))
    wrt = [*executor.network.parameter_specs, *(name for name in feed if feed[name].dtype == np.float64)]
    executor.inference_and_backprop(feed, "loss", wrt=wrt)
    return {name: to_numpy(value) for name, value in executor.gradients().items()}


@pytest.mark.parametrize("what", CASES)
def test_the_gradient_is_that_of_central_differences(what: str) -> None:
    text, feed = CASES[what]
    found = gradients_of("reference", text, feed)
    executor = d5.framework("reference").executor(network_of(text))
    state = executor.state_dict()

    def loss(name: str, moved: np.ndarray) -> float:
        executor.load_state_dict({**state, name: moved} if name in state else state)
        return float(executor.inference({**feed, name: moved} if name in feed else feed)["loss"])

    for name, gradient in found.items():
        value = state[name] if name in state else feed[name]
        step, wanted = 1e-5, np.zeros(value.shape)
        for place in np.ndindex(value.shape):
            apart = np.zeros(value.shape)
            apart[place] = step
            wanted[place] = (loss(name, value + apart) - loss(name, value - apart)) / (2 * step)
        # The formula's error is a sixth of the third derivative times the square of the step; the rounding error is
        # 1e-16 of the loss divided by the step; losses are up to a few thousand here.
        np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-6 * max(1, np.abs(wanted).max()), err_msg=name)


@pytest.mark.parametrize("framework", ["onnxruntime", *OWN])
@pytest.mark.parametrize("what", CASES)
def test_all_back_ends_agree(what: str, framework: str) -> None:
    pytest.importorskip({"pytorch": "torch"}.get(framework, framework))
    text, feed = CASES[what]
    wanted, found = gradients_of("reference", text, feed), gradients_of(framework, text, feed)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        # Float64; sums of a few dozen terms in a different order.
        np.testing.assert_allclose(
            found[name], value, rtol=1e-11, atol=1e-11 * max(1, np.abs(value).max()), err_msg=name
        )


@pytest.mark.parametrize("framework", ["onnxruntime", *OWN])
@pytest.mark.parametrize("length", ["3", "T"])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_is_a_scan_as_its_body(rule: str, length: str, framework: str) -> None:
    pytest.importorskip({"pytorch": "torch"}.get(framework, framework))
    more = ["decay" if "gated" in rule else "", "beta" if "delta" in rule else ""]
    shapes = dict.fromkeys(("q", "k", "w", "decay"), (2, 3, 4)) | {"beta": (2, 3, 2)}
    names = ["q", "k", "w", *filter(None, more)]
    declared = ", ".join(f"float[2,{length},{shapes[name][2]}] {name}" for name in names)
    text = f"""<ir_version: 13, opset_import: ["": 27]> g ({declared}) => (float loss) {{
        y, end = LinearAttention<kv_num_heads = 2, q_num_heads = 2, update_rule = "{rule}">
            (q, k, w, "", {", ".join(f"{name}" if name else '""' for name in more)})
        a = ReduceSum<keepdims = 0>(y) b = ReduceSumSquare<keepdims = 0>(end) loss = Add(a, b) }}"""
    rng = np.random.default_rng(1)
    feed = {name: rng.uniform(-1, 1, shapes[name]).astype(np.float32) for name in names}
    found = {}
    for each in ("reference", framework):
        executor = d5.framework(each).executor(d5.Network.from_onnx(onnx.parser.parse_model(text)))
        executor.inference_and_backprop(feed, "loss", wrt=names)
        found[each] = {name: to_numpy(value) for name, value in executor.gradients().items()}
    for name in names:
        assert np.abs(found["reference"][name]).max() > 0
        # Sums of a few dozen products of numbers about 1, in float32.
        np.testing.assert_allclose(found[framework][name], found["reference"][name], rtol=1e-4, atol=1e-5, err_msg=name)


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LAYERS = {
    "": {},
    "reverse": {"direction": "reverse"},
    "both directions, states, lengths": {"direction": "bidirectional", "states": True, "lengths": True},
    "reverse, lengths, batch first": {"direction": "reverse", "lengths": True, "layout": 1},
    "states, other activations, clipped": {"states": True, "activations": True, "clip": 0.8},
}


def recurrent(op: str, length: int | str, how: dict[str, Any]) -> tuple[d5.Network, dict[str, Any]]:
    """A layer over sequences of this (possibly symbolic) length, in fact three steps, and its feeds."""
    way, gates = how.get("direction", "forward"), GATES[op]
    directions, batch, features, hidden = 1 + (way == "bidirectional"), 2, 3, 2
    rng = np.random.default_rng(3)
    build = d5.NetworkBuilder("recurrent", dtype="float64")
    shape = ("N", length, features) if how.get("layout") else (length, "N", features)
    inputs: list[Any] = [build.input("x", shape)]
    weights = {"w": (gates * hidden, features), "r": (gates * hidden, hidden), "b": (2 * gates * hidden,)}
    inputs += [build.parameter(name, (directions, *each)) for name, each in weights.items()]
    feed = {"x": rng.uniform(-1, 1, (batch, 3, features) if how.get("layout") else (3, batch, features))}
    inputs.append(build.input("lengths", ("N",), "int32") if how.get("lengths") else None)
    if how.get("lengths"):
        feed["lengths"] = np.array([3, 2], np.int32)
    for name in ["h", "c"][: 1 + (op == "LSTM")] if how.get("states") else []:
        inputs.append(build.input(name, (directions, "N", hidden)))
        feed[name] = rng.uniform(-1, 1, (directions, batch, hidden))
    settings = {key: how[key] for key in ("layout", "clip") if key in how}
    if how.get("activations"):
        settings["activations"] = {
            "RNN": ["Softsign"],
            "GRU": ["Softsign", "Elu"],
            "LSTM": ["Sigmoid", "Elu", "Tanh"],
        }[op]
    outputs = build.op(op, *inputs, hidden_size=hidden, direction=way, outputs=2 + (op == "LSTM"), **settings)
    parts = [build.op("ReduceSum", build.op("Sin", value), keepdims=0) for value in outputs]
    return build.network({"loss": build.op("Sum", *parts)}), feed


@pytest.mark.parametrize("framework", ["reference", "onnxruntime", *OWN])
@pytest.mark.parametrize("how", LAYERS)
@pytest.mark.parametrize("op", GATES)
def test_a_recurrent_layer_of_any_length_is_a_scan(op: str, how: str, framework: str) -> None:
    """Its gradient equals that of the layer over a fixed number of steps, which is unrolled cell by cell."""
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(framework, framework))
    found = {}
    for length in ("T", 3):
        network, feed = recurrent(op, length, LAYERS[how])
        executor = d5.framework(framework if length == "T" else "reference").executor(network)
        wrt = [*network.parameter_specs, *(name for name in feed if feed[name].dtype == np.float64)]
        outputs = executor.inference_and_backprop(feed, "loss", wrt=wrt)
        found[length] = {"loss": to_numpy(outputs["loss"])} | {
            name: to_numpy(value) for name, value in executor.gradients().items()
        }
    for name, value in found[3].items():
        # Float64; sums of a few dozen terms in a different order.
        np.testing.assert_allclose(found["T"][name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("framework", WRITTEN)
def test_a_network_with_a_loop_is_trained(framework: str) -> None:
    pytest.importorskip(framework if framework != "reference" else "numpy")
    executor = d5.framework(framework).executor(network_of(SCAN))
    step = executor.train_step(d5.SGD(0.01))
    losses = [float(to_numpy(step({"x": LONG}, d5.StepInfo(step=index))["loss"])) for index in range(5)]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("framework", WRITTEN)
def test_a_state_that_grows_is_refused(framework: str) -> None:
    pytest.importorskip(framework if framework != "reference" else "numpy")
    text = f"""g (int64 n, double[1,3] x) => (double loss) {START} {{
        y = Loop(n, , x) <
        body = b (int64 i, bool go, double[A,3] s) => (bool on, double[B,3] t) {{
            on = Identity(go) u = Mul(s, v) t = Concat<axis = 0>(s, u) }}>
        z = Mul(y, v) {END} }}"""
    executor = d5.framework(framework).executor(network_of(text))
    with pytest.raises(NetworkError, match=r"Loop.*(same shape|Inconsistent shape)"):
        executor.inference_and_backprop({"n": np.array(2), "x": X[:1]}, "loss")
