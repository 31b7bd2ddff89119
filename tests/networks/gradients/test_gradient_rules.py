"""Rules of activations, reductions, indexing and normalization: against torch and central differences, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from deep5.core.errors import Unsupported
from deep5.networks import NetworkBuilder, ones
from deep5.networks.gradients import gradient_network
from deep5.networks.gradients.rules import RULES
from deep5.networks.onnx.versions import OPSET
from gradient_cases import Build, check_case, dot_network, gradients_of, normal

END = np.iinfo(np.int64).max
INT_MIN = np.iinfo(np.int64).min
NAMES = itertools.count()


def ints(build: NetworkBuilder, *values: int) -> ir.Value:
    return build.constant(f"ints{next(NAMES)}", np.array(values, np.int64))


def number(build: NetworkBuilder, value: float) -> ir.Value:
    """A floating-point constant, which is not a parameter."""
    tensor = ir.tensor(np.array(value))
    constant = build.op("Constant", value=tensor)
    tensor.name = constant.name  # onnx-ir gives this name on the first read; the networks are compared byte for byte
    return constant


def leaky_relu(x: Any) -> Any:
    """With ONNX's default, which is the float32 closest to 0.01."""
    return F.leaky_relu(x, float(np.float32(0.01)))


# no kink at a random point; each with points of special behavior
ACTIVATIONS: list[tuple[str, dict[str, Any], Callable[..., Any]]] = [
    ("LeakyRelu", {}, leaky_relu),
    ("LeakyRelu", {"alpha": 0.25}, lambda x: F.leaky_relu(x, 0.25)),
    ("Elu", {}, F.elu),
    ("Elu", {"alpha": 1.5}, lambda x: F.elu(x, 1.5)),
    ("Softplus", {}, lambda x: F.softplus(x, threshold=1e9)),
    ("HardSigmoid", {"alpha": 0.25, "beta": 0.4}, lambda x: torch.clamp(0.25 * x + 0.4, 0.0, 1.0)),
    ("HardSwish", {}, F.hardswish),
    ("Erf", {}, torch.erf),
    ("Gelu", {}, F.gelu),
    ("Gelu", {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh")),
    ("LogSoftmax", {}, lambda x: F.log_softmax(x, -1)),
    ("LogSoftmax", {"axis": 0}, lambda x: F.log_softmax(x, 0)),
    ("Abs", {}, torch.abs),
    ("Sin", {}, torch.sin),
    ("Cos", {}, torch.cos),
    ("Reciprocal", {}, torch.reciprocal),
]


@pytest.mark.parametrize(
    ("op", "attributes", "expected"), ACTIVATIONS, ids=[f"{i}-{case[0]}" for i, case in enumerate(ACTIVATIONS)]
)
def test_functions_of_one_value(op: str, attributes: dict[str, Any], expected: Callable[..., Any]) -> None:
    def build_op(build: Any, x: Any) -> Any:
        return build.op(op, x, **attributes)

    check_case(build_op, expected, {"x": (3, 4)})
    check_case(build_op, expected, {"x": (2, 3, 5)}, declared={"x": ("N", 3, 5)})
    wide = np.linspace(-9.0, 9.0, 36).reshape(3, 12)  # neither 0 nor +-3; saturated on both sides
    check_case(build_op, expected, {"x": (3, 12)}, initial={"x": wide}, smooth=op != "Reciprocal")


def test_kinks_are_torchs() -> None:
    """At the kink itself any subgradient is right; deep5 uses torch's, so that trajectories agree."""
    zeros = {"x": np.array([-1.0, 0.0, 1.0])}
    for op, expected in (("Relu", torch.relu), ("LeakyRelu", leaky_relu), ("Elu", F.elu), ("Abs", torch.abs)):
        check_case(lambda build, x, op=op: build.op(op, x), expected, {"x": (3,)}, initial=zeros, smooth=False)
    check_case(
        lambda build, x: build.op("Clip", x, number(build, -1.0), number(build, 1.0)),
        lambda x: torch.clamp(x, -1.0, 1.0),
        {"x": (5,)},
        initial={"x": np.array([-2.0, -1.0, 0.0, 1.0, 2.0])},
        smooth=False,
    )


def test_relu_keeps_infinities_apart() -> None:
    """An overflowed gradient is infinite, and zero after an inactive unit; a product with zero would make it NaN."""
    network = dot_network(lambda build, x: build.op("Relu", x), {"x": (3,)}, initial={"x": np.array([-1.0, 2.0, 0.0])})
    _, gradients = gradients_of(network, {"seed": np.array([np.inf, np.inf, -np.inf])}, ["x"])
    np.testing.assert_array_equal(gradients["x"], [0.0, np.inf, 0.0])


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (None, 0.2), (-0.2, None), (None, None)])
def test_clip(low: float | None, high: float | None) -> None:
    check_case(
        lambda build, x: build.op(
            "Clip", x, *(None if bound is None else number(build, bound) for bound in (low, high))
        ),
        lambda x: x * 1.0 if low is None and high is None else torch.clamp(x, low, high),
        {"x": (3, 5)},
    )


