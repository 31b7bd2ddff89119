"""Clipping, decoupled decay, groups and modifiers: every framework against NumPy, torch and Optax."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import RuleError, ShapeError, UnknownName, UsageError
from deep5.core.tensors import TensorSpec
from deep5.training.kernel import bind_groups, bind_rule
from deep5.training.optimizer import RuleOptimizer
from deep5.training.pipeline import GradientPipeline
from pipeline_cases import (
    FRAMEWORKS,
    RULES,
    ByHand,
    Values,
    batch,
    bound,
    clipped,
    info,
    mixed_network,
    network,
    norm,
    parameters,
)

STEPS = 6
# Roundings of float32 over six steps of a smooth network; a missing stage would be off by 1e-2.
TOLERANCE: dict[str, float] = {"rtol": 2e-4, "atol": 2e-5}


def close(got: Values, want: Values) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, err_msg=name, **TOLERANCE)


def trained(optimizer: RuleOptimizer, steps: int = STEPS) -> None:
    for step in range(steps):
        optimizer.step(batch(step), info(step))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("adam", {"clip_value": 0.03}),
        ("adam", {"clip_norm": 0.2}),
        ("lars", {"clip_value": 0.1, "clip_norm": 0.2, "loss_scale": 64.0}),
        ("accelegrad", {"clip_value": 0.1, "clip_norm": 0.2, "loss_scale": 64.0}),
    ],
)
def test_clipping_is_that_of_numpy(framework: str, kind: str, options: dict[str, float]) -> None:
    make, hand = RULES[kind]
    run, optimizer = bound(framework, make(), **options)
    own, rule = ByHand(), hand()
    limits = {key: value for key, value in options.items() if key != "loss_scale"}
    acted = 0
    for step in range(STEPS):
        gradients = own.gradients(batch(step), rule.point(own.values) if kind == "accelegrad" else None)
        acted += any(np.any(clipped(gradients, **limits)[name] != value) for name, value in gradients.items())
        own.values = rule.update(own.values, clipped(gradients, **limits))
        optimizer.step(batch(step), info(step))
    assert acted == STEPS  # the clipping really happened
    close(parameters(run), own.values)
    assert optimizer.train_step.traces == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", ["adam", "accelegrad"])
def test_decay_is_decoupled_and_a_group_s_own(framework: str, kind: str) -> None:
    make, hand = RULES[kind]
    plain = d5.ParameterGroup(lambda name: name.endswith("bias"), weight_decay=0.0)
    run, optimizer = bound(framework, make(), groups=[plain], weight_decay=0.4, clip_norm=0.3)
    own, rule = ByHand(), hand()
    for step in range(STEPS):
        gradients = own.gradients(batch(step), rule.point(own.values) if kind == "accelegrad" else None)
        before = own.values
        own.values = rule.update(before, clipped(gradients, clip_norm=0.3))
        for name in own.values:
            own.values[name] -= 0.0 if name.endswith("bias") else rule.lr * 0.4 * before[name]
        optimizer.step(batch(step), info(step))
    close(parameters(run), own.values)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_modifier_comes_before_clipping_and_after_unscaling(framework: str) -> None:
    run, optimizer = bound(
        framework,
        d5.Adam(lr=0.05),
        modifier=lambda name, param, grad: grad * 3 + param * 0.1,
        clip_value=0.2,
        clip_norm=0.5,
        loss_scale=128.0,
    )
    own, rule = ByHand(), RULES["adam"][1]()
    for step in range(STEPS):
        gradients = own.gradients(batch(step))
        gradients = {name: 3 * value + 0.1 * own.values[name] for name, value in gradients.items()}
        own.values = rule.update(own.values, clipped(gradients, clip_value=0.2, clip_norm=0.5))
        optimizer.step(batch(step), info(step))
    close(parameters(run), own.values)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_norm_is_over_all_groups_and_trained_parameters(framework: str) -> None:
    groups = [
        d5.ParameterGroup(lambda name: name == "fc1.weight", frozen=True),
        d5.ParameterGroup(lambda name: name == "fc2.bias", lr=0.2, clip_value=0.02),
    ]
    run, optimizer = bound(framework, d5.SGD(lr=0.1), groups=groups, clip_norm=0.1)
    own = ByHand()
    start = own.values["fc1.weight"].copy()
    for step in range(STEPS):
        gradients = own.gradients(batch(step))
        del gradients["fc1.weight"]
        gradients["fc2.bias"] = np.clip(gradients["fc2.bias"], -0.02, 0.02)
        for name, grad in clipped(gradients, clip_norm=0.1).items():
            own.values[name] = own.values[name] - (0.2 if name == "fc2.bias" else 0.1) * grad
        optimizer.step(batch(step), info(step))
    close(parameters(run), own.values)
    np.testing.assert_array_equal(parameters(run)["fc1.weight"], start)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "jax", "device"])
def test_the_norm_is_over_both_element_types(framework: str) -> None:
    run, optimizer = bound(framework, d5.SGD(lr=1.0), mixed_network(), clip_norm=0.01, loss_scale=4.0)
    before = parameters(run)
    optimizer.step(batch(0), info(0))
    moved = {name: value - before[name] for name, value in parameters(run).items()}
    assert {str(np.asarray(value).dtype) for value in run.state_dict().values()} == {"float32", "float64"}
    assert norm(moved) == pytest.approx(0.01, rel=1e-4)  # parameters near 1 in float32, moved by 1e-3
    assert min(float(np.abs(value).max()) for value in moved.values()) > 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_thresholds_and_decay_change_without_a_trace(framework: str) -> None:
    run, optimizer = bound(framework, d5.SGD(lr=0.1), clip_norm=math.inf, weight_decay=0.0)
    own = ByHand()
    for step in range(4):
        optimizer.set_hyper("clip_norm", 0.3 / (step + 1))
        optimizer.pipeline.weight_decay = 0.1 * step
        gradients = clipped(own.gradients(batch(step)), clip_norm=0.3 / (step + 1))
        own.values = {name: value - 0.1 * (gradients[name] + 0.1 * step * value) for name, value in own.values.items()}
        optimizer.step(batch(step), info(step))
    assert optimizer.train_step.traces == 1
    close(parameters(run), own.values)
    optimizer.pipeline.clip_norm = -1.0
    before = parameters(run)
    with pytest.raises(UsageError, match=r"clip_norm at step 4: got -1\.0; allowed: a number above 0"):
        optimizer.step(batch(4), info(4))
    close(parameters(run), before)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_below_the_thresholds_stays(framework: str) -> None:
    run, optimizer = bound(framework, d5.SGD(lr=0.1), clip_norm=50.0, clip_value=20.0)
    own = ByHand()
    for step in range(2):
        gradients = own.gradients(batch(step))
        own.values = {name: value - 0.1 * gradients[name] for name, value in own.values.items()}
        optimizer.step(batch(step), info(step))
    close(parameters(run), own.values)
    before = parameters(run)
    # The norm of zero gradients is zero, and the division by it must not give NaN.
    nothing = {name: d5.to_numpy(value) * 0 for name, value in run.parameters().items()}
    optimizer.train_step.apply(nothing, info(2))
    for name, value in parameters(run).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_gradient_that_is_no_number_shows(framework: str) -> None:
    """With clipping by norm every parameter becomes NaN, and not only those that the sample affects."""
    run, optimizer = bound(framework, d5.SGD(lr=0.1), clip_norm=1.0)
    inputs = batch(0)
    inputs["input"][0, 0] = np.nan
    optimizer.step(inputs, info(0))
    assert all(np.isnan(value).all() for value in parameters(run).values())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_modifier_that_breaks_its_contract_changes_nothing(framework: str) -> None:
    wrong = {
        "returned None for 'fc1.weight'": lambda grad: None,
        r"expected float32\[?\(?5, 6|expected \(5, 6": lambda grad: grad[:1],
    }
    for message, made in wrong.items():
        run, optimizer = bound(
            framework, d5.AcceleGrad(lr=0.3), modifier=lambda name, param, grad, made=made: made(grad)
        )
        before = run.state_dict()
        with pytest.raises((UsageError, ShapeError), match=message):
            optimizer.step(batch(0), info(0))
        for name, value in run.state_dict().items():
            np.testing.assert_array_equal(value, before[name])


def test_clipping_is_torch_s() -> None:
    torch = pytest.importorskip("torch")
    for options in ({"clip_norm": 0.2}, {"clip_value": 0.03}):
        run, optimizer = bound("pytorch", d5.Adam(lr=0.05), **options)
        twin = d5.framework("pytorch").executor(network())
        leaves = list(twin.leaves().values())
        native = torch.optim.Adam(leaves, lr=0.05)
        for step in range(STEPS):
            twin.inference_and_backprop(batch(step))
            if "clip_norm" in options:
                torch.nn.utils.clip_grad_norm_(leaves, options["clip_norm"])
            else:
                torch.nn.utils.clip_grad_value_(leaves, options["clip_value"])
            native.step()
            optimizer.step(batch(step), info(step))
        close(parameters(run), parameters(twin))


def test_decay_is_that_of_torch_s_adamw() -> None:
    torch = pytest.importorskip("torch")
    run, optimizer = bound(
        "pytorch",
        d5.Adam(lr=0.05),
        weight_decay=0.3,
        groups=[d5.ParameterGroup(lambda name: name.endswith("bias"), weight_decay=0.0)],
    )
    twin = d5.framework("pytorch").executor(network())
    leaves = twin.leaves()
    split = {False: 0.3, True: 0.0}
    native = torch.optim.AdamW(
        [
            {"params": [leaf for name, leaf in leaves.items() if name.endswith("bias") is bias], "weight_decay": decay}
            for bias, decay in split.items()
        ],
        lr=0.05,
    )
    for step in range(STEPS):
        twin.inference_and_backprop(batch(step))
        native.step()
        optimizer.step(batch(step), info(step))
    close(parameters(run), parameters(twin))


def test_the_norm_is_optax_s() -> None:
    optax = pytest.importorskip("optax")
    run, optimizer = bound("jax", d5.SGD(lr=0.5), clip_norm=0.2)
    twin = d5.framework("jax").executor(network())
    chain = optax.chain(optax.clip_by_global_norm(0.2), optax.sgd(0.5))
    values: Any = {name: np.asarray(value) for name, value in twin.parameters().items()}
    state = chain.init(values)
    for step in range(STEPS):
        twin.inference_and_backprop(batch(step))
        updates, state = chain.update(dict(twin.gradients()), state, values)
        values = optax.apply_updates(values, updates)
        for name, value in values.items():
            twin.write([name], np.asarray(value).reshape(-1))
        optimizer.step(batch(step), info(step))
    close(parameters(run), parameters(twin))


@pytest.mark.parametrize("backend", ["c", "numpy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_kernel_clips_where_squares_overflow(backend: str, dtype: str) -> None:
    """The square of 1e25 overflows float32: the norm is computed in double precision."""
    pipeline = GradientPipeline(clip_norm=5.0)
    kernel = bind_rule(d5.SGD(lr=1.0), {"w": TensorSpec(shape=(2,), dtype=dtype)}, pipeline=pipeline, backend=backend)
    live = np.zeros(2, dtype)
    kernel.attach({"w": live})
    kernel.update({"w": np.array([3e25, 4e25], dtype)}, info(0))
    np.testing.assert_allclose(live, [-3.0, -4.0], rtol=1e-6)


@pytest.mark.parametrize("backend", ["c", "numpy"])
@pytest.mark.parametrize("kind", list(RULES))
def test_groups_in_one_kernel_are_kernels_of_their_own(kind: str, backend: str) -> None:
    specs = {name: TensorSpec(shape=shape) for name, shape in {"a": (70, 3), "b": (5,), "c": (9000,)}.items()}
    draw = np.random.default_rng(0)
    start = {name: draw.standard_normal(spec.shape).astype("float32") for name, spec in specs.items()}
    rule, hyper = RULES[kind][0](), {"lr": 0.7}
    parts = [({name: specs[name] for name in "ac"}, {}), ({"b": specs["b"]}, hyper)]
    one = bind_groups(rule, parts, backend=backend)
    lives = [{name: value.copy() for name, value in start.items()} for _ in range(2)]
    one.attach(lives[0])
    apart = [bind_rule(rule, part, hyper=own, backend=backend) for part, own in parts]
    for kernel in apart:
        kernel.attach({name: lives[1][name] for name in kernel.names})
    for step in range(3):
        gradients = {name: draw.standard_normal(spec.shape).astype("float32") for name, spec in specs.items()}
        one.prepare(info(step))
        one.update(gradients, info(step))
        for kernel in apart:
            kernel.prepare(info(step))
        sums = []
        for kernel in apart:
            kept = kernel.check_gradients({name: gradients[name] for name in kernel.names})
            sums.append(kernel.partial_sums([array.ctypes.data for array in kept], info(step)))
        if rule.scope == "model":
            total = np.sum(sums, axis=0)
            for part in sums:
                part[...] = total
        for kernel in apart:
            kernel.update_after_sums()
    # Equal except for the order of sums over the model.
    for name, value in lives[1].items():
        np.testing.assert_allclose(lives[0][name], value, rtol=1e-6, atol=1e-7)
    states = {key: value for kernel in apart for key, value in kernel.state_dict().items()}
    assert one.state_dict().keys() == states.keys()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_evaluation_is_unaffected(framework: str) -> None:
    run, optimizer = bound(framework, d5.AcceleGrad(lr=0.3), clip_norm=0.2, weight_decay=0.1, loss_scale="dynamic")
    trained(optimizer, 4)
    state, live = optimizer.state_dict(), parameters(run)
    with optimizer.averaged():
        for name, value in parameters(run).items():
            np.testing.assert_array_equal(value, np.asarray(state[f"average/{name}"], np.float64))
    close(parameters(run), live)
    assert any(np.any(state[f"average/{name}"] != value) for name, value in live.items())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_was_set_during_a_run_holds_when_it_goes_on(framework: str) -> None:
    """For the rule, the pipeline and some parameters; into an optimizer created with other values."""

    def bias(name: str) -> bool:
        return name.endswith("bias")

    run, optimizer = bound(framework, d5.Momentum(lr=0.05), clip_norm=1.0)
    trained(optimizer, 2)
    optimizer.set_hyper("lr", 0.005)
    optimizer.set_parameter("clip_norm", 0.25)
    optimizer.set_parameter("weight_decay", 0.1)
    optimizer.set_parameter("lr", np.float32(0.5), bias)
    state, weights = json.loads(json.dumps(optimizer.state_dict()["hyper"])), run.state_dict()
    assert state["values"] == {"lr": 0.005, "momentum": 0.9, "clip_norm": 0.25, "weight_decay": 0.1}
    assert state["groups"] == [{"parameters": ["fc1.bias", "fc2.bias"], "values": {"lr": 0.5}}]
    whole = {**optimizer.state_dict(), "hyper": state}
    made: list[dict[str, Any]] = [
        {"clip_norm": 1.0},
        {"clip_value": 3.0, "groups": [d5.ParameterGroup(bias, lr=0.1)]},  # the same group with another value
        {"groups": [d5.ParameterGroup(lambda name: name == "fc1.weight", lr=0.1)], "weight_decay": 0.5},
    ]
    others = [bound(framework, d5.Momentum(lr=0.05), **options) for options in made]
    for other, twin in others:
        other.load_state_dict(weights)
        twin.load_state_dict(whole)
        assert twin.state_dict()["hyper"] == state
    for number in range(2, 5):
        optimizer.step(batch(number), info(number))
        for _, twin in others:
            twin.step(batch(number), info(number))
    for other, twin in others:
        for name, value in run.state_dict().items():
            np.testing.assert_array_equal(other.state_dict()[name], value)
        assert twin.state_dict()["hyper"] == state


def test_hyperparameters_of_a_state_are_looked_at_before_anything_changes() -> None:
    def first(name: str) -> bool:
        return name.startswith("fc1")

    _, optimizer = bound("reference", d5.Momentum(lr=0.05), groups=[d5.ParameterGroup(first, frozen=True)])
    trained(optimizer, 1)
    state = optimizer.state_dict()
    assert state["hyper"]["groups"] == []
    values, group = state["hyper"]["values"], {"parameters": ["fc2.bias"], "values": {"lr": 0.5}}
    cases: list[tuple[Any, type[Exception], str]] = [
        (3, ShapeError, r"got 3 as 'hyper'; allowed: a dict with 'values'"),
        ({"values": {"lr": 0.1}}, ShapeError, r"unknown hyperparameters: \['momentum'\]; allowed: lr, momentum, loss"),
        ({"values": {**values, "gamma": 1}}, ShapeError, r"unknown hyperparameters: \['gamma'\]"),
        ({"values": {**values, "clip_norm": -1.0}}, UsageError, r"clip_norm: got -1\.0; allowed: a number above 0"),
        ({"values": values, "groups": [{**group, "parameters": ["fc9"]}]}, ShapeError, r"parameters: \['fc9'\]"),
        ({"values": values, "groups": [{**group, "values": {"clip_norm": 1.0}}]}, ShapeError, r"\['clip_norm'\]"),
    ]
    for held, kind, told in cases:
        with pytest.raises(kind, match=told):
            optimizer.load_state_dict({**state, "hyper": held})
    assert optimizer.state_dict()["hyper"] == state["hyper"]
    optimizer.rule.lr = 0.25  # type: ignore[attr-defined]
    optimizer.load_state_dict({key: value for key, value in state.items() if key != "hyper"})  # of an earlier deep5
    assert optimizer.hyper["lr"] == 0.25
    # Frozen is not a value: the parameters stay frozen in any group of the state.
    both = {"parameters": ["fc1.bias", "fc2.bias"], "values": {"lr": 0.5}}
    optimizer.load_state_dict({**state, "hyper": {"values": values, "groups": [both]}})
    assert optimizer.state_dict()["hyper"]["groups"] == [group]
    assert optimizer.describe()["groups"][0] == {"frozen": True, "parameters": ["fc1.weight", "fc1.bias"]}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_set_parameter_keeps_the_state(framework: str) -> None:
    def bias(name: str) -> bool:
        return name.endswith("bias")

    run, optimizer = bound(framework, d5.Adam(lr=0.05), clip_norm=1.0)
    other, twin = bound(framework, d5.Adam(lr=0.05), clip_norm=1.0, groups=[d5.ParameterGroup(bias, lr=0.05)])
    trained(optimizer, 2)
    trained(twin, 2)
    before, step = optimizer.train_step.state_dict(), optimizer.step
    optimizer.set_parameter("lr", 0.2, bias)
    for key, value in optimizer.train_step.state_dict().items():
        np.testing.assert_array_equal(value, before[key])
    twin.set_parameter("lr", 0.2, bias)
    traces = optimizer.train_step.traces
    for number in range(2, 6):
        # Like a schedule: the group exists, so nothing is traced again.
        optimizer.set_parameter("lr", 0.2 / number, bias)
        twin.set_parameter("lr", 0.2 / number, bias)
        step(batch(number), info(number))  # a step that a trainer has kept stays valid
        twin.step(batch(number), info(number))
    for name, value in parameters(other).items():
        np.testing.assert_array_equal(parameters(run)[name], value)
    assert optimizer.train_step.traces == max(traces, 2)
    assert twin.train_step.traces == 1
    optimizer.set_parameter("lr", 0.0)  # for all parameters, including those of groups
    before = run.state_dict()
    optimizer.step(batch(9), info(9))
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert optimizer.describe()["groups"] == [{"lr": 0.0, "parameters": ["fc1.bias", "fc2.bias"]}]


def test_set_parameter_before_binding_and_within_groups() -> None:
    given = d5.ParameterGroup(lambda name: name.startswith("fc1"), lr=0.3)
    optimizer = RuleOptimizer(d5.SGD(lr=0.1), groups=[given])
    optimizer.set_parameter("weight_decay", 0.5, lambda name: name.endswith("weight"))
    optimizer.set_parameter("lr", 0.2, lambda name: name == "fc2.bias")
    run = d5.framework("reference").executor(network())
    optimizer.bind(run)
    assert optimizer.describe()["groups"] == [
        {"lr": 0.3, "weight_decay": 0.5, "parameters": ["fc1.weight"]},
        {"lr": 0.3, "parameters": ["fc1.bias"]},
        {"weight_decay": 0.5, "parameters": ["fc2.weight"]},
        {"lr": 0.2, "parameters": ["fc2.bias"]},
    ]
    assert given.hyper == {"lr": 0.3}  # the caller's object
    before = parameters(run)
    optimizer.step(batch(0), info(0))
    own = ByHand().gradients(batch(0))
    rates = {"fc1.weight": 0.3, "fc1.bias": 0.3, "fc2.weight": 0.1, "fc2.bias": 0.2}
    want = {
        name: value - rates[name] * (own[name] + (0.5 * value if name.endswith("weight") else 0.0))
        for name, value in before.items()
    }
    close(parameters(run), want)


def test_a_stage_may_come_later() -> None:
    run, optimizer = bound("reference", d5.SGD(lr=0.1))
    assert optimizer.describe() == {**d5.SGD(lr=0.1).describe(), "kernel": optimizer.describe()["kernel"]}
    optimizer.set_parameter("clip_norm", 1e-6)
    before = parameters(run)
    optimizer.step(batch(0), info(0))
    assert norm({name: value - before[name] for name, value in parameters(run).items()}) < 2e-6
    assert optimizer.train_step.traces == 2
    assert optimizer.hyper == {"lr": 0.1, "clip_norm": 1e-6}


def test_what_is_described() -> None:
    def halved(name: str, param: Any, grad: Any) -> Any:
        return grad * 0.5

    _, optimizer = bound(
        "reference",
        d5.Adam(),
        modifier=halved,
        clip_norm=1.0,
        clip_value=2.0,
        weight_decay=0.1,
        loss_scale="dynamic",
        groups=[
            d5.ParameterGroup(lambda name: name == "fc1.bias", frozen=True),
            d5.ParameterGroup(lambda name: "bias" in name, weight_decay=0.0),
        ],
    )
    told = optimizer.describe()
    want = {"rule": "Adam", "clip_norm": 1.0, "clip_value": 2.0, "weight_decay": 0.1, "loss_scale": "dynamic"}
    assert want.items() <= told.items()
    assert told["gradient_modifier"].endswith("halved")
    assert told["groups"] == [
        {"frozen": True, "parameters": ["fc1.bias"]},
        {"weight_decay": 0.0, "parameters": ["fc2.bias"]},
    ]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"clip_norm": 0.0},
            UsageError,
            r"clip_norm: got 0\.0; allowed: a number above 0, or math\.inf for no clipping",
        ),
        ({"clip_value": math.nan}, UsageError, "clip_value: got nan; allowed: a number above 0"),
        ({"weight_decay": -0.1}, UsageError, r"weight_decay: got -0\.1; allowed: a finite number of at least 0"),
        ({"loss_scale": math.inf}, UsageError, "loss_scale: got inf; allowed: a finite number above 0, or 'dynamic'"),
        ({"loss_scale": "auto"}, UsageError, "loss_scale: got 'auto'; allowed: a finite number above 0, or 'dynamic'"),
        ({"clip_norm": True}, UsageError, "clip_norm: got True"),
        ({"modifier": 3}, UsageError, "modifier: got 3"),
        ({"groups": 3}, UsageError, "groups: got 3; allowed: a sequence of ParameterGroup"),
    ],
)
def test_refusals_of_values(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RuleOptimizer(d5.SGD(), **options)


def test_refusals() -> None:
    with pytest.raises(RuleError, match="LARS already has a hyperparameter 'weight_decay', got another one"):
        RuleOptimizer(d5.LARS(), weight_decay=0.1)

    class Fixed(d5.UpdateRule):
        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            return param - grad, state

    with pytest.raises(RuleError, match="scaled by the learning rate, and Fixed has no hyperparameter 'lr'"):
        RuleOptimizer(Fixed(), weight_decay=0.1)
    with pytest.raises(RuleError, match="got 3 as an update rule"):
        RuleOptimizer(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="pipeline: got 3; allowed: a GradientPipeline"):
        d5.framework("reference").executor(network()).train_step(d5.SGD(), pipeline=3)
    groups = [d5.ParameterGroup(lambda name: True, clip_norm=1.0)]
    allowed = "lr, clip_value, coupled_weight_decay, weight_de"
    with pytest.raises(RuleError, match=rf"a parameter group sets \['clip_norm'\]; allowed: .*{allowed}"):
        bound("reference", d5.SGD(), groups=groups)
    _, optimizer = bound("reference", d5.SGD())
    with pytest.raises(
        UnknownName, match=r"unknown hyperparameter of SGD 'rate'; allowed: clip_norm, .*lr, weight_decay"
    ):
        optimizer.set_parameter("rate", 0.1)
    with pytest.raises(UsageError, match="lr: got nan; allowed: a finite number"):
        optimizer.set_parameter("lr", math.nan)
    with pytest.raises(UsageError, match="match: got 3; allowed: None or a function"):
        optimizer.set_parameter("lr", 0.1, 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="clip_norm is one for the model"):
        optimizer.set_parameter("clip_norm", 0.1, lambda name: True)
    with pytest.raises(RuleError, match=r"match matches no parameter that is trained; allowed: fc1\.weight"):
        optimizer.set_parameter("lr", 0.1, lambda name: False)
    with pytest.raises(UsageError, match=r"parameter predicate: match\('fc1\.weight'\) gave 1; allowed: True or False"):
        optimizer.set_parameter("lr", 0.1, lambda name: 1)  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match="not bound"):
        RuleOptimizer(d5.SGD()).accumulated_step([batch(0)], info(0))
