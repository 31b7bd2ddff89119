"""The hand-written training steps of the workloads compute what deep5's steps compute, from the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.recipe.recipe import load_recipe
from deep5.recipe.registered import recipe_names
from deep5.recipes.overhead.workloads import jax_step, pytorch_step
from deep5.recipes.overhead.workloads.workload import Workload, training_step, workload, written_for
from deep5.recipes.overhead.workloads.written import WRITTEN

SEED, STEPS = 3, 3


def without_dropout(recipe: str, dtype: str) -> Workload:
    """The recipe's own size, in a dtype; masks are drawn differently by each framework, so there are none."""
    own = workload(recipe, seed=SEED, changes={"dtype": dtype})
    if own.model_kwargs.get("dropout"):
        own = workload(recipe, seed=SEED, changes={"dtype": dtype, "dropout": 0.0})
    return own


def differences(got: dict[str, Any], want: dict[str, Any]) -> dict[str, float]:
    """By name, the largest difference of two arrays as a share of the largest element."""
    assert got.keys() == want.keys()
    found = {}
    for name, value in want.items():
        ours, theirs = np.asarray(value), np.asarray(got[name])
        assert ours.shape == theirs.shape, name
        found[name] = float(np.abs(ours - theirs).max() / max(np.abs(ours).max(), 1e-30))
    return found


def pytorch_gradients(own: Workload, recipe: str) -> tuple[float, dict[str, Any], Callable[..., Any]]:
    model, _, feeds = pytorch_step.prepared(own, recipe)
    model.train()
    loss = model.loss(**feeds[0])
    loss.backward()
    return loss.item(), {name: value.grad.numpy() for name, value in model.named_parameters()}, model.values_of


def pytorch_training(own: Workload, recipe: str) -> tuple[list[float], dict[str, Any], Callable[..., Any]]:
    model, update, feeds = pytorch_step.prepared(own, recipe)
    model.train()
    losses = []
    for feed in feeds[:1] * STEPS:
        update.zero_grad()
        loss = model.loss(**feed)
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses, {name: value.detach().numpy() for name, value in model.named_parameters()}, model.values_of


def jax_gradients(own: Workload, recipe: str) -> tuple[float, dict[str, Any], Callable[..., Any]]:
    import jax

    with jax.enable_x64(own.network.outputs["loss"].dtype == "float64"):
        model, parameters, feeds = jax_step.prepared(own, recipe)
        of_loss = jax.jit(jax.value_and_grad(model.loss, has_aux=True))
        key, statistics = jax.random.key(0), model.statistics(parameters)
        (loss, _), gradients = of_loss(parameters, statistics, key, **feeds[0])
        return float(loss), {name: np.asarray(value) for name, value in gradients.items()}, model.values_of


def jax_training(own: Workload, recipe: str) -> tuple[list[float], dict[str, Any], Callable[..., Any]]:
    import jax

    with jax.enable_x64(own.network.outputs["loss"].dtype == "float64"):
        model, parameters, feeds = jax_step.prepared(own, recipe)
        step, initial = jax_step.step_of(model, own.rule)
        state, losses = initial(parameters, SEED), []
        for feed in feeds[:1] * STEPS:
            state, loss = step(state, feed)
            losses.append(float(loss))
        return losses, {name: np.asarray(value) for name, value in state[0].items()}, model.values_of


GRADIENTS = {"jax": jax_gradients, "pytorch": pytorch_gradients}
TRAININGS = {"jax": jax_training, "pytorch": pytorch_training}
CASES = [(framework, recipe) for framework, names in WRITTEN.items() for recipe in names]
# On JAX, most compile for up to half a minute.
QUICK = ("generation_autoencoder", "text_lstm")
MARKED = [
    pytest.param(*case, marks=pytest.mark.slow if case[0] == "jax" and case[1] not in QUICK else ()) for case in CASES
]


@pytest.mark.parametrize(("framework", "recipe"), MARKED)
def test_loss_and_gradients_are_those_of_the_network(framework: str, recipe: str) -> None:
    compare_gradients(framework, recipe)


def compare_gradients(framework: str, recipe: str) -> None:
    """In float64, where only another order of the sums makes a difference: below 1e-9 of the largest element."""
    own = without_dropout(recipe, "float64")
    loss, gradients, values_of = GRADIENTS[framework](own, recipe)
    executor = d5.framework("pytorch").executor(own.network)
    wanted = float(executor.inference_and_backprop(own.feeds[0])["loss"])
    assert loss == pytest.approx(wanted, rel=1e-9), "loss"
    found = values_of({name: np.asarray(value) for name, value in executor.gradients().items()})
    # A bias before a softmax over tokens or a batch normalization has no effect: both gradients are rounding.
    largest = max(float(np.abs(value).max()) for value in found.values())
    far = {
        name: difference
        for name, difference in differences(gradients, found).items()
        if difference > 1e-9 and np.abs(found[name] - gradients[name]).max() > 1e-12 * largest
    }
    assert not far, f"gradients: {far}"


