"""Element types: mixes that ONNX forbids are refused at import, and ONNX's own refusals are reported with the cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported
from deep5.networks import Network, NetworkBuilder

FLOAT, DOUBLE, INT64, BOOL = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node
# Not exact in float32: back-ends that convert in another order give another sum.
WIDE = np.full(4, 2**25 + 1)


def model(
    nodes: list[Any],
    inputs: dict[str, tuple[int, Any]],
    outputs: dict[str, tuple[int, Any]],
    opset: int = 20,
    **initial: np.ndarray,
) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in initial.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def branches(inner: int) -> Any:
    """An If with one branch that adds numbers of another type."""

    def body(name: str, kind: int) -> Any:
        value = numpy_helper.from_array(np.ones(4, helper.tensor_dtype_to_np_dtype(kind)), "one")
        nodes = [
            node("Constant", [], ["one"], value=value, name=f"one_{name}"),  # a value of this name in both branches
            node("Add", ["x", "one"], [f"sum_{name}"], name=f"add_{name}"),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"sum_{name}", FLOAT, ["N", 4])])

    choice = node("If", ["bit"], ["y"], then_branch=body("then", FLOAT), else_branch=body("else", inner), name="choice")
    return model([choice], {**X, "bit": (BOOL, [])}, Y)


def loop(kind: int) -> Any:
    """A Loop that adds a value of the outer graph to its carried value."""
    names = [("i", INT64, []), ("go", BOOL, []), ("carried", FLOAT, ["N", 4])]
    nodes = [node("Identity", ["go"], ["again"]), node("Add", ["carried", "k"], ["next"], name="inner")]
    outs = [("again", BOOL, []), ("next", FLOAT, ["N", 4])]
    body = helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(*value) for value in names],
        [helper.make_tensor_value_info(*value) for value in outs],
    )
    made = node("Loop", ["count", "", "x"], ["y"], body=body, name="loop")
    return model([made], {**X, "count": (INT64, []), "k": (kind, [4])}, Y)


def damaged() -> Any:
    """A Constant with an attribute whose name is not valid UTF-8."""
    proto = model([node("Constant", [], ["y"], value_floats=[1.0])], {}, {"y": (FLOAT, [1])})
    return onnx.ModelProto.FromString(proto.SerializeToString().replace(b"value_floats", b"value_\xff\xffoats"))


X, Y = {"x": (FLOAT, ["N", 4])}, {"y": (FLOAT, ["N", 4])}
ADD = node("Add", ["x", "k"], ["y"], name="sum")
ONE_TYPE = "allowed: one type for A and B; remedy: a Cast"
BAD: dict[str, tuple[Any, str]] = {
    "whole numbers": (
        model([ADD], X, Y, k=WIDE),
        rf"the node 'sum' \(Add\) mixes element types: 'x' float32, 'k' int64; {ONE_TYPE}",
    ),
    "declared as the second": (
        model([ADD], X, {"y": (INT64, ["N", 4])}, k=WIDE),
        rf"the node 'sum' \(Add\) mixes element types: 'x' float32, 'k' int64; {ONE_TYPE}",
    ),
    "in an old opset": (
        model([ADD], X, Y, opset=9, k=WIDE),
        rf"the node 'sum' \(Add\) mixes element types: 'x' float32, 'k' int64; {ONE_TYPE}",
    ),
    "double": (
        model([node("Mul", ["x", "k"], ["y"])], {**X, "k": (DOUBLE, [4])}, Y),
        rf"the node that computes 'y' \(Mul\) mixes element types: 'x' float32, 'k' float64; {ONE_TYPE}",
    ),
    "large weights": (
        model([node("MatMul", ["x", "w"], ["y"])], X, {"y": (FLOAT, ["N", 400])}, w=np.ones((4, 400))),
        rf"\(MatMul\) mixes element types: 'x' float32, 'w' float64; {ONE_TYPE}",
    ),
    "any number of inputs": (
        model([node("Concat", ["x", "x", "k"], ["y"], axis=0)], {**X, "k": (DOUBLE, ["M", 4])}, {"y": (FLOAT, [9, 4])}),
        r"\(Concat\) mixes element types: 'x' float32, 'x' float32, 'k' float64; allowed: one type for inputs",
    ),
    "behind an inner value": (
        model([node("Cast", ["x"], ["h"], to=DOUBLE), node("Sub", ["h", "x"], ["y"])], X, {"y": (DOUBLE, ["N", 4])}),
        rf"\(Sub\) mixes element types: 'h' float64, 'x' float32; {ONE_TYPE}",
    ),
    "not for the operator": (
        model(
            [node("Add", ["b", "b"], ["h"], name="or"), node("Cast", ["h"], ["y"], to=FLOAT)],
            {"b": (BOOL, [4])},
            {"y": (FLOAT, [4])},
        ),
        r"the node 'or' \(Add\) takes no bool, which 'b' holds; allowed for A: bfloat16, .*uint8; remedy: a Cast",
    ),
    "not the fixed type": (
        model([node("Reshape", ["x", "to"], ["y"])], X, Y, to=np.array([-1, 4], np.int32)),
        r"\(Reshape\) takes no int32, which 'to' holds; allowed for shape: int64; remedy: a Cast",
    ),
    "in a branch": (
        branches(DOUBLE),
        rf"the node 'add_else' \(Add\) mixes element types: 'x' float32, 'one' float64; {ONE_TYPE}",
    ),
    "in a loop": (
        loop(DOUBLE),
        rf"the node 'inner' \(Add\) mixes element types: 'carried' float32, 'k' float64; {ONE_TYPE}",
    ),
    "declared output": (
        model([node("Relu", ["x"], ["y"], name="r")], X, {"y": (DOUBLE, ["N", 4])}),
        r"the output 'y' is declared as float64, but the node 'r' \(Relu\) computes float32; remedy: declare that, or",
    ),
    "unknown operator": (
        model([node("Reluu", ["x"], ["y"], name="r")], X, {"y": (FLOAT, None)}),
        r"the node 'r' \(Reluu\): No Op registered for Reluu .*; allowed: the operators of ONNX.*did you mean 'Relu'\?",
    ),
    "unknown operator of two lines": (model([node("Re\nlu", ["x"], ["y"])], X, Y), r"registered for Re\\nlu with"),
    "text that is not UTF-8": (damaged(), "is not valid ONNX: it holds a string that is not UTF-8"),
    "unknown domain": (
        model([node("Foo", ["x"], ["h"], domain="my", name="f"), node("Relu", ["h"], ["y"])], X, {"y": (0, None)}),
        r"'y' has no shape, and none can be inferred: the node 'f' \(Foo\) is of the domain 'my', of .*; remedy: op",
    ),
    "dimensions": (
        model([node("MatMul", ["x", "w"], ["y"], name="m")], X, {"y": (FLOAT, None)}, w=np.ones((5, 2), np.float32)),
        r"the node 'm' \(MatMul\): Incompatible dimensions for matrix multiplication; got 'x' float32\[N, ?4\], 'w' "
        r"float32\[5, ?2\]; remedy: change the shapes",
    ),
    "dimensions of a node without a name": (
        model([node("MatMul", ["x", "w"], ["y"])], X, Y, w=np.ones((5, 2), np.float32)),
        r"the node that computes 'y' \(MatMul\): Incompatible dimensions",
    ),
    "extent of an input": (
        model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["N", -3])}, Y),
        "the input 'x' has the dimension -3; allowed: at least 0, or -1 if it is unknown; remedy: a name, such as 'N'",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_model(what: str) -> None:
    proto, message = BAD[what]
    with pytest.raises(NetworkError, match=message) as caught:
        Network.from_onnx(proto)
    assert str(caught.value).startswith("the model")
    assert "\n" not in str(caught.value)


def test_an_output_with_a_type_behind_an_unknown_operator_has_an_unknown_rank() -> None:
    nodes = [node("Foo", ["x"], ["h"], domain="my", name="f"), node("Relu", ["h"], ["y"])]
    network = Network.from_onnx(model(nodes, X, {"y": (FLOAT, None)}))
    assert not network.outputs["y"].ranked
    with pytest.raises(
        Unsupported, match=r"f \(Foo\): .* my\.Foo; .*; remedy: d5\.register_operator\('Foo', domain='my'\)"
    ):
        d5.framework("reference").executor(network)


def test_a_cast_mends_it() -> None:
    proto = model([node("Cast", ["k"], ["c"], to=FLOAT), node("Add", ["x", "c"], ["y"])], X, Y, k=WIDE)
    executor = d5.framework("reference").executor(Network.from_onnx(proto))
    y = executor.inference({"x": np.ones((1, 4), np.float32)})["y"]
    # float32 has 24 bits: 2**25 + 1 becomes 2**25, and so does the sum with one.
    np.testing.assert_array_equal(y, np.full((1, 4), 2**25, np.float32))


def test_branches_and_loops_of_one_type_are_read() -> None:
    assert Network.from_onnx(branches(FLOAT)).outputs.keys() == {"y"}
    assert Network.from_onnx(loop(FLOAT)).outputs.keys() == {"y"}


def test_places_of_their_own_types_are_read() -> None:
    """Inputs without a shared type variable may differ: indices, conditions, exponents, targets, optional inputs."""
    proto = model(
        [
            node("Gather", ["x", "rows"], ["a"]),
            node("Pow", ["a", "two"], ["b"]),
            node("Where", ["bit", "b", "b"], ["c"]),
            node("Resize", ["c", "", "", "sizes"], ["y"], mode="nearest"),
            node("Foo", ["x", "rows"], ["z"], domain="my"),
        ],
        {**X, "bit": (BOOL, [4])},
        {"y": (FLOAT, [2, 4]), "z": (DOUBLE, [1])},
        rows=np.array([0, 1]),
        two=np.array(2, np.int32),
        sizes=np.array([2, 4]),
    )
    assert str(Network.from_onnx(proto).outputs["z"]) == "float64[1]"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of ONNX's own functions, which make the examples
def test_the_models_of_onnx_are_read() -> None:
    """ONNX's own node tests: this check refuses none of them."""
    from onnx.backend.test.case.node import collect_testcases

    cases = collect_testcases(None)
    assert len(cases) > 1000
    for case in cases:
        Network.from_onnx(case.model)


