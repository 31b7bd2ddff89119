"""The recurrent layer in one call: against the reference's, against PyTorch's, central differences, bad input."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deep5 as d5
from deep5.core.arguments import THREADS
from deep5.core.errors import OperatorError, ShapeError, UsageError
from deep5.operators import zoo
from deep5.operators.registry import make_operator
from deep5.operators.work import flops
from deep5.operators.zoo import RecurrentPersistent

FOLDER = Path(zoo.__file__).parent
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
CELLS = (("RNN", "Tanh"), ("RNN", "Relu"), ("GRU", "Tanh"), ("LSTM", "Tanh"))
# ONNX's order of the gates from PyTorch's, i f g o and r z n.
ORDER = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}
# Steps, samples, features, units: one of each; fewer units than a vector; more samples than registers hold rows, and
# units that fill a block and begin another; more features than a panel of the product is deep.
SIZES = ((1, 1, 1, 1), (5, 3, 4, 7), (7, 13, 20, 35), (3, 25, 300, 64), (2, 2, 3, 70))
Arrays = list[np.ndarray]
# Sums of at most 372 products of numbers below 1, over at most 7 steps whose weights contract: an error of
# 7 · 372 units of rounding (3e-13, 1.6e-4), if none cancel. Gradients by weights are sums of up to 91 rows of such
# numbers, of both signs.
TOLERANCE = {"float64": 1e-12, "float32": 5e-4}
OPERATORS = {cell: RecurrentPersistent(*cell) for cell in CELLS}


def values(cell: str, sizes: Sequence[int], dtype: str = "float64") -> Arrays:
    """A sequence, both weights and the biases; weights of this size contract."""
    steps, batch, features, hidden = sizes
    draw, width, scale = np.random.default_rng(sum(sizes)), GATES[cell] * hidden, 1 / np.sqrt(hidden)
    shapes = ((steps, batch, features), (1, width, features), (1, width, hidden), (1, 2 * width))
    return [
        draw.uniform(-most, most, shape).astype(dtype)
        for most, shape in zip((1, scale, scale, scale), shapes, strict=True)
    ]


def onnx(cell: str, activation: str, hidden: int) -> d5.ONNXOperator:
    more: dict[str, Any] = {"RNN": {"activations": [activation]}, "GRU": {"linear_before_reset": 1}}.get(cell, {})
    return d5.ONNXOperator(cell, hidden_size=hidden, **more)


def by_torch(cell: str, activation: str, given: Arrays, dy: np.ndarray) -> Arrays:
    """The states, and the gradients by all four inputs, of PyTorch's own layer in float64."""
    hidden, order = given[2].shape[2], ORDER[cell]
    more = {"nonlinearity": activation.lower()} if cell == "RNN" else {}
    layer = getattr(torch.nn, cell)(given[0].shape[2], hidden, dtype=torch.float64, **more)
    x, w, r, b = (torch.tensor(value.astype(np.float64), requires_grad=True) for value in given)
    rows = [number * hidden + unit for number in order for unit in range(hidden)]
    width = GATES[cell] * hidden
    weights = {
        "weight_ih_l0": w[0, rows],
        "weight_hh_l0": r[0, rows],
        "bias_ih_l0": b[0, rows],
        "bias_hh_l0": b[0, [width + row for row in rows]],
    }
    y = torch.func.functional_call(layer, weights, (x,))[0][:, None]
    grads = torch.autograd.grad(y, (x, w, r, b), torch.tensor(dy.astype(np.float64)))
    return [y.detach().numpy(), *(grad.numpy() for grad in grads)]


def run(op: d5.CppOperator, given: Arrays, dy: np.ndarray | None = None) -> Arrays:
    y = op.forward(*given)
    if dy is None:
        dy = np.random.default_rng(9).standard_normal(y.shape).astype(y.dtype)
    return [y, *op.backward([dy], given, [y], [True] * 4)]


