"""Operators of the JAX back-end by sheets: values compared with onnx's implementation, gradients with differences."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.seeds import generator
from deep5.networks import NetworkBuilder, mlp
from deep5.networks.edit.builder import zeros
from executor_cases import arrays, reference
from jax_cases import ELSEWHERE, FURTHER, Case, Draw, fed, ints, positive, trained

jax = pytest.importorskip("jax")
jnp = jax.numpy


executor_of: Any = d5.framework("jax").executor
TRUE = np.array([[True, False, True], [False, True, True]])
WHOLE = np.array([[7, -7, 5], [-3, 2, -1]])
LABELS = ints(0, 3, 1, 2, 3)
PIXELS = np.array([[[0, 1, 2], [3, 1, 0]], [[2, 2, 1], [0, 3, 3]]])
X, IMAGE = (2, 3), (2, 3, 6, 7)

SHEETS: dict[str, list[Case]] = {
    "element by element": [
        *[
            (name, (fed(*X),), {})
            for name in (
                *("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Identity", "IsNaN", "Neg", "Relu"),
                *("Round", "Sigmoid", "Sign", "Sin", "Softplus", "Tanh", "Elu", "HardSigmoid", "LeakyRelu", "Gelu"),
            )
        ],
        *[(name, (positive(*X),), {}) for name in ("Log", "Reciprocal", "Sqrt")],
        *[(name, (fed(*X), fed(3)), {}) for name in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Greater", "Less")],
        *[(name, (fed(*X), fed(2, 1)), {}) for name in ("GreaterOrEqual", "LessOrEqual")],
        *[(name, (TRUE, ~TRUE[::-1]), {}) for name in ("And", "Or", "Xor")],
        ("Not", (TRUE,), {}),
        ("Div", (fed(*X), positive(3)), {}),
        ("Div", (WHOLE, ints(2, 2, 3)), {}),
        ("Pow", (positive(*X), fed(*X)), {}),
        ("Pow", (fed(*X), ints(2)), {}),
        ("Mod", (WHOLE, ints(4, 3, -2)), {}),
        ("Mod", (WHOLE, ints(4, 3, -2)), {"fmod": 1}),
        ("Mod", (fed(*X), positive(3)), {"fmod": 1}),
        ("Max", (fed(*X), fed(*X), fed(3)), {}),
        ("Min", (fed(*X),), {}),
        ("Sum", (fed(*X), fed(*X), fed(3)), {}),
        ("Where", (TRUE, fed(*X), fed(3)), {}),
        ("Elu", (fed(*X),), {"alpha": 0.3}),
        ("LeakyRelu", (fed(*X),), {"alpha": 0.2}),
        ("HardSigmoid", (fed(*X),), {"alpha": 0.7, "beta": 0.4}),
        ("Gelu", (fed(*X),), {"approximate": "tanh"}),
        ("Clip", (fed(*X), -0.5, 0.75), {}),
        ("Clip", (fed(*X), None, 0.75), {}),
        ("Clip", (fed(*X),), {}),
        ("Cast", (fed(*X),), {"to": 7}),
        ("Cast", (WHOLE,), {"to": 1}),
        ("Softmax", (fed(2, 3, 4),), {"axis": 1}),
        ("LogSoftmax", (fed(2, 3, 4),), {}),
        *[
            (name, (fed(2, 3, 4), *axes), {"keepdims": keep})
            for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
            for axes, keep in (((ints(0, -1),), 1), ((ints(1),), 0), ((), 0))
        ],
        *[(name, (positive(*X), ints(1)), {}) for name in ("ReduceL1", "ReduceLogSum", "ReduceSumSquare")],
        ("ReduceSum", (fed(*X),), {"noop_with_empty_axes": 1}),
        ("ReduceSum", (WHOLE, ints(1)), {}),
        ("ArgMax", (fed(2, 3, 4),), {"axis": 1}),
        ("ArgMin", (fed(2, 3, 4),), {"axis": -1, "keepdims": 0}),
    ],
    "shapes": [
        ("Transpose", (fed(2, 3, 4),), {}),
        ("Transpose", (fed(2, 3, 4),), {"perm": [1, 2, 0]}),
        ("Concat", (fed(2, 3), fed(2, 1), trained(2, 2)), {"axis": -1}),
        ("Split", (fed(2, 7),), {"axis": 1, "num_outputs": 3, "outputs": 3}),
        ("Split", (fed(5, 2), ints(1, 4)), {"outputs": 2}),
        ("Flatten", (fed(2, 3, 4),), {"axis": 2}),
        ("Flatten", (fed(2, 3, 4),), {"axis": 0}),
        ("Flatten", (fed(2, 3, 4),), {"axis": -1}),
        ("Reshape", (fed(2, 3, 4), ints(0, -1, 2)), {}),
        ("Squeeze", (fed(1, 3, 1), ints(-1)), {}),
        ("Squeeze", (fed(1, 3, 1),), {}),
        ("Unsqueeze", (fed(2, 3), ints(0, -1)), {}),
        ("Expand", (fed(3, 1), ints(2, 1, 4)), {}),
        ("Tile", (fed(2, 3), ints(2, 1)), {}),
        ("Shape", (fed(2, 3, 4),), {"start": 1}),
        ("ConstantOfShape", (ints(2, 3),), {}),
        ("Slice", (fed(5, 6), ints(1, -1), ints(4, -6), ints(0, 1), ints(1, -2)), {}),
        ("Slice", (fed(5, 6), ints(1), ints(1000)), {}),
        ("Pad", (fed(2, 3), ints(1, 0, 2, 1), 0.5), {}),
        ("Pad", (fed(2, 3), ints(1, 2), None, ints(1)), {}),
        *[("Pad", (fed(4, 5), ints(1, 2, 0, 1)), {"mode": mode}) for mode in ("edge", "reflect", "wrap")],
        ("Gather", (trained(5, 3), ints(4, 0, -1, 0)), {}),
        ("Gather", (fed(2, 5), np.array([[1, 3]])), {"axis": 1}),
        ("Gather", (fed(2, 5), np.array(-2)), {"axis": 1}),
    ],
    "layers": [
        ("MatMul", (fed(2, 3, 4), trained(4, 5)), {}),
        ("MatMul", (fed(4), fed(2, 4, 3)), {}),
        ("Gemm", (fed(2, 3), trained(4, 3), trained(4)), {"transB": 1}),
        ("Gemm", (fed(3, 2), trained(3, 4), trained(2, 1)), {"transA": 1, "alpha": 0.5, "beta": 0.25}),
        ("Gemm", (fed(2, 3), trained(3, 4)), {"alpha": 2.0}),
        ("Conv", (fed(*IMAGE), trained(4, 3, 3, 2), trained(4)), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ("Conv", (fed(*IMAGE), trained(4, 3, 2, 2)), {"dilations": [2, 3]}),
        ("Conv", (fed(2, 4, 5, 5), trained(6, 2, 3, 3), trained(6)), {"group": 2, "pads": [1] * 4}),
        ("Conv", (fed(2, 4, 5, 5), trained(8, 1, 3, 3)), {"group": 4}),
        ("Conv", (fed(*IMAGE), trained(2, 3, 3, 2)), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("Conv", (fed(*IMAGE), trained(2, 3, 2, 4)), {"auto_pad": "SAME_LOWER"}),
        ("Conv", (fed(*IMAGE), fed(2, 3, 3, 3)), {"auto_pad": "VALID"}),
        ("Conv", (fed(2, 3, 8), trained(4, 3, 3), trained(4)), {"pads": [2, 0]}),
        ("Conv", (fed(1, 2, 4, 5, 4), trained(3, 2, 2, 3, 2)), {"strides": [1, 2, 1]}),
        ("GlobalAveragePool", (fed(*IMAGE),), {}),
        ("GlobalMaxPool", (fed(*IMAGE),), {}),
        # As many samples as channels: onnx 1.23's own evaluator normalizes no more channels than there are samples.
        ("LRN", (fed(4, 4, 2, 3),), {"size": 2, "alpha": 0.25, "beta": 0.5, "bias": 1.5}),
        ("LRN", (fed(3, 3, 2, 3),), {"size": 4}),
        ("LayerNormalization", (fed(2, 3, 4), trained(4), trained(4)), {}),
        ("LayerNormalization", (fed(2, 3, 4), trained(3, 4)), {"axis": 1, "epsilon": 0.1}),
    ],
    "pooling": [
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", (fed(*IMAGE),), {"kernel_shape": [2, 3], "dilations": [2, 2]}),
        ("AveragePool", (fed(2, 3, 8),), {"kernel_shape": [3], "auto_pad": "SAME_UPPER"}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [3, 2], "pads": [0, 0, 1, 1]}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", (fed(*IMAGE),), {"kernel_shape": [2, 2], "dilations": [3, 2]}),
        ("MaxPool", (fed(1, 2, 4, 5, 4),), {"kernel_shape": [2, 3, 2]}),
        ("GlobalLpPool", (fed(*IMAGE),), {}),
    ],
    "losses": [
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), LABELS), {}),
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), LABELS.astype(np.int32)), {"outputs": 2, "reduction": "sum"}),
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), LABELS, [0.5, 2.0, 1.0, 0.25]), {}),
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), LABELS), {"ignore_index": 3}),
        ("SoftmaxCrossEntropyLoss", (fed(5, 4), ints(0, -1, 1, 2, -1), [0.5, 2.0, 1.0, 0.25]), {"ignore_index": -1}),
        ("SoftmaxCrossEntropyLoss", (fed(2, 4, 2, 3), PIXELS, [0.5, 2.0, 1.0, 0.25]), {"reduction": "none"}),
        ("SoftmaxCrossEntropyLoss", (fed(2, 4, 2, 3), PIXELS), {"ignore_index": 0}),
        ("NegativeLogLikelihoodLoss", (fed(5, 4), LABELS, [0.5, 2.0, 1.0, 0.25]), {}),
        ("NegativeLogLikelihoodLoss", (fed(2, 4, 2, 3), PIXELS), {"reduction": "sum", "ignore_index": 1}),
    ],
} | FURTHER


class Sheet:
    """All cases of a sheet as one network, which compiles once; the loss is a weighted sum of all floating outputs."""

    def __init__(self, cases: list[Case], dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        build, terms, outputs = NetworkBuilder("sheet", dtype=dtype), [], {}
        self.feed: dict[str, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {}
        self.own: dict[str, list[str]] = {}
        self.weights: dict[str, np.ndarray] = {}
        for number, (op_type, operands, attributes) in enumerate(cases):
            case, keywords = f"{number} {op_type}", dict(attributes)
            count = keywords.pop("outputs", 1)
            inputs = [self.operand(build, f"{case}.{at}", operand) for at, operand in enumerate(operands)]
            self.own[case] = [name for name in (*self.feed, *self.values) if name.startswith(f"{case}.")]
            made = build.op(op_type, *inputs, outputs=count, **keywords)
            for at, value in enumerate(made if count > 1 else (made,)):
                outputs[f"{case}:{at}"] = value
        plain = build.network(outputs)
        # A second pass over the same cases, with the outputs' types and shapes known.
        for name, value in outputs.items():
            spec = plain.outputs[name]
            if spec.dtype == dtype:
                weight = generator(1, name).standard_normal(tuple(map(int, spec.shape))).astype(dtype)
                self.weights[name] = weight
                scaled = build.op("Mul", value, build.op("Constant", value=_tensor(weight)))
                terms.append(build.op("ReduceSum", scaled, keepdims=0))
        loss = build.op("Sum", *terms)
        self.network = _again(build, {**outputs, "loss": loss}).with_values(self.values)

    def operand(self, build: NetworkBuilder, name: str, operand: Any) -> Any:
        if operand is None:
            return None
        if isinstance(operand, Draw):
            value = generator(0, name).uniform(operand.low, operand.high, operand.shape).astype(self.dtype)
            if operand.kind == "fed":
                self.feed[name] = value
                return build.input(name, operand.shape)
            self.values[name] = value
            return build.parameter(name, operand.shape, zeros)
        if isinstance(operand, (float, list)):
            return build.op("Constant", value=_tensor(np.array(operand, self.dtype)))
        return build.op("Constant", value=_tensor(operand))


def _tensor(array: np.ndarray) -> Any:
    import onnx_ir as ir

    return ir.tensor(array)


def _again(build: NetworkBuilder, outputs: dict[str, Any]) -> d5.Network:
    """A second network from the same builder."""
    build._graph.outputs.clear()
    return build.network(outputs)


@functools.cache
def computed(sheet: str, dtype: str) -> tuple[Sheet, Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A sheet with its executor, its outputs, and its gradients by all random inputs."""
    made = Sheet(SHEETS[sheet], dtype)
    executor = executor_of(made.network)
    outputs = arrays(executor.inference(made.feed))
    executor.inference_and_backprop(made.feed, wrt=[name for case in made.own.values() for name in case])
    return made, executor, outputs, arrays(executor.gradients())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sheet", list(SHEETS))
