"""Recipe to components: the only place where names become objects."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.backend import GraphExecutor, StepOptimizer
from deep5.errors import Deep5Error, MissingDependency, RecipeError, UnknownName, Unsupported, UsageError
from deep5.events import Event
from deep5.plugins import framework, load, missing_dependency
from deep5.recipe import Recipe
from deep5.seeds import derive_seed
from deep5.tensors import device

__all__ = ["Components", "assemble", "check_arguments", "component", "make", "make_candidate"]


@dataclass(frozen=True, kw_only=True)
class Components:
    """What a training recipe names, made."""

    framework: str
    executor: GraphExecutor
    optimizer: Any
    splits: Any
    train_sampler: Any
    validation_sampler: Any
    events: tuple[Event, ...]
    seeds: dict[str, int]


def component(recipe: Recipe, key: str, kind: str) -> Any:
    """The object under a key: loaded by name, or from `FILE.py:NAME`, or as the recipe gave it.

    Raises:
        UsageError: It cannot be found; the message names the recipe's file and line.
    """
    value = recipe.value(key)
    return _resolve(recipe, key, kind, value)


def _resolve(recipe: Recipe, key: str, kind: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if ".py:" in value:
            return _from_file(value)
        return load(kind, value)
    except MissingDependency:
        raise
    except UsageError as error:
        raise RecipeError(f"{recipe.where(key)}{error}") from error


def _from_file(text: str) -> Any:
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"the file {file} of the component {text!r} is not there; allowed: FILE.py:NAME")
    spec = importlib.util.spec_from_file_location(f"deep5_component_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the file {file} is no Python file; allowed: FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{file} raised {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UsageError(f"{file} has no {name!r}; allowed: a name that it defines")
    return getattr(module, name)


def make(recipe: Recipe, key: str, made: Any, *given: Any, **named: Any) -> Any:
    """Call a component with what the runner gives and with the recipe's `_args` and `_kwargs`, which win.

    Raises:
        RecipeError: The arguments do not fit; the message names key, file and line.
    """
    args, kwargs = tuple(recipe.value(f"{key}_args")), dict(recipe.value(f"{key}_kwargs"))
    if not callable(made):
        if args or kwargs:
            raise RecipeError(f"{recipe.where(key)}{key!r} is an object already, so {key}_args and {key}_kwargs cannot be used")
        return made
    takes = _parameters(made)
    named = {name: value for name, value in named.items() if takes is None or name in takes}
    check_arguments(recipe, key, made, (*given, *args), {**named, **kwargs})
    try:
        return made(*given, *args, **{**named, **kwargs})
    except Deep5Error as error:
        if isinstance(error, UsageError) and not isinstance(error, MissingDependency):
            raise RecipeError(f"{recipe.where(key)}{key!r}: {error}") from error
        raise
    except ModuleNotFoundError as error:
        raise missing_dependency(f"{key} {recipe.value(key)!r}", error) from error
    except Exception as error:
        raise RecipeError(f"{recipe.where(key)}{key!r} raised {type(error).__name__} while it was made: {error}") from error


def check_arguments(recipe: Recipe, key: str, made: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Whether arguments fit a component's signature.

    Raises:
        RecipeError: They do not.
    """
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise RecipeError(f"{recipe.where(key)}the arguments of {key!r} do not fit: {error}; allowed: {signature}") from error


