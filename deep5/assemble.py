"""A training recipe, made: everything that it names, fitted together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.backend import Framework
from deep5.components import component, event_components, make, not_a
from deep5.environment import default_threads
from deep5.errors import Deep5Error, MissingDependency, RecipeError, UnknownName, UsageError
from deep5.events import Event
from deep5.executors import GraphExecutor, StepOptimizer
from deep5.plugins import framework, missing_dependency, registered
from deep5.recipe import Recipe
from deep5.seeds import derive_seed
from deep5.tensors import device

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["Components", "assemble", "initial_weights"]


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
    threads: int | None
    warnings: tuple[str, ...]


def assemble(recipe: Recipe) -> Components:
    """Make everything that a training recipe names.

    Raises:
        RecipeError: A component cannot be found or made, or two do not fit each other, or the framework cannot run
            the network or has no such device.
        MissingDependency: A package that one needs is not installed.
    """
    from deep5.networks.network import Network
    from deep5.training.dataset import Splits
    from deep5.training.sampler import Sampler

    seed = recipe.value("seed")
    seeds = {purpose: derive_seed(seed, purpose) for purpose in ("weights", "order", "noise")}
    name, known, build = _executor_factory(recipe)
    # Before the executor: some frameworks fix their threads when they first compute; and those start JAX.
    threads, warnings = None, []
    if known is not None:
        warnings = _set_numerics(recipe, known)
        threads, more = _set_threads(recipe, known)
        warnings += more
    network = make(recipe, "model", component(recipe, "model", "networks"), seed=seeds["weights"])
    executor = None
    if isinstance(network, Network):
        network = _with_initial_weights(recipe, network)
    else:
        executor = _native_executor(recipe, network, build, seeds["noise"])
        network, name = executor.network, executor.settings().get("framework", name)
    splits = make(recipe, "dataset", component(recipe, "dataset", "datasets"))
    if not isinstance(splits, Splits):
        raise not_a(recipe, "dataset", splits, "Splits (deep5.training.dataset), or a function that gives them")
    batch_size = recipe.value("batch_size")
    if batch_size > len(splits.train):
        raise RecipeError(
            f"{recipe.where('batch_size')}'batch_size' is {batch_size}; allowed: at most {len(splits.train)}, "
            "the number of training samples"
        )
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
    for key, sampler in (("train_sampler", train_sampler), ("validation_sampler", validation)):
        if not isinstance(sampler, Sampler):
            raise not_a(recipe, key, sampler, "a d5.Sampler, its class or name")
    if executor is None:
        executor = _executor(recipe, build, network, seeds["noise"])
    if known is None and recipe.value("threads") is not None:
        threads, warnings = _set_threads(recipe, _framework_of(recipe, executor, "threads"))
    if known is None:
        for key in _written_numerics(recipe):
            warnings += _set_numerics(recipe, _framework_of(recipe, executor, key))
    found = executor.settings()
    count = found.get("threads")
    if threads is not None and count is not None and count != threads and not warnings:
        warnings.append(f"the run asked for {threads} threads and {name} has {count}; remedy: set threads={count}")
    warnings += _numerics_warnings(recipe, name, found)
    return Components(
        framework=name,
        executor=executor,
        optimizer=_optimizer(recipe, name),
        splits=splits,
        train_sampler=train_sampler,
        validation_sampler=validation,
        events=_events(recipe),
        seeds={"run": seed, **seeds},
        threads=threads,
        warnings=tuple(warnings),
    )


def _set_threads(recipe: Recipe, known: Framework) -> tuple[int | None, list[str]]:
    """Give the framework the recipe's threads, or those that every framework gets where the recipe does not say.

    Returns:
        The number asked for, None where the framework was left alone; and what is to be known of it.
    """
    asked = recipe.value("threads")
    threads = default_threads(known.thread_variable) if asked is None else asked
    if threads is None:
        return None, []
    try:
        known.set_threads(threads)
    except Deep5Error as error:
        if asked is not None:
            raise RecipeError(f"{recipe.where('threads')}'threads': {error}") from error
        # Another run of this process, or its own code, was first; nobody asked for a number.
        return threads, [f"the number of threads is not the default: {error}"]
    return threads, []


def _set_numerics(recipe: Recipe, known: Framework) -> list[str]:
    """Give an accelerator's framework the recipe's numerics; on the host there is nothing to set.

    Returns:
        What is to be known of it.
    """
    if _on_host(recipe):
        return []
    try:
        known.set_numerics(deterministic=recipe.value("deterministic"), tf32=recipe.value("tf32"))
    except Deep5Error as error:
        for key in _written_numerics(recipe):
            raise RecipeError(f"{recipe.where(key)}{key!r}: {error}") from error
        # As with threads: another run of this process was first, and nobody asked.
        return [f"the numerics are not the default: {error}"]
    return []


def _written_numerics(recipe: Recipe) -> list[str]:
    """The first of the keys of numerics that the recipe itself has; none where they are not set."""
    keys = () if _on_host(recipe) else ("deterministic", "tf32")
    return [key for key in keys if key in recipe.fixed or key in recipe.mutable][:1]


def _on_host(recipe: Recipe) -> bool:
    return device(recipe.value("device")).kind == "cpu"


def _numerics_warnings(recipe: Recipe, name: str, found: Mapping[str, Any]) -> list[str]:
    """What the framework does to the bits that the recipe does not let it; what it lets it, it need not do."""
    warnings = []
    if recipe.value("deterministic") and found.get("deterministic") is False:
        warnings.append(
            f"the run asked for the same bits again and {name} does not promise them; remedy: set deterministic=False, "
            "and judge several seeds"
        )
    if found.get("tf32") is True and not recipe.value("tf32"):
        warnings.append(f"the run asked for float32 and {name} rounds products to TF32; remedy: set tf32=True")
    return warnings


def _framework_of(recipe: Recipe, executor: GraphExecutor, key: str) -> Framework:
    """The framework behind an executor that the recipe's own function made, as the executor names it."""
    name = executor.settings().get("framework")
    if isinstance(name, str) and name.partition(":")[0] in registered("frameworks"):
        return framework(name)
    raise RecipeError(
        f"{recipe.where(key)}{key!r} cannot be set for the executor of {recipe.value('executor')!r}; "
        "remedy: set it in the function under 'executor'"
    )


