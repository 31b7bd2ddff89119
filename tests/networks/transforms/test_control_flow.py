"""If, Loop and Scan: run unchanged by the reference, and expanded where their branches and iterations are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import deep5 as d5
from control_flow_cases import GRAPHS, HEAD, X
from deep5.core.errors import MissingDependency, NetworkError, ShapeError, Unsupported
from deep5.core.framework import Framework, Support
from deep5.core.tensors import to_numpy
from deep5.networks import Network
from deep5.networks.transforms.lowering import lowered

FRAMEWORKS = ["reference", "onnxruntime", "pytorch", "tensorflow", "jax", "openvino"]


def framework_of(name: str) -> Framework:
    try:
        found: Framework = d5.framework(name)
    except MissingDependency as error:
        pytest.skip(str(error))
    return found


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def without(*operators: str) -> Any:
    return lambda node: Support(node.op_type not in operators, "left out by the test")


@pytest.mark.parametrize("what", GRAPHS)
def test_as_it_is_and_written_out(what: str) -> None:
    proto = model(GRAPHS[what])
    # Not from onnx's own evaluator: it takes a missing condition for false.
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    network = Network.from_onnx(proto)
    flat = lowered(network, without("If", "Loop", "Scan"))
    assert not {"If", "Loop", "Scan"} & {node.op_type for node in flat.nodes}
    for version in (network, flat):
        onnx.checker.check_model(version.to_onnx(), full_check=True)
        found = d5.framework("reference").executor(version).inference({"x": X})
        for name, value in zip(network.outputs, expected, strict=True):
            # The same float32 operations in the same order, except the functions, which differ in the last bit.
            np.testing.assert_allclose(found[name], value, rtol=1e-6)
            assert found[name].shape == value.shape


def test_branches_by_an_input() -> None:
    proto = model(
        """g (float[N] x, bool c) => (float[N] y, float[N] z) { y, z = If(c) <
        then_branch = t () => (float[N] a, float[N] b) { a = Neg(x) b = Add(x, a) },
        else_branch = e () => (float[N] d, float[N] f) { d = Identity(x) f = Exp(x) }> }"""
    )
    executor = d5.framework("reference").executor(Network.from_onnx(proto))
    for size, condition in ((3, True), (3, False), (2, True)):
        x = X[0, :size].copy()
        found = executor.inference({"x": x, "c": np.array(condition)})
        assert found["y"].tolist() == (-x if condition else x).tolist()
        assert found["z"].tolist() == (0 * x if condition else np.exp(x)).tolist()
        assert not np.shares_memory(found["y"], x)


def test_a_loop_until_its_condition_fails() -> None:
    proto = model(
        """g (float x, int64 n) => (float y, float[steps] all) { c = Constant<value = bool {1}>()
        y, all = Loop(n, c, x) < body = b (int64 i, bool go, float s) => (bool on, float t, float kept) {
            two = Constant<value = float {2}>() t = Mul(s, two) most = Constant<value = float {20}>()
            on = Less(t, most) kept = Identity(t) }> }"""
    )
    executor = d5.framework("reference").executor(Network.from_onnx(proto))
    found = executor.inference({"x": np.float32(3), "n": np.int64(100)})
    assert (found["y"], found["all"].tolist()) == (24.0, [6.0, 12.0, 24.0])
    assert executor.inference({"x": np.float32(3), "n": np.int64(1)})["all"].tolist() == [6.0]
    assert executor.inference({"x": np.float32(3), "n": np.int64(0)})["all"].shape == (0,)


def test_gradients_flow_through_what_is_written_out() -> None:
    proto = model(
        """g (double[2,3] x) => (double loss) { n = Constant<value = int64 {3}>()
        y = Loop(n, , x) < body = b (int64 i, bool go, double[2,3] s) => (bool on, double[2,3] t) {
            on = Identity(go) u = Sin(s) t = Mul(u, x) }>
        z = Constant<value = double[3] {0.5, 1, -1}>()
        last, all = Scan<num_scan_inputs = 1, body = b (double[3] s, double[3] r) => (double[3] t, double[3] kept) {
            t = Mul(s, r) kept = Exp(t) }>(z, y)
        loss = ReduceSum<keepdims = 0>(all) }"""
    )
    executor = d5.framework("reference").executor(Network.from_onnx(proto))
    x = X.astype(np.float64) / 3

    def loss(x: np.ndarray) -> float:
        return float(executor.inference({"x": x})["loss"])

    executor.inference_and_backprop({"x": x}, wrt=("x",))
    found = executor.gradients()["x"]
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        # Central differences in float64: the error of the formula is about 1e-12, that of rounding 1e-10.
        assert found[place] == pytest.approx((loss(x + step) - loss(x - step)) / 2e-6, rel=1e-7, abs=1e-9)


ENDLESS = """y = Loop(, , x) < body = b (int64 i, bool go, float s) => (bool on, float t) {
    on = Identity(go) t = Neg(s) }>"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "text",
    [
        f"g (float x) => (float y) {{ {ENDLESS} }}",
        f"""g (float x, bool c) => (float z) {{ z = If(c) <
            then_branch = t () => (float y) {{ {ENDLESS} }}, else_branch = e () => (float b) {{ b = Abs(x) }}> }}""",
    ],
    ids=["Loop", "inside an If"],
)
def test_a_loop_without_end_is_refused(text: str, framework: str) -> None:
    with pytest.raises(Unsupported, match="no count, and a condition that always holds; allowed: a loop that ends"):
        framework_of(framework).executor(Network.from_onnx(model(text)))