def _parameters(made: Any) -> set[str] | None:
    """Names of the parameters, or None where any keyword goes."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def assemble(recipe: Recipe) -> Components:
    """Make everything that a training recipe names.

    Raises:
        UsageError: A component cannot be found or made, or two do not fit each other.
        Unsupported: The framework cannot run the network.
    """
    seed = recipe.value("seed")
    seeds = {purpose: derive_seed(seed, purpose) for purpose in ("weights", "order", "noise")}
    name, build = _executor_factory(recipe)
    network = make(recipe, "model", component(recipe, "model", "networks"), seed=seeds["weights"])
    splits = make(recipe, "dataset", component(recipe, "dataset", "datasets"))
    batch_size = recipe.value("batch_size")
    try:
        train, test = splits.train.cast(network.inputs), splits.test.cast(network.inputs)
    except UsageError as error:
        raise RecipeError(f"{recipe.where('dataset')}data set and network do not fit: {error}") from error
    train_sampler = make(
        recipe, "train_sampler", component(recipe, "train_sampler", "samplers"), train, batch_size, seed=seeds["order"]
    )
    # Evaluation keeps nothing for a gradient: larger batches cost no memory to speak of, and less time.
    validation = make(
        recipe,
        "validation_sampler",
        component(recipe, "validation_sampler", "samplers"),
        test,
        min(max(batch_size, 256), len(test)),
        seed=seeds["order"],
    )
    executor = build(network, seeds["noise"])
    return Components(
        framework=name,
        executor=executor,
        optimizer=_optimizer(recipe, name),
        splits=splits,
        train_sampler=train_sampler,
        validation_sampler=validation,
        events=_events(recipe),
        seeds={"run": seed, **seeds},
    )


def _executor_factory(recipe: Recipe) -> tuple[str, Callable[[Any, int], GraphExecutor]]:
    place = device(recipe.value("device"))
    if recipe.value("framework") is not None:
        name = recipe.value("framework")
        if not isinstance(name, str):
            raise RecipeError(f"{recipe.where('framework')}'framework' is {name!r}; allowed: the name of a framework")
        try:
            found = framework(name)
        except UnknownName as error:
            raise RecipeError(f"{recipe.where('framework')}{error}") from error
        return name, lambda network, seed: make(recipe, "framework", found.executor, network, device=place, seed=seed)
    given = component(recipe, "executor", "frameworks")
    made = given().executor if isinstance(given, type) and hasattr(given, "executor") else given
    module = str(getattr(made, "__module__", "")).split(".")
    name = module[2] if module[:2] == ["deep5", "frameworks"] and len(module) > 2 else str(recipe.value("executor"))
    return name, lambda network, seed: make(recipe, "executor", made, network, device=place, seed=seed)


def _optimizer(recipe: Recipe, framework_name: str) -> Any:
    value = recipe.value("optimizer")
    if isinstance(value, str) and value.startswith("native:"):
        try:
            return make(recipe, "optimizer", framework(framework_name).optimizer(value.removeprefix("native:")))
        except UnknownName as error:
            raise RecipeError(f"{recipe.where('optimizer')}{error}") from error
    made = component(recipe, "optimizer", "optimizers")
    optimizer = make(recipe, "optimizer", made) if isinstance(made, type) or inspect.isroutine(made) else made
    from deep5.training.rule import UpdateRule

    if not isinstance(optimizer, (UpdateRule, StepOptimizer)):
        raise RecipeError(
            f"{recipe.where('optimizer')}'optimizer' gives a {type(optimizer).__name__}; allowed: a d5.UpdateRule, or an "
            "object with bind, step, state_dict and load_state_dict"
        )
    return optimizer


def _events(recipe: Recipe) -> tuple[Event, ...]:
    value = recipe.value("events")
    single = not isinstance(value, (list, tuple))
    events = []
    for item in [value] if single else value:
        made = _resolve(recipe, "events", "events", item)
        if isinstance(made, type) or inspect.isroutine(made):
            made = make(recipe, "events", made)
        if not isinstance(made, Event):
            raise RecipeError(f"{recipe.where('events')}'events' holds a {type(made).__name__}; allowed: d5.Event objects, "
                              "their classes or names")
        events.append(made)
    return tuple(events)


def make_candidate(recipe: Recipe, key: str) -> Any:
    """One side of a timing recipe: `candidate` or `baseline` called with its arguments.

    Raises:
        RecipeError: It is no function, or what it gives cannot be called.
    """
    made = _resolve(recipe, key, "candidates", recipe.value(key))
    if not callable(made):
        raise RecipeError(f"{recipe.where(key)}{key!r} is {made!r}; allowed: a function that returns a function of no arguments")
    workload = make(recipe, key, made, steps=recipe.value("steps"), seed=recipe.value("seed"))
    if not callable(workload):
        raise RecipeError(f"{recipe.where(key)}{key!r} gave {workload!r}; allowed: a function of no arguments")
    return workload


