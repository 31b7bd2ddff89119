"""Mixed precision: where casts are, their effect on accuracy, and that no back-end silently computes in another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.errors import NetworkError, UnknownName, Unsupported, UsageError
from deep5.core.processor import adds_bfloat16_in_float32
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.networks import Network, NetworkBuilder, inception, lenet, lstm, mlp, ones, resnet, transformer, zeros
from deep5.networks.native import NativeNetwork
from deep5.networks.transforms.mixed_precision import FOLLOWING, PRODUCTS, compute_dtype, mixed_precision
from deep5.networks.transforms.precision import with_precision
from deep5.training.optimizer import RuleOptimizer

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax")
EACH = pytest.mark.parametrize("framework", FRAMEWORKS)
SHORT = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
# Half the distance from 1 to the next larger number: the largest relative error of one rounding.
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
# The type of the kernels for bfloat16 products, if not bfloat16 itself.
WIDE = None if adds_bfloat16_in_float32() else "float32"
KINDS = {"BFLOAT16": "bfloat16", "FLOAT16": "float16", "FLOAT": "float32"}
SMALL: dict[str, Callable[[], Network]] = {
    "mlp": lambda: mlp(features=30, hidden=40, classes=5),
    "lenet": lambda: lenet(classes=5),
    "lenet_relu": lambda: lenet(classes=5, activation="relu", pooling="max"),
    "resnet": lambda: resnet(depth=8, classes=5),
    "inception": lambda: inception(width=8, image=8, classes=5),
    "transformer": lambda: transformer(
        vocabulary=20, length=6, width=16, heads=2, layers=1, classes=5, causal=True, dropout=0.1
    ),
    "lstm": lambda: lstm(features=5, hidden=6, length=4, classes=5),
    "mse": lambda: mlp(features=30, hidden=40, classes=5, loss="mse"),
}
ALL = pytest.mark.parametrize("name", SMALL)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Products are summed in the same order wherever a test runs."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def feed(network: Network, size: int = 8) -> dict[str, np.ndarray]:
    """A batch; the same for the float32 and the float64 network."""
    draw, found = np.random.default_rng(5), {}
    for name, spec in network.inputs.items():
        shape = [extent if isinstance(extent, int) else size for extent in spec.shape]
        whole = spec.dtype.startswith("int")
        found[name] = draw.integers(0, 5, shape) if whole else draw.standard_normal(shape).astype(np.float32)
        found[name] = found[name].astype(spec.dtype)
    return found


def differentiated(network: Network, framework: str, inputs: Any = None, **keywords: Any) -> tuple[Any, Any]:
    """Outputs and gradients as NumPy arrays."""
    executor = d5.framework(framework).executor(network)
    outputs = executor.inference_and_backprop(feed(network) if inputs is None else inputs, **keywords)
    gradients = executor.gradients()
    return ({name: to_numpy(value).copy() for name, value in found.items()} for found in (outputs, gradients))  # type: ignore[return-value]


def far(got: Any, want: Any) -> float:
    """The distance of two dicts of arrays, relative to the second."""
    return max(
        float(np.linalg.norm(got[name].astype(np.float64) - want[name]) / np.linalg.norm(want[name])) for name in want
    )


# Where casts are


@ALL
@SHORT
def test_what_stays_as_it_was(name: str, dtype: str) -> None:
    network = SMALL[name]()
    before = network.structure_hash()
    mixed = mixed_precision(network, dtype)
    assert network.structure_hash() == before
    assert mixed.inputs == network.inputs
    assert mixed.outputs == network.outputs
    assert mixed.parameter_specs == network.parameter_specs
    assert mixed.buffer_specs == network.buffer_specs
    assert mixed.weights_hash() == network.weights_hash()
    again = Network.from_onnx(mixed.to_onnx())  # valid ONNX, with types that its schemas allow
    assert {**again.parameter_specs, **again.outputs} == {**mixed.parameter_specs, **mixed.outputs}


@ALL
@SHORT
def test_where_casts_stand(name: str, dtype: str) -> None:
    mixed = mixed_precision(SMALL[name](), dtype)
    short = {"bfloat16": ir.DataType.BFLOAT16, "float16": ir.DataType.FLOAT16}[dtype]
    casts = [node for node in mixed.nodes if node.op_type == "Cast"]
    targets = Counter((node.inputs[0], node.attributes["to"].value) for node in casts)
    assert set(targets.values()) == {1}, "a value is cast to a type once"
    for node in casts:
        source = node.inputs[0].producer()
        assert source is None or source.op_type != "Cast", "no cast of a cast"
        assert node.outputs[0].uses() or node.outputs[0].is_graph_output(), "no cast that nobody reads"
    for node in mixed.nodes:
        if node.op_type in ("Cast", "Constant"):
            continue
        kinds = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
        if node.op_type in PRODUCTS:
            assert short in kinds
            assert ir.DataType.FLOAT not in kinds
        elif short in kinds:
            assert node.op_type in FOLLOWING
            assert ir.DataType.FLOAT not in kinds
    assert short in {node.outputs[0].dtype for node in mixed.nodes if node.op_type in PRODUCTS}


def test_constants_that_a_type_does_not_hold_keep_an_operator_in_float32() -> None:
    def kind(dtype: str) -> str:
        nodes = mixed_precision(SMALL["transformer"](), dtype).nodes
        return next(str(node.outputs[0].dtype) for node in nodes if node.op_type == "Where")

    assert kind("bfloat16") == "BFLOAT16"
    assert kind("float16") == "FLOAT"  # -1e9 would become infinite, and a row of them NaN


def chain(*operators: str, constant: float | None = None) -> Network:
    build = NetworkBuilder("chain")
    x = build.op("MatMul", build.input("x", ("N", 4)), build.parameter("w", (4, 4)))
    for operator in operators:
        if operator == "Bias":
            x = build.op("Add", x, build.parameter("b", (4,), zeros))
        elif constant is not None:
            x = build.op(operator, x, build.scalar(constant))
        else:
            x = build.op(operator, x)
    return build.network({"y": x})


@pytest.mark.parametrize(
    ("network", "kinds"),
    [
        (chain("Relu", "Neg"), {"MatMul": "FLOAT16", "Relu": "FLOAT16", "Neg": "FLOAT16"}),
        (chain("Relu", "Exp", "Relu"), {"MatMul": "FLOAT16", "Relu": "FLOAT", "Exp": "FLOAT"}),
        (chain("Bias"), {"MatMul": "FLOAT16", "Add": "FLOAT"}),  # its gradient sums over the batch
        (chain("Mul", constant=0.125), {"Mul": "FLOAT16"}),
        (chain("Mul", constant=1e-9), {"Mul": "FLOAT"}),  # which float16 rounds to zero
        (chain("Add", constant=1e5), {"Add": "FLOAT"}),  # and this to an infinity
        (chain("Softmax"), {"Softmax": "FLOAT"}),
    ],
)
def test_who_follows(network: Network, kinds: dict[str, str]) -> None:
    mixed = mixed_precision(network, "float16")
    found = {node.op_type: str(node.outputs[0].dtype) for node in mixed.nodes}
    assert found | kinds == found
    assert str(mixed.outputs["y"]) == "float32[N, 4]"


def test_who_repeats_a_short_value_takes_float32() -> None:
    """The gradient by the repeated value is a sum, here over the batch."""
    build = NetworkBuilder("repeated")
    w = build.parameter("w", (4, 4))
    many, one = (build.op("MatMul", build.input(name, (rows, 4)), w) for name, rows in (("x", "N"), ("z", 1)))
    outputs = {"alike": build.op("Add", many, many), "repeated": build.op("Add", many, one)}
    mixed = mixed_precision(build.network(outputs), "bfloat16")
    assert [str(node.outputs[0].dtype) for node in mixed.nodes if node.op_type == "Add"] == ["BFLOAT16", "FLOAT"]


def test_a_value_in_two_types_is_cast_once_to_each() -> None:
    build = NetworkBuilder("both")
    x, w = build.input("x", ("N", 4)), build.parameter("w", (4, 4))
    products = [build.op("MatMul", x, w), build.op("MatMul", build.op("Exp", x), w)]
    h = build.op("Add", *products)
    network = build.network(
        {"h": h, "y": build.op("Softmax", h), "z": build.op("Exp", h), "m": build.op("MatMul", h, w)}
    )
    mixed = mixed_precision(network, "bfloat16")
    casts = [(node.inputs[0].name, str(node.outputs[0].dtype)) for node in mixed.nodes if node.op_type == "Cast"]
    assert len(casts) == len(set(casts)) == 5  # x, w, Exp's; h and m to float32
    assert [node.inputs[0].name for node in mixed.nodes if node.op_type in ("Softmax", "Exp")][1:] == ["h", "h"]
    outputs = d5.framework("reference").executor(mixed).inference({"x": np.ones((2, 4), np.float32)})
    assert {value.dtype.name for value in outputs.values()} == {"float32"}


def test_nested_graphs_read_float32() -> None:
    def body(name: str, operator: str) -> Any:
        nodes = [helper.make_node(operator, ["h"], [f"{name}_out"], name=f"{name}_node")]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, ["N", 3])]
        )

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["bit"], ["y"], then_branch=body("then", "Exp"), else_branch=body("else", "Identity")),
    ]
    graph = helper.make_graph(
        nodes,
        "nested",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("bit", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.ones((4, 3), np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    mixed = mixed_precision(Network.from_onnx(proto), "bfloat16")
    assert compute_dtype(mixed) == "bfloat16"
    again = Network.from_onnx(mixed.to_onnx())
    choice = next(node for node in again.nodes if node.op_type == "If")
    reads = [value.dtype for graph in choice.attributes.values() for node in graph.as_graph() for value in node.inputs]
    assert set(reads) == {ir.DataType.FLOAT}


def test_the_operators_between_the_opsets_are_the_same() -> None:
    """A bfloat16 network is in opset 22: since opset 20 all operators but these have only added types."""
    import onnx.defs

    def facts(name: str, opset: int) -> Any:
        schema = onnx.defs.get_schema(name, opset)
        return [
            [(formal.name, formal.option) for formal in (*schema.inputs, *schema.outputs)],
            {key: (own.type, own.required, str(own.default_value)) for key, own in schema.attributes.items()},
        ]

    changed = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if not schema.domain
        and onnx.defs.has(schema.name, 20)
        and not onnx.defs.get_schema(schema.name, 20).deprecated
        and facts(schema.name, 20) != facts(schema.name, 22)
    }
    assert changed <= {"DequantizeLinear", "QuantizeLinear", "QLinearMatMul", "EyeLike", "Cast", "CastLike"}, changed


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "another type": (lambda: mixed_precision(SMALL["mlp"](), "int8"), UsageError, "got 'int8'; allowed: bfloat16"),
    "no text": (lambda: mixed_precision(SMALL["mlp"](), 16), UsageError, "got 16; allowed: bfloat16, float16"),  # type: ignore[arg-type]
    "no network": (lambda: mixed_precision("mlp", "float16"), UsageError, "got str; allowed: a Network"),  # type: ignore[arg-type]
    "float64": (
        lambda: mixed_precision(mlp(dtype="float64"), "float16"),
        Unsupported,
        r"'mlp': 'input' is float64; allowed: only float32; remedy: .*with_precision\(network, 'float32'\)",
    ),
    "mixed already": (
        lambda: mixed_precision(mixed_precision(mlp(), "float16"), "float16"),
        Unsupported,
        "is float16; allowed: only float32",
    ),
    "no product": (
        lambda: mixed_precision(one_node("Relu"), "float16"),
        Unsupported,
        "no product to compute in float16; allowed: networks with Conv, ConvTranspose, Gemm, MatMul; remedy: float32",
    ),
    "no precision": (lambda: with_precision(mlp(), "int8"), UnknownName, "unknown precision 'int8'; allowed: bfloat16"),
    "precision of nothing": (lambda: with_precision(3, "float64"), UsageError, "got int; allowed: a Network"),  # type: ignore[arg-type]
    "native code": (
        lambda: with_precision(
            NativeNetwork(
                name="own",
                inputs={},
                outputs={},
                buffer_specs={},
                structure="",
                parameter_specs={"w": TensorSpec(shape=(2,))},
            ),
            "bfloat16",
        ),
        Unsupported,
        "precision 'bfloat16' of the network 'own', which is native code in float32; allowed: .*; remedy: leave",
    ),
    "precision of a mixture": (
        lambda: with_precision(mixed_precision(mlp(), "bfloat16"), "float64"),
        Unsupported,
        "it has values of bfloat16, float32; allowed: one of float32 and float64 throughout; remedy: the network as it",
    ),
    "a constant too large": (
        lambda: with_precision(one_node("Mul", 1e300, "float64"), "float32"),
        NetworkError,
        "in float32: the constant '.*' becomes infinite; allowed: at most 3.4e.38; remedy: another constant, or f",
    ),
}


def one_node(operator: str, constant: float | None = None, dtype: str = "float32") -> Network:
    build = NetworkBuilder("one", dtype=dtype)
    operands = [] if constant is None else [build.scalar(constant)]
    return build.network({"y": build.op(operator, build.input("x", ("N", 4)), *operands)})


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    call, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        call()


# Accuracy


@ALL
def test_the_same_casts_to_float32_change_no_bit(name: str) -> None:
    """So casts are the only change of the transformation."""
    network = SMALL[name]()
    casts = mixed_precision(network, "float32")
    assert sum(node.op_type == "Cast" for node in casts.nodes) > 3
    for got, want in zip(differentiated(casts, "reference"), differentiated(network, "reference"), strict=True):
        for key, value in want.items():
            np.testing.assert_array_equal(got[key], value, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("framework", [*FRAMEWORKS[1:], "onnxruntime", "tensorflow:xla"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet", "lstm"])
def test_they_change_no_bit_anywhere(name: str, framework: str) -> None:
    network = SMALL[name]()
    found = zip(
        differentiated(mixed_precision(network, "float32"), framework), differentiated(network, framework), strict=True
    )
    for got, want in found:
        for key, value in want.items():
            np.testing.assert_array_equal(got[key], value, err_msg=key)


class Spread:
    """A value in float64, and the variance of its rounding errors, each of them independent.

    Worst cases are useless here: after LeNet's five layers they are 400 000 times the rounding errors.

    References:
        Higham and Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019.
    """

    def __init__(self, value: np.ndarray, variance: np.ndarray) -> None:
        self.value, self.variance = value, variance

    def rounded(self, dtype: str, times: int = 1) -> Spread:
        """After roundings to a type, with errors uniform in ±u |x|: a variance of (u x)**2 / 3."""
        return Spread(self.value, self.variance + times * (ROUNDOFF[dtype] * self.value) ** 2 / 3)


def spread(network: Network, inputs: dict[str, np.ndarray]) -> Spread:
    """The logits of a mixed network of fully connected layers, convolutions and pooling, to first order."""
    torch = pytest.importorskip("torch")
    known = {name: Spread(array.astype(np.float64), np.zeros(array.shape)) for name, array in inputs.items()}
    for name in network.parameter_specs:
        value = network.initial(name).astype(np.float64)
        known[name] = Spread(value, np.zeros(value.shape))

    def product(node: ir.Node, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if node.op_type == "Gemm":
            assert node.attributes["transB"].value == 1
            return np.asarray(x @ w.T)
        pads = node.attributes["pads"].value[:2] if "pads" in node.attributes else (0, 0)
        return np.asarray(torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=tuple(pads)))

    for node in network.nodes:
        kind = KINDS[str(node.outputs[0].dtype)]
        x, *others = [known[value.name] for value in node.inputs if value is not None and value.name in known]
        if node.op_type in ("Gemm", "Conv"):
            w, b = others
            bias = [v.reshape(-1, *[1] * (x.value.ndim - 2)) for v in (b.value, b.variance)]
            value = product(node, x.value, w.value) + bias[0]
            variance = product(node, x.variance, w.value**2) + product(node, x.value**2, w.variance) + bias[1]
            result = Spread(value, variance).rounded(kind)
        elif node.op_type == "Tanh":
            value = np.tanh(x.value)
            result = Spread(value, (1 - value**2) ** 2 * x.variance).rounded(kind)
        elif node.op_type == "Relu":
            result = Spread(np.maximum(x.value, 0), x.variance * (x.value > 0))
        elif node.op_type in ("AveragePool", "MaxPool"):
            value, variance = (
                v.reshape(*v.shape[:2], v.shape[2] // 2, 2, v.shape[3] // 2, 2).transpose(0, 1, 2, 4, 3, 5)
                for v in (x.value, x.variance)
            )
            if node.op_type == "AveragePool":
                result = Spread(value.mean((4, 5)), variance.mean((4, 5)) / 4)
            else:
                chosen = value == value.max((4, 5), keepdims=True)
                result = Spread(value.max((4, 5)), (variance * chosen).max((4, 5)))
        elif node.op_type == "Flatten":
            result = Spread(*(v.reshape(len(v), -1) for v in (x.value, x.variance)))
        elif node.op_type == "Cast":
            result = x if kind == "float32" else x.rounded(kind)
        else:
            continue  # the loss
        known[str(node.outputs[0].name)] = result
    return known["logits"]


@EACH
@SHORT
@pytest.mark.parametrize("name", ["mlp", "lenet", "lenet_relu"])
def test_outputs_are_as_far_off_as_their_roundings_say(name: str, dtype: str, framework: str) -> None:
    """Not more, as with another sum or rounding, and not less, as with float32.

    The largest of 40 normal errors is beyond 5 standard deviations once in 40 000. Errors of one rounding are mostly
    below the u |x| that the variance assumes, and some back-ends round a sum twice, before and after they add the bias:
    measured are 0.55 to 0.82 of the root mean square, and 2.2 standard deviations at most.
    """
    network = SMALL[name]()
    mixed, inputs = mixed_precision(network, dtype), feed(network)
    want = spread(mixed, inputs)
    got = to_numpy(d5.framework(framework).executor(mixed).inference(inputs)["logits"]).astype(np.float64)
    off = (got - want.value) / np.sqrt(want.variance)
    assert np.abs(off).max() < 5
    assert 0.3 < np.sqrt(np.mean(off**2)) < 1.5


@EACH
@SHORT
@pytest.mark.parametrize("name", ["mlp", pytest.param("lenet", marks=pytest.mark.slow)])
def test_gradients_are_as_exact_as_their_roundings(name: str, dtype: str, framework: str) -> None:
    """Smooth networks against float64, each gradient by its norm, and frameworks against each other.

    Roundings on the longest path, of LeNet: 5 layers, 4 forward and 3 backward in each. If they are independent, 35 of
    them amount to sqrt(35) = 6 roundings of the largest size; their root mean square is 0.3 of that, which leaves a
    factor of 3 for amplification by the network. Measured: 2.2 at most.
    """
    network = SMALL[name]()
    wide = with_precision(network, "float64")
    _, want = differentiated(wide, "reference", {**feed(network), "input": feed(network)["input"].astype(np.float64)})
    _, got = differentiated(mixed_precision(network, dtype), framework)
    _, other = differentiated(mixed_precision(network, dtype), "reference")
    assert {value.dtype.name for value in got.values()} == {"float32"}
    assert far(got, want) <= 6 * ROUNDOFF[dtype]
    assert far(got, want) >= ROUNDOFF[dtype] / 10  # not float32's
    assert far(got, other) <= 6 * ROUNDOFF[dtype]


def wide_layers(kind: str) -> tuple[Network, dict[str, np.ndarray], int]:
    """A layer on ones with ones as weights, its outputs summed: every gradient by weights is a sum of equal terms."""
    build, count = NetworkBuilder("wide"), 3000
    if kind == "Gemm":
        x = build.input("input", ("N", 4))
        y = build.op("Gemm", x, build.parameter("w", (3, 4), ones), build.parameter("b", (3,), zeros), transB=1)
        shape: tuple[int, ...] = (count, 4)
    else:
        x = build.input("input", ("N", 4, 9, 9))
        y = build.op("Conv", x, build.parameter("w", (3, 4, 3, 3), ones), build.parameter("b", (3,), zeros))
        # 49 elements, which float16 does not add to 4096 without rounding, not even image by image.
        shape, count = (131, 4, 9, 9), 131 * 49
    network = build.network({"y": y, "loss": build.op("ReduceSum", y, keepdims=0)})
    return network, {"input": np.ones(shape, np.float32)}, count


@EACH
@SHORT
@pytest.mark.parametrize("kind", ["Gemm", "Conv"])
def test_sums_are_in_float32(kind: str, dtype: str, framework: str) -> None:
    """In bfloat16 a sum of ones stops at 256, in float16 at 2048; one rounding of the whole sum is allowed."""
    network, inputs, count = wide_layers(kind)
    outputs, gradients = differentiated(mixed_precision(network, dtype), framework, inputs)
    for name in ("w", "b"):
        np.testing.assert_allclose(gradients[name], count, rtol=ROUNDOFF[dtype], err_msg=name)
    np.testing.assert_array_equal(outputs["y"], 4.0 if kind == "Gemm" else 36.0)


@EACH
def test_a_loss_scale_saves_small_gradients(framework: str) -> None:
    """float16 rounds below 2**-25 to zero, as for a mean loss over 2**16 samples; scaled, the gradient is float32's."""
    build = NetworkBuilder("flat")
    x, w = build.input("input", ("N", 4)), build.parameter("w", (4, 3))
    y = build.op("Tanh", build.op("MatMul", x, w))
    loss = build.op("Mul", build.op("ReduceMean", y, keepdims=0), build.scalar(2.0**-26))
    network = build.network({"loss": loss})
    inputs = {"input": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)}
    _, want = differentiated(network, "reference", inputs)
    mixed = mixed_precision(network, "float16")
    _, lost = differentiated(mixed, framework, inputs)
    assert not lost["w"].any()
    _, saved = differentiated(mixed, framework, inputs, loss_scale=2.0**20)
    # There are five roundings between the loss and this gradient.
    assert far({"w": saved["w"] / 2.0**20}, want) <= 5 * ROUNDOFF["float16"]
    # bfloat16 has float32's range and needs none.
    _, kept = differentiated(mixed_precision(network, "bfloat16"), framework, inputs)
    assert far(kept, want) <= 5 * ROUNDOFF["bfloat16"]