COUNTED = """g (int64 n, float[4] x) => (float[4] y, float[m,4] all) {
    one = Constant<value = int64[1] {1}>() c = Reshape(n, one) d = Squeeze(c)
    y, all = Loop(d, , x) < body = b (int64 i, bool go, float[4] s) => (bool on, float[4] t, float[4] kept) {
        on = Identity(go) t = Neg(s) kept = Abs(s) }> }"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_more_rows_than_memory_holds_are_refused_before_the_loop_runs(framework: str) -> None:
    """ONNX Runtime would exhaust the memory, and abort the process."""
    executor = framework_of(framework).executor(Network.from_onnx(model(COUNTED)))
    x = np.ones(4, np.float32)
    most = 2**40 // 16  # the allowed bytes, for rows of four numbers
    for count in (most + 1, 2**63 - 1):
        with pytest.raises(NetworkError, match=f"input 'n': got {count:,} iterations .* at most {most:,}"):
            executor.inference({"n": np.array(count), "x": x})
    found = executor.inference({"n": np.array(3), "x": x})
    assert np.array_equal(to_numpy(found["y"]), -x)
    assert np.array_equal(to_numpy(found["all"]), np.ones((3, 4)))


def test_rows_may_be_many_where_a_condition_ends_the_loop() -> None:
    """As exporters write a `while`: as many iterations as there are numbers, until the condition fails."""
    proto = model(
        """g (int64 n, float x) => (float y, float[m] all) {
            y, all = Loop(n, , x) < body = b (int64 i, bool go, float s) => (bool on, float t, float kept) {
                one = Constant<value = float {1}>() ten = Constant<value = float {10}>()
                t = Add(s, one) kept = Identity(t) on = Less(t, ten) }> }"""
    )
    executor = d5.framework("reference").executor(Network.from_onnx(proto))
    found = executor.inference({"n": np.array(2**63 - 1), "x": np.float32(7)})
    assert np.array_equal(found["all"], [8, 9, 10])


NESTED = """g (bool x0, bool flag, float[2,3] x) => (float[2,3] y) {
    y = If(flag) <
    then_branch = t () => (float[2,3] a) { a = If(x0) <
        then_branch = tt () => (float[2,3] aa) { aa = Neg(x) },
        else_branch = te () => (float[2,3] ab) { ab = If(flag) <
            then_branch = ttt () => (float[2,3] aba) { aba = Abs(x) },
            else_branch = tte () => (float[2,3] abb) { abb = Exp(x) }> }> },
    else_branch = e () => (float[2,3] b) { b = Tanh(x) }> }"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_condition_is_read_again_inside(framework: str) -> None:
    """A single node, for which ONNX Runtime's support is checked, has the input names that are read inside."""
    executor = framework_of(framework).executor(Network.from_onnx(model(NESTED)))
    expected = {(True, True): -X, (False, True): np.abs(X), (True, False): np.tanh(X), (False, False): np.tanh(X)}
    for (inner, outer), wanted in expected.items():
        found = executor.inference({"x0": np.array(inner), "flag": np.array(outer), "x": X})["y"]
        np.testing.assert_allclose(to_numpy(found), wanted, rtol=1e-6)  # some ulps of float32


LABELLED = """g (bool c, float[2,3] s, int64[2] l) => (float y) {
    y = If(c) <
    then_branch = t () => (float a) { a = SoftmaxCrossEntropyLoss(s, l) },
    else_branch = e () => (float b) { b = ReduceMean<keepdims = 0>(s) }> }"""


@pytest.mark.parametrize("framework", ["reference", "onnxruntime", "pytorch", "tensorflow"])
def test_a_label_below_0_is_refused_in_a_branch_too(framework: str) -> None:
    """ONNX Runtime reads before the start of the array for it."""
    executor = framework_of(framework).executor(Network.from_onnx(model(LABELLED)))
    scores = np.array([[1, 2, 3], [3, 1, 2]], np.float32)
    found = executor.inference({"c": np.array(True), "s": scores, "l": np.array([1, 0])})["y"]
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert float(to_numpy(found)) == pytest.approx(-np.log(chances[[0, 1], [1, 0]]).mean(), rel=1e-6)  # some ulps
    with pytest.raises(NetworkError):
        executor.inference({"c": np.array(True), "s": scores, "l": np.array([1, -1])})