def error(op: d5.CppOperator, cell: str, activation: str, sizes: Sequence[int], dtype: str) -> float:
    """The largest error of the states and all gradients against PyTorch's layer."""
    given = values(cell, sizes, dtype)
    dy = np.random.default_rng(9).standard_normal((sizes[0], 1, sizes[1], sizes[3])).astype(dtype)
    found, expected = run(op, given, dy), by_torch(cell, activation, given, dy)
    assert all(one.shape == other.shape and one.dtype == dtype for one, other in zip(found, expected, strict=True))
    return max(float(abs(one - other).max()) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("cell", "activation"), CELLS)
def test_states_and_gradients_are_those_of_pytorch(cell: str, activation: str, dtype: str) -> None:
    for sizes in SIZES:
        assert error(OPERATORS[cell, activation], cell, activation, sizes, dtype) <= TOLERANCE[dtype], sizes


@pytest.mark.parametrize(("cell", "activation"), CELLS)
def test_states_are_those_of_onnx_layer_on_the_reference(cell: str, activation: str) -> None:
    for sizes in SIZES:
        given = values(cell, sizes)
        layer = d5.framework("reference").operator_executor(onnx(cell, activation, sizes[3]))
        expected = layer.inference(*given)[0]
        # One sum of `TOLERANCE` at a time; states are below 1.
        assert abs(OPERATORS[cell, activation].forward(*given) - expected).max() <= 1e-13


@pytest.mark.parametrize(("cell", "activation"), CELLS)
def test_gradients_are_central_differences(cell: str, activation: str) -> None:
    """Along random directions: the error of a step of 1e-5 is its square, and rounding over it."""
    op, given = OPERATORS[cell, activation], values(cell, (4, 3, 5, 6))
    draw = np.random.default_rng(5)
    dy = draw.standard_normal((4, 1, 3, 6))
    grads, step = run(op, given, dy)[1:], 1e-5
    for number, grad in enumerate(grads):
        way = draw.standard_normal(grad.shape)
        ends = [
            float(np.sum(dy * op.forward(*[v + sign * step * way if n == number else v for n, v in enumerate(given)])))
            for sign in (1, -1)
        ]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(np.sum(grad * way)), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sample_does_not_depend_on_its_batch(dtype: str) -> None:
    """Bit-identical by itself and among any number of others; NaN in one stays there, and lasts over later steps."""
    for cell, activation in CELLS:
        op, (x, *weights) = OPERATORS[cell, activation], values(cell, (6, 30, 9, 40), dtype)
        whole = op.forward(x, *weights)
        for batch in range(1, 14):
            assert np.array_equal(op.forward(np.ascontiguousarray(x[:, :batch]), *weights), whole[:, :, :batch])
        odd = x.copy()
        odd[2, 17, 3] = np.nan
        found = op.forward(odd, *weights)
        others = np.arange(30) != 17
        assert np.array_equal(found[:, :, others], whole[:, :, others])
        assert np.array_equal(found[:2], whole[:2])
        assert np.isnan(found[2:, 0, 17]).all()


def test_runs_are_bit_identical_with_any_threads() -> None:
    kept = THREADS[0]
    try:
        for cell, activation in CELLS:
            given, found = values(cell, (5, 14, 30, 100), "float32"), []
            for threads in (1, 2, 2, 3):
                THREADS[0] = threads
                found.append(run(OPERATORS[cell, activation], given))
            for other in found[1:]:
                assert all(map(np.array_equal, found[0], other)), cell
    finally:
        THREADS[0] = kept