def test_positive_functions() -> None:
    for op, expected in (("Sqrt", torch.sqrt), ("Log", torch.log)):
        check_case(
            lambda build, x, op=op: build.op(op, build.op("Exp", x)),
            lambda x, f=expected: f(torch.exp(x)),
            {"x": (3, 4)},
        )


@pytest.mark.parametrize("exponent", [2.0, 3.0, -1.0, 0.0, 1.0])
def test_powers_by_a_constant(exponent: float) -> None:
    for signed in (True, False):

        def op(build: Any, x: Any, whole: bool = signed) -> Any:
            power = ints(build, int(exponent)) if whole else number(build, exponent)
            return build.op("Pow", x, power)

        check_case(op, lambda x: x**exponent, {"x": (3, 4)})
    # x = 0: a finite derivative stays finite
    check_case(
        lambda build, x: build.op("Pow", x, number(build, exponent)),
        lambda x: x**exponent,
        {"x": (3,)},
        initial={"x": np.array([0.0, -2.0, 2.0]) if exponent >= 0 else np.array([0.5, -2.0, 2.0])},
        smooth=False,
    )


def test_powers_by_a_value() -> None:
    def op(build: Any, x: Any, p: Any) -> Any:
        return build.op("Pow", build.op("Exp", x), p)

    check_case(op, lambda x, p: torch.exp(x) ** p, {"x": (3, 4), "p": (4,)})
    check_case(op, lambda x, p: torch.exp(x) ** p, {"x": (4,), "p": (2, 3, 1)})
    check_case(
        lambda build, x, p: build.op("Pow", x, p),
        lambda x, p: x**p,
        {"x": (4,), "p": (4,)},
        initial={"x": np.array([0.0, 0.0, 1.5, 0.0]), "p": np.array([0.0, 2.0, 0.0, 1.0])},
        smooth=False,
    )


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("shapes", [{"a": (3, 4)}, {"a": (3, 4), "c": (4,)}, {"a": (3, 1), "c": (4,), "e": (2, 1, 1)}])
def test_largest_and_smallest_of_values(op: str, shapes: dict[str, Any]) -> None:
    fold = torch.maximum if op == "Max" else torch.minimum

    def expected(*values: Any) -> Any:
        total = values[0] * 1.0
        for value in values[1:]:
            total = fold(total, value)
        return total

    check_case(lambda build, *values: build.op(op, *values), expected, shapes)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_equal_values_share(op: str) -> None:
    same = {"a": np.array([1.0, 2.0, 0.0]), "c": np.array([1.0, 0.0, 2.0])}
    fold = torch.maximum if op == "Max" else torch.minimum
    check_case(lambda build, a, c: build.op(op, a, c), fold, {"a": (3,), "c": (3,)}, initial=same, smooth=False)