def test_operators(sheet: str, dtype: str) -> None:
    """Forward compared with onnx's implementation; for pooling, which onnx confuses or lacks, with deep5's reference.

    Gradients compared with central differences of the float64 forward pass.
    """
    from onnx.reference import ReferenceEvaluator

    made, executor, got, gradients = computed(sheet, dtype)
    names = list(got)
    if sheet == "pooling":
        wanted = reference(made.network).inference(made.feed).values()
    else:
        wanted = ReferenceEvaluator(made.network.to_onnx()).run(names, made.feed)
    for name, want in zip(names, wanted, strict=True):
        if name != "loss":
            assert got[name].dtype == np.asarray(want).dtype, name
            # A few roundings, and sums of up to fifty products; some of onnx's own functions are always float32.
            rounded = any(op in name for op in ("Erf", "Gelu", "HardSwish"))
            close = 2e-5 if dtype == "float32" or "Resize" in name else 1e-6 if rounded else 1e-11
            np.testing.assert_allclose(got[name], want, err_msg=name, rtol=close, atol=close)
    assert all(value.dtype == dtype for value in gradients.values())
    if dtype == "float32":
        for name, want in computed(sheet, "float64")[3].items():
            # Roundings of the forward pass enter the gradient; no random value is at a kink.
            np.testing.assert_allclose(gradients[name], want, rtol=2e-4, atol=2e-4, err_msg=name)
        return
    step = 1e-6
    direction = {name: generator(2, name).standard_normal(gradients[name].shape) for name in gradients}
    start, sides = executor.state_dict(), []
    for sign in (1, -1):
        moved = {name: value + sign * step * direction[name] for name, value in {**made.feed, **made.values}.items()}
        executor.load_state_dict({**start, **{name: moved[name] for name in made.values}})
        sides.append(arrays(executor.inference({name: moved[name] for name in made.feed})))
    for case, own in made.own.items():
        slope = sum(float(np.sum(gradients[name] * direction[name])) for name in own)
        kept = [name for name in made.weights if name.startswith(f"{case}:")]
        difference = sum(float(np.sum(made.weights[name] * (sides[0][name] - sides[1][name]))) for name in kept)
        # Truncation is of the order of h² = 1e-12; roundings of the outputs, 1e-15 times some hundred, over h.
        assert slope == pytest.approx(difference / (2 * step), rel=1e-6, abs=1e-6), case