@pytest.mark.parametrize(("framework", "recipe"), MARKED)
def test_losses_and_parameters_of_some_steps_are_those_of_the_step(framework: str, recipe: str) -> None:
    compare_training(framework, recipe)
    compare_training(framework, recipe, "float32")


def compare_training(framework: str, recipe: str, dtype: str = "float64") -> None:
    """The losses of some steps, and the parameters after them.

    In float64, to 1e-9 and to a millionth of the rate. In float32, as the recipes run, sums of some thousand terms are
    added in other orders. Adam divides a gradient by its own size: where that is only rounding, two correct steps may
    be opposite. So some elements may differ by up to twice the rate per step: in float64 one in a hundred, in float32
    one in twenty.
    """
    relative, near, share = (1e-9, 1e-6, 0.01) if dtype == "float64" else (1e-4, 0.02, 0.05)
    own = without_dropout(recipe, dtype)
    losses, parameters, values_of = TRAININGS[framework](own, recipe)
    executor = d5.framework("pytorch").executor(own.network)
    step = executor.train_step(own.rule)
    infos = [d5.StepInfo(step=index, batch_size=own.batch_size) for index in range(STEPS)]
    wanted = [float(step(own.feeds[0], info)["loss"]) for info in infos]
    rate = own.rule.lr  # type: ignore[attr-defined]
    after = values_of({name: np.asarray(value) for name, value in executor.parameters().items()})
    apart = np.concatenate([np.abs(after[name] - value).reshape(-1) for name, value in parameters.items()])
    assert apart.max() <= 2.1 * STEPS * rate, "parameters"
    assert np.mean(apart > near * rate) < share, f"parameters, {dtype}"
    assert losses == pytest.approx(wanted, rel=relative), f"losses, {dtype}"


def another_rate(patch: pytest.MonkeyPatch) -> None:
    right = pytorch_step.optimizer

    def wrong(rule: Any, module: Any) -> Any:
        made = right(rule, module)
        made.param_groups[0]["lr"] *= 1.05
        return made

    patch.setattr(pytorch_step, "optimizer", wrong)


def no_decay(patch: pytest.MonkeyPatch) -> None:
    right = pytorch_step.optimizer

    def wrong(rule: Any, module: Any) -> Any:
        made = right(rule, module)
        made.param_groups[0]["weight_decay"] = 0.0
        return made

    patch.setattr(pytorch_step, "optimizer", wrong)


def padding_that_is_attended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("torch.Tensor.masked_fill", lambda scores, mask, value: scores)


def exact_gelu(patch: pytest.MonkeyPatch) -> None:
    right = pytorch_step.prepared

    def wrong(own: Workload, recipe: str) -> Any:
        made = right(own, recipe)
        for block in made[0].blocks:
            block.gelu = "none"
        return made

    patch.setattr(pytorch_step, "prepared", wrong)


def other_gates(patch: pytest.MonkeyPatch) -> None:
    from deep5.recipes.overhead.workloads import weights

    patch.setitem(weights._GATES, 3, (0, 1, 2))


@pytest.mark.parametrize(
    ("plant", "compare", "recipe", "where"),
    [
        (another_rate, compare_training, "generation_autoencoder", "parameters"),
        (another_rate, compare_training, "text_lstm", "parameters"),
        (no_decay, compare_training, "vision_vit", "parameters"),
        (padding_that_is_attended, compare_gradients, "text_phonemes", "loss"),
        (exact_gelu, compare_gradients, "text_gpt", "loss"),
        (other_gates, compare_gradients, "speech_vowels", "loss"),
    ],
)
def test_a_wrong_step_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    compare: Callable[[str, str], None],
    recipe: str,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=where):
        compare("pytorch", recipe)


@pytest.mark.parametrize("recipe", WRITTEN["pytorch"])
def test_timed_steps_have_the_recipes_dropout(recipe: str) -> None:
    """The comparisons above run without it."""
    from torch import nn

    own = workload(recipe, size="smoke", seed=SEED)
    model, _, _ = pytorch_step.prepared(own, recipe)
    theirs = [module.p for module in model.modules() if isinstance(module, nn.Dropout) and module.p]
    assert len(theirs) == bool(theirs)  # one module, applied at each place
    ours = sum(node.op_type == "Dropout" for node in own.network.nodes)
    assert (theirs, ours) == (([0.5], 2) if recipe.startswith("graph_") else ([], 0))


def test_every_workload_is_a_recipe_with_a_benchmark() -> None:
    import workloads as benchmarks

    found = {name for name in recipe_names() if load_recipe(name).fixed.get("candidate") is training_step}
    assert found == {f"overhead_{framework}_{recipe}_step" for framework, recipe in CASES}
    assert {recipe for _, recipe in CASES} == {*benchmarks.RECIPES}


def test_a_recipe_without_a_written_step_is_refused() -> None:
    with pytest.raises(d5.UsageError, match="no step is written for the recipe 'digits_lenet'; allowed: detection_"):
        workload("digits_lenet")
    with pytest.raises(d5.UsageError, match=r"'text_gpt' is written for 'reference'; allowed: pytorch: .*text_gpt"):
        written_for("reference", "text_gpt")