def test_tangent_and_logistic_function() -> None:
    """All magnitudes, within a few units in the last place; beyond the range of exponentials, their ends."""
    x = np.concatenate([np.linspace(-750, 750, 30001), np.logspace(-300, 2, 3001), -np.logspace(-300, 2, 3001)])
    one = np.ones((1, 1, 1))
    tangent = OPERATORS["RNN", "Tanh"].forward(x[None, :, None], one, one, np.zeros((1, 2))).ravel()
    expected = np.tanh(x)
    assert np.all(abs(tangent - expected) <= 4 * np.spacing(abs(expected)))
    # Of an LSTM with i and g at 1, and c = 1: h = logistic(o) tanh(1).
    weights, biases = np.zeros((1, 4, 1)), np.zeros((1, 8))
    weights[0, 1], biases[0, [0, 3]] = 1, 100
    logistic = OPERATORS["LSTM", "Tanh"].forward(x[None, :, None], weights, 0 * weights, biases).ravel()
    inside = abs(x) < 700
    expected = np.tanh(1) / (1 + np.exp(-x[inside]))
    assert np.all(abs(logistic[inside] - expected) <= 8 * np.spacing(expected))
    assert np.all(logistic[x < -708] < 1e-300)
    assert np.all(abs(logistic[x > 708] - np.tanh(1)) < 1e-15)