def test_sums_of_many() -> None:
    check_case(
        lambda build, *values: build.op("Sum", *values),
        lambda a, c, e: a + c + e,
        {"a": (2, 3), "c": (3,), "e": (2, 1)},
    )
    check_case(lambda build, a: build.op("Sum", a), lambda a: a * 1.0, {"a": (2, 3)})


@pytest.mark.parametrize("shapes", [{"a": (3, 4), "c": (3, 4)}, {"a": (4,), "c": (3, 1)}, {"a": (), "c": (2, 3, 4)}])
def test_where(shapes: dict[str, Any]) -> None:
    condition = np.array([True, False, False, True])
    check_case(
        lambda build, a, c: build.op("Where", build.constant("condition", condition), a, c),
        lambda a, c: torch.where(torch.tensor(condition), a, c),
        shapes,
    )


REDUCTIONS = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, dim=axes, keepdim=keep),
}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [(1,), (-1,), (0, 2), (2, -3), None])
@pytest.mark.parametrize("declared", [None, {"x": ("N", 3, "M")}])
def test_reductions(op: str, keep: int, axes: tuple[int, ...] | None, declared: dict[str, Any] | None) -> None:
    check_case(
        lambda build, x: build.op(op, x, *([] if axes is None else [ints(build, *axes)]), keepdims=keep),
        lambda x: REDUCTIONS[op](x, axes or (0, 1, 2), bool(keep)),
        {"x": (2, 3, 4)},
        declared=declared,
    )


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax"])
def test_reductions_of_nothing(op: str) -> None:
    check_case(lambda build, x: build.op(op, x, ints(build), noop_with_empty_axes=1), lambda x: x * 1.0, {"x": (2, 3)})
    check_case(lambda build, x: build.op(op, x, ints(build)), REDUCTIONS_OF_ALL[op], {"x": (2, 3)})


REDUCTIONS_OF_ALL = {
    "ReduceSum": lambda x: x.sum().reshape(1, 1),
    "ReduceMean": lambda x: x.mean().reshape(1, 1),
    "ReduceMax": lambda x: x.amax((0, 1), True),
}


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_equal_elements_share(op: str) -> None:
    same = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    check_case(
        lambda build, x: build.op(op, x, ints(build, 1), keepdims=0),
        lambda x: REDUCTIONS[op](x, 1, False),
        {"x": (3, 3)},
        initial={"x": same},
        smooth=False,
    )


def test_the_norm_of_nothing_has_gradient_zero() -> None:
    zero = {"x": np.array([[0.0, 0.0], [3.0, 4.0]])}
    check_case(
        lambda build, x: build.op("ReduceL2", x, ints(build, 1)),
        lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
        {"x": (2, 2)},
        initial=zero,
        smooth=False,
    )


GATHERS: list[tuple[tuple[int, ...], int, Any]] = [
    ((5, 3), 0, [0, 4, 0, -1]),  # twice the same input, once with its negative
    ((5, 3), 0, [[1, 2], [2, -5]]),
    ((5, 3), 0, 2),
    ((4, 5, 3), 1, [3, 3, -1]),
    ((4, 5, 3), 1, [[0, 1], [1, -2]]),
    ((4, 5, 3), -1, [[2]]),
    ((4, 5, 3), 1, 4),
    ((4, 5, 3), -1, -2),
]


@pytest.mark.parametrize(("shape", "axis", "indices"), GATHERS)
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("symbolic", [False, True])
def test_gather(shape: tuple[int, ...], axis: int, indices: Any, dtype: Any, symbolic: bool) -> None:
    index = np.array(indices, dtype)
    at = axis % len(shape)

    def expected(x: Any) -> Any:
        flat = torch.tensor(index.astype(np.int64)).reshape(-1) % shape[at]
        return x.index_select(at, flat).reshape(*shape[:at], *index.shape, *shape[at + 1 :])

    declared = {"x": tuple(f"E{i}" for i in range(len(shape)))} if symbolic else None
    check_case(
        lambda build, x: build.op("Gather", x, build.constant("index", index), axis=axis),
        expected,
        {"x": shape},
        declared=declared,
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis: int) -> None:
    index = np.random.default_rng(0).integers(0, 2, (2, 3))
    check_case(
        lambda build, x: build.op("GatherElements", x, build.constant("index", index), axis=axis),
        lambda x: torch.gather(x, axis, torch.tensor(index)),
        {"x": (3, 4)},
    )