def test_a_builder_refuses_mixed_types() -> None:
    build = NetworkBuilder("mixed")
    y = build.op("Add", build.input("x", ("N", 4)), build.constant("k", WIDE))
    with pytest.raises(
        NetworkError, match=rf"'mixed' is not valid ONNX: the node 'Add_1' \(Add\) mixes .*'k' int64; {ONE_TYPE}"
    ):
        build.network({"y": y})


def test_a_builder_refuses_an_unknown_operator() -> None:
    build = NetworkBuilder("odd")
    x = build.input("x", ("N", 4))
    with pytest.raises(NetworkError, match=r"No Op registered for Sotfmax .*; did you mean 'Softmax'\?"):
        build.op("Sotfmax", x)
    with pytest.raises(NetworkError, match=r"Relu got an attribute that no file can hold \(.*; allowed: numbers"):
        build.op("Relu", x, alpha=object())


SHAPES = "allowed: a tuple of integers of at least 0"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda build, x: build.parameter("w", ("N", 3)), rf"'w': got the shape \('N', 3\); {SHAPES}; the dimensions"),
        (lambda build, x: build.parameter("w", (-1, 3)), rf"'w': got the shape \(-1, 3\); {SHAPES}"),
        (lambda build, x: build.parameter("w", 5), f"'w': got the shape 5; {SHAPES}"),
        (lambda build, x: build.input("z", 5), f"input 'z': got the shape 5; {SHAPES} and of names"),
        (lambda build, x: build.input("z", ("N", -3)), rf"input 'z': got the shape \('N', -3\); {SHAPES}"),
        (lambda build, x: build.input("z", ("N",), "foo"), "got 'foo' as an element type; allowed: NumPy's name"),
        (lambda build, x: build.scalar(1.0, "foo"), "got 'foo' as an element type; allowed: NumPy's name"),
        (lambda build, x: build.constant("z", [1, 2]), r"constant 'z': got \[1, 2\]; allowed: a NumPy array of"),
        (lambda build, x: build.constant("z", np.array("a")), "constant 'z': got array.*; allowed: a NumPy array of"),
        (lambda build, x: build.network({}), "the network 'bad' has no outputs; allowed: at least one"),
        (lambda build, x: build.network({"y": "q"}), "got 'q' as the output 'y'; allowed: a name, and what op returns"),
        (lambda build, x: build.network({3: x}), "as the output 3; allowed: a name, and what op returns"),
    ],
)
def test_a_builder_refuses(make: Any, message: str) -> None:
    build = NetworkBuilder("bad")
    x = build.op("Relu", build.input("x", ("N", 4)))
    with pytest.raises(NetworkError, match=message):
        make(build, x)


def test_a_builder_has_parameters_of_floating_point() -> None:
    """Integers are for inputs and constants."""
    build = NetworkBuilder("whole", dtype="int8")
    with pytest.raises(
        NetworkError, match="'w': got the element type int8; allowed: bfloat16, float16, float32, float64; remedy"
    ):
        build.parameter("w", (2, 3))
    network = build.network({"y": build.op("Add", build.input("x", ("N",)), build.scalar(1))})
    assert str(network.outputs["y"]) == "int8[N]"
    with pytest.raises(NetworkError, match="got 'foo' as an element type; allowed: NumPy's name"):
        NetworkBuilder("none", dtype="foo")
