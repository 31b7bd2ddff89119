"""A traced function of few operations, called one by one: bit-identical; everything else stays a function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import ShapeError
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.native import NativeOperator
from operator_cases import cases, normal

tf = pytest.importorskip("tensorflow")

from deep5.frameworks.tensorflow.operator_executor import TensorFlowOperator  # noqa: E402
from deep5.frameworks.tensorflow.straight_line import straight_line  # noqa: E402


class Cube(d5.CppOperator):
    source = """
    template <typename T>
    struct Cube : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] * x[i] * x[i];
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs


TF = d5.framework("tensorflow")
CPU = "/CPU:0"


def executor(operator: d5.Operator) -> TensorFlowOperator:
    made: TensorFlowOperator = TF.operator_executor(operator)
    return made


def same_bits(found: Any, expected: Any) -> None:
    found, expected = tf.nest.flatten(found), tf.nest.flatten(expected)
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        assert (got is None) == (wanted is None)
        if wanted is not None:
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            assert got.numpy().tobytes() == wanted.numpy().tobytes()


def called(function: Any) -> bool:
    """Whether a function of an executor calls operations directly."""
    return not isinstance(function, tf.types.experimental.ConcreteFunction)


# Their shapes follow from values of an input, or only from a network's settings.
OF_DATA = {
    *(
        "Compress",
        "DFT",
        "NonMaxSuppression",
        "NonZero",
        "OneHot",
        "Pad",
        "Range",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
    ),
    *("Tile", "TopK", "Unique", "Unsqueeze"),
}
CASES = [
    case
    for case in cases("tensorflow")
    if "constants" not in case[2]
    and not (case[0] in OF_DATA and (len(case[1]) > 1 or case[0] in ("NonZero", "Unique")))
]