@EACH
def test_gradients_by_inputs_and_overflow_arrive_in_float32(framework: str) -> None:
    network = SMALL["mlp"]()
    _, got = differentiated(mixed_precision(network, "float16"), framework, wrt=["input", "fc2.bias"])
    assert {name: value.dtype.name for name, value in got.items()} == {"input": "float32", "fc2.bias": "float32"}
    # Values too large for float16 are infinite or NaN, which a dynamic loss scale detects.
    _, got = differentiated(mixed_precision(network, "float16"), framework, loss_scale=2.0**30)
    assert not all(np.isfinite(value).all() for value in got.values())


@EACH
def test_weights_are_float32s(framework: str) -> None:
    """Steps of 2**-12 from 1 on, each of which bfloat16 would round away."""
    build = NetworkBuilder("slow")
    y = build.op("MatMul", build.input("input", ("N", 1)), build.parameter("w", (1, 1), ones))
    network = build.network({"loss": build.op("ReduceMean", y, keepdims=0)})
    executor = d5.framework(framework).executor(mixed_precision(network, "bfloat16"))
    step = executor.train_step(
        d5.GradientDescent(lr=2.0**-12) if hasattr(d5, "GradientDescent") else d5.SGD(lr=2.0**-12)
    )
    for index in range(16):
        step({"input": np.ones((1, 1), np.float32)}, d5.StepInfo(step=index, batch_size=1))
    assert executor.state_dict()["w"] == 1 - 2.0**-8


