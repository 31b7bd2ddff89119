"""Registered operators as nodes: who may register which names, inferred shapes, files with them, their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, OperatorError, ShapeError, UsageError
from deep5.networks.custom import Extent, is_custom, operator_of
from deep5.networks.edit import builder
from deep5.networks.gradients import gradient_network
from deep5.operators.backward import Backward
from deep5.operators.contract import specs_of
from deep5.operators.registry import make_operator, registered_operator, registered_operators

DOMAIN = "test.registered"


@d5.register_operator("IPow", domain=DOMAIN)
class IPow(d5.Operator):
    """The tutorial's operator."""

    def __init__(self, power: int = 2) -> None:
        self.power = power

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] ** self.power

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self.power * inputs[0] ** (self.power - 1) * output_grads[0],)


@d5.register_operator("Halves", domain=DOMAIN)
class Halves(d5.Operator):
    """The two halves of the columns, and rows + 1 consecutive integers from a given one."""

    def specs(self, x: d5.TensorSpec, first: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        if len(x.shape) != 2:
            raise ShapeError(f"Halves: got {x}; allowed: a matrix")
        rows, columns = x.shape
        half = d5.TensorSpec(shape=(rows, columns // 2), dtype=x.dtype)  # type: ignore[operator]
        return half, half, d5.TensorSpec(shape=(rows + 1,), dtype="int64")  # type: ignore[operator]

    def forward(self, *inputs: Any) -> Any:
        xp, (x, first) = d5.array_namespace(inputs[0]), inputs
        half = x.shape[1] // 2
        return x[:, :half], x[:, half:], xp.arange(x.shape[0] + 1) + first

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return d5.array_namespace(inputs[0]).concat(output_grads[:2], axis=1), None


def network(rows: int | str = "N", columns: int | str = 4) -> d5.Network:
    build = d5.NetworkBuilder("custom")
    x, first = build.input("x", (rows, columns)), build.input("first", (), "int64")
    weight = build.parameter("w", (4, 4)) if columns == 4 else None
    powered = build.op("IPow", build.op("MatMul", x, weight) if weight is not None else x, domain=DOMAIN, power=3)
    left, right, count = build.op("Halves", powered, first, domain=DOMAIN, outputs=3)
    total = build.op("ReduceMean", build.op("Mul", left, right), keepdims=0)
    return build.network({"left": left, "right": right, "count": count, "loss": total})


def test_shapes_and_types_go_through() -> None:
    outputs = network().outputs
    assert {name: str(spec) for name, spec in outputs.items()} == {
        "left": "float32[N, 2]",
        "right": "float32[N, 2]",
        "count": "int64[N+1]",
        "loss": "float32[]",
    }
    assert network(3).outputs["count"].shape == (4,)
    assert network("N", "C").outputs["left"].shape == ("N", "C//2")


def test_what_is_said_of_an_unknown_extent_is_unknown() -> None:
    build = d5.NetworkBuilder("unknown")
    x = build.op("Reshape", build.input("x", ("N", 4)), build.op("NonZero", build.input("i", (3,), "int64")))
    with pytest.raises(NetworkError):
        # Not even the rank is known, so specs cannot be called.
        build.network({"y": build.op("IPow", x, domain=DOMAIN)})


def test_a_float_attribute_and_lists_arrive() -> None:
    class Kept(IPow):
        def __init__(self, number: float, sizes: Any, text: str) -> None:
            super().__init__()
            self.given = (number, list(sizes), text)

    d5.register_operator("Kept", domain=DOMAIN)(Kept)
    build = d5.NetworkBuilder("kept")
    made = build.op("Kept", build.input("x", (1,)), domain=DOMAIN, number=0.1, sizes=[1, 2], text="µ")
    (node,) = build.network({"y": made}).nodes
    operator = operator_of(node)
    assert isinstance(operator, Kept)
    # ONNX's numbers are float32.
    assert operator.given == (float(np.float32(0.1)), [1, 2], "µ")


def test_a_file_may_hold_it(tmp_path: Any) -> None:
    path = tmp_path / "custom.onnx"
    network().save(path)
    read = d5.Network.from_onnx(path)
    assert read.outputs == network().outputs
    assert [node.op_type for node in read.nodes if is_custom(node)] == ["IPow", "Halves"]
    assert read.structure_hash() == network().structure_hash()
    executor = d5.framework("pytorch").executor(read)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    outputs = executor.inference({"x": x, "first": np.array(5)})
    expected = (x @ read.initial("w")) ** 3
    # A product of four terms and two multiplications, in float32.
    np.testing.assert_allclose(d5.to_numpy(outputs["right"]), expected[:, 2:], rtol=1e-5, atol=1e-6)
    assert d5.to_numpy(outputs["count"]).tolist() == [5, 6, 7, 8]


def test_an_older_opset_is_raised_around_it() -> None:
    node = onnx.helper.make_node("IPow", ["a"], ["b"], domain=DOMAIN, power=3)
    relu = onnx.helper.make_node("Squeeze", ["x"], ["a"], axes=[0])
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([relu, node], "old", [value("x", 1, [1, "N"])], [value("b", 1, ["N"])])
    opsets = [onnx.helper.make_opsetid("", 11), onnx.helper.make_opsetid(DOMAIN, 1)]
    read = d5.Network.from_onnx(onnx.helper.make_model(graph, opset_imports=opsets))
    assert read.opset >= 20
    assert read.outputs["b"].shape == ("N",)


def test_the_gradient_is_a_node_of_its_backward() -> None:
    made = gradient_network(network(), wrt=["w"])
    (backward,) = [node for node in made.nodes if node.op_type == "IPow.backward"]
    operator = operator_of(backward)
    assert isinstance(operator, Backward)
    assert isinstance(operator.operator, IPow)
    assert operator.operator.power == 3
    assert (operator.needs, operator.floating) == ((True,), (True,))
    (halves,) = [node for node in made.nodes if node.op_type == "Halves.backward"]
    of_halves = operator_of(halves)
    assert isinstance(of_halves, Backward)
    assert (of_halves.needs, of_halves.floating) == ((True, False), (True, True, False))
    assert str(made.outputs["grad:w"]) == "float32[4, 4]"


def test_what_its_specs_raises_names_the_operator() -> None:
    build = d5.NetworkBuilder("wrong")
    x, first = build.input("x", ("N", 2, 2)), build.input("first", (), "int64")
    with pytest.raises(ShapeError, match=r"Halves: got float32\[N, 2, 2\]; allowed: a matrix"):
        build.network({"y": build.op("Halves", x, first, domain=DOMAIN)})
    build = d5.NetworkBuilder("wrong")
    with pytest.raises(ShapeError, match=r"Halves: got 1 inputs; allowed: 2, as its specs takes them \(x, first\)"):
        build.network({"y": build.op("Halves", build.input("x", ("N", 2)), domain=DOMAIN)})
    build = d5.NetworkBuilder("wrong")
    with pytest.raises(OperatorError, match=r"'IPow_1' \(test\.registered\.IPow\) has 2 outputs; allowed: at most 1"):
        build.network({"y": build.op("IPow", build.input("x", ("N",)), domain=DOMAIN, outputs=2)[0]})
    build = d5.NetworkBuilder("wrong")
    with pytest.raises(OperatorError, match=r"IPow with the attributes \{'exponent': 3\} cannot be made"):
        build.network({"y": build.op("IPow", build.input("x", ("N",)), domain=DOMAIN, exponent=3)})


@pytest.mark.parametrize("behind", ["an input", "a node", "a node of its own kind"])
def test_outputs_that_nobody_counts_are_those_of_its_specs(behind: str) -> None:
    build = d5.NetworkBuilder("counted")
    x, first = build.input("x", ("N", 8)), build.input("first", (), "int64")
    if behind == "a node":
        x = build.op("Mul", x, build.op("IPow", x, domain=DOMAIN))
    elif behind == "a node of its own kind":
        x, _, _ = build.op("Halves", x, first, domain=DOMAIN)
    left, right, count = build.op("Halves", x, first, domain=DOMAIN)
    network = build.network({"left": left, "right": right, "count": count})
    columns = 2 if behind == "a node of its own kind" else 4
    assert {name: str(spec) for name, spec in network.outputs.items()} == {
        "left": f"float32[N, {columns}]",
        "right": f"float32[N, {columns}]",
        "count": "int64[N+1]",
    }


def test_fewer_outputs_than_its_specs_gives_are_asked_for() -> None:
    build = d5.NetworkBuilder("fewer")
    x, first = build.input("x", ("N", 8)), build.input("first", (), "int64")
    with pytest.raises(
        NetworkError, match=r"Exp got \(Value.* or None; remedy: one of the outputs, or outputs=1 where"
    ):
        build.op("Exp", build.op("Halves", x, first, domain=DOMAIN))
    only = build.op("Halves", x, first, domain=DOMAIN, outputs=1)
    assert list(build.network({"only": only}).outputs) == ["only"]


@d5.register_operator("Columns", domain=DOMAIN)
class Columns(IPow):
    """As many outputs as there are columns."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        rows, columns = inputs[0].shape
        return (d5.TensorSpec(shape=(rows,), dtype=inputs[0].dtype),) * int(columns)


def test_a_count_of_outputs_that_changes_with_the_shapes_is_never_wrong_in_silence() -> None:
    """After other nodes the count comes from an earlier node of the kind, and is checked when shapes are known."""

    def columns(count: int, behind: bool) -> tuple[Any, ...]:
        x = build.input(f"x{count}", ("N", count))
        return build.op("Columns", build.op("Exp", x) if behind else x, domain=DOMAIN)  # type: ignore[no-any-return]

    build = d5.NetworkBuilder("inputs")
    assert [len(columns(count, False)) for count in (2, 3)] == [2, 3]
    build = d5.NetworkBuilder("nodes")
    made = columns(2, True), columns(3, True)
    told = r"'Columns_2' \(test\.registered\.Columns\) was given 2 outputs, and its specs says 3 .*; remedy: outputs=3"
    with pytest.raises(NetworkError, match=told):
        build.network({"a": made[0][0], "b": made[1][0]})


def test_many_nodes_whose_outputs_nobody_counts_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inferring all shapes again for every node would take minutes for a thousand of them."""
    calls: list[str] = []
    whole = builder.infer_shapes

    def counted(model: Any, what: str) -> None:
        calls.append(what)
        whole(model, what)

    monkeypatch.setattr(builder, "infer_shapes", counted)
    build = d5.NetworkBuilder("many")
    x = build.input("x", ("N", 8))
    for _ in range(20):
        x = build.op("IPow", build.op("Tanh", x), domain=DOMAIN)
    build.network({"y": x})
    assert len(calls) == 2  # for the first of them, and for the whole network


def test_a_finished_network_keeps_its_outputs() -> None:
    build = d5.NetworkBuilder("finished")
    x = build.input("x", ("N",))
    network = build.network({"y": build.op("IPow", build.op("Exp", x), domain=DOMAIN)})
    build.op("Odder", build.op("Tanh", x), domain=DOMAIN)
    assert list(network.outputs) == [value.name for value in network.model.graph.outputs] == ["y"]


@d5.register_operator("Odder", domain=DOMAIN)
class Odder(IPow):
    """With another name."""


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned None; allowed: a tuple"),
        ((), r"returned \(\); allowed: a tuple of at least one"),
        ((3,), r"returned \(3,\); allowed: a tuple"),
    ],
)
def test_specs_that_say_nothing(returned: Any, told: str) -> None:
    kind = type("Odd", (IPow,), {"specs": lambda self, x: returned, "__module__": f"odd{hash(told)}"})
    d5.register_operator(f"Odd{abs(hash(told))}", domain=DOMAIN)(kind)
    build = d5.NetworkBuilder("wrong")
    with pytest.raises(OperatorError, match=rf"Odd\.specs {told}"):
        build.network({"y": build.op(f"Odd{abs(hash(told))}", build.input("x", ("N",)), domain=DOMAIN)})


def test_a_node_that_nobody_registered() -> None:
    build = d5.NetworkBuilder("wrong")
    x = build.input("x", ("N",))
    told = (
        r"no operator 'IPoww' of the domain 'test\.registered' is registered; .*did you mean 'test\.registered\.IPow'"
    )
    with pytest.raises(NetworkError, match=told):
        build.op("IPoww", x, domain=DOMAIN)
    with pytest.raises(UsageError, match="no operator 'Nothing' of the domain 'nowhere' is registered"):
        make_operator("nowhere", "Nothing", {})


def test_names_and_domains_that_cannot_be_registered() -> None:
    for name in ("", 3, "a b", "a.backward", "3a", "a-b", "µ", "a\n"):
        with pytest.raises(UsageError, match=r"register_operator: got name=.*; allowed, as in ONNX: letters, digits"):
            d5.register_operator(name, domain="a")  # type: ignore[arg-type]
    for domain in ("", None, "x y", ".a", "a.", "a..b", "a:b", "org.example\n"):
        with pytest.raises(UsageError, match=r"register_operator: got domain=.*; allowed: letters, digits, _ and -"):
            d5.register_operator("a", domain=domain)  # type: ignore[arg-type]
    for domain in ("ai.onnx", "ai.onnx.ml"):
        with pytest.raises(UsageError, match="which belongs to ONNX"):
            d5.register_operator("IPow", domain=domain)
    for domain in ("deep5", "deep5.mine"):
        own = rf"got the domain '{domain}' for IPow, which belongs to deep5; remedy: another one, such as 'org\.exam"
        with pytest.raises(UsageError, match=own):
            d5.register_operator("CTCLoss", domain=domain)(IPow)
        assert (domain, "CTCLoss") not in {*registered_operators()} or registered_operator(
            domain, "CTCLoss"
        ) is not IPow
    d5.register_operator("CTCLoss", domain="deep5ish")(IPow)  # a name with the same beginning
    from deep5.operators.zoo import CTCLoss  # deep5's own, which may use that domain

    assert registered_operator("deep5", "CTCLoss") is CTCLoss
    with pytest.raises(UsageError, match=r"allowed: a class of d5\.Operator"):
        d5.register_operator("IPow", domain="a")(int)  # type: ignore[type-var]
    with pytest.raises(UsageError, match=r"'IPow' of the domain 'test\.registered' is taken by .*IPow; remedy"):
        d5.register_operator("IPow", domain=DOMAIN)(Halves)
    assert registered_operator(DOMAIN, "IPow") is IPow
    assert d5.register_operator("IPow", domain=DOMAIN)(IPow) is IPow, "a module that is loaded again registers again"
    assert (DOMAIN, "IPow") in registered_operators()


def test_a_class_that_is_defined_again_takes_its_own_place_and_no_other_one_s() -> None:
    def define(power: int) -> type[d5.Operator]:
        @d5.register_operator("Again", domain=DOMAIN)
        class Again(IPow):
            def __init__(self) -> None:
                super().__init__(power)

        return Again

    first, second = define(2), define(3)
    assert registered_operator(DOMAIN, "Again") is second is not first
    with pytest.raises(
        UsageError, match=r"'Again' of the domain 'test\.registered' is taken by .*Again; remedy: anoth"
    ):
        d5.register_operator("Again", domain=DOMAIN)(IPow)
    assert registered_operator(DOMAIN, "Again") is second
    # The same class under two names is two operators.
    assert d5.register_operator("Again2", domain=DOMAIN)(second) is second
    assert d5.register_operator("Again", domain=f"{DOMAIN}.other-one")(IPow) is IPow


KEPT: dict[str, Any] = {
    "a NumPy whole number": (np.int64(3), 3),
    "the lowest whole number": (-(1 << 63), -(1 << 63)),
    "a NumPy number": (np.float32(0.1), float(np.float32(0.1))),
    "a number": (0.1, float(np.float32(0.1))),
    "the largest number": (3.4028235e38, float(np.finfo(np.float32).max)),
    "infinity": (float("inf"), float("inf")),
    "a truth value": (True, 1),
    "a NumPy truth value": (np.bool_(False), 0),
    "a mixed list": ([1, 2.5], (1.0, 2.5)),
    "a list of NumPy's": ([np.int8(1), 2], (1, 2)),
    "an array": (np.array([0.5, 1.0]), (0.5, 1.0)),
    "nothing in a list": ([], ()),
    "a text": ("µ", "µ"),
    "texts": (("a", "b"), ("a", "b")),
}


@pytest.mark.parametrize("what", KEPT)
def test_an_attribute_is_what_a_file_holds(what: str) -> None:
    given, expected = KEPT[what]
    build = d5.NetworkBuilder("attributes")
    made = build.op("IPow", build.input("x", ("N",)), domain=DOMAIN, power=given)
    kept = made.producer().attributes["power"].value
    assert repr(kept) == repr(expected)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, r"power=None; remedy: leave it out"),
        (1e300, r"power=1e\+300, which float32 does not hold: .*; remedy: a string"),
        ([0.5, -1e39], r"which float32 does not hold"),
        (2**70, r"power=1180591620717411303424, which takes more than 64 bits; remedy"),
        (np.uint64(1 << 63), r"takes more than 64 bits"),
        ([1, "a"], r"power=\[1, 'a'\]\); allowed: .* lists of one kind"),
        (b"ab", r"power=b'ab'; remedy: a string"),
        ({"a": 1}, r"power=\{'a': 1\}\); allowed: numbers"),
        (1j, r"power=1j\); allowed: numbers"),
        (np.ones((2, 2)), r"allowed: numbers"),
    ],
)
def test_an_attribute_that_no_file_can_hold(value: Any, told: str) -> None:
    build = d5.NetworkBuilder("attributes")
    with pytest.raises(NetworkError, match=rf"IPow got an attribute that no file can hold \(.*{told}"):
        build.op("IPow", build.input("x", ("N",)), domain=DOMAIN, power=value)