def test_the_error_function_is_exact_in_float64() -> None:
    build = NetworkBuilder("erf", dtype="float64")
    x = build.input("x", ("N",))
    network = build.network({"erf": build.op("Erf", x), "gelu": build.op("Gelu", x)})
    points = np.linspace(-5, 5, 41)
    erf = np.array([math.erf(point) for point in points])
    outputs = executor_of(network).inference({"x": points})
    np.testing.assert_allclose(outputs["erf"], erf, rtol=1e-14, atol=1e-16)  # a few units in the last place
    wanted = [0.5 * point * math.erfc(-point / math.sqrt(2)) for point in points]
    np.testing.assert_allclose(outputs["gelu"], wanted, rtol=1e-13, atol=1e-16)


def test_negative_padding_takes_away() -> None:
    build = NetworkBuilder("pad")
    pads = build.constant("pads", ints(-1, 0, 1, -2))
    network = build.network({"y": build.op("Pad", build.input("x", (4, 5)), pads)})
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_array_equal(executor_of(network).inference({"x": x})["y"], np.pad(x[1:, :3], ((0, 1), (0, 0))))


def test_the_table_is_tested_and_says_what_it_lacks() -> None:
    from deep5.frameworks.jax.operators import OPERATORS

    tested = {case[0] for cases in SHEETS.values() for case in cases} | {"BatchNormalization", "Constant"}
    assert set(OPERATORS) == tested | ELSEWHERE


