"""Executors of frameworks that differentiate: whole training steps, their two halves, and native optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backends import COMPUTING, Backend, parametrized
from deep5.core import plugins
from deep5.core.errors import RuleError, ShapeError, UsageError
from deep5.core.executors import ParameterGroup
from deep5.networks import NetworkBuilder, lenet, mlp, resnet
from deep5.training.dataset import ArrayDataset
from executor_cases import SMALL, arrays, batch, executor, info, normal, reference

every = parametrized(*COMPUTING)


def images(count: int = 2, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {"input": normal(count, 1, 28, 28, dtype=dtype), "label": np.arange(count) % 3}


@pytest.mark.daily
@pytest.mark.parametrize("rule", ["adam", "accelegrad", "lars"])
@every
def test_two_halves_are_a_whole_step(backend: Backend, rule: str) -> None:
    network, ends = lenet(classes=3, dtype="float64"), []
    feeds = [images(dtype="float64") for _ in range(3)]
    group = ParameterGroup(lambda name: name.endswith("bias"), lr=0.01)
    for halves in (False, True):
        run, seen = executor(backend, network), []
        step = run.train_step(
            plugins.load("optimizers", rule)(lr=0.02),
            groups=(group,),
            modifier=lambda name, param, grad: grad + 0.01 * param if "conv" in name else grad,
        )
        for number, feed in enumerate(feeds):
            if halves:
                seen.clear()
                step.backprop(feed, info(number, 2), lambda name, _, seen=seen: seen.append(name))
                assert sorted(seen) == sorted(network.parameter_specs)
                # Here the modifier gets gradients in the form given, and parameters in the framework's.
                gradients = run.gradients() if backend.name == "pytorch" else arrays(run.gradients())
                step.apply(gradients, info(number, 2))
            else:
                step(feed, info(number, 2))
        ends.append({**run.state_dict(), **step.state_dict()})
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        # Compilers order float64 roundings as they like.
        np.testing.assert_allclose(ends[1][name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@every
def test_a_learning_rate_of_zero_holds_the_weights(backend: Backend) -> None:
    """For a rule, and for a native optimizer."""
    run, rule = executor(backend), d5.Momentum(lr=0.5)
    step = run.train_step(rule)
    step(batch(), info())
    before = run.state_dict()
    rule.lr = 0.0
    step(batch(), info(1))
    native: Any = backend.framework.optimizer("sgd")(lr=0.1)
    native.bind(run)
    native.set_hyper("lr", 0.0)
    native.step(batch(), info(2))
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert native.describe() == {"native": backend.name, "optimizer": "GradientDescentOptimizer", "lr": 0.1}


@every
def test_gradients_from_outside_are_checked(backend: Backend) -> None:
    run = executor(backend)
    step, before = run.train_step(d5.SGD(lr=0.1)), run.state_dict()
    zero = {name: np.zeros_like(value) for name, value in before.items()}
    for bad, message in (
        ({}, r"no gradient of 'fc|gradient of 'fc1.weight' is missing"),
        ({"fc1.bias": zero["fc1.bias"]}, r"no gradient of 'fc|gradient of 'fc1.weight' is missing"),
        ({**zero, "fc1.bias": np.zeros(4, np.float32)}, r"gradient of 'fc1.bias': got (shape |float32)\(4,\)"),
        ({**zero, "fc1.bias": np.zeros(3)}, r"gradient of 'fc1.bias': got (dtype )?float64.*, expected float32"),
    ):
        with pytest.raises(ShapeError, match=message):
            step.apply(bad, info())
    step.apply(zero, info())
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@every
def test_frozen_parameters_have_no_gradient_and_stay(backend: Backend) -> None:
    run = executor(backend)
    frozen = ParameterGroup(lambda name: name.startswith("fc1"), frozen=True)
    step, before = run.train_step(d5.Adam(lr=0.1), groups=(frozen,)), run.state_dict()
    step(batch(), info())
    step.backprop(batch(), info())
    assert run.gradients().keys() == {"fc2.weight", "fc2.bias"}
    assert step.state_dict().keys() == {f"{key}/fc2.{name}" for key in "mv" for name in ("weight", "bias")}
    changed = {name for name, value in run.state_dict().items() if not np.array_equal(value, before[name])}
    assert changed == {"fc2.weight", "fc2.bias"}
    with pytest.raises(RuleError, match="nothing to train by Adam: got 4 parameters, all of them frozen"):
        run.train_step(d5.Adam(), groups=(ParameterGroup(lambda name: True, frozen=True),))


@every
def test_a_modifier_gets_onnxs_order_of_axes_and_is_checked(backend: Backend) -> None:
    network, shapes = lenet(classes=3, dtype="float64"), {}

    def modifier(name: str, param: Any, grad: Any) -> Any:
        shapes[name] = tuple(param.shape), tuple(grad.shape)
        return grad * mask(name, grad) if name.endswith("weight") else grad + param

    def mask(name: str, grad: Any) -> np.ndarray:
        # One entry is removed: it must be the one at that place in ONNX's order of axes.
        found = np.ones(network.parameter_specs[name].shape)
        found[(0,) * (found.ndim - 1) + (1,)] = 0.0
        return found if backend.name != "pytorch" else backend.native(found)  # type: ignore[no-any-return]

    run, feed = executor(backend, network), images(dtype="float64")
    run.inference_and_backprop(feed)
    gradients = arrays(run.gradients())
    run.train_step(d5.SGD(lr=1.0), modifier=modifier)(feed, info(0, 2))
    assert shapes == {name: (spec.shape, spec.shape) for name, spec in network.parameter_specs.items()}
    for name, value in run.state_dict().items():
        start = network.initial(name)
        changed = (
            gradients[name] * d5.to_numpy(mask(name, None)) if name.endswith("weight") else gradients[name] + start
        )
        np.testing.assert_allclose(value, start - changed, rtol=1e-12, atol=1e-14)
    xp = d5.array_namespace
    wrongs: list[tuple[Callable[..., Any], str]] = [
        (lambda name, param, grad: grad[0], r"gradient of 'conv1.weight': got (shape|float64).*1, 5, 5"),
        (
            lambda name, param, grad: xp(grad).astype(grad, xp(grad).float32),
            r"gradient of 'conv1.weight': got (dtype )?float32",
        ),
    ]
    # JAX computes in the gradient's element type, so any is accepted.
    for wrong, message in wrongs[: 1 if backend.name == "jax" else 2]:
        with pytest.raises(ShapeError, match=message):
            executor(backend, network).train_step(d5.SGD(), modifier=wrong)(feed, info(0, 2))


class HalfAverage(d5.UpdateRule):
    """Evaluates between the parameter and an average: applied twice it differs."""

    hyper = ("lr",)

    def __init__(self, lr: float = 0.1) -> None:
        self.lr = lr

    def init_state(self, param: Any) -> dict[str, Any]:
        return {"ema": param}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad, {"ema": 0.9 * state["ema"] + 0.1 * param}

    def eval_param(self, param: Any, state: Any) -> Any:
        return 0.5 * param + 0.5 * state["ema"]


@pytest.mark.parametrize("rule", [HalfAverage, d5.AcceleGrad], ids=lambda rule: rule.__name__)
@every
def test_averaged_holds_what_evaluation_uses_and_gives_back_what_was_there(backend: Backend, rule: Any) -> None:
    """It may be nested, takes no step, and restores the parameters also after an exception."""
    run = executor(backend)
    step = run.train_step(rule(lr=0.1))
    for number in range(3):
        step(batch(), info(number))
    live = run.state_dict()
    zero = {name: np.zeros_like(value) for name, value in live.items()}
    calls: list[Callable[[], Any]] = [
        lambda: step(batch(), info(3)),
        lambda: step.backprop(batch(), info(3)),
        lambda: step.apply(zero, info(3)),
        lambda: step.regroup((), step.pipeline),
    ]
    with step.averaged():
        inside, exported = run.state_dict(), run.export()
        assert any(not np.array_equal(live[name], inside[name]) for name in live)
        for call in calls:
            with pytest.raises(UsageError, match=r"a training step inside averaged\(\); remedy: leave the block first"):
                call()
        with step.averaged():
            pass
        for name, value in inside.items():
            np.testing.assert_array_equal(run.state_dict()[name], value)
            np.testing.assert_array_equal(exported.initial(name), value)
            if rule is d5.AcceleGrad:
                np.testing.assert_array_equal(step.state_dict()[f"average/{name}"], value)
    with pytest.raises(RuntimeError, match="stop"), step.averaged():
        raise RuntimeError("stop")
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, live[name])
        np.testing.assert_array_equal(run.export().initial(name), inside[name])
        np.testing.assert_array_equal(run.export(evaluation=False).initial(name), value)
    step(batch(), info(3))  # the step resumes from the live values


NATIVE: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.8, "nesterov": True},
    "adam": {"lr": 0.05, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7},
}


@pytest.mark.parametrize(
    "kind",
    ["sgd", "momentum", pytest.param("adam", marks=pytest.mark.daily), d5.Adam(lr=0.05), d5.AcceleGrad(lr=0.05)],
    ids=lambda kind: kind if isinstance(kind, str) else type(kind).__name__,
)
@every
def test_a_resumed_run_is_the_same_bit_for_bit(backend: Backend, kind: Any) -> None:
    feeds = [images(4) for _ in range(6)]

    def start() -> tuple[Any, Any, Any]:
        run = executor(backend, lenet(classes=3, seed=4))
        if not isinstance(kind, str):
            step = run.train_step(kind)
            return run, step, step
        optimizer: Any = backend.framework.optimizer(kind)(**NATIVE[kind])
        optimizer.bind(run)
        return run, optimizer, optimizer.step

    def train(call: Any, first: int, last: int) -> None:
        for number in range(first, last):
            call(feeds[number], info(number, 4))

    whole, _, call = start()
    train(call, 0, 6)
    half, optimizer, call = start()
    train(call, 0, 3)
    states = half.state_dict(), optimizer.state_dict()
    plain = [value for state in states for key, value in state.items() if key != "hyper"]
    assert all(isinstance(value, (np.ndarray, np.generic)) for value in plain)
    resumed, optimizer, call = start()
    resumed.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    for key, value in optimizer.state_dict().items():
        if key != "hyper":
            np.testing.assert_array_equal(value, states[1][key])
        if isinstance(value, np.ndarray) and value.ndim > 1:  # in ONNX's order of axes
            assert value.shape == half.network.parameter_specs[key.partition("/")[2]].shape
    train(call, 3, 6)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(resumed.state_dict()[name], value)
    if isinstance(kind, str) and backend.name == "pytorch":
        return  # whose native optimizers have all their state before the first step
    with pytest.raises(ShapeError, match="missing or unknown"):
        optimizer.load_state_dict({**states[1], "nothing": np.zeros(1)})


@every
def test_native_optimizers_are_refused_what_does_not_fit(backend: Backend) -> None:
    optimizer: Any = backend.framework.optimizer("adam")()
    for call in (lambda: optimizer.step({}, None), optimizer.state_dict, lambda: optimizer.set_hyper("lr", 1.0)):
        with pytest.raises(UsageError, match=r"not bound to an executor; remedy: call bind\(executor\) first"):
            call()
    with pytest.raises(UsageError, match=f"native optimizer of {backend.name} cannot drive a ReferenceExecutor"):
        optimizer.bind(reference(mlp(**SMALL)))
    optimizer.bind(executor(backend))
    with pytest.raises(UsageError, match=r"no hyperparameter 'learning_rate' .*; allowed: lr"):
        optimizer.set_hyper("learning_rate", 0.1)


@every
def test_a_native_optimizer_minimizes_the_loss_that_it_is_given(backend: Backend) -> None:
    build = NetworkBuilder("renamed")
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    logits = build.op("MatMul", x, build.parameter("w", (4, 2)))
    network = build.network({"logits": logits, "total": build.op("SoftmaxCrossEntropyLoss", logits, label)})
    optimizer: Any = backend.framework.optimizer("adam")(loss="total")
    optimizer.bind(executor(backend, network))
    optimizer.step(batch(), info())
    sampler = d5.OrderedSampler(ArrayDataset(batch()), 5)
    with pytest.raises(UsageError, match="the trainer's loss is 'total' but its optimizer's is 'loss'"):
        d5.Trainer(executor(backend, network), backend.framework.optimizer("adam")(), sampler, loss="total")


@every
def test_a_step_that_fails_leaves_states_and_statistics(backend: Backend) -> None:
    """By an input that does not fit; then by labels outside the classes, which JAX does not check."""
    network = resnet(depth=8)
    run, feed = executor(backend, network), {"input": normal(3, 3, 32, 32), "label": np.arange(3)}
    optimizer = d5.RuleOptimizer(d5.Momentum())
    optimizer.bind(run)
    native: Any = backend.framework.optimizer("momentum")()
    native.bind(run)
    for call in (optimizer.step, native.step):
        call(feed, info(0, 3))
        before, state = run.state_dict(), optimizer.train_step.state_dict()
        wrongs = [{**feed, "input": feed["input"][:, :, :9]}, {**feed, "label": np.array([0, 99, 1])}]
        for wrong in wrongs[: 1 if backend.name == "jax" else 2]:
            for _ in range(3):
                with pytest.raises(
                    d5.Deep5Error, match=r"'input': got shape|the label 99|cannot run the network on th"
                ):
                    call(wrong, info(0, 3))
        for now, then in ((run.state_dict(), before), (optimizer.train_step.state_dict(), state)):
            for name, value in then.items():
                np.testing.assert_array_equal(now[name], value, err_msg=name)
        call(feed, info(0, 3))  # with labels inside the classes they move
        assert not np.array_equal(run.state_dict()["conv0.mean"], before["conv0.mean"])