@pytest.mark.parametrize("parts", [(2, 4), (1, 2, 3), (6,)])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("read", ["all", "last"])
def test_split(parts: tuple[int, ...], even: bool, axis: int, read: str) -> None:
    if even:  # without sizes the last part is the smallest
        parts = {1: (5,), 2: (4, 3), 3: (3, 3, 1)}[len(parts)]
    shape = (sum(parts), 2) if axis == 0 else (2, sum(parts))

    def op(build: Any, x: Any) -> Any:
        rest, attributes = ([], {"num_outputs": len(parts)}) if even else ([ints(build, *parts)], {})
        values = build.op("Split", x, *rest, axis=axis, outputs=len(parts), **attributes)
        values = values if len(parts) > 1 else (values,)
        flat = [build.op("Reshape", build.op("Tanh", value), ints(build, -1)) for value in values]
        return build.op("Concat", *(flat if read == "all" else flat[-1:]), axis=0)

    def expected(x: Any) -> Any:
        flat = [torch.tanh(value).reshape(-1) for value in torch.split(x, parts, axis)]
        return torch.cat(flat if read == "all" else flat[-1:])

    check_case(op, expected, {"x": shape})


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("symbolic", [False, True])
def test_concat(axis: int, symbolic: bool) -> None:
    shapes = {"a": [2, 3, 4], "c": [2, 3, 4], "e": [2, 3, 4]}
    shapes["c"][axis], shapes["e"][axis] = 1, 5
    declared = {"c": [f"E{i}" if i == axis % 3 else extent for i, extent in enumerate(shapes["c"])]}
    check_case(
        lambda build, *values: build.op("Concat", *values, axis=axis),
        lambda *values: torch.cat(values, axis),
        {name: tuple(shape) for name, shape in shapes.items()},
        declared=declared if symbolic else None,
    )


def test_concat_of_a_value_with_constants_and_with_itself() -> None:
    def op(build: Any, x: Any) -> Any:
        fixed = build.op("Constant", value=ir.tensor(np.ones((2, 2))))
        return build.op("Concat", fixed, x, fixed, axis=1)

    one = torch.ones(2, 2, dtype=torch.float64)
    check_case(op, lambda x: torch.cat([one, x, one], 1), {"x": (2, 3)})
    check_case(lambda build, x: build.op("Concat", x, x, axis=0), lambda x: torch.cat([x, x]), {"x": (2, 3)})
    check_case(lambda build, x: build.op("Concat", x, axis=0), lambda x: x * 1.0, {"x": (2, 3)})


SLICES: list[tuple[list[int], list[int], list[int] | None, list[int] | None]] = [
    ([1], [4], [1], None),
    ([0, -3], [END, -1], [0, 2], None),
    ([0, 2], [3, END], None, None),
    ([3], [3], [1], None),  # empty
    ([4], [1], [1], None),  # empty
    ([0, 1], [END, END], [1, 2], [2, 3]),
    ([-1], [INT_MIN], [1], [-1]),
    ([-1, 4], [-END, 0], [-1, 1], [-2, -1]),
    ([-100, 1], [100, 3], [0, 1], [1, 1]),
]


