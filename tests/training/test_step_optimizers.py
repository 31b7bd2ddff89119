"""Optimizers that own their step: L-BFGS and SAG against plain NumPy and SciPy, on every framework, resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import deep5 as d5
from deep5.core.errors import ShapeError, UsageError
from deep5.core.events import StepInfo
from deep5.networks.edit.builder import NetworkBuilder, ones, zeros
from deep5.training.datasets.class_templates import synthetic
from deep5.training.lbfgs import _Pairs
from deep5.training.line_search import Trial, strong_wolfe
from optimizer_table import batch, distance, network, one_thread  # noqa: F401 - a fixture

SAMPLES, FEATURES, DECAY = 24, 4, 0.1
DRAW = np.random.default_rng(7)
X = DRAW.standard_normal((SAMPLES, FEATURES))
Y = X @ np.array([1.0, -2.0, 0.5, 3.0]) + 0.3 * DRAW.standard_normal(SAMPLES)


def ridge(dtype: str = "float64") -> d5.Network:
    """Least squares with a penalty: 0.5 mean (x w - y)^2 + 0.5 DECAY |w|^2; strongly convex, with known solution."""
    build = NetworkBuilder("ridge", dtype=dtype)
    x, y = build.input("x", ("N", FEATURES)), build.input("y", ("N", 1))
    w = build.parameter("w", (FEATURES, 1), zeros)
    error = build.op("Sub", build.op("MatMul", x, w), y)
    half, penalty = build.scalar(0.5), build.scalar(0.5 * DECAY)
    square = build.op("Mul", half, build.op("ReduceMean", build.op("Mul", error, error), keepdims=0))
    decay = build.op("Mul", penalty, build.op("ReduceSum", build.op("Mul", w, w), keepdims=0))
    return build.network({"loss": build.op("Add", square, decay), "error": error})


def feed(ids: Any = slice(None), dtype: str = "float64") -> dict[str, Any]:
    return {"x": X[ids].astype(dtype), "y": Y[ids, None].astype(dtype)}


def slope(w: np.ndarray, ids: Any) -> np.ndarray:
    """The gradient of the mean over some samples."""
    return X[ids].T @ (X[ids] @ w - Y[ids]) / len(Y[ids]) + DECAY * w


def value(w: np.ndarray) -> float:
    return float(0.5 * np.mean((X @ w - Y) ** 2) + 0.5 * DECAY * w @ w)


SOLUTION = np.linalg.solve(X.T @ X / SAMPLES + DECAY * np.eye(FEATURES), X.T @ Y / SAMPLES)


def info(step: int, ids: Any = None) -> StepInfo:
    return StepInfo(step=step, batch_size=SAMPLES if ids is None else len(ids), sample_ids=ids)


def bound(optimizer: Any, framework: str = "reference", trained: d5.Network | None = None) -> Any:
    executor = d5.framework(framework).executor(ridge() if trained is None else trained)
    optimizer.bind(executor)
    return executor


def weights(executor: Any) -> np.ndarray:
    found: np.ndarray = np.asarray(executor.state_dict()["w"], np.float64).reshape(-1)
    return found


# The line search


def rosenbrock(alpha: float) -> tuple[float, float]:
    """Along the first axis from (-1.2, 1)."""
    x = -1.2 + alpha
    return 100 * (1 - x * x) ** 2 + (1 - x) ** 2, -400 * x * (1 - x * x) - 2 * (1 - x)


LINES: dict[str, Callable[[float], tuple[float, float]]] = {
    "parabola": lambda a: ((a - 3) ** 2, 2 * (a - 3)),
    "far": lambda a: ((a - 3000) ** 2, 2 * (a - 3000)),
    "near": lambda a: ((a - 1e-3) ** 2, 2 * (a - 1e-3)),
    "valley": rosenbrock,
    "wall": lambda a: (np.inf, np.nan) if a > 0.3 else ((a - 0.25) ** 2, 2 * (a - 0.25)),
    "waves": lambda a: (-a + np.sin(5 * a), -1 + 5 * np.cos(5 * a) if a else -0.5),
}


@pytest.mark.parametrize("c2", [0.9, 0.1])
@pytest.mark.parametrize("name", LINES)
def test_a_step_length_keeps_the_strong_wolfe_conditions(name: str, c2: float) -> None:
    line, calls = LINES[name], []

    def phi(alpha: float) -> tuple[float, float]:
        calls.append(alpha)
        return line(alpha)

    start = Trial(0.0, *line(0.0))
    if start.slope >= 0:
        pytest.fail("the test's own line goes up")
    found = strong_wolfe(phi, start, 1.0, c2=c2, evaluations=40)
    assert found is not None
    assert (found.value, found.slope) == line(found.alpha)
    assert found.value <= start.value + 1e-4 * found.alpha * start.slope
    assert abs(found.slope) <= c2 * abs(start.slope)
    assert len(calls) <= 40
    assert all(alpha > 0 for alpha in calls)


def test_a_line_search_ends() -> None:
    start = Trial(0.0, 1.0, -1.0)
    calls: list[float] = []
    # It falls without end, and it rises against its slope.
    assert strong_wolfe(lambda a: (1 - a, -1.0), start, 1.0, evaluations=5) == Trial(16.0, -15.0, -1.0)
    assert strong_wolfe(lambda a: (calls.append(a), (2.0, 1.0))[1], start, 1.0, evaluations=7) is None  # type: ignore[func-returns-value]
    assert len(calls) == 7
    assert strong_wolfe(lambda a: (np.nan, np.nan), start, 1.0, evaluations=7) is None


# L-BFGS


def test_the_two_loops_are_the_product_with_the_matrix() -> None:
    """Algorithm 7.4 against the recursion for H itself, equation 7.16."""
    pairs, size = _Pairs(3, 5), 5
    curvature = DRAW.standard_normal((size, size))
    curvature = curvature @ curvature.T + np.eye(size)
    kept = []
    for _ in range(5):
        s = DRAW.standard_normal(size)
        pairs.add(s, curvature @ s)
        kept = [*kept, (s, curvature @ s)][-3:]
    s, y = kept[-1]
    matrix = np.eye(size) * (s @ y) / (y @ y)
    for s, y in kept:
        rho = 1 / (y @ s)
        side = np.eye(size) - rho * np.outer(y, s)
        matrix = side.T @ matrix @ side + rho * np.outer(s, s)
    gradient = DRAW.standard_normal(size)
    np.testing.assert_allclose(pairs.product(gradient), matrix @ gradient, rtol=1e-12)


def test_a_pair_without_curvature_is_left_out() -> None:
    pairs = _Pairs(3, 2)
    pairs.add(np.array([1.0, 0.0]), np.array([-1.0, 0.0]))
    pairs.add(np.zeros(2), np.zeros(2))
    assert len(pairs) == 0


def test_lbfgs_takes_its_first_step_as_worked_by_hand() -> None:
    """Steepest descent of length 1: the gradient's norm is above 1, and the step meets both conditions."""
    optimizer = d5.LBFGS()
    executor = bound(optimizer)
    gradient = slope(np.zeros(FEATURES), slice(None))
    assert np.linalg.norm(gradient) > 1
    outputs = optimizer.step(feed(), info(0))
    assert float(outputs["loss"]) == pytest.approx(value(np.zeros(FEATURES)), rel=1e-14)  # before the step
    np.testing.assert_allclose(weights(executor), -gradient / np.linalg.norm(gradient), rtol=1e-13)
    assert optimizer.calls == 2
    np.testing.assert_allclose(optimizer.state_dict()["s"][0], weights(executor), rtol=1e-15)


