"""`DeviceStep`, which updates the parameters on their device, compared with the compiled kernel: here on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core import plugins
from deep5.core.errors import RuleError, ShapeError, UsageError
from deep5.core.executors import ParameterGroup

torch = pytest.importorskip("torch")

from deep5.frameworks.pytorch.step import DeviceStep  # noqa: E402

TORCH = d5.framework("pytorch")
INFO = d5.StepInfo(batch_size=8)
# A few roundings per step, in another order where a sum is involved; twenty steps.
TOLERANCE = {"float64": 1e-11, "float32": 2e-5}


class Everything(d5.UpdateRule):
    """Every function that a rule may call, numbers on either side, in a rule that stays finite."""

    hyper = ("lr",)

    def __init__(self, lr: float = 0.1) -> None:
        self.lr = lr

    def init_state(self, param: Any) -> dict[str, Any]:
        return {"sign": param}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        xp = d5.array_namespace(param)
        square = 1.0 + grad * grad
        bounded = xp.minimum(xp.maximum(grad, -1.0), 1.0)
        smooth = xp.tanh(xp.log(square) - xp.log1p(abs(grad)) + xp.exp(-square) * xp.expm1(-square))
        angle = xp.sin(param) * xp.cos(param) + 2.0 / square - (0.5 - xp.floor(param)) + xp.ceil(grad)
        chosen = xp.where((param > 0) & ~(grad >= 0.1) | (param == 0), xp.full_like(param, 0.1), angle)
        fixed = xp.where(xp.isfinite(param), xp.full_like(param, 0.3), xp.full_like(param, 0.7))
        state = {"sign": 0.5 * xp.sign(grad) - 0.1 * state["sign"] * fixed}
        change = xp.sqrt(square) ** 0.5 * bounded + 2.0**-square * smooth + chosen * state["sign"]
        return param - self.lr * 0.01 * change, state


def rule(name: str) -> Any:
    return Everything() if name == "everything" else plugins.load("optimizers", name)(lr=0.05)


def network(dtype: str = "float32") -> d5.Network:
    return d5.networks.mlp(features=6, hidden=5, classes=3, dtype=dtype, seed=3)


def batch(step: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    return {"input": draw.standard_normal((8, 6)).astype(dtype), "label": draw.integers(0, 3, 8)}


def both(name: str, dtype: str = "float32", **options: Any) -> Any:
    """Executor and step, with the kernel and with torch's functions; and the rules, one for each."""
    pairs = []
    for make in (lambda run, own: run.train_step(own, **options), lambda run, own: DeviceStep(run, own, **options)):
        run, own = TORCH.executor(network(dtype)), rule(name)
        pairs.append((run, make(run, own), own))
    return pairs


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["accelegrad", "adam", "everything", "lars", "momentum", "sgd"])
def test_agrees_with_the_kernel(name: str, dtype: str) -> None:
    (here, kernel, first), (there, step, second) = both(name, dtype)
    for number in range(20):
        first.lr = second.lr = 0.05 if number < 10 else 0.01
        info = d5.StepInfo(step=number, batch_size=8)
        losses = [float(own(batch(number, dtype), info)["loss"]) for own in (kernel, step)]
        np.testing.assert_allclose(*losses, rtol=TOLERANCE[dtype])
    for key, value in here.state_dict().items():
        np.testing.assert_allclose(there.state_dict()[key], value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    ours, theirs = step.state_dict(), kernel.state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == np.asarray(value).dtype
        assert ours[key].shape == np.asarray(value).shape
        np.testing.assert_allclose(ours[key], value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    with kernel.averaged(), step.averaged():
        for key, value in here.state_dict().items():
            np.testing.assert_allclose(there.state_dict()[key], value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert step.traces == 1


def trained(step: Any, run: Any, start: int, stop: int) -> dict[str, Any]:
    for number in range(start, stop):
        step(batch(number), d5.StepInfo(step=number, batch_size=8))
    return {**run.state_dict(), **step.state_dict()}


@pytest.mark.parametrize("name", ["accelegrad", "adam", "lars"])
def test_repeats_and_resumes_bit_for_bit(name: str) -> None:
    def fresh() -> Any:
        run = TORCH.executor(network())
        return DeviceStep(run, rule(name)), run

    whole = trained(*fresh(), 0, 6)
    step, run = fresh()
    trained(step, run, 0, 3)
    kept = run.state_dict(), step.state_dict()
    again, other = fresh()
    other.load_state_dict(kept[0])
    again.load_state_dict(kept[1])
    resumed = trained(again, other, 3, 6)
    assert whole.keys() == resumed.keys()
    for key, value in whole.items():
        np.testing.assert_array_equal(resumed[key], value, err_msg=key)


@pytest.mark.parametrize("name", ["accelegrad", "momentum"])
def test_both_halves_are_the_whole_step(name: str) -> None:
    first, second = TORCH.executor(network()), TORCH.executor(network())
    whole, halves = DeviceStep(first, rule(name)), DeviceStep(second, rule(name))
    for number in range(3):
        info, calls = d5.StepInfo(step=number, batch_size=8), {}
        before = second.state_dict()
        whole(batch(number), info)
        halves.backprop(batch(number), info, lambda name, value, calls=calls: calls.update({name: value.clone()}))
        for key, value in before.items():  # the point of the gradient does not remain
            np.testing.assert_array_equal(second.state_dict()[key], value)
        assert calls.keys() == second.gradients().keys()
        halves.apply({key: d5.to_numpy(value) for key, value in second.gradients().items()}, info)
    for key, value in first.state_dict().items():
        np.testing.assert_array_equal(second.state_dict()[key], value)


def test_groups_frozen_parameters_and_a_modifier() -> None:
    options: dict[str, Any] = {
        "groups": (
            ParameterGroup(lambda name: name.endswith("bias"), lr=0.3),
            ParameterGroup(lambda name: name == "fc1.weight", frozen=True),
        ),
        "modifier": lambda name, param, grad: grad + 0.1 * param,
    }
    names = list(network().parameter_specs)
    assert "fc1.weight" in names
    assert any(name.endswith("bias") for name in names)
    for name in ("accelegrad", "adam"):
        (here, kernel, _), (there, step, _) = both(name, **options)
        for number in range(5):
            for own in (kernel, step):
                own(batch(number), d5.StepInfo(step=number, batch_size=8))
        np.testing.assert_array_equal(there.state_dict()["fc1.weight"], network().initial("fc1.weight"))
        for key, value in here.state_dict().items():
            np.testing.assert_allclose(there.state_dict()[key], value, rtol=2e-5, atol=2e-5)


def test_a_step_that_fails_changes_nothing() -> None:
    run = TORCH.executor(network())
    step = DeviceStep(run, rule("accelegrad"))
    trained(step, run, 0, 2)
    before = {**run.state_dict(), **step.state_dict()}
    with pytest.raises(ShapeError):
        step({"input": batch(0)["input"][:, :2], "label": batch(0)["label"]}, INFO)
    with pytest.raises(ShapeError, match=r"no gradient of 'fc\d"):
        step.apply({}, INFO)
    good = {name: np.zeros(spec.shape, np.float32) for name, spec in run.network.parameter_specs.items()}
    with pytest.raises(ShapeError, match=r"the gradient of 'fc1\.weight': got .*float64"):
        step.apply({**good, "fc1.weight": good["fc1.weight"].astype("float64")}, INFO)
    with step.averaged(), pytest.raises(UsageError, match="inside averaged"):
        step(batch(0), INFO)
    with pytest.raises(ShapeError, match="missing or unknown"):
        step.load_state_dict({})
    for key, value in {**run.state_dict(), **step.state_dict()}.items():
        np.testing.assert_array_equal(value, before[key])


class Remembering(d5.UpdateRule):
    """States that are the parameter and the gradient of the previous step; one array per parameter."""

    hyper, scope = ("lr",), "tensor"

    def __init__(self, lr: float = 0.1) -> None:
        self.lr = lr

    def init_state(self, param: Any) -> dict[str, Any]:
        return {"previous": param, "grad": param}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        new = param - self.lr * grad + 0.5 * (param - state["previous"]) + 0.05 * state["grad"]
        return new, {"previous": param, "grad": grad}


def test_a_state_may_be_what_the_parameter_and_the_gradient_were() -> None:
    here, there = TORCH.executor(network("float64")), TORCH.executor(network("float64"))
    kernel, step = here.train_step(Remembering()), DeviceStep(there, Remembering())
    for number in range(4):
        for own in (kernel, step):
            own(batch(number, "float64"), d5.StepInfo(step=number, batch_size=8))
    for theirs, ours in ((here.state_dict(), there.state_dict()), (kernel.state_dict(), step.state_dict())):
        for key, value in theirs.items():
            np.testing.assert_allclose(ours[key], value, rtol=TOLERANCE["float64"], atol=TOLERANCE["float64"])


def test_refusals() -> None:
    run = TORCH.executor(network())
    for group, message in (
        (ParameterGroup(lambda name: True, frozen=True), "nothing to train by Momentum"),
        (ParameterGroup(lambda name: True, rl=1.0), "hyperparameters of Momentum"),
        (ParameterGroup(lambda name: False, lr=1.0), "matches no parameter"),
    ):
        with pytest.raises(RuleError, match=message):
            DeviceStep(run, rule("momentum"), groups=(group,))


def test_an_update_starts_no_more_work_for_more_layers() -> None:
    """Adam works element by element: it sees all parameters as one vector."""

    def started(depth: int) -> int:
        run = TORCH.executor(d5.networks.resnet(depth=depth, seed=0))
        step = DeviceStep(run, rule("adam"))
        gradients = run.parameters()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            step.apply(gradients, INFO)
        arithmetic = ("aten::mul", "aten::add", "aten::sub", "aten::div", "aten::sqrt", "aten::pow")
        return sum(event.count for event in profile.key_averages() if event.key in arithmetic)

    assert 5 < started(8) == started(20)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["accelegrad", "adam", "lars", "momentum"])
def test_trains_on_a_graphics_processor_as_on_the_host(name: str) -> None:
    torch.backends.cudnn.allow_tf32 = False
    here, there = (TORCH.executor(network(), device=device) for device in ("cpu", "cuda"))
    steps = [run.train_step(rule(name)) for run in (here, there)]
    assert isinstance(steps[1], DeviceStep)
    for number in range(20):
        info = d5.StepInfo(step=number, batch_size=8)
        losses = [float(step(batch(number), info)["loss"]) for step in steps]
        np.testing.assert_allclose(*losses, rtol=1e-4)  # another order of summation in every product, twenty steps
    assert there.parameters()["fc1.weight"].device.type == "cuda"