def _node(op_type: str, *operands: Any, **attributes: Any) -> Any:
    build = NetworkBuilder("one")
    made = build.op(op_type, *[op(build) if callable(op) else op for op in operands], **attributes)
    build.network({"y": made[0] if isinstance(made, tuple) else made})
    return next(node for node in build._graph if node.op_type == op_type)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (lambda: _node("ImageDecoder", lambda b: b.input("x", (9,), "uint8")), "no such operator"),
        (lambda: _node("MaxPool", lambda b: b.input("x", (1, 1, 4, 4, 4, 4)), kernel_shape=[2] * 4), "1 to 3"),
        (lambda: _node("LpNormalization", lambda b: b.input("x", (2, 2)), p=3), "p=3; allowed: 1, 2"),
        (lambda: _node("LayerNormalization", *(lambda b, n=n: b.input(n, (2,)) for n in "xs"), outputs=2), "further"),
    ],
)
def test_unsupported_nodes_say_why(node: Any, reason: str) -> None:
    answer = d5.framework("jax").supports(node())
    assert not answer
    assert reason in answer.reason


def test_max_pool_gives_the_gradient_to_the_first_of_equal_values() -> None:
    build = NetworkBuilder("ties", dtype="float64")
    x = build.input("x", (1, 1, 4, 5))
    y = build.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 2], pads=[1, 1, 0, 0])
    network = build.network({"y": y, "loss": build.op("ReduceSum", y, keepdims=0)})
    feed = {"x": np.round(generator(0, "ties").uniform(0, 2, (1, 1, 4, 5)))}
    found = []
    for executor in (executor_of(network), reference(network)):
        executor.inference_and_backprop(feed, wrt=["x"])
        found.append(np.asarray(executor.gradients()["x"]))
    assert len(np.unique(feed["x"])) <= 3
    np.testing.assert_array_equal(found[0], found[1])


def test_kinks_have_the_gradient_of_one_side() -> None:
    build = NetworkBuilder("kinks", dtype="float64")
    x = build.input("x", (3,))
    low, high = build.scalar(-1.0), build.scalar(1.0)
    y = build.op("Add", build.op("Relu", x), build.op("Clip", x, low, high))
    network = build.network({"loss": build.op("ReduceSum", y, keepdims=0)})
    executor = executor_of(network)
    executor.inference_and_backprop({"x": np.array([-1.0, 0.0, 1.0])}, wrt=["x"])
    np.testing.assert_array_equal(executor.gradients()["x"], [1.0, 1.0, 2.0])


def test_a_label_that_is_no_class_gives_nan() -> None:
    network = mlp(features=3, hidden=2, classes=2)
    feed = {"input": np.ones((2, 3), np.float32), "label": ints(0, 7)}
    assert np.isnan(executor_of(network).inference(feed)["loss"])
