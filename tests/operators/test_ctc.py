"""The CTC loss: against PyTorch's, against central differences, against a sum over all alignments, and bad input."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deep5 as d5
from deep5.core.errors import OperatorError, ShapeError, UsageError
from deep5.operators import zoo
from deep5.operators.zoo import CTCLoss

STEPS, CLASSES = 9, 5
# Samples: three labels; none; one label four times, which takes seven steps; two equal labels in three steps, the
# minimum; more steps than labels; no step and no label; as many steps as labels, which differ.
LABELS = np.array([1, 2, 3, 1, 1, 1, 1, 2, 2, 1, 2, 3, 4, 1, 2, 3], np.int32)
LABEL_LENGTHS = np.array([3, 0, 4, 2, 4, 0, 3], np.int32)
INPUT_LENGTHS = np.array([9, 6, 9, 3, 8, 0, 3], np.int32)
# Labels that do not fit into the steps: no step for one; two equal labels in two steps; four in three.
TOO_LONG = np.array([1, 2, 2, 1, 2, 3, 4, 2], np.int32), np.array([1, 2, 4, 1]), np.array([0, 2, 3, 9])
OPERATORS = {zero: CTCLoss(zero_infinity=zero) for zero in (False, True)}
Batch = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def batch(dtype: str = "float64", blank: int = 0) -> Batch:
    """Activations and labels; with another blank, the classes are permuted."""
    x = 2 * np.random.default_rng(1).standard_normal((STEPS, len(LABEL_LENGTHS), CLASSES))
    return x.astype(dtype), (LABELS + blank) % CLASSES, LABEL_LENGTHS, INPUT_LENGTHS


def impossible() -> Batch:
    labels, label_lengths, input_lengths = TOO_LONG
    x = np.random.default_rng(2).standard_normal((STEPS, len(label_lengths), CLASSES))
    return x, labels, label_lengths.astype(np.int32), input_lengths.astype(np.int32)


def by_torch(given: Batch, dcosts: np.ndarray, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    x, labels, label_lengths, input_lengths = given
    activations = torch.tensor(x.astype(np.float64), requires_grad=True)
    costs = torch.nn.functional.ctc_loss(
        activations.log_softmax(2),
        torch.tensor(labels),
        torch.tensor(input_lengths),
        torch.tensor(label_lengths),
        reduction="none",
        **settings,
    )
    costs.backward(torch.tensor(dcosts.astype(np.float64)))
    assert activations.grad is not None
    return costs.detach().numpy(), activations.grad.numpy()


def gradient(op: d5.CppOperator, given: Batch, costs: np.ndarray, dcosts: np.ndarray) -> np.ndarray:
    found = op.backward([dcosts], list(given), [costs], [True, False, False, False])
    assert found[1:] == (None, None, None)
    return np.asarray(found[0])


def by_alignments(x: np.ndarray, labels: np.ndarray, blank: int = 0) -> float:
    """Minus the logarithm of the summed probabilities of all paths that collapse to the labels: equations 2 and 3."""
    y = np.exp(x - x.max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)
    total = 0.0
    for path in itertools.product(range(x.shape[1]), repeat=len(x)):
        read = [label for label, _ in itertools.groupby(path) if label != blank]
        if read == list(labels):
            total += float(np.prod(y[np.arange(len(x)), path]))
    return float(-np.log(total)) if total else float("inf")


@pytest.mark.parametrize("blank", [0, 2])
def test_costs_and_gradients_are_those_of_pytorch(blank: int) -> None:
    op, given = CTCLoss(blank=blank), batch(blank=blank)
    dcosts = np.random.default_rng(3).standard_normal(len(LABEL_LENGTHS))
    costs = op.forward(*given)
    expected, by_activations = by_torch(given, dcosts, blank=blank)
    np.testing.assert_allclose(costs, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gradient(op, given, costs, dcosts), by_activations, rtol=1e-10, atol=1e-10)
    assert op.report() == {"steps": INPUT_LENGTHS.sum()}


def test_float32() -> None:
    """A cost is a sum of at most STEPS logarithms and 2 STEPS log-sums, each within a few u of its size, below 40."""
    given = batch("float32")
    dcosts = np.ones(len(LABEL_LENGTHS), np.float32)
    costs = OPERATORS[False].forward(*given)
    found = gradient(OPERATORS[False], given, costs, dcosts)
    assert costs.dtype == found.dtype == "float32"
    expected, by_activations = by_torch(given, dcosts)
    bound = 4 * 3 * STEPS * 2.0**-24 * 40
    np.testing.assert_allclose(costs, expected, rtol=0, atol=bound)
    # exp(alpha + beta - ln p) turns the absolute errors of three logarithms into a relative error.
    np.testing.assert_allclose(found, by_activations, rtol=0, atol=3 * bound)


@pytest.mark.parametrize("zero", [False, True])
def test_labels_that_the_steps_cannot_hold(zero: bool) -> None:
    """An infinite cost with NaN as gradient, or zeros, as in PyTorch; the possible sample is unaffected."""
    given, dcosts = impossible(), np.array([1.0, -2.0, 0.5, 3.0])
    costs = OPERATORS[zero].forward(*given)
    found = gradient(OPERATORS[zero], given, costs, dcosts)
    expected, by_activations = by_torch(given, dcosts, zero_infinity=zero)
    np.testing.assert_array_equal(costs[:3], [0.0] * 3 if zero else [np.inf] * 3)
    np.testing.assert_allclose(costs, expected, rtol=1e-10)
    np.testing.assert_allclose(found, by_activations, rtol=1e-10, atol=1e-10, equal_nan=True)
    assert np.isnan(found).sum() == (0 if zero else (0 + 2 + 3) * CLASSES)
    assert np.isfinite(found[:, 3]).all()


@pytest.mark.parametrize("labels", [(), (1,), (1, 2), (1, 1), (2, 1, 2), (1, 1, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_sum_over_all_alignments(labels: tuple[int, ...], steps: int) -> None:
    x = np.random.default_rng(steps).standard_normal((steps, 1, 3))
    flat = np.array(labels, np.int32)
    lengths = np.array([len(labels)], np.int32), np.array([steps], np.int32)
    cost = OPERATORS[False].forward(x, flat, *lengths)
    np.testing.assert_allclose(cost, by_alignments(x[:, 0], flat), rtol=1e-12)


def test_gradients_are_central_differences() -> None:
    """A step h = 1e-5 leaves h² = 1e-10 times third derivatives, and u times a cost / h, about 1e-10, of rounding."""
    given, step = batch(), 1e-5
    weights = np.random.default_rng(4).standard_normal(len(LABEL_LENGTHS))
    op = OPERATORS[False]
    found = gradient(op, given, op.forward(*given), weights)
    x, differences = given[0], np.empty_like(given[0])
    for place in np.ndindex(*x.shape):
        sides = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            sides.append(weights @ op.forward(moved, *given[1:]))
        differences[place] = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(found, differences, atol=5e-9)


def test_properties() -> None:
    """The gradient of a step sums to zero; steps after a sample's end do not matter, nor does an added constant."""
    given, op = batch(), OPERATORS[False]
    costs = op.forward(*given)
    found = gradient(op, given, costs, np.ones(len(costs)))
    np.testing.assert_allclose(found.sum(axis=2), 0, atol=1e-13)
    behind = np.arange(STEPS)[:, None] >= INPUT_LENGTHS
    assert not found[behind].any()
    other = given[0].copy()
    other[behind] = np.nan
    assert np.array_equal(op.forward(other, *given[1:]), costs)
    shifted = given[0] + np.array([700.0, -700.0, 0.0, 1e4, 3.0, 0.0, 0.0])[:, None]
    # Adding 1e4 rounds the activations themselves, to 1e4 u, in nine steps at most.
    np.testing.assert_allclose(op.forward(shifted, *given[1:]), costs, atol=9 * 2 * 1e4 * 2.0**-53)


