"""Check whether the components of a training recipe fit each other: all are made as for a run, except the executor."""

from __future__ import annotations

import functools
from typing import Any

from deep5.core.errors import Deep5Error, RecipeError, contained
from deep5.recipe.experiment import Experiment
from deep5.recipe.generators import seeded_call
from deep5.recipe.own_network import made_network
from deep5.recipe.part import Parts
from deep5.run.assemble_executor import device_of, framework_of
from deep5.run.assemble_network import network_part
from deep5.run.assemble_optimizer import events_of, float16_warnings, make_optimizer
from deep5.run.assemble_samples import samplers, splits_of
from deep5.run.observers import check_metrics, observers_of
from deep5.run.weights import prepared

__all__ = ["check_made"]


def check_made(experiment: Experiment) -> list[str]:
    """Make optimizer, events, network and data set of a recipe, and check that they fit.

    No data set is downloaded, and a framework is loaded only for its own optimizer.

    Returns:
        Notes on what a run checks beyond this, and on what it warns of.

    Raises:
        RecipeError: A run would be refused; the message names key, file and line.
        MissingDependency: A package that a component needs is not installed.
    """
    with contained():
        observers_of(experiment)
        return _checked(experiment, experiment.parts)


def _checked(experiment: Experiment, parts: Parts) -> list[str]:
    from deep5.core.seeds import derive_seed
    from deep5.training.downloads import DataMissing, nothing_fetched
    from deep5.training.trainer import check_names

    optimizer = make_optimizer(parts, _framework_name(parts))
    events_of(parts, optimizer)
    _check_rule(parts, optimizer)
    seed = parts["seed"].value
    weights = derive_seed(seed, "weights")
    made = made_network(parts["model"], weights)[0]

    @functools.cache
    def splits() -> Any:
        with nothing_fetched():
            return splits_of(parts["dataset"], parts["validation"])

    notes: list[str] = []
    try:
        found = seeded_call(
            weights,
            lambda: network_part(
                parts, made, splits, lambda: framework_of(parts), device=device_of(parts), seed=weights
            ),
        )
        if found is None:
            return ["the network is native code: a run checks that it fits the data set"]
        network: Any = found.executor(0).network if found.graph is None else prepared(parts, found.graph)
        try:
            check_names(network)
        except Deep5Error as error:
            raise RecipeError(f"{parts['model'].where}'model': {error}") from error
        check_metrics(experiment, network)
        notes = float16_warnings(network, optimizer)
        samplers(parts, network, found.own, splits(), derive_seed(seed, "order"), None)
    except RecipeError as error:
        if not isinstance(error.__cause__, DataMissing):
            raise
        notes.append(f"not checked: whether network and batch size fit the data; {error.__cause__}")
    return notes


def _framework_name(parts: Parts) -> str:
    """Name of the framework; loaded only if the optimizer is its own."""
    value = parts["optimizer"].value
    if not (isinstance(value, str) and value.startswith("native:")):
        return ""
    from deep5.run.assemble_executor import executor_factory

    return executor_factory(parts)[0]


def _check_rule(parts: Parts, optimizer: Any) -> None:
    """Check what binding an update rule would reject, such as a hyperparameter that is no number."""
    from deep5.training.rule import UpdateRule
    from deep5.training.trace import trace_rule

    rule = getattr(optimizer, "rule", optimizer)
    if not isinstance(rule, UpdateRule):
        return
    try:
        trace_rule(rule)
    except Deep5Error as error:
        raise RecipeError(f"{parts['optimizer'].where}{error}") from error