# Errors of back-ends


@pytest.mark.parametrize(
    ("framework", "dtype", "message"),
    [
        ("onnxruntime", "float16", r"Gemm_1 \(Gemm\): ONNX Runtime would compute it in float32 without a warning"),
        (
            "onnxruntime",
            "bfloat16",
            r"Gemm_1 \(Gemm\): ONNX Runtime has no kernel for Gemm in bfloat16; allowed: float32; remedy: "
            r"deep5\.networks\.with_precision\(network, 'float32'\)",
        ),
        ("openvino", "float16", r"Gemm_1 \(Gemm\): OpenVINO computes FLOAT16 in float32"),
        ("openvino", "bfloat16", r"Gemm_1 \(Gemm\): OpenVINO computes BFLOAT16 in float32"),
    ],
)
def test_engines_that_would_compute_in_float32_refuse(framework: str, dtype: str, message: str) -> None:
    pytest.importorskip(framework)
    with pytest.raises(Unsupported, match=message):
        d5.framework(framework).executor(mixed_precision(SMALL["mlp"](), dtype))


@pytest.mark.parametrize(
    ("framework", "dtype", "kernels"),
    [
        ("reference", "bfloat16", "float32"),
        ("pytorch", "bfloat16", WIDE),
        ("pytorch", "float16", "float32"),
        ("tensorflow", "bfloat16", WIDE),
        ("tensorflow", "float16", "float32"),
        ("jax", "bfloat16", "float32"),
    ],
)
def test_settings_say_in_what_products_are(framework: str, dtype: str, kernels: str | None) -> None:
    settings = d5.framework(framework).executor(mixed_precision(SMALL["mlp"](), dtype)).settings()
    assert (settings["dtype"], settings["compute_dtype"]) == ("float32", dtype)
    assert settings.get("compute_kernels") == kernels
    plain = d5.framework(framework).executor(SMALL["mlp"]()).settings()
    assert "compute_dtype" not in plain
    assert "compute_kernels" not in plain