def sliced(shape: tuple[int, ...], starts: Any, ends: Any, axes: Any, steps: Any) -> np.ndarray:
    """The flat indices of the elements that ONNX's Slice takes, from ONNX's own reference."""
    build = NetworkBuilder("slice")
    rest = [None if value is None else ints(build, *value) for value in (starts, ends, axes, steps)]
    network = build.network({"y": build.op("Slice", build.input("x", shape, "int64"), *rest)})
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return np.asarray(ReferenceEvaluator(network.to_onnx()).run(None, {"x": numbers})[0])


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
@pytest.mark.parametrize("how", ["constant", "symbolic", "at run time"])
def test_slice(starts: Any, ends: Any, axes: Any, steps: Any, how: str) -> None:
    shape = (3, 5, 4)
    numbers = sliced(shape, starts, ends, axes, steps)

    def op(build: Any, x: Any) -> Any:
        rest = [None if value is None else ints(build, *value) for value in (starts, ends, axes, steps)]
        if how == "at run time":
            # a value unknown before the run: adds the size of x and subtracts it again
            size = build.op("Shape", x, start=0, end=1)
            rest[0] = build.op("Add", build.op("Sub", rest[0], size), size)
        return build.op("Slice", x, *rest)

    check_case(
        op,
        lambda x: x.reshape(-1)[torch.tensor(numbers.reshape(-1).copy())].reshape(numbers.shape),
        {"x": shape},
        declared={"x": ("N", "H", "W")} if how != "constant" else None,
    )


