"""Kernels: C against NumPy bit by bit, threads, special values, states, groups, and errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import RuleError, ShapeError, UsageError
from deep5.core.events import StepInfo
from deep5.core.tensors import TensorSpec
from deep5.training.eager import EagerRule
from deep5.training.expression import OPERATIONS
from deep5.training.rule import UpdateRule
from deep5.training.step import KernelStep
from deep5.training.trace import trace_rule

RULES: dict[str, Callable[[], Any]] = {
    "sgd": d5.SGD,
    "momentum": d5.Momentum,
    "nesterov": lambda: d5.Momentum(nesterov=True),
    "adam": d5.Adam,
    "lars": d5.LARS,
    "accelegrad": d5.AcceleGrad,
}
SHAPES = {"a": (3, 5), "scalar": (), "one": (1,), "long": (20000,)}  # more than two chunks
INEXACT = {"pow", "exp", "expm1", "log", "log1p", "tanh", "sin", "cos"}


def info(step: int) -> StepInfo:
    return StepInfo(step=step, batch_size=1)


def draw(shapes: dict[str, tuple[int, ...]], seed: int, dtype: str = "float64") -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: np.array(generator.standard_normal(shape), dtype) for name, shape in shapes.items()}


def make(
    rule: UpdateRule, shapes: dict[str, tuple[int, ...]], dtype: str = "float64", seed: int = 0, **keywords: Any
) -> tuple[Any, dict[str, np.ndarray]]:
    live = draw(shapes, seed, dtype)
    kernel = d5.bind_rule(rule, {n: TensorSpec(shape=s, dtype=dtype) for n, s in shapes.items()}, **keywords)
    kernel.attach(live)
    return kernel, live


def steps(kernel: Any, shapes: dict[str, tuple[int, ...]], dtype: str, first: int, last: int) -> None:
    for step in range(first, last):
        kernel.prepare(info(step))
        kernel.update(draw(shapes, 100 + step, dtype), info(step))


def everything(kernel: Any, live: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {name: value.copy() for name, value in live.items()} | kernel.state_dict()
    with kernel.averaged():
        return found | {f"average of {name}": value.copy() for name, value in live.items()}


def same_bits(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.tobytes() == two[name].tobytes(), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RULES)
def test_c_is_numpy_bit_for_bit(name: str, dtype: str) -> None:
    results = []
    for backend in ("c", "numpy"):
        kernel, live = make(RULES[name](), SHAPES, dtype, backend=backend)
        assert kernel.how == backend
        steps(kernel, SHAPES, dtype, 0, 5)
        results.append(everything(kernel, live))
    if name in ("lars", "accelegrad"):
        # The two add sums of 20000 doubles in another order: about 1e-15, rounded to the parameters' dtype.
        for key, value in results[0].items():
            tolerance = 1e-13 if dtype == "float64" else 1e-6
            np.testing.assert_allclose(results[1][key], value, rtol=tolerance, atol=tolerance, err_msg=key)
    else:
        same_bits(*results)


@pytest.mark.parametrize("name", RULES)
def test_bits_do_not_depend_on_the_threads(name: str) -> None:
    shapes = {"large": ((1 << 17) + 77,), "small": (3,)}
    results = []
    for threads in (1, 2):
        kernel, live = make(RULES[name](), shapes, "float32", threads=threads, backend="c")
        steps(kernel, shapes, "float32", 0, 2)
        results.append(everything(kernel, live))
    same_bits(*results)


class Function(UpdateRule):
    """w ← f(g, w)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return self.function(d5.array_namespace(param), grad, param), state


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 3.0, 1e-30, 1e30, -1e30, math.inf, -math.inf, math.nan]