def test_classes_without_probability_and_what_is_not_finite() -> None:
    given, op = batch(), OPERATORS[False]
    x = given[0].copy()
    x[2, 0, 4] = -np.inf  # a class that the sample does not have
    x[3, 3] = np.nan  # after the sample's end
    x[1, 6, 0] = np.nan
    x[:, 4, 1] = -np.inf  # a label of the sample
    dcosts = np.ones(len(LABEL_LENGTHS))
    costs = op.forward(x, *given[1:])
    # PyTorch's gradient is NaN where a class has no probability: use one that is zero in float64 all the same.
    almost = np.where(x == -np.inf, -1e4, x)
    expected, by_activations = by_torch((almost, *given[1:]), dcosts)
    assert np.isfinite(costs[[0, 1, 2, 3, 5]]).all()
    assert np.isnan(costs[6])
    assert costs[4] == np.inf
    np.testing.assert_allclose(costs[[0, 1, 2, 3, 5]], expected[[0, 1, 2, 3, 5]], rtol=1e-10)
    found = gradient(op, (x, *given[1:]), costs, dcosts)
    np.testing.assert_allclose(found[:, :3], by_activations[:, :3], rtol=1e-10, atol=1e-10)
    # After the end of sample 3 PyTorch's log_softmax computes NaN times 0, which is NaN.
    np.testing.assert_allclose(found[:3, 3], by_activations[:3, 3], rtol=1e-10, atol=1e-10)
    assert not found[3:, 3].any()