# More than eight operations on TensorFlow, with some attributes; and the determinant, whose gradient is deep5's.
MANY = {
    *("DFT", "Det", "InstanceNormalization", "LpNormalization", "MeanVarianceNormalization", "ReduceLogSumExp"),
    *("AveragePool", "Conv", "Gelu", "LayerNormalization", "LogSoftmax", "MaxPool", "Mod", "NegativeLogLikelihoodLoss"),
    *("Softmax", "SoftmaxCrossEntropyLoss", "ConvTranspose", "GatherElements", "GatherND", "GridSample", "LpPool"),
    *(
        "ConvInteger",
        "EyeLike",
        "HardSwish",
        "Max",
        "MaxUnpool",
        "Min",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
        "RoiAlign",
        "ScatterElements",
        "ScatterND",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_operators_of_onnx_give_what_their_function_gives(case: Any) -> None:
    op, values, attributes = case
    made = executor(ONNXOperator(op, **attributes))
    inputs = made.arrays(*values)
    found = made.inference(*inputs)
    ((_, function),) = made._forward.items()
    assert called(function) or op in MANY  # otherwise the function would be compared with itself
    same_bits(found, made._traced(made._route.forward, inputs)(*inputs))


@pytest.mark.parametrize(
    ("operator", "shapes", "few"),
    [
        (ONNXOperator("MatMul"), [(5, 4), (4, 3)], True),
        (ONNXOperator("Conv", pads=[1, 1, 1, 1]), [(2, 3, 8, 8), (4, 3, 3, 3)], True),
        (ONNXOperator("Concat", axis=0), [(2, 3), (4, 3), (1, 3)], True),
        (ONNXOperator("Split", axis=0, num_outputs=2), [(4, 3)], True),
        (ONNXOperator("Softmax"), [(4, 3)], True),
        (ONNXOperator("LSTM", hidden_size=3), [(4, 2, 5), (1, 12, 5), (1, 12, 3)], False),
        (Cube(), [(4, 3)], True),
        (NativeOperator(tf.nn.relu, framework="tensorflow"), [(4, 3)], True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, d5.Operator) else None,
)
def test_few_operations_are_called_by_themselves(operator: Any, shapes: Any, few: bool) -> None:
    made = executor(operator)
    inputs = made.arrays(*(normal(*shape) for shape in shapes))
    found = made.inference(*inputs)
    ((_, function),) = made._forward.items()
    assert called(function) is few
    same_bits(found, made._traced(made._route.forward, inputs)(*inputs))


def test_gradients_too() -> None:
    made = executor(ONNXOperator("MatMul"))
    a, b, grad = made.arrays(normal(5, 4), normal(4, 3), normal(5, 3))
    for needs in ((True, True), (False, True)):
        outputs, gradients = made.inference_and_backprop((a, b), (grad,), needs=needs)
        wanted = made._traced(lambda a, b, dy: made._route.with_gradients((a, b), (dy,), needs), (a, b, grad))  # noqa: B023
        same_bits((outputs, gradients), wanted(a, b, grad))
    assert all(map(called, made._both.values()))


def concrete(body: Any, *values: Any) -> Any:
    return tf.function(body, autograph=False).get_concrete_function(*values)


def test_constants_captures_lists_and_what_is_left_out() -> None:
    x, y = tf.constant(normal(4, 3)), tf.constant(normal(4, 3))

    def body(x: Any) -> Any:
        tf.exp(x)  # unused
        first, second = tf.split(x * y + 2.0, 2)
        return (tf.identity(first), x), (None, tf.stop_gradient(tf.concat([second, first], 1)))

    function = concrete(body, x)
    line = straight_line(function, CPU)
    assert line is not None
    same_bits(line(x), function(x))
    assert line(x)[0][1] is x


@pytest.mark.parametrize(
    "body",
    [
        lambda x: (x + tf.random.uniform((3,)),),
        lambda x: (x + VARIABLE,),
        lambda x: (tf.while_loop(lambda v: tf.reduce_sum(v) < 9, lambda v: (v * 2,), [x])[0],),
        lambda x: (tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x),),
        lambda x: (tf.exp(tf.exp(tf.exp(tf.exp(tf.exp(tf.exp(tf.exp(tf.exp(tf.exp(x))))))))),),
        lambda x: (DIFFERENTIATED(x),),
        lambda x: (tf.exp(tf.exp(tf.tile(x, (200_000,)))),),
        lambda x: (tf.ensure_shape(x, (3,)),),
        lambda x: (elsewhere(tf.exp(x)),),
    ],
    ids=["random", "variable", "loop", "condition", "many", "gradient", "large", "shape", "devices"],
)
def test_anything_else_stays_a_function(body: Any) -> None:
    assert straight_line(concrete(body, tf.ones(3)), CPU) is None


VARIABLE = tf.Variable([1.0, 2.0, 3.0])


@tf.custom_gradient
def DIFFERENTIATED(x: Any) -> Any:  # noqa: N802 - a value for the cases above
    return x * 2, lambda dy: dy * 7


def elsewhere(x: Any) -> Any:
    with tf.device("/GPU:0"):
        return x * x


def test_tapes_and_graphs_see_what_is_called() -> None:
    made = executor(ONNXOperator("Mul"))
    x, y = made.arrays(normal(3), normal(3))
    made.inference(x, y)
    assert all(map(called, made._forward.values()))
    with tf.GradientTape() as tape:
        tape.watch(x)
        (z,) = made.inference(x, y)
    same_bits(tape.gradient(z, x), y)
    same_bits(tf.function(lambda a, b: made.inference(a, b)[0])(x, y), x * y)


def test_a_first_call_within_a_function_leaves_nothing_of_it() -> None:
    made = executor(NativeOperator(lambda x: x * 2.0, framework="tensorflow"))
    (x,) = made.arrays(normal(3))
    same_bits(tf.function(lambda a: made.inference(a)[0])(x), x + x)
    same_bits(made.inference(x), x + x)


def test_what_is_no_tensor_is_refused_at_every_call() -> None:
    made = executor(ONNXOperator("Mul"))
    (x,) = made.arrays(normal(3))
    made.inference(x, x)
    for other in (tf.Variable(x), x.numpy()):
        with pytest.raises(ShapeError, match=r"allowed: a tensor; remedy: executor\.arrays"):
            made.inference(x, other)


def test_one_operation_enters_no_function_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known shapes and element types go directly to the operation: nothing is traced or looked up again."""
    made = executor(ONNXOperator("Mul"))
    x, y = made.arrays(normal(3), normal(3))
    first = made.inference(x, y)
    monkeypatch.setattr(made, "_traced", lambda *given: pytest.fail("it was traced again"))
    monkeypatch.setattr(tf, "function", lambda *given, **named: pytest.fail("a function was made"))
    np.testing.assert_array_equal(d5.to_numpy(made.inference(x, y)[0]), d5.to_numpy(first[0]))