@pytest.mark.parametrize(
    ("pads", "axes"),
    [((0, 1, 2, 3), None), ((0, 0, 0, 0), None), ((2, 1), [1]), ((1, 0, 0, 2), [-1, 0]), ((-1, 2, 0, -1), None)],
)
@pytest.mark.parametrize("value", [None, 2.5])
@pytest.mark.parametrize("how", ["constant", "at run time"])
def test_pad(pads: tuple[int, ...], axes: list[int] | None, value: float | None, how: str) -> None:
    shape = (3, 4)

    def op(build: Any, x: Any) -> Any:
        wide = ints(build, *pads)
        if how == "at run time":
            size = build.op("Shape", x, start=0, end=1)
            wide = build.op("Add", build.op("Sub", wide, size), size)
        fill = None if value is None else number(build, value)
        return build.op("Pad", x, wide, fill, *([] if axes is None else [ints(build, *axes)]))

    def expected(x: Any) -> Any:
        over = range(2) if axes is None else [axis % 2 for axis in axes]
        widths = {axis: (pads[i], pads[i + len(pads) // 2]) for i, axis in enumerate(over)}
        order = [*widths.get(1, (0, 0)), *widths.get(0, (0, 0))]
        return F.pad(x, order, value=value or 0.0)

    check_case(op, expected, {"x": shape}, declared={"x": ("N", 4)} if how != "constant" else None)


def test_shapes_and_repetitions() -> None:
    shapes = {"x": (2, 1, 3)}
    cases: list[tuple[Build, Callable[..., Any]]] = [
        (lambda b, x: b.op("Squeeze", x, ints(b, 1)), lambda x: x.squeeze(1)),
        (lambda b, x: b.op("Squeeze", x), lambda x: x.squeeze()),
        (lambda b, x: b.op("Unsqueeze", x, ints(b, 0, -1)), lambda x: x[None, ..., None]),
        (lambda b, x: b.op("Expand", x, ints(b, 2, 4, 3)), lambda x: x.expand(2, 4, 3)),
        (lambda b, x: b.op("Expand", x, ints(b, 5, 1, 1, 1)), lambda x: x.expand(5, 2, 1, 3)),
        (lambda b, x: b.op("Tile", x, ints(b, 2, 3, 1)), lambda x: x.repeat(2, 3, 1)),
        (lambda b, x: b.op("Trilu", b.op("Reshape", x, ints(b, 3, 2))), lambda x: x.reshape(3, 2).triu()),
        (
            lambda b, x: b.op("Trilu", b.op("Reshape", x, ints(b, 3, 2)), b.constant("k", np.array(-1)), upper=0),
            lambda x: x.reshape(3, 2).tril(-1),
        ),
    ]
    for op, expected in cases:
        check_case(op, expected, shapes)
    check_case(cases[5][0], cases[5][1], shapes, declared={"x": ("N", 1, "M")})


def test_precision_may_change_on_the_way() -> None:
    """float64 through float32 and back: the gradient passes through, rounded to float32 once in each direction."""
    network = dot_network(
        lambda b, x: b.op("Cast", b.op("Tanh", b.op("Cast", x, to=ir.DataType.FLOAT)), to=ir.DataType.DOUBLE),
        {"x": (3, 4)},
    )
    x, seed = network.initial("x"), np.random.default_rng(1).standard_normal(12)
    _, gradients = gradients_of(network, {"seed": seed}, ["x"])
    assert gradients["x"].dtype == np.float64
    # four operations in float32, whose rounding is 6e-8
    np.testing.assert_allclose(gradients["x"], seed.reshape(3, 4) * (1 - np.tanh(x) ** 2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axis", [-1, 1, 2, 0])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("symbolic", [True, False])
def test_layer_normalization(axis: int, biased: bool, symbolic: bool) -> None:
    shape = (4, 3, 5)
    normalized = shape[axis % 3 :]
    shapes = {"x": shape, "scale": normalized, **({"bias": normalized} if biased else {})}
    check_case(
        lambda build, *values: build.op("LayerNormalization", *values, axis=axis, epsilon=2**-10),
        lambda x, scale, bias=None: F.layer_norm(x, normalized, scale, bias, 2**-10),
        shapes,
        declared={"x": ("N", *shape[1:])} if symbolic and axis != 0 else None,
    )


def test_layer_normalization_by_a_scale_that_broadcasts() -> None:
    check_case(
        lambda build, *values: build.op("LayerNormalization", *values, axis=1),
        lambda x, scale, bias: F.layer_norm(x, (3, 5)) * scale + bias,
        {"x": (4, 3, 5), "scale": (5,), "bias": (3, 1)},
    )


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (3, 2, 4, 3)])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
def test_batch_normalization(shape: tuple[int, ...], training: bool, symbolic: bool) -> None:
    channels = shape[1]
    mean, variance = np.linspace(-1, 1, channels), np.linspace(0.5, 2, channels)

    def op(build: Any, x: Any, scale: Any, bias: Any) -> Any:
        running = [build.parameter("mean", (channels,), lambda r, s: mean)]
        running += [build.parameter("variance", (channels,), lambda r, s: variance)]
        attributes = {"training_mode": 1, "outputs": 3} if training else {}
        y = build.op("BatchNormalization", x, scale, bias, *running, epsilon=2**-10, **attributes)
        return y[0] if training else y

    check_case(
        op,
        lambda x, scale, bias: F.batch_norm(
            x, torch.tensor(mean), torch.tensor(variance), scale, bias, training=training, eps=2**-10
        ),
        {"x": shape, "scale": (channels,), "bias": (channels,)},
        declared={"x": ("N", channels, *(f"E{i}" for i in range(len(shape) - 2)))} if symbolic else None,
    )


@pytest.mark.parametrize(("op", "expected"), [("Selu", F.selu), ("Mish", F.mish), ("Softsign", F.softsign)])
def test_functions_without_a_rule_are_expanded(op: str, expected: Callable[..., Any]) -> None:
    # ONNX writes the constants of Selu in float32; torch's has more digits
    tolerance = 1e-7 if op == "Selu" else 1e-11
    check_case(lambda build, x: build.op(op, x), expected, {"x": (3, 4)}, tolerance=tolerance)


def test_an_lstm_is_expanded_into_cells() -> None:
    """Against torch's own layer; ONNX's gate order is i, o, f, c, torch's is i, f, c, o."""
    steps, batch, features, hidden = 3, 2, 4, 5
    shapes = {"x": (steps, batch, features), "w": (1, 20, features), "r": (1, 20, hidden), "b": (1, 40)}
    order = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in (0, 2, 3, 1)])

    def expected(x: Any, w: Any, r: Any, b: Any) -> Any:
        weights = [w[0][order], r[0][order], b[0][:20][order], b[0][20:][order]]
        start = torch.zeros(1, batch, hidden, dtype=torch.float64)
        return torch.lstm(x, (start, start), weights, True, 1, 0.0, False, False, False)[0]

    check_case(lambda build, *values: build.op("LSTM", *values, hidden_size=hidden), expected, shapes)


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round", "Sign"])
def test_steps_stop_the_gradient(op: str) -> None:
    check_case(
        lambda build, x: build.op("Mul", build.op(op, x), x),
        lambda x: torch.tensor({"Round": np.rint}.get(op, getattr(np, op.lower(), None))(x.detach().numpy())) * x,
        {"x": (3, 4)},
        smooth=False,
    )


def test_shapes_stop_the_gradient() -> None:
    """A size used as a number, and a comparison that selects: their operators do not block the gradient."""

    def op(build: Any, x: Any) -> Any:
        size = build.op("Cast", build.op("Size", x), to=ir.DataType.DOUBLE)
        chosen = build.op("Where", build.op("Greater", x, number(build, 0.0)), x, build.op("Neg", x))
        return build.op("Div", chosen, size)

    check_case(op, lambda x: x.abs() / 12, {"x": (3, 4)})


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            lambda b, x: b.op("ReduceSum", x, b.op("Sub", b.op("Shape", x, start=0, end=1), ints(b, 3)), keepdims=1),
            "computed; allowed: constant axes",
        ),
        (
            lambda b, x: b.op(
                "BatchNormalization", x, *(b.parameter(n, (4,), ones) for n in "sbmv"), outputs=3, training_mode=1
            )[1],
            "running statistics",
        ),
    ],
)
def test_what_has_no_rule_is_refused_by_name(op: Build, message: str) -> None:
    network = dot_network(op, {"x": (3, 4)}, declared={"x": ("N", 4)}, dtype="float32")
    with pytest.raises(Unsupported, match=message):
        gradient_network(network, wrt=["x"])