@pytest.mark.parametrize("shape", [(0, 2, 3), (4, 0, 3), (0, 0, 1)], ids=str)
def test_nothing_at_all(shape: tuple[int, int, int]) -> None:
    lengths = np.zeros(shape[1], np.int32)
    given = (np.zeros(shape), np.zeros(0, np.int32), lengths, lengths)
    costs = OPERATORS[False].forward(*given)
    assert np.array_equal(costs, np.zeros(shape[1]))
    assert gradient(OPERATORS[False], given, costs, np.ones(shape[1])).shape == shape


PLANTED = {
    "equal labels": ("labels[s / 2] != labels[s / 2 - 1]", "labels[s / 2] >= 0"),
    "last place": ("s >= places - 2 ? S(0)", "s >= places - 1 ? S(0)"),
    "softmax": ("(std::exp(y[c]) - sums[c])", "(-sums[c])"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_caught(name: str, tmp_path: Path) -> None:
    right, wrong = PLANTED[name]
    text = Path(zoo.__file__).with_name("ctc_loss.cpp").read_text()
    assert text.count(right) == 1
    (tmp_path / "ctc_loss.cpp").write_text(text.replace(right, wrong))
    op = type("CTCLoss", (CTCLoss,), {"source": str(tmp_path / "ctc_loss.cpp")})()
    given, dcosts = batch(), np.ones(len(LABEL_LENGTHS))
    costs = op.forward(*given)
    expected, by_activations = by_torch(given, dcosts)
    found = gradient(op, given, costs, dcosts)
    # If all labels of a sample differ, treating equal ones as different changes nothing: samples 2 and 3 must show it.
    assert max(abs(costs - expected).max(), abs(found - by_activations).max()) > 1e-3


def test_values_that_are_refused() -> None:
    x, labels, label_lengths, input_lengths = batch()
    op = OPERATORS[False]

    def replaced(values: np.ndarray, place: int, value: int) -> np.ndarray:
        changed = values.copy()
        changed[place] = value
        return changed

    with pytest.raises(OperatorError, match="got the label 0 at place 2; allowed: 0 to 4, the blank 0 left out"):
        op.forward(x, replaced(labels, 2, 0), label_lengths, input_lengths)
    for label in (5, -1):
        with pytest.raises(OperatorError, match=f"got the label {label} at place 0; allowed: 0 to 4"):
            op.forward(x, replaced(labels, 0, label), label_lengths, input_lengths)
    for length in (STEPS + 1, -1):
        with pytest.raises(OperatorError, match=f"got the input length {length} of sample 1; allowed: 0 to 9"):
            op.forward(x, labels, label_lengths, replaced(input_lengths, 1, length))
    with pytest.raises(OperatorError, match="got the label length 4 of sample 6; allowed: 0 to 3"):
        op.forward(x, labels, replaced(label_lengths, 6, 4), input_lengths)
    with pytest.raises(OperatorError, match="got the label length -1 of sample 0; allowed: 0 to 16"):
        op.forward(x, labels, replaced(label_lengths, 0, -1), input_lengths)
    with pytest.raises(OperatorError, match="got 16 labels; allowed: the sum of the label lengths, 15"):
        op.forward(x, labels, replaced(label_lengths, 6, 2), input_lengths)
    # The backward pass refuses it as well, where the same memory would be overrun.
    with pytest.raises(OperatorError, match="got the label 9 at place 0"):
        gradient(op, (x, replaced(labels, 0, 9), label_lengths, input_lengths), np.zeros(7), np.zeros(7))


def test_shapes_and_arguments_that_are_refused() -> None:
    x, labels, label_lengths, input_lengths = batch()
    op = OPERATORS[False]
    for wrong in (
        (x[0], labels, label_lengths, input_lengths),
        (x, labels[None], label_lengths, input_lengths),
        (x, labels.astype(np.int64), label_lengths, input_lengths),
    ):
        with pytest.raises(ShapeError, match="int32"):
            op.forward(*wrong)
    with pytest.raises(ShapeError, match="one per sample, 7"):
        op.forward(x, labels, label_lengths[:3], input_lengths)
    with pytest.raises(ShapeError, match=r"got blank=5 .* allowed: below 5"):
        CTCLoss(blank=5).forward(x, labels, label_lengths, input_lengths)
    for blank in (-1, True, 0.0):
        with pytest.raises(UsageError, match=r"blank=.* allowed: the number of a class"):
            CTCLoss(blank=blank)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="zero_infinity=2; allowed: True or False"):
        CTCLoss(zero_infinity=2)  # type: ignore[arg-type]
