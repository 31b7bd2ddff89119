"""Gradient accumulation: several micro-batches as one step, against the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import ShapeError, Unsupported, UsageError
from deep5.networks.edit.builder import NetworkBuilder, glorot_uniform
from deep5.training.accumulation import batch_layout
from deep5.training.optimizer import RuleOptimizer
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
    # Compiled again for every rule: two rules of each framework that compiles run only in the full suite.
    pytest.param(framework, kind, marks=pytest.mark.slow if framework in COMPILING and kind != "adam" else ())
    for framework in FRAMEWORKS
    for kind in RULES
]


@pytest.mark.parametrize(("framework", "kind"), CASES)
def test_is_the_step_of_the_whole_batch(framework: str, kind: str) -> None:
    options: dict[str, Any] = {} if kind == "lars" else {"clip_norm": 0.3, "loss_scale": 16.0}
    tolerance = 1e-12  # a sum in three parts is rounded differently: about 1e-16 per step
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
    assert optimizer.state_dict()["hyper"] == twin.state_dict()["hyper"]
    for key, value in twin.train_step.state_dict().items():
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


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_what_ends_a_step_early_leaves_the_parameters(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing modifier, and an interrupt between two micro-batches: the parameters remain, not the gradient point."""
    fails = False

    def modifier(name: str, param: Any, grad: Any) -> Any:
        if fails:
            raise ZeroDivisionError
        return grad

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    run, optimizer = bound(framework, d5.AcceleGrad(lr=0.3), modifier=modifier)
    for step in range(6):
        optimizer.accumulated_step(split(batch(step), 5, 3), info(step))
    before = run.state_dict()
    fails = True
    with pytest.raises(ZeroDivisionError):
        optimizer.accumulated_step([batch(6)], info(6))
    monkeypatch.setattr("deep5.training.accumulation.derive_seed", interrupted)  # called before the second one
    with pytest.raises(KeyboardInterrupt):
        optimizer.accumulated_step(split(batch(6), 5, 3), info(6))
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    run.export()


def recurrent(label: bool = True, targets: tuple[Any, ...] = ("N", 3)) -> d5.Network:
    """Over (T, N, F), as in ONNX's recurrent layers: the mean over time, then classes or a regression."""
    build = NetworkBuilder("recurrent", dtype="float64", seed=3)
    x = build.input("input", ("T", "N", 4))
    rows = build.op("MatMul", x, build.parameter("w", (4, 3), glorot_uniform))
    logits = build.op("ReduceMean", rows, build.constant("axes", np.array([0])), keepdims=0)
    if label:
        loss = build.op("SoftmaxCrossEntropyLoss", logits, build.input("label", ("N",), "int64"), reduction="mean")
    else:
        away = build.op("Sub", logits, build.input("target", targets))
        loss = build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)
    return build.network({"rows": rows, "logits": logits, "loss": loss})


@pytest.mark.parametrize(
    ("framework", "native"),
    [("reference", False), *((name, native) for name in ("pytorch", "tensorflow", "jax") for native in (False, True))],
)
def test_samples_are_counted_on_the_axis_of_the_labels(framework: str, native: bool) -> None:
    """Time leads the input: 5 and 2 samples of three steps have weights 5 and 2, not equal; outputs join on axis 1."""
    draw = np.random.default_rng(0)
    whole = {"input": draw.standard_normal((3, 7, 4)), "label": draw.integers(0, 3, 7)}
    parts = [
        {"input": np.ascontiguousarray(whole["input"][:, own]), "label": whole["label"][own]}
        for own in (slice(0, 5), slice(5, 7))
    ]
    found = []
    for _ in range(2):
        run = d5.framework(framework).executor(recurrent())
        optimizer: Any = d5.framework(framework).optimizer("sgd")(lr=0.5) if native else RuleOptimizer(d5.SGD(lr=0.5))
        optimizer.bind(run)
        found.append((run, optimizer))
    (run, optimizer), (other, twin) = found
    for step in range(2):
        outputs, expected = optimizer.accumulated_step(parts, info(step, 7)), twin.step(whole, info(step, 7))
        for name, value in expected.items():
            np.testing.assert_allclose(d5.to_numpy(outputs[name]), d5.to_numpy(value), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(parameters(run)["w"], parameters(other)["w"], rtol=1e-12)


def test_where_nothing_says_what_counts_the_samples_it_is_refused() -> None:
    _, optimizer = bound("reference", d5.SGD(), recurrent(label=False))
    parts = [{"input": np.ones((3, size, 4)), "target": np.ones((size, 3))} for size in (5, 2)]
    with pytest.raises(
        Unsupported, match=r"lead with T, N, and it is not known .*; allowed: one; remedy: one name for"
    ):
        optimizer.accumulated_step(parts, info(0, 7))
    optimizer.step(parts[0], info(0, 5))  # which does not need the layout


def test_an_extent_without_a_name_leads() -> None:
    """As in files with unnamed dimensions: the labels' counts, whatever leads the others."""
    layout = batch_layout(_Described({"x": ("x:0", "x:1", 4), "y": ("y:0",)}, {"o": ("x:0", 2), "p": ("p:0",)}), None)
    assert (layout.samples({"x": np.ones((3, 2, 4))}), layout._axes) == (3, {"o": 0, "p": 0})
    assert batch_layout(layout.network, layout) is layout
    mixed = batch_layout(_Described({"x": ("x:0", "N"), "y": ("N",)}, {"o": (2, "N"), "p": ("N*T", 1)}), layout)
    assert (mixed.symbol, mixed.samples({"x": np.ones((3, 2))}), mixed._axes) == ("N", 2, {"o": 1, "p": 0})
    fixed = batch_layout(_Described({"x": (4, "T")}, {"o": ("T",)}), None)
    assert (fixed.symbol, fixed.samples({}), fixed._axes) == (None, 1, {"o": None})


class _Described:
    """The used attributes of a network without information on its labels."""

    def __init__(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        self.inputs, self.outputs = (
            {name: d5.TensorSpec(shape=shape) for name, shape in specs.items()} for specs in (inputs, outputs)
        )