@pytest.mark.parametrize("iterations", [1, 3])
def test_lbfgs_solves_least_squares(iterations: int) -> None:
    """Four unknowns: with as many pairs it is BFGS, which needs a few more steps than there are unknowns."""
    optimizer = d5.LBFGS(iterations=iterations)
    executor = bound(optimizer)
    for step in range(12 // iterations):
        optimizer.step(feed(), info(step))
    np.testing.assert_allclose(weights(executor), SOLUTION, rtol=1e-7)
    gradient_descent = np.zeros(FEATURES)
    for _ in range(12):
        gradient_descent -= slope(gradient_descent, slice(None)) / np.linalg.norm(X.T @ X / SAMPLES, 2)
    assert np.linalg.norm(gradient_descent - SOLUTION) > 1e3 * np.linalg.norm(weights(executor) - SOLUTION)


def test_lbfgs_finds_what_scipy_finds_on_the_digits() -> None:
    """Softmax regression with a penalty, 7850 parameters: the same descent, with about as many evaluations."""
    build = NetworkBuilder("softmax", dtype="float64")
    x, label = build.input("input", ("N", 784)), build.input("label", ("N",), "int64")
    w, b = build.parameter("w", (784, 10), zeros), build.parameter("b", (10,), zeros)
    logits = build.op("Add", build.op("MatMul", x, w), b)
    penalty = build.op("Mul", build.scalar(0.05), build.op("ReduceSum", build.op("Mul", w, w), keepdims=0))
    entropy = build.op("SoftmaxCrossEntropyLoss", logits, label)
    trained, data = build.network({"loss": build.op("Add", entropy, penalty)}), batch(0, size=100)
    optimizer = d5.LBFGS()
    bound_to = bound(optimizer, trained=trained)
    for step in range(40):
        optimizer.step(data, StepInfo(step=step, batch_size=100))
    found = float(bound_to.inference(data)["loss"])

    other = d5.framework("reference").executor(trained)
    calls = 0

    def function(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal calls
        calls += 1
        other.write(["w", "b"], point)
        loss = float(other.inference_and_backprop(data)["loss"])
        return loss, np.concatenate([np.ravel(other.gradients()[name]) for name in ("w", "b")])

    options = {"maxiter": 40, "ftol": 0.0}
    want = scipy.optimize.minimize(function, np.zeros(7850), jac=True, method="L-BFGS-B", options=options)
    assert want.nit == 40
    # Another line search: the path is nearly the same, and falls from 2.3 to 0.64.
    assert found == pytest.approx(want.fun, rel=1e-2)
    # Each of our steps needs one more pass at its start, since the batch may differ.
    assert optimizer.calls <= 1.2 * (calls + 40)


def test_lbfgs_stays_where_nothing_is_to_be_gained() -> None:
    optimizer = d5.LBFGS()
    executor = bound(optimizer)
    executor.write(["w"], SOLUTION)
    for step in range(3):
        before = weights(executor)
        optimizer.step(feed(), info(step))
        np.testing.assert_allclose(weights(executor), before, rtol=1e-7)
        assert value(weights(executor)) <= value(before) * (1 + 1e-15)


def test_lbfgs_stays_where_the_loss_is_not_finite() -> None:
    optimizer = d5.LBFGS()
    executor = bound(optimizer)
    optimizer.step(feed(), info(0))
    before, state = weights(executor), optimizer.state_dict()
    wrong = feed()
    wrong["x"] = wrong["x"] * np.nan
    assert np.isnan(float(optimizer.step(wrong, info(1))["loss"]))
    np.testing.assert_array_equal(weights(executor), before)
    np.testing.assert_array_equal(optimizer.state_dict()["s"], state["s"])


def normalised() -> d5.Network:
    """With batch normalization and dropout."""
    build = NetworkBuilder("normalised", dtype="float64")
    x, label = build.input("input", ("N", 784)), build.input("label", ("N",), "int64")
    x = build.op("MatMul", x, build.parameter("w", (784, 8)))
    arguments = [build.parameter("scale", (8,), ones), build.parameter("shift", (8,), zeros)]
    statistics = [build.parameter("mean", (8,), zeros), build.parameter("variance", (8,), ones)]
    x = build.op("Tanh", build.op("BatchNormalization", x, *arguments, *statistics))
    x = build.op("Dropout", x, build.scalar(0.4))
    loss = build.op("SoftmaxCrossEntropyLoss", build.op("MatMul", x, build.parameter("v", (8, 10))), label)
    return build.network({"loss": loss})


def test_lbfgs_has_one_mask_and_one_batch_of_statistics_a_step() -> None:
    optimizer, data = d5.LBFGS(iterations=3), batch(0, size=50)
    executor, plain = bound(optimizer, trained=normalised()), d5.framework("reference").executor(normalised())
    losses = []
    for step in range(6):
        at = StepInfo(step=step, batch_size=50, seed=3)
        before = executor.state_dict()
        plain.load_state_dict(before)
        losses.append(float(optimizer.step(data, at)["loss"]))
        # One pass updates the statistics once, for any number of line search evaluations.
        plain.inference(data, training=True, info=at)
        for name in ("mean", "variance"):
            np.testing.assert_array_equal(executor.state_dict()[name], plain.state_dict()[name])
        # With the mask of the step the loss has fallen; with other masks it would not have.
        again = float(executor.inference(data, training=True, info=at)["loss"])
        assert again < losses[-1]
        executor.load_state_dict({**executor.state_dict(), **{n: plain.state_dict()[n] for n in ("mean", "variance")}})
    assert optimizer.calls > 6 + 6


# SAG


def test_sag_as_in_the_paper() -> None:
    """Algorithm 1, several samples per step, the mean over those seen so far."""
    optimizer = d5.SAG(0.05)
    executor = bound(optimizer)
    w, memory = np.zeros(FEATURES), {}
    draw = np.random.default_rng(0)
    for step in range(40):
        ids = draw.choice(SAMPLES, 5, replace=False)
        outputs = optimizer.step(feed(ids), info(step, ids))
        assert float(outputs["loss"]) == pytest.approx(
            0.5 * np.mean((X[ids] @ w - Y[ids]) ** 2) + 0.5 * DECAY * w @ w, rel=1e-12
        )
        np.testing.assert_allclose(outputs["error"], (X[ids] @ w - Y[ids])[:, None], rtol=1e-10, atol=1e-12)
        for sample in ids:
            memory[int(sample)] = slope(w, [sample])
        w = w - 0.05 * np.mean(list(memory.values()), axis=0)
        np.testing.assert_allclose(weights(executor), w, rtol=1e-11)


def test_sag_of_batches_weighs_them_by_their_samples() -> None:
    optimizer = d5.SAG(0.1, unit="batch")
    executor = bound(optimizer)
    batches = [np.arange(0, 10), np.arange(10, 20), np.arange(20, 24)]
    w, memory = np.zeros(FEATURES), {}
    for step in range(30):
        which = (2 * step) % 3 if step % 7 else 2
        ids = batches[which]
        optimizer.step(feed(ids), info(step, ids))
        memory[which] = slope(w, ids)
        seen = sum(len(batches[own]) for own in memory)
        w = w - 0.1 * sum(len(batches[own]) * gradient for own, gradient in memory.items()) / seen
        np.testing.assert_allclose(weights(executor), w, rtol=1e-11)


def test_sag_converges_as_proved_where_gradient_descent_by_samples_does_not() -> None:
    """The theorem of the paper (section 3), with a rate of 1 / (16 L) and memory initialized to zero:
    E f(w_k) - f* <= (1 - min(mu / (16 L), 1 / (8 n)))^k C_0,
    C_0 = f(w_0) - f* + 4 L / n |w_0 - w*|^2 + sigma^2 / (16 L), sigma^2 the mean of |f_i'(w*)|^2."""
    steepest = max(float(x @ x) for x in X) + DECAY
    convexity = float(np.linalg.eigvalsh(X.T @ X / SAMPLES)[0]) + DECAY
    spread = np.mean([np.sum(slope(SOLUTION, [i]) ** 2) for i in range(SAMPLES)])
    start = value(np.zeros(FEATURES)) - value(SOLUTION) + 4 * steepest / SAMPLES * SOLUTION @ SOLUTION
    start += spread / (16 * steepest)
    factor, steps = 1 - min(convexity / (16 * steepest), 1 / (8 * SAMPLES)), 3000
    optimizer = d5.SAG(1 / (16 * steepest))
    executor, draw = bound(optimizer), np.random.default_rng(1)
    plain = np.zeros(FEATURES)
    for step in range(steps):
        ids = draw.integers(0, SAMPLES, 1)
        optimizer.step(feed(ids), info(step, ids))
        plain = plain - slope(plain, ids) / (16 * steepest)
    assert value(weights(executor)) - value(SOLUTION) <= factor**steps * start
    assert value(plain) - value(SOLUTION) > 1e3 * (value(weights(executor)) - value(SOLUTION))


def test_sag_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UsageError, match="SAG: got unit='epoch'; allowed: 'sample', 'batch'"):
        d5.SAG(unit="epoch")
    with pytest.raises(UsageError, match=r"keeps statistics of batches \(mean, variance …\).*remedy: unit='batch'"):
        bound(d5.SAG(), trained=normalised())
    bound(d5.SAG(unit="batch"), trained=normalised())
    optimizer = d5.SAG()
    bound(optimizer)
    for wrong in (None, [], [0.5] * SAMPLES, "all"):
        with pytest.raises(UsageError, match=r"keeps gradients by the ids of samples, but got info.sample_ids="):
            optimizer.step(feed(), StepInfo(batch_size=SAMPLES, sample_ids=wrong))
    with pytest.raises(ShapeError, match=r"input 'x': got 24 samples where info.sample_ids names 3"):
        optimizer.step(feed(), info(0, [1, 2, 3]))
    by_batch = d5.SAG(unit="batch")
    executor = bound(by_batch)
    by_batch.step(feed([0, 1, 2]), info(0, [0, 1, 2]))
    by_batch.step(feed([3, 4]), info(1, [3, 4]))
    before = weights(executor)
    for mixed in ([1, 2, 3], [0, 1], [4, 5], [0, 1, 2, 9]):
        with pytest.raises(UsageError, match=r"samples of different earlier batches in one .*the sampler 'ordered'"):
            by_batch.step(feed(mixed), info(2, mixed))
    np.testing.assert_array_equal(weights(executor), before)
    by_batch.step(feed([2, 0, 1]), info(2, [2, 0, 1]))  # the same in another order


def test_sag_says_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nearly:
        available = 1000

    monkeypatch.setattr("deep5.training.sag.psutil.virtual_memory", Nearly)
    optimizer = d5.SAG()
    bound(optimizer)
    with pytest.raises(UsageError, match="SAG has no memory for more than 0 gradients: the next 32 need up to"):
        optimizer.step(feed(), info(0, np.arange(SAMPLES)))


def test_a_network_of_a_fixed_batch_is_refused_by_samples() -> None:
    build = NetworkBuilder("fixed", dtype="float64")
    x = build.input("x", (3, 2))
    loss = build.op("ReduceSum", build.op("MatMul", x, build.parameter("w", (2, 1), ones)), keepdims=0)
    with pytest.raises(
        UsageError, match="no input of the network has a symbolic batch dimension; remedy: unit='batch'"
    ):
        bound(d5.SAG(), trained=build.network({"loss": loss}))


# Both

MADE: dict[str, Callable[[], Any]] = {
    "lbfgs": lambda: d5.LBFGS(history=3),
    "sag": lambda: d5.SAG(0.05),
    "sag by batch": lambda: d5.SAG(0.05, unit="batch"),
}
FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax", "onnxruntime")


def learned(optimizer: Any, begin: int, end: int, dtype: str) -> list[float]:
    losses = []
    for step in range(begin, end):
        ids = np.arange(8) + 8 * (step % 3)
        data = {key: value[ids] for key, value in batch(0, dtype, 24).items()}
        losses.append(float(d5.to_numpy(optimizer.step(data, info(step, ids))["loss"])))
    return losses


# Frameworks that compile take seconds: one of the three always.
ALWAYS = [("sag by batch", framework) for framework in FRAMEWORKS]
ALWAYS += [(name, "reference") for name in MADE]
PAIRS = [
    pytest.param(name, framework, marks=() if (name, framework) in ALWAYS else pytest.mark.slow)
    for name in MADE
    for framework in FRAMEWORKS
]


@pytest.mark.parametrize(("name", "framework"), PAIRS)
def test_every_framework_takes_the_same_steps(name: str, framework: str) -> None:
    """In float64 to rounding, in float32 to its rounding; the digits, eight steps."""
    dtype, found = "float32" if framework == "onnxruntime" else "float64", []
    for where, of in (("reference", "float64"), (framework, dtype)):
        optimizer = MADE[name]()
        executor = bound(optimizer, where, network(of, hidden=4))
        learned(optimizer, 0, 8, of)
        found.append(executor.state_dict())
    assert distance(found[0], {key: network("float64", hidden=4).initial(key) for key in found[0]}) > 1e-2
    assert distance(found[1], found[0]) <= (1e-4 if framework == "onnxruntime" else 1e-10)


@pytest.mark.parametrize(("name", "framework"), PAIRS)
def test_a_run_that_is_resumed_ends_with_the_same_bits(name: str, framework: str) -> None:
    def start() -> Any:
        optimizer = MADE[name]()
        return bound(optimizer, framework, network("float32", hidden=4)), optimizer

    whole, optimizer = start()
    learned(optimizer, 0, 3, "float32")
    optimizer.set_hyper("lr", 0.5 * optimizer.lr)  # also applies after the resume
    learned(optimizer, 3, 7, "float32")
    states = whole.state_dict(), optimizer.state_dict()
    assert all(isinstance(value, np.ndarray) or json.dumps(value) for value in states[1].values())
    learned(optimizer, 7, 12, "float32")
    resumed, other = start()
    resumed.load_state_dict(states[0])
    other.load_state_dict(states[1])
    learned(other, 7, 12, "float32")
    for got, want in ((resumed.state_dict(), whole.state_dict()), (other.state_dict(), optimizer.state_dict())):
        assert got.keys() == want.keys()
        for key, value in want.items():
            np.testing.assert_array_equal(got[key], value, err_msg=key)
    # The returned state is a copy: unchanged, it resumes a third run identically.
    third, last = start()
    third.load_state_dict(states[0])
    last.load_state_dict(states[1])
    learned(last, 7, 12, "float32")
    assert distance(third.state_dict(), whole.state_dict()) == 0


@pytest.mark.parametrize("name", MADE)
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    optimizer = MADE[name]()
    with pytest.raises(UsageError, match=r"not bound to an executor; remedy: call bind\(executor\) first"):
        optimizer.state_dict()
    executor = bound(optimizer)
    for step in range(3):
        ids = np.arange(8) + 8 * step
        optimizer.step(feed(ids), info(step, ids))
    state, before = optimizer.state_dict(), weights(executor)
    with pytest.raises(ShapeError, match="missing or unknown entries: "):
        optimizer.load_state_dict({key: value for key, value in state.items() if key != sorted(state)[0]})
    with pytest.raises(ShapeError, match=r"missing or unknown entries: \['more'\]"):
        optimizer.load_state_dict({**state, "more": 1})
    for key in state:
        with pytest.raises(ShapeError, match="the optimizer's state: got "):
            optimizer.load_state_dict({**state, key: np.zeros(999, np.float32)})
    with pytest.raises(ShapeError, match=r"missing or unknown hyperparameters: \['lr'\]; allowed: lr"):
        optimizer.load_state_dict({**state, "hyper": {"values": {}}})
    optimizer.load_state_dict({key: value for key, value in state.items() if key != "hyper"})  # of an earlier deep5
    optimizer.load_state_dict(state)
    for key, value in optimizer.state_dict().items():
        np.testing.assert_array_equal(value, state[key])
    np.testing.assert_array_equal(weights(executor), before)


@pytest.mark.parametrize("name", MADE)
def test_the_rate_may_change(name: str) -> None:
    optimizer = MADE[name]()
    executor = bound(optimizer)
    optimizer.set_hyper("lr", 1e-12)
    assert optimizer.lr == 1e-12
    assert optimizer.describe()["lr"] == 1e-12
    json.dumps(optimizer.describe())
    optimizer.step(feed(), info(0, np.arange(SAMPLES)))
    if name != "lbfgs":  # its line search makes a short first step longer
        assert np.abs(weights(executor)).max() < 1e-10
    with pytest.raises(UsageError, match="no hyperparameter 'momentum'; allowed: lr"):
        optimizer.set_hyper("momentum", 0.5)
    for wrong in (float("nan"), "fast", None):
        with pytest.raises(UsageError, match=r"got lr=.*finite number"):
            optimizer.set_hyper("lr", wrong)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"history": 0}, "got history=0; allowed: an integer of at least 1"),
        ({"iterations": 1.5}, "got iterations=1.5"),
        ({"evaluations": True}, "got evaluations=True"),
        ({"c1": 0.95}, "got c1=0.95, c2=0.9; allowed: 0 < c1 < c2 < 1"),
        ({"lr": 0.0}, "got lr=0.0; allowed: a positive finite number"),
    ],
)
def test_arguments_of_lbfgs_that_mean_nothing_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        d5.LBFGS(**arguments)