@pytest.mark.parametrize(
    ("decides", "told"),
    [
        (lambda x: x.shape[0] < 1, "TypeError .*: which is larger, N or 1, is not known"),
        (lambda x: x.shape[0] >= 1, "TypeError .*: which is larger, N or 1, is not known"),
        (lambda x: x.shape[0] < x.shape[1], "TypeError .*: which is larger, N or M, is not known"),
        (lambda x: max(x.shape[:2]), "TypeError .*: which is larger, M or N, is not known"),
        (lambda x: range(x.shape[0]), "TypeError .*"),
        (lambda x: int(x.shape[0]), "ValueError .*"),
    ],
)
def test_specs_that_decides_by_a_symbolic_extent(decides: Any, told: str) -> None:
    """Two names would be compared as strings."""

    def specs(self: Any, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        decides(x)
        return (x,)

    d5.register_operator("Decides", domain=DOMAIN)(type("Decides", (IPow,), {"specs": specs}))
    build = d5.NetworkBuilder("symbolic")
    x = build.input("x", ("N", "M", 2))
    remedy = r"; 'M', 'N' are symbolic, known when the network runs; allowed: .* remedy: compare only numbers"
    with pytest.raises(OperatorError, match=rf"Decides\.specs raised {told}.*{remedy}"):
        build.op("Decides", x, domain=DOMAIN)
    node = build.op("Decides", x, domain=DOMAIN, outputs=1)  # specs is not called before the network is complete
    with pytest.raises(OperatorError, match=rf"Decides\.specs raised {told}.*{remedy}"):
        build.network({"y": node})
    numbers = d5.TensorSpec(shape=(2, 3, 2))
    assert specs_of(registered_operator(DOMAIN, "Decides")(), [numbers]) == (numbers,)


def test_a_failing_specs_is_told_an_error_that_its_author_can_raise() -> None:
    """Every error that a message recommends exists under that name."""
    kind = type("Failing", (IPow,), {"specs": lambda self, x: x.shape[5]})
    remedy = r"remedy: raise d5\.ShapeError\(…\) if it does not accept these inputs"
    with pytest.raises(d5.OperatorError, match=rf"raised IndexError .*; {remedy}") as told:
        specs_of(kind(), [d5.TensorSpec(shape=(2,))])
    assert issubclass(d5.ShapeError, d5.Deep5Error)
    assert isinstance(told.value, d5.Deep5Error)


def test_symbolic_extents_are_computed_with() -> None:
    n, h = Extent("N"), Extent("H")
    assert [n + 0, n * 1, n // 1] == ["N", "N", "N"]
    assert [n + 1, 1 + n, n - 1, 2 * n, n * 2, n // 2, n % 7] == [*("N+1", "1+N", "N-1", "2*N", "2*N", "N//2", "N%7")]
    assert (h + 2 * 1 - 3) // 2 + 1 == "(H+2-3)//2+1"
    assert n * h == "N*H"
    assert n + Extent("?") == "?"
    assert isinstance(n, str)
    assert hash(n) == hash("N")
    with pytest.raises(TypeError):
        n + 0.5  # type: ignore[operator]
