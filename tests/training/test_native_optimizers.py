"""The frameworks' own optimizers have one interface, and report where they cannot run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core import plugins
from deep5.core.errors import ShapeError, Unsupported, UsageError
from deep5.core.events import StepInfo
from optimizer_table import batch, distance, info, network, one_thread  # noqa: F401 - a fixture

FRAMEWORKS = ("pytorch", "tensorflow", "jax")
INFO = StepInfo(batch_size=2)
USES: dict[str, Callable[[Any], object]] = {
    "step": lambda optimizer: optimizer.step({}, INFO),
    "accumulated_step": lambda optimizer: optimizer.accumulated_step([{}], INFO),
    "set_hyper": lambda optimizer: optimizer.set_hyper("lr", 0.1),
    "state_dict": lambda optimizer: optimizer.state_dict(),
    "load_state_dict": lambda optimizer: optimizer.load_state_dict({"momentum_buffer/w": np.zeros(1)}),
}


NAMES = sorted({name for framework in FRAMEWORKS for name in d5.framework(framework).optimizers()})
# A parameter that a framework lacks is not an argument of its optimizer.
LACKS = {
    ("amsgrad", "pytorch"): {"bias_correction"},
    ("amsgrad", "tensorflow"): {"bias_correction"},
    ("lamb", "tensorflow"): {"weight_decay"},
    ("lbfgs", "jax"): {"iterations", "c1", "c2"},
    ("lbfgs", "pytorch"): {"evaluations", "c1", "c2"},
    ("nadam", "jax"): {"momentum_decay"},
    ("nadam", "tensorflow"): {"momentum_decay"},
}


def kinds() -> list[tuple[str, str]]:
    return [(name, framework) for framework in FRAMEWORKS for name in d5.framework(framework).optimizers()]


@pytest.mark.parametrize(("name", "framework"), kinds())
def test_names_and_defaults_are_those_of_deep5_s_own(name: str, framework: str) -> None:
    kind = d5.framework(framework).optimizer(name)
    own = {key: str(value) for key, value in inspect.signature(plugins.load("optimizers", name)).parameters.items()}
    native = {key: str(value) for key, value in inspect.signature(kind).parameters.items()}
    assert native.pop("loss") == "loss: 'str' = 'loss'"
    own.pop("loss", None)
    assert set(own) - set(native) == LACKS.get((name, framework), set())
    assert native == {key: own[key] for key in own if key in native}
    record = kind(lr=0.25).describe()
    assert (record["native"], record["lr"]) == (framework, 0.25)
    assert set(record) == {"native", "optimizer", *native}


def test_a_framework_calls_its_optimizers_as_the_others_do() -> None:
    for name in NAMES:
        found = [d5.framework(fw).optimizers()[name] for fw in FRAMEWORKS if name in d5.framework(fw).optimizers()]
        assert len({kind(lr=0.5).describe()["optimizer"] for kind in found}) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("adam", {"lr": float("nan")}, "AdamOptimizer: got lr=nan; allowed: a finite number"),
        ("adam", {"beta1": "0.9"}, "AdamOptimizer: got beta1='0.9'; allowed: a finite number"),
        ("momentum", {"nesterov": 1}, "MomentumOptimizer: got nesterov=1; allowed: True or False"),
        ("averaged_sgd", {"start": 1.5}, r"AveragedSGDOptimizer: got start=1\.5; allowed: an integer"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(name: str, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        d5.framework("pytorch").optimizer(name)(**arguments)
    with pytest.raises(TypeError, match="gamma"):
        d5.framework("pytorch").optimizer(name)(gamma=1.0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_framework_s_executor_is_refused(framework: str) -> None:
    executor = d5.framework("reference").executor(d5.networks.mlp(features=2, hidden=2, classes=2))
    with pytest.raises(UsageError, match=f"native optimizer of {framework} cannot drive a ReferenceExecutor"):
        d5.framework(framework).optimizer("adam")().bind(executor)


# Some steps of a real network

STEPS = 6
# A second or more each to compile: one of each framework's kinds of state always, all in the full suite.
ALWAYS = {("jax", "amsgrad"), ("jax", "sgd"), ("tensorflow", "nadam"), ("tensorflow", "lion")}


def compiled() -> list[Any]:
    return [
        pytest.param(
            name, framework, marks=() if framework == "pytorch" or (framework, name) in ALWAYS else pytest.mark.slow
        )
        for name, framework in kinds()
    ]


def bound(name: str, framework: str, trained: d5.Network | None = None, **hyper: Any) -> Any:
    executor: Any = d5.framework(framework).executor(trained or network("float32"))
    optimizer: Any = d5.framework(framework).optimizer(name)(**hyper)
    optimizer.bind(executor)
    return executor, optimizer


def go(optimizer: Any, begin: int, end: int) -> None:
    for step in range(begin, end):
        optimizer.step(batch(step, "float32"), info(step, 16))


@pytest.mark.parametrize(("name", "framework"), compiled())
def test_a_run_that_is_resumed_ends_with_the_same_bits(name: str, framework: str) -> None:
    whole, optimizer = bound(name, framework)
    go(optimizer, 0, 2)
    optimizer.set_hyper("lr", 0.5 * optimizer.hyper["lr"])  # as an event would: it also applies after the resume
    go(optimizer, 2, 3)
    states = whole.state_dict(), optimizer.state_dict()
    hyper = {key: optimizer.hyper_now[key] for key in optimizer.changeable}
    assert states[1].pop("hyper") == {"values": hyper}
    assert all(isinstance(value, np.ndarray | np.generic) for value in states[1].values())
    go(optimizer, 3, STEPS)
    resumed, other = bound(name, framework)
    go(other, 0, 2)  # their effect must not remain
    resumed.load_state_dict(states[0])
    other.load_state_dict(states[1])  # as an earlier deep5 wrote it
    assert other.hyper_now == other.hyper
    other.load_state_dict({**states[1], "hyper": {"values": hyper}})
    found = other.state_dict()
    assert found.pop("hyper") == {"values": hyper}
    for key, value in found.items():
        np.testing.assert_array_equal(value, states[1][key], err_msg=key)
        assert value.dtype == states[1][key].dtype
    go(other, 3, STEPS)
    for got, want in ((resumed.state_dict(), whole.state_dict()), (other.state_dict(), optimizer.state_dict())):
        assert got.keys() == want.keys()
        for key, value in want.items():
            np.testing.assert_array_equal(got[key], value, err_msg=key)
    for key in list(states[1])[:1]:
        with pytest.raises(ShapeError, match=r"missing or unknown entries|unknown entry"):
            other.load_state_dict({**{k: v for k, v in states[1].items() if k != key}, "more": np.zeros(3)})
        with pytest.raises(ShapeError, match=r"shape \(99,\)|\(99,\), expected|int64\(99,\)|float32\(99,\)"):
            other.load_state_dict({**states[1], key: np.zeros(99, states[1][key].dtype)})
    for odd in ({}, {**hyper, "gamma": 1.0}):
        with pytest.raises(ShapeError, match=r"missing or unknown hyperparameters: \[.*'(lr|gamma)'.*\]; allowed: "):
            other.load_state_dict({**states[1], "hyper": {"values": odd}})
    with pytest.raises(UsageError, match="got lr=nan; allowed: a finite number"):
        other.load_state_dict({**states[1], "hyper": {"values": {**hyper, "lr": float("nan")}}})


@pytest.mark.parametrize(("name", "framework"), compiled())
def test_hyperparameters_change_between_steps(name: str, framework: str) -> None:
    """With another optimizer's values, and without a second trace, it continues like that one."""
    _, optimizer = bound(name, framework)
    assert optimizer.changeable == ("lr",) if framework == "tensorflow" else "lr" in optimizer.changeable
    values = {key: 0.75 * optimizer.hyper[key] for key in optimizer.changeable}
    values = {key: value or 0.0625 for key, value in values.items()}
    for key, value in values.items():
        optimizer.set_hyper(key, value)
    one, two = optimizer._executor, bound(name, framework, **values)[0:2]
    go(optimizer, 0, 3)
    go(two[1], 0, 3)
    for key, value in two[0].state_dict().items():
        # In both, Keras's rate is a variable that is read, and not a constant.
        np.testing.assert_array_equal(one.state_dict()[key], value, err_msg=key)
    assert optimizer.describe()["lr"] != values["lr"]  # its initial value
    if framework == "jax":
        assert optimizer.train_step.traces == 1
    for wrong in ("gamma", "loss"):
        with pytest.raises(UsageError, match=f"no hyperparameter '{wrong}' of this optimizer; allowed: lr"):
            optimizer.set_hyper(wrong, 0.1)
    with pytest.raises(UsageError, match="got lr=inf; allowed: a finite number"):
        optimizer.set_hyper("lr", float("inf"))