def initial_weights(recipe: Recipe) -> Path | None:
    """The file under `init`, or None where the weights are the network's own.

    Raises:
        RecipeError: It is not there.
    """
    value = recipe.value("init")
    if value is None:
        return None
    path = Path(recipe.folder_of("init") or "", value)
    if not path.is_file():
        raise RecipeError(
            f"{recipe.where('init')}the file of weights {path} is not there; allowed: a .safetensors or an .onnx file"
        )
    return path


def _with_initial_weights(recipe: Recipe, network: Network) -> Network:
    path = initial_weights(recipe)
    if path is None:
        return network
    try:
        return network.with_weights(path)
    except MissingDependency:
        raise
    except Deep5Error as error:
        raise RecipeError(f"{recipe.where('init')}'init': {error}") from error


def _native_executor(recipe: Recipe, network: Any, build: Callable[[Any, int], Any], seed: int) -> GraphExecutor:
    """The executor of what is no network of ONNX's operators: the recipe's own function under `executor` makes it."""
    if recipe.value("executor") is None:
        raise not_a(
            recipe, "model", network, "a d5.Network, or a function that gives one; else 'executor' says what runs it"
        )
    if initial_weights(recipe) is not None:
        raise RecipeError(
            f"{recipe.where('init')}'init' is for a d5.Network; remedy: load the weights in the function under 'model'"
        )
    return _executor(recipe, build, network, seed)


def _executor(recipe: Recipe, build: Callable[[Any, int], Any], network: Any, seed: int) -> GraphExecutor:
    executor = build(network, seed)
    if not isinstance(executor, GraphExecutor):
        key = "framework" if recipe.value("executor") is None else "executor"
        raise not_a(recipe, key, executor, "what gives a d5.GraphExecutor")
    return executor


def _executor_factory(recipe: Recipe) -> tuple[str, Framework | None, Callable[[Any, int], Any]]:
    """Name, framework (None for a function of the recipe's own), and what makes an executor of a network and a seed."""
    place = device(recipe.value("device"))
    if recipe.value("framework") is not None:
        found = _framework(recipe)
        return (
            found.name,
            found,
            lambda network, seed: make(recipe, "framework", found.executor, network, device=place, seed=seed),
        )
    given = component(recipe, "executor", "frameworks")
    if isinstance(given, type) and issubclass(given, Framework):
        given = given()
    made = given.executor if isinstance(given, Framework) else given
    module = str(getattr(made, "__module__", "")).split(".")
    known = given if isinstance(given, Framework) else None
    if known is not None:
        name = known.name
    elif module[:2] == ["deep5", "frameworks"] and len(module) > 2:
        name = module[2]
        known = _registered(recipe, "executor", name)
    else:
        name = str(getattr(made, "__qualname__", type(made).__name__))
    return name, known, lambda network, seed: make(recipe, "executor", made, network, device=place, seed=seed)


def _registered(recipe: Recipe, key: str, name: str) -> Framework:
    try:
        return framework(name)
    except MissingDependency as error:
        raise MissingDependency(f"{recipe.where(key)}{error}") from error
    except UsageError as error:
        raise RecipeError(f"{recipe.where(key)}{error}") from error


def _framework(recipe: Recipe) -> Framework:
    value = recipe.value("framework")
    if isinstance(value, str) and ".py:" not in value:
        return _registered(recipe, "framework", value)
    made = component(recipe, "framework", "frameworks")
    try:
        made = made() if isinstance(made, type) else made
    except ModuleNotFoundError as error:
        raise missing_dependency(f"{recipe.where('framework')}framework {value!r}", error) from error
    if not isinstance(made, Framework):
        raise not_a(recipe, "framework", made, "the name of a framework, or a d5.Framework or its class")
    return made


def _optimizer(recipe: Recipe, framework_name: str) -> Any:
    value = recipe.value("optimizer")
    if isinstance(value, str) and value.startswith("native:"):
        try:
            made = framework(framework_name).optimizer(value.removeprefix("native:"))
        except UnknownName as error:
            raise RecipeError(f"{recipe.where('optimizer')}{error}") from error
    else:
        made = component(recipe, "optimizer", "optimizers")
    optimizer = make(recipe, "optimizer", made)
    from deep5.training.rule import UpdateRule

    if not isinstance(optimizer, (UpdateRule, StepOptimizer)):
        raise not_a(
            recipe, "optimizer", optimizer, "a d5.UpdateRule, or what has bind, step, state_dict and load_state_dict"
        )
    return optimizer


def _events(recipe: Recipe) -> tuple[Event, ...]:
    events = []
    for made in event_components(recipe):
        event = make(recipe, "events", made)
        if not isinstance(event, Event):
            raise not_a(recipe, "events", event, "d5.Event objects, their classes or names")
        events.append(event)
    return tuple(events)