def test_a_layer_that_stays_in_float32_is_said() -> None:
    mixed = mixed_precision(SMALL["lstm"](), "bfloat16")
    assert compute_dtype(mixed) == "bfloat16, float32"
    assert compute_dtype(SMALL["mlp"]()) == "float32"
    assert compute_dtype(one_node("Relu")) is None


@EACH
@SHORT
def test_a_network_in_a_short_type_throughout(dtype: str, framework: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    build = NetworkBuilder("short", dtype=kind)  # type: ignore[arg-type]
    x, w, b = build.input("input", ("N", 5)), build.parameter("w", (4, 5)), build.parameter("b", (4,), ones)
    h = build.op("Tanh", build.op("Gemm", x, w, b, transB=1))
    y = build.op("Mul", build.op("MatMul", h, build.parameter("m", (4, 3))), build.scalar(0.5))
    network = build.network({"y": y, "loss": build.op("ReduceMean", y, keepdims=0)})
    inputs = {"input": np.random.default_rng(0).standard_normal((6, 5)).astype(kind)}
    outputs, gradients = differentiated(network, framework, inputs)
    assert {value.dtype for value in (*outputs.values(), *gradients.values())} == {kind}
    values = {name: network.initial(name).astype(np.float64) for name in network.parameter_specs}
    wide_h = np.tanh(inputs["input"].astype(np.float64) @ values["w"].T + values["b"])
    want = wide_h @ values["m"] / 2
    # tanh's argument is rounded twice, its value once, the product and its half once each; weights are exact.
    assert far({"y": outputs["y"]}, {"y": want}) <= 5 * ROUNDOFF[dtype]
    d_h = np.full((6, 3), 1 / 36) @ values["m"].T
    assert far({"m": gradients["m"]}, {"m": wide_h.T @ np.full((6, 3), 1 / 36)}) <= 6 * ROUNDOFF[dtype]
    assert far({"b": gradients["b"]}, {"b": (d_h * (1 - wide_h**2)).sum(0)}) <= 8 * ROUNDOFF[dtype]
    executor = d5.framework(framework).executor(network)
    state = executor.state_dict()
    packed = np.empty(sum(spec.size for spec in network.parameter_specs.values()), kind)
    executor.read(list(network.parameter_specs), packed)
    executor.write(list(network.parameter_specs), packed + packed)
    executor.load_state_dict(state)
    for name in network.parameter_specs:
        assert np.array_equal(executor.export().initial(name), network.initial(name))


# Whole networks in another type


@ALL
def test_with_precision_there_and_back(name: str) -> None:
    network = SMALL[name]()
    assert with_precision(network, "float32") is network
    wide = with_precision(network, "float64")
    kinds = {
        spec.dtype for spec in {**wide.inputs, **wide.outputs, **wide.parameter_specs, **wide.buffer_specs}.values()
    }
    assert kinds <= {"float64", "int64"}
    for parameter in network.parameter_specs:
        np.testing.assert_array_equal(wide.initial(parameter), network.initial(parameter).astype(np.float64))
    back = with_precision(wide, "float32")
    assert back.structure_hash() == network.structure_hash()
    assert back.weights_hash() == network.weights_hash()
    assert Network.from_onnx(wide.to_onnx()).outputs == wide.outputs
    assert with_precision(wide, "bfloat16").structure_hash() == mixed_precision(network, "bfloat16").structure_hash()
    inputs = feed(network)
    exact = {key: value.astype(np.float64) if value.dtype == np.float32 else value for key, value in inputs.items()}
    executors = [d5.framework("reference").executor(own) for own in (wide, network)]
    got, want = (run.inference(own)["loss"] for run, own in zip(executors, (exact, inputs), strict=True))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-5)  # float32 against float64, a few hundred roundings of 6e-8
    assert got != want