def test_a_rate_that_is_changed_in_the_middle_is_the_next_step_s() -> None:
    """Also for torch's ASGD, which reads its own rate after the step."""
    for name in ("sgd", "averaged_sgd"):
        executor, optimizer = bound(name, "pytorch")
        go(optimizer, 0, 2)
        optimizer.set_hyper("lr", 0.0)
        before = executor.state_dict()
        go(optimizer, 2, 3)
        for key, value in before.items():
            np.testing.assert_array_equal(executor.state_dict()[key], value)


def test_the_average_of_torch_s_own_is_for_evaluation_alone() -> None:
    executor, optimizer = bound("averaged_sgd", "pytorch", lr=0.5, start=1)
    iterates = []
    for step in range(5):
        go(optimizer, step, step + 1)
        iterates.append(executor.state_dict())
    for key, value in iterates[-1].items():
        with optimizer.averaged():
            inside = executor.state_dict()[key]
        # The iterates after the first step; torch's weights are in float32.
        np.testing.assert_allclose(inside, np.mean([it[key] for it in iterates[1:]], axis=0), rtol=1e-5, atol=1e-6)
        assert not np.array_equal(inside, value)
        np.testing.assert_array_equal(executor.state_dict()[key], value)
    calls: list[Callable[[], Any]] = [
        lambda: go(optimizer, 5, 6),
        lambda: optimizer.accumulated_step([batch(5, "float32")], info(5, 16)),
    ]
    for call in calls:
        with optimizer.averaged(), pytest.raises(UsageError, match=r"a training step inside averaged\(\); remedy: "):
            call()
    for key, value in iterates[-1].items():
        np.testing.assert_array_equal(executor.state_dict()[key], value)
    go(optimizer, 5, 6)


