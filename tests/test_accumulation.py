"""Gradient accumulation: several micro-batches as one step, against the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.errors import ShapeError, UsageError
from pipeline_cases import FRAMEWORKS, batch, bound, info, network, parameters

RULES: dict[str, Any] = {
    "adam": lambda: d5.Adam(lr=0.05),
    "accelegrad": lambda: d5.AcceleGrad(lr=0.3),
    "lars": lambda: d5.LARS(lr=0.5),
}


COMPILING = ("tensorflow", "jax")


def split(inputs: dict[str, np.ndarray], *sizes: int) -> list[dict[str, np.ndarray]]:
    ends = np.cumsum(sizes)
    return [
        {name: value[end - size : end] for name, value in inputs.items()} for size, end in zip(sizes, ends, strict=True)
    ]


CASES = [
    # Compiled anew for every rule: two rules of each framework that compiles in the full suite alone.
    pytest.param(framework, kind, marks=pytest.mark.slow if framework in COMPILING and kind != "adam" else ())
    for framework in FRAMEWORKS
    for kind in RULES
]


@pytest.mark.parametrize(("framework", "kind"), CASES)
def test_is_the_step_of_the_whole_batch(framework: str, kind: str) -> None:
    options: dict[str, Any] = {} if kind == "lars" else {"clip_norm": 0.3, "loss_scale": 16.0}
    tolerance = 1e-12  # a sum in three parts is rounded in another way: some 1e-16 a step
    run, optimizer = bound(framework, RULES[kind](), network("float64"), **options)
    other, twin = bound(framework, RULES[kind](), network("float64"), **options)
    for step in range(4):
        inputs = batch(step, dtype="float64")
        outputs = optimizer.accumulated_step(split(inputs, 3, 4, 1), info(step))
        whole = twin.step(inputs, info(step))
        np.testing.assert_allclose(float(outputs["loss"]), float(whole["loss"]), rtol=tolerance)
        np.testing.assert_allclose(
            d5.to_numpy(outputs["logits"]), d5.to_numpy(whole["logits"]), rtol=tolerance, atol=tolerance
        )
        assert outputs.keys() == whole.keys()
    for name, value in parameters(other).items():
        np.testing.assert_allclose(parameters(run)[name], value, rtol=tolerance, atol=tolerance)
    for key, value in twin.state_dict().items():
        np.testing.assert_allclose(optimizer.state_dict()[key], value, rtol=tolerance, atol=tolerance)
    assert optimizer.train_step.traces == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_masks_differ_between_micro_batches(framework: str) -> None:
    """Equal rows, each its own micro-batch: with one mask for all, the loss of each would be the same."""
    inputs = batch(0, 1)
    _, optimizer = bound(framework, d5.SGD(lr=0.0), network(dropout=0.5))
    logits = d5.to_numpy(optimizer.accumulated_step([inputs] * 4, info(0, 4))["logits"])
    assert len(np.unique(np.asarray(logits)[:, 0])) > 1
    again = d5.to_numpy(optimizer.accumulated_step([inputs] * 4, info(0, 4))["logits"])
    np.testing.assert_array_equal(again, logits)  # a function of (seed, step, node)
    first = d5.to_numpy(optimizer.step(inputs, info(0, 1))["logits"])
    np.testing.assert_allclose(first[0], logits[0], rtol=1e-6)  # the first has the mask of a plain step


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_micro_batch_that_overflows_skips_the_step(framework: str) -> None:
    run, optimizer = bound(framework, d5.Adam(lr=0.05), loss_scale="dynamic")
    optimizer.accumulated_step(split(batch(0), 4, 4), info(0))
    before, inputs = run.state_dict(), batch(1)
    inputs["input"][0] = np.inf
    optimizer.accumulated_step(split(inputs, 4, 4), info(1))
    assert (optimizer.skipped_steps, optimizer.loss_scale) == (1, 2.0**15)
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    optimizer.accumulated_step(split(batch(2), 4, 4), info(2))
    assert any(np.any(value != before[name]) for name, value in run.state_dict().items())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_that_is_refused_changes_nothing(framework: str) -> None:
    run, optimizer = bound(framework, d5.AcceleGrad(lr=0.3))
    optimizer.step(batch(0), info(0))
    before = run.state_dict()
    short = {"input": batch(1)["input"][:, :2], "label": batch(1)["label"]}
    with pytest.raises(ShapeError):
        optimizer.accumulated_step([batch(1), short], info(1))
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    for given in ([], batch(0), 3):
        with pytest.raises(UsageError, match="allowed: a list of at least one dict of inputs"):
            optimizer.accumulated_step(given, info(1))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="a micro-batch without samples"):
        optimizer.accumulated_step([batch(1), {"label": batch(1)["label"]}], info(1))
    optimizer.accumulated_step([batch(1)], info(1))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_micro_batch_is_a_plain_step(framework: str) -> None:
    run, optimizer = bound(framework, d5.Adam(lr=0.05), network(dropout=0.5))
    other, twin = bound(framework, d5.Adam(lr=0.05), network(dropout=0.5))
    for step in range(3):
        optimizer.accumulated_step([batch(step)], info(step))
        twin.step(batch(step), info(step))
    for name, value in parameters(other).items():
        # A step compiled as a whole may round in another way than its halves.
        np.testing.assert_allclose(parameters(run)[name], value, rtol=1e-5, atol=1e-6)
