"""The recipes that train residual networks do what the papers that they cite did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.networks import resnet50
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.recipes.penalised_momentum import PenalisedMomentum
from deep5.run.assemble import assemble
from deep5.run.execute import execute
from deep5.training.optimizer import RuleOptimizer
from optimizer_table import batch, distance, info, network

NAMES = ("cifar10_resnet44", "imagenet_resnet50")


def rates(recipe: Recipe, plan: d5.Plan, epochs: list[int], steps: int) -> list[float]:
    """The learning rate at the first step of some epochs."""
    schedule = recipe.value("schedules")["lr"]
    return [schedule.value(d5.StepInfo(step=epoch * steps, epoch=epoch), plan) for epoch in epochs]


# -- what the papers say ----------------------------------------------------------------------------------------------


def test_cifar10s_schedule_is_the_papers() -> None:
    """He et al., section 4.2: a tenth at 32 000 and 48 000 of 64 000 steps, here in shares of 180 epochs."""
    recipe = load_recipe("cifar10_resnet44")
    steps = -(-50_000 // recipe.value("batch_size"))
    plan = d5.Plan(epochs=recipe.value("epochs"), steps=steps, batch_size=128)
    assert (recipe.value("batch_size"), plan.total_steps) == (128, 70_380)
    assert rates(recipe, plan, [0, 89, 90, 134, 135, 179], steps) == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert [90 / 180, 135 / 180] == [32 / 64, 48 / 64]
    assert recipe.value("optimizer_args") == (0.1, 0.9)
    assert recipe.value("optimizer_kwargs") == {"weight_decay": 0.0001}


def test_imagenets_schedule_is_the_papers() -> None:
    """Goyal et al., sections 2.1, 2.2 and 5.1."""
    recipe = load_recipe("imagenet_resnet50")
    for size, factor in ((256, 1), (1024, 4)):
        steps = -(-1_281_167 // size)
        plan = d5.Plan(epochs=90, steps=steps, batch_size=size)
        found = rates(recipe, plan, [0, 5, 29, 30, 59, 60, 79, 80, 89], steps)
        reached = [0.1, *(factor * rate for rate in (0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001))]
        assert found == pytest.approx(reached, rel=1e-12)
        # In between, the same amount more at every step.
        middle = recipe.value("schedules")["lr"].value(d5.StepInfo(step=5 * steps // 2, epoch=2), plan)
        assert middle == pytest.approx((0.1 + 0.1 * factor) / 2, rel=1e-3)
    assert recipe.value("optimizer_kwargs") == {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0001}
    assert str(recipe.metrics[0][1]) == ">= 75"


def test_scales_and_biases_have_no_weight_decay() -> None:
    recipe = load_recipe("imagenet_resnet50")
    (group,) = recipe.value("parameter_groups")
    assert group.hyper == {"weight_decay": 0.0}
    made = resnet50(width=2, image=32)
    shapes = {True: set[int](), False: set[int]()}
    for name, spec in made.parameter_specs.items():
        shapes[group.match(name)].add(len(spec.shape))
    assert shapes == {True: {1}, False: {2, 4}}, "vectors have none, matrices and kernels have some"


@pytest.mark.parametrize("framework", ["pytorch", "reference"])
def test_penalised_momentum_is_the_gradient_of_the_penalty(framework: str) -> None:
    """Equals momentum's rule on a gradient with the penalty's gradient added."""
    decay = 0.125
    executors = [d5.framework(framework).executor(network()) for _ in range(2)]
    optimizers = [
        RuleOptimizer(PenalisedMomentum(0.05, 0.9, decay)),
        RuleOptimizer(d5.Momentum(0.05, 0.9), modifier=lambda name, param, grad: grad + decay * param),
    ]
    for executor, optimizer in zip(executors, optimizers, strict=True):
        optimizer.bind(executor)
        for step in range(10):
            optimizer.step(batch(step), info(step, 16))
    one, other = (executor.state_dict() for executor in executors)
    # float64, ten steps; the two add the same three numbers in another order.
    assert distance(one, other) < 1e-13


def test_penalised_momentum_is_torchs_own_with_its_weight_decay() -> None:
    import torch

    executor = d5.framework("pytorch").executor(network())
    twin = d5.framework("pytorch").executor(network())
    leaves = twin.leaves()  # type: ignore[attr-defined]
    theirs = torch.optim.SGD(leaves.values(), lr=0.05, momentum=0.9, weight_decay=0.01)
    ours = RuleOptimizer(PenalisedMomentum(lr=0.05, momentum=0.9, weight_decay=0.01))
    ours.bind(executor)
    for step in range(20):
        ours.step(batch(step), info(step, 16))
        twin.inference_and_backprop(batch(step), info=info(step, 16))
        theirs.step()
    assert distance(executor.state_dict(), twin.state_dict()) < 1e-12
    # Added to the gradient, as a recipe's `weight_decay` does, it is another training.
    beside = d5.framework("pytorch").executor(network())
    decoupled = RuleOptimizer(d5.Momentum(0.05, 0.9), weight_decay=0.01)
    decoupled.bind(beside)
    for step in range(20):
        decoupled.step(batch(step), info(step, 16))
    assert distance(beside.state_dict(), twin.state_dict()) > 1e-3


# -- the smoke sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_smoke_size_reads_the_real_format(name: str) -> None:
    """The smoke size trains on files in the format of the full size, read by the same code."""
    made = assemble(recipe_parts(load_recipe(name).at_size("smoke")))
    described = made.splits.description
    format_of = {"cifar10_resnet44": "CIFAR-10, binary version", "imagenet_resnet50": "TFRecord files"}[name]
    assert described["source"].startswith("synthetic files in the format of ")
    assert format_of in described["source"]
    assert "label = number of the sample modulo classes" in described["rule"]
    ids, inputs = next(iter(made.train_sampler.batches(0)))
    assert inputs["input"].dtype == np.float32
    assert inputs["input"].shape == (len(ids), 3, 32, 32)
    # Normalized: with a deviation of about 1, and not bytes.
    assert 0.3 < inputs["input"].std() < 3


@pytest.mark.parametrize("name", NAMES)
def test_augmentation_differs_by_epoch_and_not_by_run(name: str) -> None:
    recipe = load_recipe(name).at_size("smoke")
    found = []
    for _ in range(2):
        sampler = assemble(recipe_parts(recipe)).train_sampler
        found.append([_by_id(sampler, epoch) for epoch in (0, 1)])
    (first, later), (again, _) = found
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert sum(np.array_equal(first[key], later[key]) for key in first) < len(first) / 4


def _by_id(sampler: Any, epoch: int) -> dict[int, np.ndarray]:
    return {
        int(key): image
        for ids, inputs in sampler.batches(epoch)
        for key, image in zip(ids, inputs["input"], strict=True)
    }


@pytest.mark.parametrize("framework", ["pytorch", "reference"])
def test_the_imagenet_recipe_learns_at_its_smoke_size(framework: str, tmp_path: Path) -> None:
    recipe = load_recipe("imagenet_resnet50").at_size("smoke").with_settings({"framework": framework})
    result = execute(recipe, out=tmp_path)
    assert result.status == "success"
    losses = [row.value for row in result.samples()["training_loss"]]
    assert len(losses) == 12
    # ln 10 is the loss of a network that knows nothing about ten classes.
    assert np.mean(losses[-4:]) < np.log(10)
    assert result.metric("top_k") >= result.metric("test_accuracy") > 0