def special(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.meshgrid(np.array(SPECIAL, dtype), np.array(SPECIAL, dtype))
    return x.reshape(-1).copy(), y.reshape(-1).copy()


def apply(function: Callable[..., Any], dtype: str, backend: str) -> np.ndarray:
    x, y = special(dtype)
    kernel = d5.bind_rule(Function(function), {"w": TensorSpec(shape=y.shape, dtype=dtype)}, backend=backend)
    kernel.attach({"w": y})
    kernel.update({"w": x}, info(0))
    return y


def as_numpy_has_it(got: np.ndarray, want: np.ndarray, *, exact: bool, signed: bool = True) -> None:
    if not exact:
        # Each library rounds transcendental functions differently, by up to 4 units in the last place.
        np.testing.assert_allclose(got, want, rtol=4 * np.finfo(want.dtype).eps, atol=0)
        return
    np.testing.assert_array_equal(got, want)
    if signed:
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


def operation(op: str) -> Callable[..., Any]:
    arity, boolean = OPERATIONS[op][:2]

    def function(xp: Any, g: Any, w: Any) -> Any:
        if op == "where":
            return xp.where(g > w, g, w)
        arguments = (g, w)[:arity] if not op.startswith("logical") else (g > 0, w > 0)[:arity]
        result = getattr(xp, op)(*arguments)
        return xp.where(result, xp.full_like(w, 1.0), xp.full_like(w, 0.0)) if boolean else result

    return function


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_over_special_values(op: str, dtype: str) -> None:
    x, y = special(dtype)
    with np.errstate(all="ignore"):
        want = np.asarray(operation(op)(np, x, y), dtype)
    for backend in ("c", "numpy"):
        got = apply(operation(op), dtype, backend)
        # IEEE 754 does not define which zero is the larger of two zeros.
        as_numpy_has_it(got, want, exact=op not in INEXACT, signed=op not in ("maximum", "minimum"))


@pytest.mark.parametrize("backend", ["c", "numpy"])
def test_nan_and_infinity_pass_through_clip_and_powers(backend: str) -> None:
    x, y = special("float64")
    with np.errstate(all="ignore"):
        as_numpy_has_it(
            apply(lambda xp, g, w: xp.clip(g, -1.0, 2.0), "float64", backend), np.clip(x, -1, 2), exact=True
        )
        as_numpy_has_it(
            apply(lambda xp, g, w: xp.clip(g, w), "float64", backend), np.maximum(x, y), exact=True, signed=False
        )
        as_numpy_has_it(
            apply(lambda xp, g, w: xp.clip(g, max=w), "float64", backend), np.minimum(x, y), exact=True, signed=False
        )
        as_numpy_has_it(apply(lambda xp, g, w: g**3 + w, "float64", backend), x * x * x + y, exact=True)
        as_numpy_has_it(apply(lambda xp, g, w: g**-2.0, "float64", backend), x**-2.0, exact=False)
        as_numpy_has_it(apply(lambda xp, g, w: 2.0**g, "float64", backend), 2.0**x, exact=False)
        as_numpy_has_it(apply(lambda xp, g, w: g**math.inf, "float64", backend), x**math.inf, exact=False)
    for constant in (math.inf, -math.inf, math.nan):
        got = apply(lambda xp, g, w, c=constant: xp.full_like(w, c), "float64", backend)
        as_numpy_has_it(got, np.full_like(y, constant), exact=True)


@pytest.mark.parametrize("backend", ["c", "numpy"])
def test_a_constant_under_a_sum_counts_once_an_element(backend: str) -> None:
    class Mean(UpdateRule):
        scope = "tensor"

        def sums(self, grad: Any, param: Any, state: Any) -> Any:
            xp = d5.array_namespace(param)
            return {"total": xp.sum(grad), "count": xp.sum(xp.ones_like(grad))}

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            return param * 0 + self.total / self.count, state

    live = {"w": np.ones((300, 40))}  # more than one chunk
    kernel = d5.bind_rule(Mean(), {"w": TensorSpec(shape=(300, 40), dtype="float64")}, backend=backend)
    kernel.attach(live)
    kernel.update({"w": np.full((300, 40), 3.0)}, info(0))
    np.testing.assert_array_equal(live["w"], 3.0)


@pytest.mark.parametrize("backend", ["c", "numpy"])
def test_names_of_states_and_inputs_may_be_greek(backend: str) -> None:
    class Greek(UpdateRule):
        hyper = ("η",)
        η = 0.5  # noqa: PLC2401 - that is the point

        def new_input(self, info: StepInfo) -> Any:
            return {"τ": 2.0}

        def init_state(self, param: Any) -> Any:
            xp = d5.array_namespace(param)
            return {"μ": xp.zeros_like(param), "ν": xp.ones((), dtype=param.dtype)}

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            μ = state["μ"] + self.τ * grad  # noqa: PLC2401
            return param - self.η * μ, {"μ": μ, "ν": state["ν"] * self.τ}

    kernel, live = make(Greek(), {"w": (2,)}, backend=backend)
    before = live["w"].copy()
    kernel.update({"w": np.ones(2)}, info(0))
    np.testing.assert_array_equal(live["w"], before - 1.0)
    assert kernel.state_dict()["ν/w"] == 2.0


def test_an_empty_parameter_is_no_parameter() -> None:
    for backend in ("c", "numpy"):
        kernel, live = make(d5.LARS(), {"none": (0, 3), "w": (2,)}, backend=backend)
        kernel.update({"none": np.empty((0, 3)), "w": np.ones(2)}, info(0))
        assert np.isfinite(live["w"]).all()


def test_gradients_that_are_strided_are_read_rightly() -> None:
    for rule in (d5.SGD(1.0), d5.LARS()):
        results = []
        for strided in (False, True):
            kernel, live = make(rule, {"a": (40, 50), "b": (30, 20)})
            grads = draw({"a": (40, 50), "b": (30, 20)}, 9)
            kernel.update({n: np.asfortranarray(g) if strided else g for n, g in grads.items()}, info(0))
            results.append(live)
        same_bits(*results)


SPEC = {"w": TensorSpec(shape=(2, 3), dtype="float64")}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "the parameter 'w' is missing; allowed: w"),
        ({"w": np.ones((3, 2))}, r"parameter 'w': got float64\(3, 2\), expected float64\(2, 3\)"),
        ({"w": np.ones((2, 3), np.float32)}, "got float32"),
        ({"w": np.ones((2, 3)).astype(">f8")}, "got >f8"),
        ({"w": np.ones((3, 2)).T}, "strided or read-only memory; allowed: contiguous, writable"),
        ({"w": np.broadcast_to(np.ones(3), (2, 3))}, "strided or read-only memory"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        d5.bind_rule(d5.SGD(), SPEC).attach(parameters)


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ({}, "the gradient of 'w' is missing; allowed: w"),
        ({"w": np.ones((3, 2))}, r"gradient of 'w': got float64\(3, 2\), expected float64\(2, 3\)"),
        ({"w": np.ones((2, 3), np.float32)}, "got float32"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(gradients: Any, message: str) -> None:
    kernel, live = make(d5.SGD(), {"w": (2, 3)})
    before = live["w"].copy()
    with pytest.raises(ShapeError, match=message):
        kernel.update(gradients, info(0))
    np.testing.assert_array_equal(live["w"], before)


def test_dtypes_and_groups_that_no_kernel_has_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"parameters of dtype \['float32', 'float64'\]; allowed: one of float32"):
        d5.bind_rule(d5.SGD(), {"a": TensorSpec(shape=(1,)), **SPEC})
    with pytest.raises(ShapeError, match="int64"):
        d5.bind_rule(d5.SGD(), {"a": TensorSpec(shape=(1,), dtype="int64")})
    with pytest.raises(RuleError, match=r"a parameter group sets \['momentum'\]; allowed: hyperparameters of SGD, lr"):
        d5.bind_rule(d5.SGD(), SPEC, hyper={"momentum": 0.9})


class Remembering(UpdateRule):
    """States that are the previous step's parameter and gradient, and two that swap."""

    hyper = ("lr",)

    def __init__(self, lr: float = 0.1) -> None:
        self.lr = lr

    def init_state(self, param: Any) -> dict[str, Any]:
        return {"previous": param, "grad": param, "first": param, "second": 2.0 * param}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        new = {"previous": param, "grad": grad, "first": state["second"], "second": state["first"]}
        step = 0.5 * (param - state["previous"]) + 0.1 * state["grad"] + 0.01 * state["first"]
        return param - self.lr * grad + step, new


@pytest.mark.parametrize("backend", ["c", "numpy"])
def test_a_state_may_be_what_another_value_was(backend: str) -> None:
    kernel, live = make(Remembering(), SHAPES, backend=backend)
    eager = EagerRule(Remembering(), draw(SHAPES, 0))
    steps(kernel, SHAPES, "float64", 0, 4)
    for step in range(4):
        eager.update(draw(SHAPES, 100 + step), info(step))
    for key, value in live.items():
        np.testing.assert_allclose(value, eager.parameters[key], rtol=1e-13, atol=1e-15)
    for entry, value in kernel.state_dict().items():
        state, _, key = entry.partition("/")
        np.testing.assert_allclose(value, eager.states[key][state], rtol=1e-13, atol=1e-15, err_msg=entry)


def test_no_step_is_taken_inside_averaged() -> None:
    for rule in (d5.AcceleGrad(), d5.AveragedSGD(start=1)):
        kernel, live = make(rule, {"w": (5,)})
        steps(kernel, {"w": (5,)}, "float64", 0, 3)
        before = live["w"].copy()
        with kernel.averaged():
            if kernel.prepares:
                with pytest.raises(UsageError, match=r"a training step inside averaged\(\); remedy: leave the block"):
                    kernel.prepare(info(3))
            with pytest.raises(UsageError, match=r"a training step inside averaged\(\); remedy: leave the block"):
                kernel.update({"w": np.ones(5)}, info(3))
        np.testing.assert_array_equal(live["w"], before)
        steps(kernel, {"w": (5,)}, "float64", 3, 4)


def test_a_kernel_is_called_in_order() -> None:
    kernel = d5.bind_rule(d5.AcceleGrad(), SPEC)
    with pytest.raises(UsageError, match=r"before attach\(parameters\); remedy: call it first"):
        kernel.update({"w": np.ones((2, 3))}, info(0))
    kernel.attach({"w": np.ones((2, 3))})
    with pytest.raises(UsageError, match=r"an update by AcceleGrad before prepare\(info\)"):
        kernel.update({"w": np.ones((2, 3))}, info(0))
    kernel.prepare(info(0))
    with pytest.raises(UsageError, match="evaluation between backprop and apply"), kernel.averaged():
        pass


def test_prepare_may_be_called_again_and_undone() -> None:
    results = []
    for again in (1, 3):
        kernel, live = make(d5.AcceleGrad(), {"w": (5,)})
        for step in range(5):
            for _ in range(again):
                kernel.prepare(info(step))
            kernel.update(draw({"w": (5,)}, step), info(step))
        before = live["w"].copy()
        kernel.prepare(info(5))
        assert not np.array_equal(live["w"], before)
        kernel.cancel()
        np.testing.assert_array_equal(live["w"], before)
        results.append(everything(kernel, live))
    same_bits(*results)


@pytest.mark.parametrize("name", RULES)
def test_a_run_that_is_resumed_is_the_run_that_was_not_interrupted(name: str) -> None:
    kernel, live = make(RULES[name](), SHAPES, "float32")
    steps(kernel, SHAPES, "float32", 0, 4)
    kept, parameters = kernel.state_dict(), {key: value.copy() for key, value in live.items()}
    steps(kernel, SHAPES, "float32", 4, 8)

    other, resumed = make(RULES[name](), SHAPES, "float32", seed=5)
    for key, value in parameters.items():
        resumed[key][...] = value
    other.load_state_dict(kept)
    same_bits(other.state_dict(), kept)
    steps(other, SHAPES, "float32", 4, 8)
    same_bits(everything(kernel, live), everything(other, resumed))


def test_states_that_do_not_fit_are_refused() -> None:
    kernel, _ = make(d5.Momentum(), {"w": (2,)})
    for state, message in (
        ({}, r"missing or unknown entries: \['velocity/w'\]"),
        ({"velocity/w": np.ones(2), "m/w": np.ones(2)}, r"\['m/w'\]; allowed: velocity/w"),
        ({"velocity/w": np.ones(3)}, r"state 'velocity/w': got float64\(3,\), expected float64\(2,\)"),
        ({"velocity/w": np.ones(2, np.float32)}, "got float32"),
    ):
        with pytest.raises(ShapeError, match=message):
            kernel.load_state_dict(state)


def test_averaged_restores_also_after_an_exception_and_inside_itself() -> None:
    kernel, live = make(d5.AcceleGrad(), {"w": (5,)})
    steps(kernel, {"w": (5,)}, "float64", 0, 6)
    before = live["w"].copy()

    def evaluate() -> None:
        with kernel.averaged():
            average = live["w"].copy()
            assert not np.array_equal(average, before)
            with kernel.averaged():
                np.testing.assert_array_equal(live["w"], average)
            np.testing.assert_array_equal(live["w"], average)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate()
    np.testing.assert_array_equal(live["w"], before)


def test_partial_sums_of_shards_give_the_whole_step() -> None:
    kernel, live = make(d5.LARS(), {"w": (6,), "b": (4,)})
    grads = draw({"w": (6,), "b": (4,)}, 7)
    shards = [make(d5.LARS(), {"w": (3,), "b": (2,)}) for _ in range(2)]
    for index, (_, own) in enumerate(shards):
        for name, value in own.items():
            value[...] = np.split(live[name], 2)[index]
    parts = [{name: np.split(grad, 2)[index] for name, grad in grads.items()} for index in range(2)]
    sums = [
        shard.partial_sums([part[name].ctypes.data for name in shard.names], info(0))
        for (shard, _), part in zip(shards, parts, strict=True)
    ]
    total = sums[0] + sums[1]
    for (shard, _), part in zip(shards, sums, strict=True):
        part[...] = total
        shard.update_after_sums()
    kernel.update(grads, info(0))
    for name, value in live.items():
        # One addition of the sums in another order.
        np.testing.assert_allclose(np.concatenate([own[name] for _, own in shards]), value, rtol=1e-14)


# The whole step: groups, modifier, sums over the model.


class Executor:
    """The part of an executor that a kernel step needs, with given gradients."""

    def __init__(self, parameters: dict[str, np.ndarray]) -> None:
        self.live, self.fails = parameters, False
        grads = draw({name: value.shape for name, value in parameters.items()}, 3)
        self.grads = {name: grad.astype(parameters[name].dtype) for name, grad in grads.items()}
        specs = {n: TensorSpec(shape=v.shape, dtype=str(v.dtype)) for n, v in parameters.items()}
        self.network = SimpleNamespace(trained_specs=specs)

    def parameters(self) -> Any:
        return self.live

    def inference_and_backprop(self, inputs: Any, loss: str, *, info: StepInfo) -> Any:
        if self.fails:
            raise ShapeError("a wrong input")
        return {"loss": 0.0}

    def gradients(self) -> Any:
        return self.grads


def two() -> dict[str, np.ndarray]:
    return {"fc.weight": np.arange(1.0, 7.0).reshape(2, 3), "fc.bias": np.ones(2)}


def test_a_group_has_its_own_learning_rate() -> None:
    executor: Any = Executor(two())
    rule = d5.SGD(1.0)
    group = d5.ParameterGroup(lambda name: name.endswith("bias"), lr=0.25)
    step = KernelStep(executor, rule, groups=[group])
    step({}, info(0))
    grads = executor.gradients()
    np.testing.assert_array_equal(executor.parameters()["fc.weight"], two()["fc.weight"] - grads["fc.weight"])
    np.testing.assert_array_equal(executor.parameters()["fc.bias"], 1.0 - 0.25 * grads["fc.bias"])
    rule.lr = 0.0
    before = {name: value.copy() for name, value in executor.parameters().items()}
    step({}, info(1))
    np.testing.assert_array_equal(executor.parameters()["fc.weight"], before["fc.weight"])
    assert not np.array_equal(executor.parameters()["fc.bias"], before["fc.bias"])
    assert step.traces == 1


def test_a_group_that_matches_nothing_is_refused() -> None:
    executor: Any = Executor(two())
    groups = [d5.ParameterGroup(lambda name: "bias" in name, lr=0.1), d5.ParameterGroup(lambda name: False, lr=0.1)]
    with pytest.raises(RuleError, match=r"parameter group 1 matches no parameter; allowed: fc.weight, fc.bias"):
        KernelStep(executor, d5.SGD(), groups=groups)


@pytest.mark.parametrize("mixed", [False, True])
def test_sums_over_the_model_run_over_groups_and_dtypes(mixed: bool) -> None:
    """AcceleGrad's first step divides by the norm of all gradients, in any kernel."""
    parameters = two()
    if mixed:
        parameters["fc.bias"] = parameters["fc.bias"].astype(np.float32)
    executor: Any = Executor(parameters)
    groups = [] if mixed else [d5.ParameterGroup(lambda name: name.endswith("bias"), lr=0.5)]
    KernelStep(executor, d5.AcceleGrad(), groups=groups)({}, info(0))
    grads = executor.gradients()
    eta = 2 / math.sqrt(1 + sum(float(np.sum(grad.astype(np.float64) ** 2)) for grad in grads.values()))
    bias = eta if mixed else 0.5 * eta
    # The bias may be float32; it and its squares are then rounded to 6e-8.
    np.testing.assert_allclose(
        executor.parameters()["fc.weight"], two()["fc.weight"] - eta * grads["fc.weight"], rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(executor.parameters()["fc.bias"], 1 - bias * grads["fc.bias"], rtol=1e-6)


def test_a_modifier_sees_name_parameter_and_gradient() -> None:
    executor: Any = Executor(two())
    seen = []

    def modifier(name: str, param: np.ndarray, grad: np.ndarray) -> np.ndarray:
        seen.append((name, param is executor.parameters()[name]))
        return np.asfortranarray(2 * grad)  # other strides, which must not be misread

    def locate(names: Sequence[str]) -> list[int]:  # an executor that trusts its own gradients
        return [executor.gradients()[name].ctypes.data for name in names]

    KernelStep(executor, d5.SGD(1.0), modifier=modifier, locate=locate)({}, info(0))
    assert seen == [("fc.weight", True), ("fc.bias", True)]
    want = two()["fc.weight"] - 2 * executor.gradients()["fc.weight"]
    np.testing.assert_array_equal(executor.parameters()["fc.weight"], want)
    wrong = KernelStep(executor, d5.SGD(), modifier=lambda name, param, grad: grad.astype(np.float32), locate=locate)
    with pytest.raises(ShapeError, match=r"gradient of 'fc\.weight': got float32"):
        wrong({}, info(1))


def test_a_step_that_fails_leaves_the_parameters() -> None:
    executor: Any = Executor(two())
    step = KernelStep(executor, d5.AcceleGrad())
    for index in range(6):  # from the sixth on, the gradient point differs from the parameter
        step({}, info(index))
    before = {name: value.copy() for name, value in executor.parameters().items()}
    executor.fails = True
    with pytest.raises(ShapeError, match="a wrong input"):
        step({}, info(6))
    same_bits(before, executor.parameters())


def test_an_update_that_fails_leaves_the_parameters() -> None:
    executor: Any = Executor(two())

    def modifier(name: str, param: np.ndarray, grad: np.ndarray) -> np.ndarray:
        if executor.fails:
            raise ZeroDivisionError
        return grad

    step = KernelStep(executor, d5.AcceleGrad(), modifier=modifier)
    for index in range(6):
        step({}, info(index))
    before = {name: value.copy() for name, value in executor.parameters().items()}
    step.backprop({}, info(6))
    assert not np.array_equal(executor.parameters()["fc.weight"], before["fc.weight"])
    executor.fails = True
    with pytest.raises(ZeroDivisionError):
        step.apply(executor.gradients(), info(6))
    same_bits(before, executor.parameters())


def test_a_whole_step_is_not_taken_inside_averaged() -> None:
    executor: Any = Executor(two())
    step = KernelStep(executor, d5.AveragedSGD(start=1))
    for index in range(4):
        step({}, info(index))
    before = {name: value.copy() for name, value in executor.parameters().items()}
    calls: list[Callable[[], Any]] = [
        lambda: step({}, info(4)),
        lambda: step.backprop({}, info(4)),
        lambda: step.apply(executor.gradients(), info(4)),
        lambda: step.regroup((), step.pipeline),
    ]
    with step.averaged():
        inside = {name: value.copy() for name, value in executor.parameters().items()}
        for call in calls:
            with pytest.raises(UsageError, match=r"a training step inside averaged\(\); remedy: leave the block first"):
                call()
        with step.averaged():
            same_bits(inside, executor.parameters())
        same_bits(inside, executor.parameters())
    same_bits(before, executor.parameters())
    step({}, info(4))


def test_the_state_of_a_step_goes_over_all_groups() -> None:
    def build() -> tuple[Any, KernelStep]:
        executor: Any = Executor(two())
        group = d5.ParameterGroup(lambda name: name.endswith("bias"), lr=0.25)
        return executor, KernelStep(executor, d5.Adam(), groups=[group])

    executor, step = build()
    step({}, info(0))
    state = step.state_dict()
    assert sorted(state) == ["m/fc.bias", "m/fc.weight", "v/fc.bias", "v/fc.weight"]
    other, again = build()
    for name, value in executor.parameters().items():
        other.parameters()[name][...] = value
    again.load_state_dict(state)
    step({}, info(1))
    again({}, info(1))
    same_bits(executor.parameters(), other.parameters())
    with pytest.raises(ShapeError, match="v/nobody"):
        again.load_state_dict({**state, "v/nobody": np.ones(1)})


# Rules that break their contract.


def rule_with(**methods: Any) -> UpdateRule:
    scope = methods.pop("scope", "element")
    hyper = methods.pop("hyper", ("lr",))
    methods.setdefault("update_rule", lambda self, grad, param, state: (param - self.lr * grad, state))
    return type("Bad", (UpdateRule,), {"hyper": hyper, "scope": scope, "lr": 0.1, **methods})()


def updating(function: Callable[..., Any], **methods: Any) -> UpdateRule:
    return rule_with(update_rule=function, **methods)


def _decide(self: Any, grad: Any, param: Any, state: Any) -> Any:
    return (param - grad if grad > 0 else param), state


def _assign(self: Any, grad: Any, param: Any, state: Any) -> Any:
    self.count = 1
    return param - grad, state


def _item(self: Any, grad: Any, param: Any, state: Any) -> Any:
    grad[0] = 0.0
    return param - grad, state


XP = d5.array_namespace
BAD = {
    "decides": (updating(_decide), "decided by the value of an array, which cannot be traced; remedy: xp.where"),
    "float": (updating(lambda s, g, p, st: (p - float(s.lr) * g, st)), "converted an array or hyperparameter to a Py"),
    "int": (updating(lambda s, g, p, st: (p - int(s.lr) * g, st)), "converted an array or hyperparameter to a Py"),
    "math": (
        updating(lambda s, g, p, st: (p - math.sqrt(s.lr) * g, st)),
        "converted an array or hyperparameter to a Python number",
    ),
    "numpy": (updating(lambda s, g, p, st: (p - np.sqrt(g), st)), "Bad.update_rule cannot be traced: TypeError"),
    "asarray": (updating(lambda s, g, p, st: (p - np.asarray(g), st)), "called a function of NumPy"),
    "unknown function": (
        updating(lambda s, g, p, st: (XP(p).cumulative_sum(g), st)),
        "used xp.cumulative_sum; allowed: ",
    ),
    "arity": (updating(lambda s, g, p, st: (XP(p).sqrt(g, p), st)), "xp.sqrt in an update rule got 2 arguments"),
    "method": (updating(lambda s, g, p, st: (p - g.mean(), st)), "used '.mean' of an array"),
    "item": (updating(_item), r"assigned into an array \(rules are pure\)"),
    "iterates": (updating(lambda s, g, p, st: (p - max(g), st)), "iterated over an array"),
    "numpy constant": (updating(lambda s, g, p, st: (p - np.ones(3) * g, st)), "combined an array with a ndarray"),
    "string": (updating(lambda s, g, p, st: (p - "a" * g, st)), "combined an array with a str"),
    "no pair": (updating(lambda s, g, p, st: p - g), "Bad.update_rule returned Expr; allowed: the pair"),
    "three": (updating(lambda s, g, p, st: (p, st, st)), "allowed: the pair"),
    "state keys": (updating(lambda s, g, p, st: (p, {"m": g})), r"returned the states \['m'\]; allowed: .* \[\]"),
    "missing state": (updating(lambda s, g, p, st: (p - st["m"], st)), "cannot be traced: KeyError: 'm'"),
    "state no dict": (updating(lambda s, g, p, st: (p, [g])), "Bad.update_rule returned .*; allowed: a dict"),
    "state name": (rule_with(init_state=lambda s, p: {"a b": p}), "allowed: a dict whose keys are identifiers"),
    "state kind": (
        updating(lambda s, g, p, st: (p, {"n": g}), init_state=lambda s, p: {"n": XP(p).zeros(())}),
        r"made the state 'n' an array; init_state gave it the shape \(\)",
    ),
    "state truth": (
        updating(lambda s, g, p, st: (p, {"n": g > 0}), init_state=lambda s, p: {"n": p}),
        "made the state 'n' a truth value",
    ),
    "truth": (updating(lambda s, g, p, st: (g > 0, st)), "returned a truth value as parameter"),
    "pair as point": (rule_with(prepare_param=lambda s, p, st: (p, st)), "prepare_param returned tuple as parameter"),
    "no point": (rule_with(prepare_param=lambda s, p, st: None), "prepare_param returned NoneType as parameter"),
    "pair for evaluation": (rule_with(eval_param=lambda s, p, st: (p, st)), "eval_param returned tuple as parameter"),
    "no parameter": (updating(lambda s, g, p, st: (None, st)), "update_rule returned NoneType as parameter; allowed"),
    "truth in arithmetic": (
        updating(lambda s, g, p, st: (p - (g > 0) * g, st)),
        "computed xp.multiply of the wrong kind",
    ),
    "number as condition": (
        updating(lambda s, g, p, st: (XP(p).where(g, p, g), st)),
        r"allowed: a condition, such as g",
    ),
    "sum in update": (
        updating(lambda s, g, p, st: (p / XP(p).sum(g), st)),
        "Bad used xp.sum outside of 'sums'; remedy",
    ),
    "sum in init": (rule_with(init_state=lambda s, p: {"n": XP(p).sum(p)}), "used xp.sum outside of 'sums'"),
    "sum of a scalar": (
        rule_with(scope="tensor", sums=lambda s, g, p, st: {"n": XP(p).sum(s.lr)}),
        "summed a scalar",
    ),
    "sum of element scope": (
        rule_with(sums=lambda s, g, p, st: {"n": XP(p).sum(g)}),
        r"Bad.sums returned \['n'\] but its scope is 'element'; allowed: 'tensor' or 'model'",
    ),
    "no sum": (
        rule_with(scope="model", sums=lambda s, g, p, st: {"n": XP(p).sqrt(XP(p).sum(g))}),
        "returned 'n', which is not a sum",
    ),
    "sum's name": (rule_with(scope="model", sums=lambda s, g, p, st: {"lr": XP(p).sum(g)}), "'lr', which has another"),
    "scope": (rule_with(scope="layer"), "Bad.scope is 'layer'; allowed: 'element', 'tensor', 'model'"),
    "hyper": (rule_with(hyper="lr"), r"Bad.hyper is 'lr'; allowed: a tuple of names, such as \('lr',\)"),
    "no hyper": (rule_with(hyper=("lr", "beta")), "the hyperparameter Bad.beta is None; allowed: a number"),
    "NaN": (
        rule_with(hyper=("lr", "beta"), beta=float("nan")),
        "Bad.beta is nan; allowed: a finite number",
    ),
    "hyper is true": (rule_with(lr=True), "the hyperparameter Bad.lr is True"),
    "float attribute": (
        rule_with(beta=0.9),
        r"Bad.beta is a float that 'hyper' does not name.*hyper = \('lr', 'beta'\)",
    ),
    "tuple of floats": (rule_with(betas=(1, (0.9, 2))), "the attribute Bad.betas holds floats"),
    "dict of floats": (rule_with(betas={"a": [0.9]}), "the attribute Bad.betas holds floats"),
    "array of floats": (rule_with(mask=np.ones(3)), "the attribute Bad.mask holds floats"),
    "input": (rule_with(new_input=lambda s, i: {"t": "a"}), "Bad.new_input returned 'a' as 't'; allowed: a number"),
    "input's name": (rule_with(new_input=lambda s, i: {"lr": 1.0}), "'lr', which is a hyperparameter"),
    "assigns": (updating(_assign), "Bad.update_rule assigned self.count; allowed: nothing, rules are pure"),
    "counts": (rule_with(new_input=lambda s, i: setattr(s, "t", 1) or {}), "Bad.new_input assigned self.t"),
    "evaluates by an input": (
        rule_with(new_input=lambda s, i: {"t": 1.0}, eval_param=lambda s, p, st: p * s.t),
        r"Bad.eval_param reads self.t, which new_input gives only to a step; allowed: .*in a state of shape \(\)",
    ),
    "evaluates by a sum": (
        rule_with(
            scope="model", sums=lambda s, g, p, st: {"norm": XP(p).sum(g)}, eval_param=lambda s, p, st: p * s.norm
        ),
        "Bad.eval_param reads self.norm, which sums gives only to a step",
    ),
    "raises": (updating(lambda s, g, p, st: 1 / 0), "cannot be traced: ZeroDivisionError"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_rule_that_cannot_be_traced_is_refused(name: str) -> None:
    rule, message = BAD[name]
    with pytest.raises(RuleError, match=message):
        trace_rule(rule)


def test_a_class_is_no_rule() -> None:
    with pytest.raises(RuleError, match=r"allowed: an instance of a subclass of d5\.UpdateRule"):
        trace_rule(d5.SGD)  # type: ignore[arg-type]


def test_a_hyperparameter_that_becomes_no_number_is_named() -> None:
    rule: Any = d5.SGD()
    kernel, _ = make(rule, {"w": (2,)})
    rule.lr = None
    with pytest.raises(RuleError, match=r"SGD at step 3: TypeError.*allowed: numbers named lr"):
        kernel.update({"w": np.ones(2)}, info(3))


def test_an_input_that_disappears_is_named() -> None:
    rule = rule_with(new_input=lambda s, i: {"t": 1.0} if i.step == 0 else {})
    kernel, _ = make(rule, {"w": (2,)})
    with pytest.raises(
        RuleError, match="Bad at step 1: KeyError: 't'; allowed: numbers named lr, t, the same at every"
    ):
        kernel.update({"w": np.ones(2)}, info(1))