def test_a_parameter_that_the_loss_does_not_depend_on_has_no_state_in_torch() -> None:
    build = d5.NetworkBuilder("idle")
    x = build.input("x", ("N", 2))
    used, idle = build.parameter("used", (2, 1)), build.parameter("idle", (2, 1))
    loss = build.op("ReduceSum", build.op("MatMul", x, used), keepdims=0)
    trained = build.network({"loss": loss, "other": build.op("MatMul", x, idle)})
    optimizer: Any = d5.framework("pytorch").optimizer("adam")()
    optimizer.bind(d5.framework("pytorch").executor(trained))
    optimizer.step({"x": np.ones((3, 2), np.float32)}, info(0, 3))
    state = optimizer.state_dict()
    del state["hyper"]
    assert set(state) == {"none/idle", "step/used", "exp_avg/used", "exp_avg_sq/used"}
    optimizer.load_state_dict(state)
    for missing in state:
        with pytest.raises(ShapeError, match=r"the optimizer's state of '(used|idle)' has missing or unknown entries"):
            optimizer.load_state_dict({key: value for key, value in state.items() if key != missing})


# Several micro-batches as one step

# In float64 a gradient in two parts is rounded differently: about 1e-16. After three steps that divide by its roots,
# with Keras's and torch's float32 numbers, which are the same in both, the difference is far below this.
ROUNDED = 1e-11


def cut(inputs: dict[str, Any], *ends: int) -> list[dict[str, Any]]:
    begins = (0, *ends[:-1])
    return [{name: value[begin:end] for name, value in inputs.items()} for begin, end in zip(begins, ends, strict=True)]


