"""Invalid arguments are refused in deep5's words, by every back-end alike, and leave the executor usable."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.arguments import most_threads
from deep5.core.errors import Deep5Error, RecipeError, RuleError, ShapeError, UnknownName, UsageError
from deep5.core.events import check_info
from deep5.core.plugins import mode_fault
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import load_recipe
from deep5.run.assemble import assemble
from deep5.training.groups import partition
from trajectory_cases import FRAMEWORKS

BATCH = {"input": np.ones((2, 4), np.float32), "label": np.array([0, 1])}


@pytest.fixture(params=FRAMEWORKS, scope="module")
def executor(request: pytest.FixtureRequest) -> Any:
    """An executor of a network with noise, which is a function of `info`."""
    network = d5.networks.mlp(features=4, hidden=3, classes=2, dropout=0.25)
    return d5.framework(request.param).executor(network)


SCALES: list[Any] = ["2", None, True, [2.0], 1j, Fraction(1, 2), np.array(2.0), np.ones(3), np.float32("nan")]
SCALES += [float("nan"), float("inf"), -float("inf"), 10**400, 1e39]  # the last is not a float32 number


@pytest.mark.parametrize("scale", SCALES, ids=repr)
def test_a_scale_that_is_no_finite_number_is_refused(executor: Any, scale: Any) -> None:
    for _ in range(2):  # a refused value is not cached as valid
        with pytest.raises(UsageError, match=r"^loss_scale: got .*; allowed: a finite number, at most 3\.4e\+38 for "):
            executor.inference_and_backprop(BATCH, loss_scale=scale)


def test_a_scale_is_any_finite_number(executor: Any) -> None:
    executor.inference_and_backprop(BATCH)
    single = {name: np.array(d5.to_numpy(value)) for name, value in executor.gradients().items()}
    for scale in (4.0, 4, np.float64(4), np.float32(4), np.float16(4), np.int64(4), -4, 0):
        executor.inference_and_backprop(BATCH, loss_scale=scale)
        for name, value in executor.gradients().items():
            # scaling by a power of 2, or by 0, rounds nothing
            np.testing.assert_array_equal(d5.to_numpy(value), float(scale) * single[name])


WRT: dict[str, Any] = {
    "number": 3,
    "text": "input",
    "nothing": [],
    "used up": (name for name in ["input"]),
    "numbers": [3],
    "none": ["input", None],
    "lists": [["input"]],
    "sets": [{"input"}],
}


@pytest.mark.parametrize("what", WRT)
def test_what_is_no_list_of_names_is_refused(executor: Any, what: str) -> None:
    with pytest.raises(UsageError, match=r"^wrt: .*allowed: .*names"):
        executor.inference_and_backprop(BATCH, wrt=WRT[what])
    executor.inference_and_backprop(BATCH, wrt={"input": 1}.keys())
    assert list(executor.gradients()) == ["input"]


@pytest.mark.parametrize("loss", [3, None, ["loss"], {"loss": 1}, b"loss"], ids=repr)
def test_a_loss_that_is_no_name_is_refused(executor: Any, loss: Any) -> None:
    message = "^got .* as the loss; allowed: a name, logits, loss$"
    with pytest.raises(UsageError, match=message):
        executor.inference_and_backprop(BATCH, loss)
    with pytest.raises(UsageError, match=message):
        executor.train_step(d5.SGD(), loss)


def test_a_loss_that_is_no_output_is_refused_where_the_step_is_made(executor: Any) -> None:
    with pytest.raises(UnknownName, match="unknown loss 'lost'; allowed: logits, loss; did you mean 'loss'"):
        executor.train_step(d5.SGD(), "lost")


def refuse_everywhere(executor: Any, info: Any, message: str) -> None:
    """Every call that takes an `info` refuses this one, and nothing changes."""
    before, step = executor.state_dict(), executor.train_step(d5.Adam())
    gradients = {name: np.ones_like(value) for name, value in before.items()}
    for call in (
        lambda: executor.inference(BATCH, training=True, info=info),
        lambda: executor.inference_and_backprop(BATCH, info=info),
        lambda: step(BATCH, info),
        lambda: step.backprop(BATCH, info),
        lambda: step.apply(gradients, info),
    ):
        with pytest.raises(UsageError, match=message):
            call()
    for name, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("info", [0, "0", (0, 0, 2), {"step": 1}], ids=repr)
def test_an_info_that_is_none_is_refused(executor: Any, info: Any) -> None:
    refuse_everywhere(executor, info, r"^info: got .*; allowed: a StepInfo; remedy: deep5\.StepInfo\(")


INFOS: list[Any] = [
    d5.StepInfo(step=-1),
    d5.StepInfo(step=1.5),  # type: ignore[arg-type]
    d5.StepInfo(step=True),
    d5.StepInfo(step="1"),  # type: ignore[arg-type]
    d5.StepInfo(epoch=-1),
    d5.StepInfo(batch_size=-3),
    d5.StepInfo(seed="a"),  # type: ignore[arg-type]
    d5.StepInfo(seed=None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("info", INFOS, ids=repr)
def test_an_info_of_what_is_no_step_is_refused(executor: Any, info: d5.StepInfo) -> None:
    """Adam divides by 1 - beta ** (step + 1): at step -1 that is 0, and every parameter is lost."""
    refuse_everywhere(executor, info, r"^info: got (step|epoch|batch_size|seed)=.*; allowed: an integer")


def test_an_info_is_of_any_whole_numbers() -> None:
    class Own(d5.StepInfo):
        """A user-defined class."""

    for info in (d5.StepInfo(np.int64(3), 0, np.int32(2), None, np.uint8(1)), Own(), d5.StepInfo(seed=-1)):  # type: ignore[arg-type]
        assert check_info(info) is info


@pytest.mark.parametrize("seed", ["a", None, 1.5, True, -1, 2**63, 2**70], ids=repr)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_seed_is_a_whole_number(framework: str, seed: Any) -> None:
    network = d5.networks.mlp(features=4, hidden=3, classes=2)
    with pytest.raises(UsageError, match=r"^seed: got .*; allowed: an integer from 0 to 2\*\*63 - 1; remedy: seed=0"):
        d5.framework(framework).executor(network, seed=seed)


def test_the_largest_seed() -> None:
    network = d5.networks.mlp(features=4, hidden=3, classes=2, dropout=0.25)
    losses = [
        d5.framework("reference").executor(network, seed=seed).inference(BATCH, training=True)["loss"]
        for seed in (2**63 - 1, 2**63 - 1, 0)
    ]
    assert losses[0] == losses[1] != losses[2]


NO_NETWORKS: dict[str, tuple[Any, str]] = {
    "a name": ("lenet", r"'lenet' as the network; allowed: a Network; remedy: .*one of deep5\.networks"),
    "a file": ("mine.onnx", r"remedy: deep5\.networks\.Network\.from_onnx\('mine\.onnx'\)"),
    "a path": (Path("mine.onnx"), r"remedy: deep5\.networks\.Network\.from_onnx\('mine\.onnx'\)"),
    "no parentheses": (d5.networks.lenet, r"remedy: call it: lenet\(…\), with parentheses"),
    "nothing": (None, r"None as the network; allowed: a Network"),
}


@pytest.mark.parametrize("what", NO_NETWORKS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_no_network_is_refused(framework: str, what: str) -> None:
    given, message = NO_NETWORKS[what]
    with pytest.raises(UsageError, match=f"^executor: got .*{message}"):
        d5.framework(framework).executor(given)


@pytest.mark.parametrize(
    "threads", [0, -1, True, 1.0, "2", None, most_threads() + 1, 10**6, 10**400], ids=lambda n: f"{n}"[:9]
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_number_of_threads_that_would_end_the_process_is_refused(framework: str, threads: Any) -> None:
    message = rf"threads; allowed: an integer from 1 to {most_threads()}; remedy: one per proc"
    with pytest.raises(UsageError, match=message):
        d5.framework(framework).set_threads(threads)


def test_a_recipe_names_what_is_wrong_with_its_threads() -> None:
    recipe = load_recipe("digits_lenet").at_size("smoke").with_settings({"threads": 100_000})
    with pytest.raises(RecipeError, match=f"'threads': got 100000 threads; allowed: .* to {most_threads()}; remedy"):
        assemble(recipe_parts(recipe))


def test_a_back_end_of_somebody_elses_is_bounded_too() -> None:
    """By what it inherits: its own code is not checked."""

    class Own(type(d5.framework("reference"))):  # type: ignore[misc]
        def set_threads(self, threads: int) -> None:
            super().set_threads(threads)

    assert Own.set_threads.__name__ == "set_threads"
    with pytest.raises(UsageError, match="got 100000 threads"):
        Own().set_threads(100_000)


@pytest.mark.parametrize("name", [None, 5, ["pytorch"], d5.framework("reference")], ids=["None", "5", "list", "object"])
def test_a_framework_has_a_name(name: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^got .* as a framework; allowed: a name, .*pytorch.*; remedy: deep5\.framework"
    ):
        d5.framework(name)


def test_a_colon_asks_for_a_mode() -> None:
    message = "got the framework 'pytorch:', a colon without a mode; allowed: 'pytorch' or 'pytorch:compiled' or "
    message += "'pytorch:exported'"
    with pytest.raises(UsageError) as caught:
        d5.framework("pytorch:")
    assert str(caught.value) == mode_fault("pytorch:") == message


def test_a_state_is_a_dict(executor: Any) -> None:
    for state in (None, 3, [1], "state.npz"):
        with pytest.raises(
            UsageError, match=r"^state: got .*; allowed: a dict of arrays by name; remedy: what state_d"
        ):
            executor.load_state_dict(state)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_called_back_can_be_called(framework: str) -> None:
    executor = d5.framework(framework).executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    with pytest.raises(UsageError, match=r"^modifier: got 3; allowed: None or a function; remedy: modifier\(…\)"):
        executor.train_step(d5.SGD(), modifier=3)
    step, message = (
        executor.train_step(d5.SGD()),
        r"^on_gradient: got 3; allowed: None or a function; remedy: on_gradie",
    )
    with pytest.raises(UsageError, match=message):
        executor.inference_and_backprop(BATCH, on_gradient=3)
    with pytest.raises(UsageError, match=message):
        step.backprop(BATCH, d5.StepInfo(), on_gradient=3)


@pytest.mark.parametrize(
    "value", ["a", None, True, 1j, [0.1], float("nan"), float("inf"), 10**400], ids=lambda v: f"{v}"[:9]
)
def test_the_hyperparameters_of_a_group_are_finite_numbers(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^ParameterGroup: got lr=.*; allowed: finite numbers; remedy: lr=0\.01, say"):
        d5.ParameterGroup(lambda name: True, lr=value)
    for number in (1, 0.5, np.float32(0.5), np.int64(2)):
        assert d5.ParameterGroup(lambda name: True, lr=number).hyper == {"lr": number}


@pytest.mark.parametrize("frozen", ["no", 1, None, np.zeros(2)], ids=repr)
def test_a_group_is_frozen_or_not(frozen: Any) -> None:
    with pytest.raises(UsageError, match=r"^ParameterGroup: got frozen=.*; allowed: True or False"):
        d5.ParameterGroup(lambda name: True, frozen=frozen)


@pytest.mark.parametrize("rule", [d5.SGD(lr=0.1), d5.AcceleGrad(lr=0.1)], ids=repr)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_without_noise_asks_for_an_info_too(framework: str, rule: Any) -> None:
    executor = d5.framework(framework).executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    step, before = executor.train_step(rule), executor.state_dict()
    for call in (step, step.backprop):
        for info in (0, None):
            with pytest.raises(UsageError, match=r"^info: got "):
                call(BATCH, info)
    for name, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


INPUTS: dict[str, Any] = {
    "texts": np.array([["a"] * 4] * 2),
    "bytes": np.zeros((2, 4), "S3"),
    "objects": np.array([[object()] * 4] * 2),
    "numbers as objects": np.ones((2, 4), object),
    "dates": np.zeros((2, 4), "M8[s]"),
    "records": np.zeros((2, 4), [("a", np.float32)]),
    "complex": np.ones((2, 4), np.complex64),
    "lists of texts": [["a"] * 4] * 2,
    "ragged": [[1.0], [1.0, 2.0]],
    "none": None,
    "object": object(),
    "dict": {},
    "text": "abc",
}


@pytest.mark.parametrize("what", INPUTS)
def test_inputs_that_are_no_arrays_of_numbers_are_refused(executor: Any, what: str) -> None:
    step = executor.train_step(d5.SGD())
    wrong = {**BATCH, "input": INPUTS[what]}
    for call in (executor.inference, executor.inference_and_backprop, lambda batch: step(batch, d5.StepInfo())):
        with pytest.raises(ShapeError, match=r"^input 'input': "):
            call(wrong)


def test_after_all_that_it_runs(executor: Any) -> None:
    before = executor.state_dict()
    outputs = executor.train_step(d5.SGD())(BATCH, d5.StepInfo())
    assert np.isfinite(d5.to_numpy(outputs["loss"]))
    assert any((value != before[name]).any() for name, value in executor.state_dict().items())


GROUP = d5.ParameterGroup(lambda name: True)


@pytest.mark.parametrize(
    "groups",
    [GROUP, "fc1", 3, None, {"lr": 1.0}, [GROUP, str.isalpha], {GROUP}],
    ids=["one", "text", "number", "nothing", "dict", "a function among them", "set"],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_groups_are_a_sequence_of_groups(framework: str, groups: Any) -> None:
    executor = d5.framework(framework).executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    with pytest.raises(UsageError, match=r"^groups: got .*; allowed: a sequence of ParameterGroup; remedy: groups="):
        executor.train_step(d5.SGD(), groups=groups)


@pytest.mark.parametrize("match", ["fc1", 3, None, ["fc1"]], ids=repr)
def test_a_group_is_matched_by_a_function(match: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^ParameterGroup: got .* as match; allowed: a function of a parameter's name"
    ):
        d5.ParameterGroup(match)


@pytest.mark.parametrize("answer", [1, "yes", None, np.zeros(2), []], ids=repr)
def test_a_match_is_true_or_false(answer: Any) -> None:
    specs = {"w": d5.TensorSpec(shape=(2,))}
    with pytest.raises(UsageError, match=r"^parameter group 1: match\('w'\) gave .*; allowed: True or False; remedy: "):
        partition(specs, [d5.ParameterGroup(lambda name: False), d5.ParameterGroup(lambda name: answer)])
    assert partition(specs, [d5.ParameterGroup(lambda name: np.bool_(True), lr=0.5)]) == [(specs, {"lr": 0.5})]


def test_all_of_it_is_said_in_one_line() -> None:
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    calls: list[Any] = [
        lambda: executor.inference_and_backprop(BATCH, loss_scale=np.ones((500, 2))),
        lambda: executor.inference_and_backprop(BATCH, wrt=[np.ones((500, 2))]),
        lambda: executor.inference_and_backprop(BATCH, info=None, loss=["x" * 1000]),
        lambda: partition({"w": d5.TensorSpec(shape=())}, [d5.ParameterGroup(lambda name: np.ones((500, 2)))]),
        lambda: executor.train_step(d5.SGD(), groups=[np.ones((500, 2))]),
        lambda: d5.ParameterGroup(np.ones((500, 2))),
    ]
    for call in calls:
        with pytest.raises(Deep5Error) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, None, "0.1"], ids=lambda v: f"{v}"[:9])
def test_a_hyperparameter_is_looked_at_at_every_step(framework: str, value: Any) -> None:
    network = d5.networks.mlp(features=3, hidden=2, classes=2)
    executor = d5.framework(framework).executor(network)
    rule = d5.SGD(lr=0.1)
    step = executor.train_step(rule)
    given = {"input": np.ones((2, 3), np.float32), "label": np.array([0, 1])}
    step(given, d5.StepInfo(batch_size=2))
    before = executor.state_dict()
    rule.lr = value
    with pytest.raises(RuleError, match=r"SGD at step 1: .*; allowed: (finite )?numbers"):
        step(given, d5.StepInfo(step=1, batch_size=2))
    for name, array in executor.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_native_optimizer_takes_finite_numbers_alone(framework: str) -> None:
    for name in ("sgd", "adam"):
        for value in (math.nan, -math.inf, 10**400, "0.1", None):
            with pytest.raises(UsageError, match=r"got lr=.*; allowed: a finite number"):
                d5.framework(framework).optimizer(name)(lr=value)  # type: ignore[arg-type]