def test_openvino_reads_no_index_in_a_branch_that_nobody_looked_at() -> None:
    with pytest.raises(Unsupported, match=r"in it: an index outside its axis would be read wherever it leads"):
        framework_of("openvino").executor(Network.from_onnx(model(LABELLED)))


SUMS = """g (int64 n, int64[3] x, float[4] d, int64[2,1] i, float[2] u) => (int64[1] before, int64[1] y, float[4] e) {
    before = ReduceSum(x) zero = Constant<value = int64[1] {0}>()
    y, e = Loop(n, , zero, d) <
    body = b (int64 k, bool go, int64[1] s, float[4] f) => (bool on, int64[1] t, float[4] h) {
        on = Identity(go) r = ReduceSum(x) t = Add(s, r) h = ScatterND<reduction = "add">(f, i, u) }> }"""


def test_sums_in_a_loop_are_those_outside_of_one() -> None:
    """ONNX Runtime sums integers in float64, and in parallel, unless deep5 prevents it."""
    x = np.array([2**60, 1, 2], np.int64)  # a sum that float64 does not represent
    feed = {"x": x, "d": np.zeros(4, np.float32), "i": np.array([[1], [1]]), "u": np.array([1, 2], np.float32)}
    for framework in ("onnxruntime", "reference"):
        executor = framework_of(framework).executor(Network.from_onnx(model(SUMS)))
        found = executor.inference({"n": np.array(3), **feed})
        assert int(found["before"][0]) == 2**60 + 3
        assert int(found["y"][0]) == 3 * (2**60 + 3)
        assert np.array_equal(found["e"], [0, 9, 0, 0])


def test_a_branch_that_onnx_runtime_has_no_kernel_for_names_the_node() -> None:
    """Not the If, which ONNX Runtime's own message names."""
    text = """g (bool c, int64[3] x) => (int64[1] y) { y = If(c) <
        then_branch = t () => (int64[1] a) { a = ReduceSum(x) },
        else_branch = e () => (int64[1] b) { b = ReduceProd(x) }> }"""
    with pytest.raises(Unsupported, match=r"If \(If\): ReduceProd \(ReduceProd\) in it: .*beyond 2\^53"):
        d5.framework("onnxruntime").executor(Network.from_onnx(model(text)))


SHORT = """g (bool c, bfloat16[2,3] x) => (bfloat16[2,3] y) { y = If(c) <
    then_branch = t () => (bfloat16[2,3] a) { a = Exp(x) },
    else_branch = e () => (bfloat16[2,3] b) { b = Softmax(x) }> }"""


@pytest.mark.parametrize("framework", ["onnxruntime", "pytorch", "tensorflow", "jax"])
def test_short_numbers_in_a_branch(framework: str) -> None:
    """ONNX Runtime has no kernels for them: float32 results are rounded once, in a branch as elsewhere."""
    import ml_dtypes

    executor = framework_of(framework).executor(Network.from_onnx(model(SHORT)))
    x = X.astype(ml_dtypes.bfloat16)
    for taken in (True, False):
        found = to_numpy(executor.inference({"c": np.array(taken), "x": x})["y"]).astype(np.float64)
        wide = np.exp(x.astype(np.float64))
        wanted = wide if taken else wide / wide.sum(-1, keepdims=True)
        np.testing.assert_allclose(found, wanted, rtol=2**-7)  # one or two roundings to 8 bits