def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparisons above can fail: three rules, each wrong in a small way."""
    from deep5.networks.gradients import build as differentiation

    def planted(name: str, wrong: Callable[..., Any]) -> None:
        monkeypatch.setattr(differentiation, "RULES", {**rules, name: wrong})

    rules = differentiation.RULES

    def last_axis_alone(b: Any, node: Any, grads: Any) -> Any:
        dx, *rest = rules["LayerNormalization"](b, node, grads)
        return [b.op("Mul", dx, b.like(1.001, node.inputs[0])), *rest]

    planted("LayerNormalization", last_axis_alone)
    with pytest.raises(AssertionError, match="x"):
        test_layer_normalization(-1, True, False)
    planted("Gather", lambda b, node, grads: [b.zeros(node.inputs[0]), None])
    with pytest.raises(AssertionError, match="x"):
        test_gather((5, 3), 0, [0, 4, 0, -1], np.int64, False)

    def central_differences_alone(b: Any, node: Any, grads: Any) -> Any:
        return [b.op("Mul", grads[0], b.op("Cos", node.inputs[0]))]

    planted("Erf", central_differences_alone)
    with pytest.raises(AssertionError, match="x"):
        check_case(lambda build, x: build.op("Erf", x), torch.erf, {"x": (3, 4)})


@pytest.mark.parametrize("op", sorted(RULES))
def test_every_rule_names_its_source(op: str) -> None:
    """The operator version that it differentiates is the one that networks are built in."""
    opset = OPSET if onnx.defs.has(op, OPSET, "") else onnx.defs.onnx_opset_version()
    version = onnx.defs.get_schema(op, opset).since_version
    assert f"{op}-{version}" in (RULES[op].__doc__ or "").partition("References:")[2]


def test_initial_values_are_those_given() -> None:
    network = dot_network(lambda b, x: b.op("Tanh", x), {"x": (2,)}, initial={"x": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(network.initial("x"), [1.0, 2.0])
    assert normal(np.random.default_rng(0), (2, 2)).shape == (2, 2)