def check_accumulates(name: str, framework: str, trained: d5.Network, flat: bool) -> Any:
    """Three steps in two parts each and a plain one, against whole batches throughout; returns the optimizer."""
    (one, optimizer), (other, twin) = bound(name, framework, trained), bound(name, framework, trained)
    for step in range(4):
        whole = batch(step, "float64", flat=flat)
        expected = twin.step(whole, info(step, 16))
        if step < 3:
            outputs = optimizer.accumulated_step(cut(whole, 5, 16), info(step, 16))
        else:
            outputs = optimizer.step(whole, info(step, 16))
        assert outputs.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(d5.to_numpy(outputs[key]), d5.to_numpy(value), rtol=ROUNDED, atol=ROUNDED)
            assert d5.to_numpy(outputs[key]).dtype == d5.to_numpy(value).dtype
        assert distance(one.state_dict(), other.state_dict()) <= ROUNDED
        states = optimizer.state_dict(), twin.state_dict()
        assert states[0].pop("hyper") == states[1].pop("hyper")
        assert states[0].keys() == states[1].keys()
        assert not states[1] or distance(*states) <= ROUNDED  # plain SGD has none on PyTorch
    assert distance(one.state_dict(), {key: trained.initial(key) for key in trained.parameter_specs}) > 1e-4
    return optimizer


@pytest.mark.parametrize(("name", "framework"), [case for case in compiled() if case.values[0] != "lbfgs"])
def test_two_micro_batches_are_one_step_of_the_whole_batch(name: str, framework: str) -> None:
    optimizer = check_accumulates(name, framework, network("float64"), flat=True)
    if framework == "jax":
        assert optimizer.train_step.traces == 2  # first only the update, then the whole step


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_micro_batches_of_a_network_whose_weights_lie_in_another_order(framework: str) -> None:
    """Gradients of convolutions have ONNX's axis order, not the one in which TensorFlow and JAX store them."""
    check_accumulates("momentum", framework, d5.networks.lenet(dtype="float64"), flat=False)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_micro_batch_that_is_refused_changes_nothing(framework: str) -> None:
    run, optimizer = bound("momentum", framework)
    whole = batch(0, "float32")
    optimizer.accumulated_step(cut(whole, 5, 16), info(0, 16))
    before = {**run.state_dict()}, optimizer.state_dict()
    with pytest.raises(ShapeError):
        optimizer.accumulated_step([whole, {**whole, "input": whole["input"][:, :3]}], info(1, 32))
    with pytest.raises(UsageError, match="allowed: a list of at least one dict of inputs"):
        optimizer.accumulated_step(whole, info(1, 16))
    for got, want in zip((run.state_dict(), optimizer.state_dict()), before, strict=True):
        assert got.keys() == want.keys()
        for key, value in want.items():
            np.testing.assert_array_equal(got[key], value, err_msg=key)
    # The failed call leaves nothing to add to.
    other, twin = bound("momentum", framework)
    twin.accumulated_step(cut(whole, 5, 16), info(0, 16))
    for going in (optimizer, twin):
        going.accumulated_step(cut(batch(1, "float32"), 5, 16), info(1, 16))
    for key, value in other.state_dict().items():
        np.testing.assert_array_equal(run.state_dict()[key], value, err_msg=key)


@pytest.mark.parametrize("framework", ["pytorch", "jax"])
def test_an_optimizer_that_evaluates_the_loss_again_does_not_accumulate(framework: str) -> None:
    executor, optimizer = bound("lbfgs", framework)
    with pytest.raises(Unsupported, match=r"LBFGSOptimizer evaluates the loss again .* allowed: step\(inputs, info\)"):
        optimizer.accumulated_step([batch(0, "float32")], info(0, 16))
    data = d5.datasets.synthetic(shape=(784,), classes=10, train=8, test=2)
    for refused in (d5.framework(framework).optimizer("lbfgs")(), d5.LBFGS()):
        with pytest.raises(
            UsageError, match=r"accumulate=2 with LBFGS.*owns its step; allowed: .* takes one gradient a step"
        ):
            d5.Trainer(executor, refused, d5.ShuffleSampler(data.train, 4), accumulate=2)
    d5.Trainer(executor, optimizer, d5.ShuffleSampler(data.train, 4), accumulate=1)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "jax"])