@pytest.mark.parametrize(("cell", "activation"), CELLS)
def test_slopes_of_saturated_gates_keep_their_digits(cell: str, activation: str) -> None:
    """In float32 with sums around 7, where 1 - value has two digits left: the gradient has six."""
    given = values(cell, (1, 4, 3, 5), "float32")
    given[3][:, : given[3].shape[1] // 2] += 7
    dy = np.ones((1, 1, 4, 5), np.float32)
    by_x = run(OPERATORS[cell, activation], given, dy)[1]
    expected = by_torch(cell, activation, given, dy)[1]
    assert abs(by_x - expected).max() <= 1e-5 * abs(expected).max()


def test_narrow_numbers_are_computed_with_as_float32() -> None:
    for dtype, unit in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        import ml_dtypes

        kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
        given = [value.astype(kind) for value in values("LSTM", (5, 3, 4, 7))]
        found = OPERATORS["LSTM", "Tanh"].forward(*given)
        wide = OPERATORS["LSTM", "Tanh"].forward(*[value.astype(np.float32) for value in given])
        assert found.dtype == kind
        # States are below 1, and rounded once for each step that reads them.
        assert abs(found.astype(np.float64) - wide).max() <= unit


@pytest.mark.parametrize("sizes", [(0, 3, 4, 5), (3, 0, 4, 5), (3, 2, 0, 5), (3, 2, 4, 0)], ids=str)
def test_empty_dimensions(sizes: tuple[int, ...]) -> None:
    for cell, activation in CELLS:
        given = values(cell, (*sizes[:3], max(sizes[3], 1)))
        if sizes[3] == 0:
            given = [given[0], *(np.zeros(shape) for shape in ((1, 0, 4), (1, 0, 0), (1, 0)))]
        y, *grads = run(OPERATORS[cell, activation], given)
        assert y.shape == (sizes[0], 1, sizes[1], sizes[3])
        assert [grad.shape for grad in grads] == [value.shape for value in given]
        if 0 in sizes[:2]:
            assert all(not grad.any() for grad in grads)


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    given = values("GRU", (3, 2, 4, 5))
    op = OPERATORS["GRU", "Tanh"]
    y, *grads = run(op, given, np.ones((3, 1, 2, 5)))
    for number in range(4):
        needs = [place == number for place in range(4)]
        found = op.backward([np.ones_like(y)], given, [y], needs)
        assert [grad is not None for grad in found] == needs
        assert np.array_equal(found[number], grads[number])


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax", "onnxruntime", "reference"])
def test_in_a_network_on_every_framework(framework: str) -> None:
    """A node with a symbolic batch; the gradient of the mean by the weights of the state."""
    x, w, r, b = values("GRU", (4, 3, 5, 6), "float32")
    build = d5.NetworkBuilder("recurrent")
    sequence = build.input("x", (4, "N", 5))
    state = build.parameter("r", r.shape, lambda *_: r)
    layer = build.op(
        "RecurrentPersistent",
        sequence,
        build.constant("w", w),
        state,
        build.constant("b", b),
        domain="deep5",
        cell="GRU",
    )
    network = build.network({"y": layer, "loss": build.op("ReduceMean", layer, keepdims=0)})
    assert network.outputs["y"].shape == (4, 1, "N", 6)
    executor = d5.framework(framework).executor(network)
    found = executor.inference_and_backprop({"x": x})
    y, _, _, by_r, _ = by_torch("GRU", "Tanh", [x, w, r, b], np.full((4, 1, 3, 6), 1 / 72))
    assert abs(d5.to_numpy(found["y"]) - y).max() <= 1e-6
    assert abs(d5.to_numpy(executor.gradients()["r"]) - by_r).max() <= 1e-6


def test_counts() -> None:
    """Multiplications are half of the operations of ONNX's layer; the workspace of 32-bit numbers is as documented."""
    for cell, activation in CELLS:
        op, given = RecurrentPersistent(cell, activation), values(cell, (4, 3, 5, 64), "float32")
        op.forward(*given)
        specs = [d5.TensorSpec(shape=value.shape, dtype="float32") for value in given]
        counted = op.report()
        assert 2 * counted["multiplications"] == op.flops(*specs)
        assert op.flops(*specs) == flops(cell, specs[:3], op.specs(*specs), {})
        # The sums over the input, the copy of the weights, and little else.
        rows, weights = 4 * 3 * GATES[cell] * 64, GATES[cell] * 64 * 64
        assert 4 * (rows + weights) <= counted["workspace bytes"] <= 4 * (rows + weights) + (128 << 10)


PLANTED = {
    "the copy of the weights": ("resident.h", "b.at(0, g * n + first)", "b.at(0, first)"),
    "the memory's gradient": ("recurrent_cells.h", "dmemory = all * gates.f.value", "dmemory = all * gates.i.value"),
    "the product of two steps": ("recurrent_persistent.cpp", "if (t + 1 < s_.steps) {", "if (t + 2 < s_.steps) {"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_caught(name: str, tmp_path: Path) -> None:
    file, right, wrong = PLANTED[name]
    for path in FOLDER.iterdir():
        if path.suffix in (".h", ".cpp"):
            shutil.copy(path, tmp_path)
    text = (tmp_path / file).read_text()
    assert text.count(right) == 1
    (tmp_path / file).write_text(text.replace(right, wrong))
    kind = type("RecurrentPersistent", (RecurrentPersistent,), {"source": str(tmp_path / "recurrent_persistent.cpp")})
    assert error(kind("LSTM"), "LSTM", "Tanh", SIZES[2], "float64") > 1e3 * TOLERANCE["float64"]


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="got cell='lstm'; allowed: RNN, GRU, LSTM"):
        RecurrentPersistent("lstm")
    with pytest.raises(UsageError, match="got activation='Relu' for the cell GRU; allowed: Tanh"):
        RecurrentPersistent("GRU", "Relu")
    with pytest.raises(OperatorError, match=r"deep5\.RecurrentPersistent .* cannot be made: .* got cell='no'"):
        make_operator("deep5", "RecurrentPersistent", {"cell": "no"})
    op = OPERATORS["LSTM", "Tanh"]
    x, w, r, b = values("LSTM", (3, 2, 4, 5))
    for wrong in (
        (x[0], w, r, b),
        (x, w[:, :5], r, b),
        (x, w, r[:, :, :4], b),
        (x, w, r, b[:, :20]),
        (x, w[:, :, :3], r, b),
    ):
        with pytest.raises(ShapeError, match=r"for LSTM a sequence \[T, N, I\], weights \[1, 4 H, I\]"):
            op.forward(*map(np.ascontiguousarray, wrong))
    with pytest.raises(ShapeError, match="of one element type"):
        op.specs(
            *[d5.TensorSpec(shape=value.shape, dtype="float32" if value is r else "float64") for value in (x, w, r, b)]
        )
