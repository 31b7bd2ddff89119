"""The networks, batches and update rules of the workloads, taken from the recipes, so that nothing is written twice."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.networks.network import Network
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.own_network import made_network
from deep5.recipe.recipe import FULL, Recipe, load_recipe
from deep5.recipes.overhead.workloads.written import WRITTEN
from deep5.run.assemble_optimizer import make_optimizer
from deep5.run.assemble_samples import samplers, splits_of
from deep5.training.reinforcement.online import OnlineSampler

__all__ = ["BATCHES", "Workload", "training_step", "workload", "written_for"]

Work = Callable[[], object]

BATCHES = 8
"""The largest number of batches, used cyclically."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the two sides of a comparison share.

    Attributes:
        network: The recipe's network.
        model_kwargs: The arguments that it was made with.
        rule: The recipe's update rule, at its initial rate.
        batch_size: Samples of a batch.
        feeds: Training batches by the names of the network's inputs, in its dtypes.
    """

    network: Network
    model_kwargs: Mapping[str, Any]
    rule: d5.UpdateRule
    batch_size: int
    feeds: list[dict[str, np.ndarray]]


def workload(recipe: str, *, size: str = FULL, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Workload:
    """The network, the update rule and the first training batches of a recipe.

    Words are those of a rule, since a dictionary would have to be downloaded; vowels are as many as the batches need.

    Args:
        recipe: Its name, a key of `WRITTEN`.
        size: "full" or "smoke".
        seed: Seed of initial weights and batches.
        changes: Arguments of the network that differ from the recipe's, such as `dtype` or `dropout`.

    Raises:
        UsageError: There is no hand-written step for this recipe.
    """
    if not any(recipe in names for names in WRITTEN.values()):
        names = sorted({name for group in WRITTEN.values() for name in group})
        raise UsageError(f"no step is written for the recipe {recipe!r:.60}; allowed: {', '.join(names)}")
    of_recipe = _with_data(load_recipe(recipe).at_size(size))
    parts = recipe_parts(of_recipe)
    plain, _ = made_network(parts["model"], seed)
    sampler, _, batch_size = samplers(parts, plain, None, splits_of(parts["dataset"]), seed, None)
    if isinstance(sampler, OnlineSampler):
        sampler.bind(d5.framework("reference").executor(plain))
    kwargs = {**of_recipe.value("model_kwargs"), **(changes or {})}
    network, _ = made_network(recipe_parts(_changed(of_recipe, model_kwargs=kwargs))["model"], seed)
    feeds = [
        {name: np.ascontiguousarray(batch[name], spec.dtype) for name, spec in network.inputs.items()}
        for _, batch in itertools.islice(sampler.batches(0), BATCHES)
    ]
    return Workload(
        network=network,
        model_kwargs=kwargs,
        rule=make_optimizer(parts, "pytorch"),
        batch_size=batch_size,
        feeds=feeds,
    )


def _with_data(recipe: Recipe) -> Recipe:
    """The recipe with data that is made in a second, and without a download."""
    samples = BATCHES * recipe.value("batch_size")
    if recipe.value("dataset") == "pronunciations":
        given = {"train": samples, "test": 64, "length": recipe.value("dataset_kwargs")["length"]}
        return _changed(recipe, dataset="synthetic_pronunciations", dataset_kwargs=given)
    if recipe.value("dataset") == "spoken_vowels":
        return _changed(recipe, dataset_kwargs={**recipe.value("dataset_kwargs"), "train": samples, "test": 8})
    return recipe


def _changed(recipe: Recipe, **parts: Any) -> Recipe:
    return replace(recipe, fixed={**recipe.fixed, **parts}, published=False)


def written_for(framework: str, recipe: str) -> Any:
    """The hand-written network of a recipe.

    Raises:
        UsageError: There is none.
    """
    try:
        module, name = WRITTEN[framework][recipe]
    except KeyError:
        raise UsageError(
            f"no step of {recipe!r:.60} is written for {framework!r:.60}; allowed: "
            + "; ".join(f"{which}: {', '.join(names)}" for which, names in WRITTEN.items())
        ) from None
    return getattr(importlib.import_module(f"deep5.recipes.overhead.workloads.{module}"), name)


def training_step(*, steps: int, seed: int, threads: int, framework: str, recipe: str, size: str = FULL) -> Work:
    """Whole training steps by deep5: the candidate of the recipes `overhead_<framework>_<recipe>_step`.

    Args:
        steps: Steps per call.
        seed: Seed of weights and batches.
        threads: Threads of the framework.
        framework: Name of the back-end.
        recipe: Name of the recipe whose training step is timed.
        size: Its size.
    """
    found = d5.framework(framework)
    found.set_threads(threads)
    own = workload(recipe, size=size, seed=seed)
    executor = found.executor(own.network)
    step = executor.train_step(own.rule)
    infos = [d5.StepInfo(step=index, batch_size=own.batch_size) for index in range(steps)]
    feeds = own.feeds

    def work() -> None:
        for info in infos:
            step(feeds[info.step % len(feeds)], info)
        executor.synchronize()

    return work