def test_native_lbfgs_learns_the_digits_as_deep5_s_does(framework: str) -> None:
    data = batch(0, "float32", 100)
    found = []
    for native in (True, False):
        executor = d5.framework(framework).executor(network("float32"))
        optimizer: Any = d5.framework(framework).optimizer("lbfgs")() if native else d5.LBFGS()
        optimizer.bind(executor)
        for step in range(25):
            optimizer.step(data, info(step, 100))
        found.append(float(d5.to_numpy(executor.inference(data)["loss"])))
    # Other line searches, the same method: from 2.3 down by a factor of a hundred and more.
    assert max(found) < 0.02


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("use", USES)
def test_an_optimizer_that_is_not_bound_says_so(framework: str, use: str) -> None:
    with pytest.raises(UsageError, match=r"not bound to an executor; remedy: call bind\(executor\) first"):
        USES[use](d5.framework(framework).optimizer("momentum")())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("sgd", {"lr": 0.125}),
        ("momentum", {"lr": 0.125, "momentum": 0.75, "nesterov": True}),
        ("adam", {"lr": 0.125, "beta1": 0.75, "beta2": 0.5, "epsilon": 0.25}),
    ],
)
def test_hyperparameters_reach_the_framework(framework: str, name: str, hyper: dict[str, Any]) -> None:
    """One parameter, whose gradient is the input: the first two steps are known in closed form."""
    build = d5.NetworkBuilder("product", dtype="float64")
    weight = build.parameter("w", (1,), lambda rng, shape: np.ones(shape))
    loss = build.op("ReduceSum", build.op("Mul", build.input("x", (1,)), weight), keepdims=0)
    executor = d5.framework(framework).executor(build.network({"loss": loss}))
    optimizer = d5.framework(framework).optimizer(name)(**hyper)
    optimizer.bind(executor)
    lr, beta, momentum = hyper["lr"], hyper.get("beta1", 0.0), hyper.get("momentum", 0.0)
    w, m, v, velocity = 1.0, 0.0, 0.0, 0.0
    for step, g in enumerate((2.0, -1.0)):
        optimizer.step({"x": np.array([g])}, StepInfo(step=step, batch_size=1))
        velocity = momentum * velocity + g
        m, v = beta * m + (1 - beta) * g, 0.5 * v + 0.5 * g * g
        c1, c2 = 1 - beta ** (step + 1), 1 - 0.5 ** (step + 1)
        # Keras adds epsilon to a root without bias correction.
        root = np.sqrt(v / c2) + 0.25 if framework != "tensorflow" else (np.sqrt(v) + 0.25) / np.sqrt(c2)
        w -= lr * {"sgd": g, "momentum": g + momentum * velocity, "adam": m / c1 / root}[name]
        # Keras holds its hyperparameters in float32; these are exact there, the powers of beta are not.
        np.testing.assert_allclose(executor.state_dict()["w"], [w], rtol=1e-7)


@pytest.mark.parametrize("name", ["adam", pytest.param("lbfgs", marks=pytest.mark.slow)])
def test_optax_trains_a_network_that_is_written_in_jax(name: str) -> None:
    import jax.numpy as jnp

    from deep5.frameworks.jax import from_jax

    def apply(parameters: Any, inputs: Any) -> Any:
        hidden = inputs["x"] @ parameters["dense"]["kernel"] + parameters["dense"]["bias"]
        return {"loss": jnp.mean((hidden - inputs["y"]) ** 2)}

    specs = {"x": d5.TensorSpec(shape=("N", 3), dtype="float32"), "y": d5.TensorSpec(shape=("N", 2), dtype="float32")}
    start = {"dense": {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2, np.float32)}}
    executor = from_jax(apply, start, inputs=specs)
    optimizer: Any = d5.framework("jax").optimizer(name)(lr=0.1 if name == "adam" else 1.0)
    optimizer.bind(executor)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    feed = {"x": x, "y": np.ones((5, 2), np.float32)}
    losses = [float(optimizer.step(feed, info(step, 5))["loss"]) for step in range(30)]
    assert losses[-1] < 0.05 * losses[0]
    assert optimizer.train_step.traces == 1
    assert {"0.count"} <= set(optimizer.state_dict())
    assert any(key.endswith("/dense/kernel") for key in optimizer.state_dict())