def test_what_an_operator_asks_for_keeps_its_type() -> None:
    """Scales of a Resize are float32 for any input type; numbers in attributes and types are converted."""
    build = NetworkBuilder("odd")
    x = build.input("x", ("N", 1, 2, 2))
    scales = build.constant("scales", np.array([1, 1, 2, 2], np.float32))
    y = build.op("Resize", x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    filled = build.op("ConstantOfShape", build.constant("shape", np.array([4, 4])))
    cast = build.op("Cast", build.op("Shape", x, start=1, end=2), to=int(TensorProto.FLOAT))
    y = build.op("Add", build.op("Add", y, filled), build.op("Mul", cast, build.op("Constant", value_float=3.0)))
    wide = with_precision(build.network({"y": y}), "float64")
    assert wide.outputs["y"].dtype == "float64"
    assert wide.model.graph.initializers["scales"].dtype == ir.DataType.FLOAT
    # No back-end resizes float64; ONNX's own evaluator does.
    (got,) = ReferenceEvaluator(wide.to_onnx()).run(None, {"x": np.ones((1, 1, 2, 2))})
    np.testing.assert_array_equal(got, np.full((1, 1, 4, 4), 1 + 0 + 1 * 3, np.float64))


# Training


def trained(network: Network, framework: str, epochs: int, **optimizer: Any) -> float:
    """Test accuracy on the digits after some epochs of Adam, batches of 64; the last third at a tenth of the rate."""
    from deep5.training.datasets.uci_digits import digits

    shape = network.inputs["input"].shape
    flat = len(shape) == 2
    splits = digits(size=28 if flat else int(shape[-1]))

    def batch(part: Any, ids: np.ndarray) -> dict[str, np.ndarray]:
        found = dict(part.batch(ids))
        if flat:
            found["input"] = found["input"].reshape(len(ids), -1)
        elif shape[1] == 3:
            found["input"] = np.repeat(found["input"], 3, axis=1)
        return found

    executor = d5.framework(framework).executor(network)
    rule = d5.Adam(lr=0.003)
    step = RuleOptimizer(rule, **optimizer)
    step.bind(executor)
    draw, index = np.random.default_rng(0), 0
    for epoch in range(epochs):
        rule.lr = 0.003 if 3 * epoch < 2 * epochs else 0.0003
        order = draw.permutation(len(splits.train))
        for start in range(0, len(order), 64):
            ids = order[start : start + 64]
            step.step(batch(splits.train, ids), d5.StepInfo(step=index, batch_size=len(ids)))
            index += 1
    test = batch(splits.test, np.arange(len(splits.test)))
    logits = to_numpy(executor.inference(test)["logits"])
    return float(np.mean(logits.argmax(1) == test["label"]))


def test_training_in_bfloat16_reaches_what_float32_does() -> None:
    """Of 360 images one standard deviation is 0.9 % at 97 %; a difference of three of them is allowed."""
    network = mlp(hidden=64)
    plain, mixed = (trained(own, "pytorch", 10) for own in (network, mixed_precision(network, "bfloat16")))
    assert plain > 0.95
    assert abs(plain - mixed) < 0.027


DIGITS: dict[str, tuple[Callable[[], Network], int]] = {
    "mlp": (lambda: mlp(hidden=100), 12),
    "lenet": (lenet, 12),
    "resnet": (lambda: resnet(depth=8), 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
@pytest.mark.parametrize("name", DIGITS)
def test_digits_in_bfloat16_and_float16(name: str, framework: str) -> None:
    """As above; float16 with an automatic loss scale, and on PyTorch with a static one."""
    make, epochs = DIGITS[name]
    network = make()
    half = mixed_precision(network, "float16")
    found = {
        "float32": trained(network, framework, epochs),
        "bfloat16": trained(mixed_precision(network, "bfloat16"), framework, epochs),
        "float16": trained(half, framework, epochs, loss_scale="dynamic"),
    }
    if framework == "pytorch":
        found["float16, 1024"] = trained(half, framework, epochs, loss_scale=1024.0)
    assert min(found.values()) > 0.95, found
    assert max(found.values()) - min(found.values()) < 0.027, found