def test_of_a_branch_that_is_never_taken_nothing_is_expanded() -> None:
    """Ten nested conditions are a thousand nodes, of which one runs."""
    node = onnx.helper.make_node("AffineGrid", ["theta", "size"], ["grid"])
    for level in range(10):
        branches = []
        for side in ("then", "else"):
            own = onnx.NodeProto.FromString(node.SerializeToString())
            own.output[0] = f"{side}_{level}"
            output = onnx.helper.make_empty_tensor_value_info(own.output[0])
            branches.append(onnx.helper.make_graph([own], side, [], [output]))
        node = onnx.helper.make_node("If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1])
    proto = model(
        "g (float[1,2,3] theta, int64[4] size) => (float[a,b,c,2] y) <bool flag = {1}> { y = Identity(theta) }"
    )
    proto.graph.node[0].CopyFrom(node)
    network, asked = Network.from_onnx(proto), []

    def supports(node: ir.Node) -> Support:
        asked.append(node.op_type)
        inside = [each for attribute in node.attributes.values() if attribute.type == ir.AttributeType.GRAPH
                  for each in attribute.as_graph()]  # fmt: skip
        return Support(node.op_type != "AffineGrid" and all(map(supports, inside)))

    made = lowered(network, supports)
    assert "AffineGrid" not in {node.op_type for node in made.nodes}
    # At each of the ten levels the nodes inside are checked once, and a body has about sixty nodes: expanding all
    # thousand would take tens of thousands of checks.
    assert len(asked) < 5000


def test_what_cannot_run_inside_is_named() -> None:
    inner = ir.node("NoSuchOperator", [], name="foo")
    graph = ir.Graph([], inner.outputs, nodes=[inner])
    node = ir.node("If", [ir.Value(name="c")], {"then_branch": graph, "else_branch": graph.clone()})
    answer = d5.framework("reference").supports(node)
    assert not answer
    assert answer.reason == (
        "foo (NoSuchOperator) inside it: the reference has no kernel for NoSuchOperator; "
        "allowed: those in docs/reference/onnx_operators.md; remedy: another back-end"
    )


def test_lists_and_optional_values() -> None:
    proto = onnx.parser.parse_model(
        HEAD
        + """g (seq(float[N]) xs, int64 at) => (float[M] y, int64 n, seq(float[N]) rest) {
        y = SequenceAt(xs, at) n = SequenceLength(xs) rest = SequenceErase(xs, at) }"""
    )
    network = Network.from_onnx(proto)
    assert str(network.inputs["xs"]) == "sequence of float32"
    executor = d5.framework("reference").executor(network)
    given = [X[0], X[1, :2], X[0, :1]]
    found = executor.inference({"xs": given, "at": np.array(-2)})
    assert found["y"].tolist() == X[1, :2].tolist()
    assert found["n"] == 3
    assert [each.tolist() for each in found["rest"]] == [X[0].tolist(), X[0, :1].tolist()]
    with pytest.raises(NetworkError, match="the position 3 in a sequence of 3; allowed: -3 to 2"):
        executor.inference({"xs": given, "at": np.array(3)})
    with pytest.raises(ShapeError, match="input 'xs': got ndarray, expected sequence of float32, as a list"):
        executor.inference({"xs": X, "at": np.array(0)})
    with pytest.raises(ShapeError, match="input 'xs': got an element of float64, expected sequence of float32"):
        executor.inference({"xs": [X.astype(float)], "at": np.array(0)})
    with pytest.raises(Unsupported, match="the input 'xs' is sequence of float32; allowed: tensors of numbers"):
        d5.framework("onnxruntime").executor(network)


def test_a_value_made_optional() -> None:
    text = """g (float[3] x) => (float[3] y, bool full, bool empty) {
        o = Optional(x) y = OptionalGetElement(o) full = OptionalHasElement(o)
        none = Optional<type = float[3]>() empty = OptionalHasElement(none) }"""
    network = Network.from_onnx(model(text))
    assert {"Optional", "OptionalGetElement", "OptionalHasElement"} <= {node.op_type for node in network.nodes}
    found = d5.framework("reference").executor(network).inference({"x": X[0]})
    assert (found["y"].tolist(), bool(found["full"]), bool(found["empty"])) == (X[0].tolist(), True, False)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_condition_with_axes(framework: str) -> None:
    # As torch.onnx.export writes `if score >= 0.5` for a score of shape (1, 1).
    proto = model(
        """g (float[1, 1] x) => (float[1, 1] y) <float limit = {0.5}> { c = GreaterOrEqual(x, limit) y = If(c) <
        then_branch = t () => (float[1, 1] a) { a = Identity(x) },
        else_branch = e () => (float[1, 1] b) { b = Neg(x) }> }"""
    )
    executor = framework_of(framework).executor(Network.from_onnx(proto))
    for number in (0.75, 0.25):
        x = np.full((1, 1), number, np.float32)
        (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
        np.testing.assert_array_equal(to_numpy(executor.inference({"x": x})["y"]), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_names_inside_that_an_engine_chooses_for_a_node(framework: str) -> None:
    """An engine is asked about one node, whose inputs and outputs then have names of that question."""
    proto = model(
        """g (float[N] x, bool c) => (float[N] z) { z = If(c) <
        then_branch = t () => (float[N] y0) { x0 = Neg(x) y0 = Add(x0, x) },
        else_branch = e () => (float[N] y1) { x1 = Abs(x) y1 = Add(x1, x) }> }"""
    )
    executor = framework_of(framework).executor(Network.from_onnx(proto))
    for chosen in (True, False):
        found = executor.inference({"x": X[0], "c": np.array(chosen)})["z"]
        np.testing.assert_array_equal(to_numpy(found), X[0] - X[0] if chosen else np.abs(X[0]) + X[0])
