"""Check whether a training recipe can run: its components exist and accept their arguments."""

from __future__ import annotations

from deep5.core.errors import RecipeError, RuleError, UsageError
from deep5.core.former_paths import present_name
from deep5.core.plugins import registered
from deep5.recipe.experiment import Experiment
from deep5.recipe.part import Part, Parts
from deep5.run.assemble_executor import named_executor, named_framework
from deep5.run.assemble_scheme import plain_scheme
from deep5.run.check_made import check_made
from deep5.run.weights import initial_weights

__all__ = ["check_arguments", "check_training"]

_TRAINED = (
    "model",
    "dataset",
    "train_sampler",
    "validation_sampler",
    "optimizer",
    "executor",
)
# Keys that may name an object in a file that is not a component with arguments.
_IN_FILES = ("batch_size", "parameter_groups")
_LISTED = ("events", "train_transforms", "test_transforms")
# Components of these kinds that ship with deep5 load no framework; others are looked up but not loaded.
_LIGHT = {"networks", "datasets", "samplers", "optimizers"}
# Arguments that the runner passes: the number of positional ones before the recipe's own, and these by name.
_GIVEN = {"train_sampler": 2, "validation_sampler": 2, "executor": 1}
_BY_NAME = dict.fromkeys(("seed", "device"))


def check_arguments(parts: Parts) -> None:
    """Check that the components of a training that load no framework accept their arguments.

    Args:
        parts: The recipe's parts.

    Raises:
        RecipeError: One does not, or cannot be found.
        MissingDependency: A package that one needs is not installed.
    """
    for part in (parts[key] for key in _TRAINED):
        if part.value is None or (isinstance(part.value, str) and not _light(part.kind, part.value)):
            continue
        made = named_executor(part)[1] if part.key == "executor" else part.component()
        part.check(made, *(None,) * _GIVEN.get(part.key, 0), **_BY_NAME)


def check_training(experiment: Experiment) -> list[str]:
    """As `deep5.run.workload.Workload.check`."""
    parts = experiment.parts
    check_arguments(parts)
    for part in (parts[key] for key in _IN_FILES):
        if isinstance(part.value, str) and ".py:" in part.value:
            part.component()
    chosen = parts["framework"].value
    if chosen is not None and not (isinstance(chosen, str) and ".py:" not in chosen):
        parts["framework"].check(named_framework(parts).executor, None, **_BY_NAME)
    if experiment.ranks is not None:
        plain_scheme(parts)
    initial_weights(parts["init"])
    for part in (parts[key] for key in _LISTED):
        for made in part.components():
            # A transform that is a function without arguments is not called to make it.
            if part.kind == "events" or isinstance(made, type) or part.args or part.kwargs:
                part.check(made)
    return [*_check_rule(parts["optimizer"]), *check_made(experiment)]


def _light(kind: str, name: str) -> bool:
    """Whether a component may be loaded by name to inspect its signature."""
    point = registered(kind).get(present_name(kind, name)) if kind in _LIGHT else None
    return ".py:" in name or (point is not None and point.value.startswith("deep5."))


def _check_rule(part: Part) -> list[str]:
    """Run the recipe's own update rule; deep5's tests cover the rules that deep5 ships."""
    if isinstance(part.value, str) and ".py:" not in part.value:
        return []
    made = part.component()
    kind = made if isinstance(made, type) else type(made)
    from deep5.training.rule import UpdateRule

    if kind.__module__.startswith("deep5.") or not issubclass(kind, UpdateRule):
        return []
    from deep5.training.check import check_optimizer

    try:
        check_optimizer(part.make(made))
    except RuleError as error:
        raise RecipeError(f"{part.where}{error}") from error
    except UsageError:
        raise
    except Exception as error:
        raise RecipeError(
            f"{part.where}{kind.__name__} raised {type(error).__name__} while it was checked: {error}; "
            "remedy: --debug shows where"
        ) from error
    return [f"{kind.__name__} keeps the contract of an update rule (also under array_api_strict)"]