@pytest.mark.parametrize("name", MADE)
def test_parameters_of_two_types_are_refused(name: str) -> None:
    build = NetworkBuilder("two", dtype="float32")
    x = build.input("x", ("N", 2), "float64")
    w, v = build.constant("w", np.ones((2, 1))), build.parameter("v", (1,), ones)
    y = build.op("MatMul", x, w)
    loss = build.op("ReduceSum", build.op("Mul", build.op("Cast", y, to=1), v), keepdims=0)
    with pytest.raises(UsageError, match="cannot train parameters of float32 and float64; allowed: all float32, or"):
        bound(MADE[name](), trained=build.network({"loss": loss}))


@pytest.mark.parametrize(("name", "fall"), [("lbfgs", 0.5), ("sag", 0.9)])
def test_a_trainer_trains_with_it(name: str, fall: float) -> None:
    data = synthetic(shape=(4,), classes=3, train=30, test=9)
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=5, classes=3))
    optimizer: Any = d5.LBFGS() if name == "lbfgs" else d5.SAG(0.3)
    size = 30 if name == "lbfgs" else 10
    trainer = d5.Trainer(executor, optimizer, d5.ShuffleSampler(data.train, size), d5.OrderedSampler(data.test, 9))
    everything = data.train.batch(np.arange(30))
    before = float(executor.inference(everything)["loss"])
    trainer.train(epochs=4)
    assert float(executor.inference(everything)["loss"]) < fall * before
    assert trainer.scores["samples"] == 9
