"""A training recipe, made: everything that it names, fitted together."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, MissingDependency, RecipeError, UnknownName, UsageError
from deep5.core.events import Event
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.core.plugins import framework, load, registered
from deep5.core.seeds import derive_seed
from deep5.recipe.components import (
    component,
    components_of,
    is_factory,
    make,
    not_a,
    schedule_components,
    transform_components,
)
from deep5.recipe.keys import batch_size_fault
from deep5.recipe.recipe import Recipe
from deep5.run.assemble_executor import (
    executor_factory,
    framework_of,
    made_executor,
    numerics_warnings,
    set_numerics,
    set_threads,
    written_numerics,
)

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.distributed.schemes.base import DistributedOptimizer
    from deep5.networks.network import Network

__all__ = ["Components", "assemble", "initial_weights", "length", "make_optimizer", "make_scheme"]


@dataclass(frozen=True, kw_only=True)
class Components:
    """What a training recipe names, made."""

    framework: str
    executor: GraphExecutor
    optimizer: Any
    splits: Any
    train_sampler: Any
    validation_sampler: Any
    batch_size: int
    events: tuple[Event, ...]
    seeds: dict[str, int]
    noise: int
    threads: int | None
    warnings: tuple[str, ...]


def assemble(recipe: Recipe, communicator: Communicator | None = None) -> Components:
    """Make everything that a training recipe names.

    Args:
        recipe: Names it.
        communicator: Of the ranks that train together: each gets its part of every batch, and the scheme around its
            optimizer; None: there is one process and no scheme.

    Raises:
        RecipeError: A component cannot be found or made, or two do not fit each other, or the framework cannot run
            the network or has no such device.
        MissingDependency: A package that one needs is not installed.
    """
    from deep5.networks.network import Network
    from deep5.training.dataset import Splits

    # Before any framework is loaded: what is wrong with it is told at once.
    scheme = None if communicator is None else _plain_scheme(recipe)
    seed = recipe.value("seed")
    seeds = {purpose: derive_seed(seed, purpose) for purpose in ("weights", "order", "noise")}
    ranks = _ranks_here(communicator)
    # Masks of dropout are drawn by place in the batch: every rank has others.
    noise = (
        derive_seed(seeds["noise"], "rank", communicator.rank) if communicator and communicator.rank else seeds["noise"]
    )
    name, known, build = executor_factory(recipe)
    # Before the executor: some frameworks fix their threads when they first compute; and those start JAX.
    threads, warnings = None, []
    if known is not None:
        warnings = set_numerics(recipe, known)
        threads, more = set_threads(recipe, known, ranks=ranks)
        warnings += more
    network = make(recipe, "model", component(recipe, "model", "networks"), seed=seeds["weights"])
    executor = None
    if isinstance(network, Network):
        network = _with_precision(recipe, _with_initial_weights(recipe, network))
    else:
        executor = _native_executor(recipe, network, build, noise)
        network, name = executor.network, executor.settings().get("framework", name)
    splits = make(recipe, "dataset", component(recipe, "dataset", "datasets"))
    if not isinstance(splits, Splits):
        raise not_a(recipe, "dataset", splits, "Splits (deep5.training.dataset), or a function that gives them")
    train_sampler, validation = _samplers(recipe, network, splits, seeds["order"], communicator)
    if executor is None:
        executor = made_executor(recipe, build, network, noise)
    if known is None and recipe.value("threads") is not None:
        threads, warnings = set_threads(recipe, framework_of(recipe, executor, "threads"), ranks=ranks)
    if known is None:
        for key in written_numerics(recipe):
            warnings += set_numerics(recipe, framework_of(recipe, executor, key))
    found = executor.settings()
    count = found.get("threads")
    if threads is not None and count is not None and count != threads and not warnings:
        warnings.append(f"the run asked for {threads} threads and {name} has {count}; remedy: set threads={count}")
    warnings += numerics_warnings(recipe, name, found)
    optimizer = make_optimizer(recipe, name)
    if communicator is not None and scheme is not None:
        scheme = _wrapped(recipe, scheme, optimizer, communicator, seed)
    return Components(
        framework=name,
        executor=executor,
        optimizer=optimizer if scheme is None else scheme,
        splits=splits,
        train_sampler=train_sampler,
        validation_sampler=validation,
        batch_size=_first_size(recipe),
        events=_events(recipe, optimizer),
        seeds={"run": seed, **seeds},
        noise=noise,
        threads=threads,
        warnings=tuple(warnings),
    )


def _ranks_here(communicator: Communicator | None) -> int:
    """How many ranks share the cores of this machine."""
    if communicator is None or communicator.size == 1:
        return 1
    from deep5.distributed.texts import gather_texts

    hosts = gather_texts(communicator, platform.node())
    return hosts.count(hosts[communicator.rank])


def make_scheme(recipe: Recipe, optimizer: Any, communicator: Communicator, seed: int) -> Any:
    """The recipe's scheme around an optimizer; all-reduce where it names none.

    Raises:
        RecipeError: It cannot be found or made, or does not fit optimizer or compression.
    """
    return _wrapped(recipe, _plain_scheme(recipe), optimizer, communicator, seed)


def _plain_scheme(recipe: Recipe) -> DistributedOptimizer:
    """The recipe's scheme with its compression, around nothing."""
    from deep5.distributed.compression import Compression
    from deep5.distributed.schemes.base import DistributedOptimizer
    from deep5.distributed.schemes.check import check_initialised, check_method

    value = recipe.value("scheme")
    made = load("schemes", "all_reduce") if value is None else component(recipe, "scheme", "schemes")
    compression = component(recipe, "compression", "compressors")
    if isinstance(compression, type):
        compression = make(recipe, "compression", compression)
    if isinstance(compression, Compression):
        try:
            check_initialised(compression, Compression, "_scratch")
        except UsageError as error:
            raise RecipeError(f"{recipe.where('compression')}'compression': {error}") from error
    given = {} if compression is None else {"compression": compression}
    if not is_factory(made) and given:
        raise RecipeError(
            f"{recipe.where('compression')}'compression' is for a scheme that is named, and 'scheme' is an object; "
            f"remedy: {type(made).__name__}(compression=…)"
        )
    scheme = make(recipe, "scheme", made, **given)
    if not isinstance(scheme, DistributedOptimizer):
        raise not_a(recipe, "scheme", scheme, "a d5.DistributedOptimizer, its class or name")
    try:
        check_initialised(scheme, DistributedOptimizer, "compression")
        check_method(scheme, "step", DistributedOptimizer)
    except UsageError as error:
        raise RecipeError(f"{recipe.where('scheme')}'scheme': {error}") from error
    if isinstance(compression, Compression) and scheme.compression is None and scheme.compresses:
        # A class whose own __init__ does not know of it.
        scheme.compression = compression
    if given and scheme.compression is None:
        takers = [name for name in registered("schemes") if getattr(load("schemes", name), "compresses", False)]
        raise RecipeError(
            f"{recipe.where('compression')}{type(scheme).__name__} takes no compression; allowed: None, or one of the "
            f"schemes that take one: {', '.join(takers)}; remedy: --set compression=None"
        )
    return scheme


def _wrapped(
    recipe: Recipe, scheme: DistributedOptimizer, optimizer: Any, communicator: Communicator, seed: int
) -> DistributedOptimizer:
    try:
        return scheme.wrap(optimizer, communicator, seed=derive_seed(seed, "scheme"))
    except Deep5Error as error:
        raise RecipeError(f"{recipe.where('scheme')}{error}") from error


def _samplers(
    recipe: Recipe, network: Any, splits: Any, seed: int, communicator: Communicator | None
) -> tuple[Any, Any]:
    """What gives the batches to learn from, and those to judge by: this rank's part of them."""
    from deep5.training.batch_source import BatchSource
    from deep5.training.transforms import fitted

    batch_size, size = component(recipe, "batch_size", "batch_sizes"), _first_size(recipe)
    count = length(splits.train)
    if count is not None and size > count:
        raise RecipeError(
            f"{recipe.where('batch_size')}'batch_size' is {size}; allowed: at most {count}, the number of training "
            "samples"
        )
    # Evaluation keeps nothing for a gradient: larger batches cost no memory to speak of, and less time.
    judged = max(size, 256)
    judged = min(judged, length(splits.test) or judged)
    made = []
    for key, listed, samples, number in (
        ("train_sampler", "train_transforms", splits.train, batch_size),
        ("validation_sampler", "test_transforms", splits.test, judged),
    ):
        transforms = transform_components(recipe, listed)
        try:
            _check_labels(network, samples, "training" if key == "train_sampler" else "test")
            fit, transforms = fitted(samples, transforms, network.inputs)
        except UsageError as error:
            raise RecipeError(f"{recipe.where('dataset')}data set and network do not fit: {error}") from error
        sampler = make(recipe, key, component(recipe, key, "samplers"), fit, number, seed=seed, transforms=transforms)
        if not isinstance(sampler, BatchSource):
            raise not_a(recipe, key, sampler, "a d5.Sampler, its class or name, or another source of batches")
        if transforms and not getattr(sampler, "transforms", None):
            raise RecipeError(
                f"{recipe.where(listed)}{listed!r} is for a sampler that takes transforms; allowed: none beside "
                f"{type(sampler).__name__}"
            )
        made.append(sampler)
    if communicator is not None and communicator.size > 1:
        from deep5.distributed.sharding import ShardedSampler

        rank, ranks = communicator.rank, communicator.size
        judged_by = length(splits.test)
        if judged_by is not None and judged_by < ranks:
            raise RecipeError(
                f"{recipe.where('dataset')}{ranks} ranks share {judged_by} test samples; allowed: at least one a rank; "
                "remedy: fewer ranks"
            )
        try:
            made = [ShardedSampler(made[0], rank, ranks), ShardedSampler(made[1], rank, ranks, borrow=False)]
        except UsageError as error:
            raise RecipeError(f"{recipe.where('batch_size')}{error}") from error
    if depth := recipe.value("prefetch"):
        from deep5.training.prefetch import Prefetched

        made = [Prefetched(sampler, depth=depth) for sampler in made]
    return made[0], made[1]


def _check_labels(network: Any, samples: Any, what: str) -> None:
    """Refuse labels that are no class before anything is trained on them."""
    from deep5.networks.labels import label_inputs
    from deep5.networks.network import Network
    from deep5.training.dataset import check_labels

    for labels in label_inputs(network) if isinstance(network, Network) else ():
        if labels.name in samples.specs:
            check_labels(samples, labels.classes, name=labels.name, ignore=labels.ignored, what=what)


def _first_size(recipe: Recipe) -> int:
    """Samples of the first epoch's batches."""
    given = component(recipe, "batch_size", "batch_sizes")
    if not callable(given):
        if fault := batch_size_fault(given):
            raise RecipeError(f"{recipe.where('batch_size')}'batch_size' {fault}")
        return int(given)
    try:
        size = given(0)
    except Exception as error:
        raise RecipeError(
            f"{recipe.where('batch_size')}'batch_size' raised {type(error).__name__} for epoch 0: {error}"
        ) from error
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise RecipeError(
            f"{recipe.where('batch_size')}'batch_size' gave {size!r} for epoch 0; allowed: a whole number of at least 1"
        )
    return size


def length(samples: Any) -> int | None:
    """How many there are, where that is known."""
    return len(samples) if hasattr(samples, "__len__") else None


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


def _with_precision(recipe: Recipe, network: Network) -> Network:
    """The network in the recipe's precision, or in its own where the recipe says nothing."""
    precision = recipe.value("precision")
    if precision is None:
        return network
    from deep5.networks.transforms.precision import with_precision

    try:
        return with_precision(network, precision)
    except Deep5Error as error:
        raise RecipeError(f"{recipe.where('precision')}'precision': {error}") from error


def _native_executor(recipe: Recipe, network: Any, build: Callable[[Any, int], Any], seed: int) -> GraphExecutor:
    """The executor of what is no network of ONNX's operators: the recipe's own function under `executor` makes it."""
    if recipe.value("executor") is None:
        raise not_a(
            recipe, "model", network, "a d5.Network, or a function that gives one; else 'executor' says what runs it"
        )
    if recipe.value("precision") is not None:
        raise RecipeError(
            f"{recipe.where('precision')}'precision' is for a d5.Network; remedy: set it in the function under 'model'"
        )
    if initial_weights(recipe) is not None:
        raise RecipeError(
            f"{recipe.where('init')}'init' is for a d5.Network; remedy: load the weights in the function under 'model'"
        )
    return made_executor(recipe, build, network, seed)


def make_optimizer(recipe: Recipe, framework_name: str) -> Any:
    """The optimizer that a recipe names, made anew.

    Args:
        recipe: Names it.
        framework_name: Whose a native one is.

    Raises:
        RecipeError: It cannot be found or made, or what stands around it does not fit it.
    """
    value = recipe.value("optimizer")
    if isinstance(value, str) and value.startswith("native:"):
        try:
            made = framework(framework_name).optimizer(value.removeprefix("native:"))
        except UnknownName as error:
            raise RecipeError(f"{recipe.where('optimizer')}{error}") from error
    else:
        made = component(recipe, "optimizer", "optimizers")
    optimizer = make(recipe, "optimizer", made)
    from deep5.training.optimizer import RuleOptimizer
    from deep5.training.rule import UpdateRule

    if not isinstance(optimizer, (UpdateRule, StepOptimizer)):
        raise not_a(
            recipe, "optimizer", optimizer, "a d5.UpdateRule, or what has bind, step, state_dict and load_state_dict"
        )
    if isinstance(optimizer, UpdateRule):
        # A schedule changes it, and the recipe may run again.
        optimizer = copy.copy(optimizer)
    given = {name: value for name in _PIPELINE if (value := recipe.value(name)) not in (None, ())}
    if not given:
        return optimizer
    if not isinstance(optimizer, UpdateRule):
        first = next(iter(given))
        raise RecipeError(
            f"{recipe.where(first)}{first!r} is for an update rule, and {type(optimizer).__name__} owns its step; "
            f"remedy: an update rule ('deep5 list optimizers' shows them), or no {first!r}"
        )
    modifier = component(recipe, "gradient_modifier", "gradient_modifiers")
    if modifier is not None and not callable(modifier):
        raise not_a(recipe, "gradient_modifier", modifier, "a function (name, param, grad) -> grad")
    try:
        return RuleOptimizer(
            optimizer,
            groups=_groups(recipe),
            modifier=modifier,
            **{name: recipe.value(name) for name in ("clip_norm", "clip_value", "weight_decay", "loss_scale")},
        )
    except Deep5Error as error:
        raise RecipeError(f"{recipe.where(next(iter(given)))}{error}") from error


def _groups(recipe: Recipe) -> tuple[Any, ...]:
    groups = component(recipe, "parameter_groups", "parameter_groups")
    if not isinstance(groups, (list, tuple)):
        raise not_a(recipe, "parameter_groups", groups, "a list of d5.ParameterGroup")
    return tuple(groups)


# What is done to gradients between the backward pass and an update rule.
_PIPELINE = ("parameter_groups", "gradient_modifier", "clip_norm", "clip_value", "weight_decay", "loss_scale")


def _events(recipe: Recipe, optimizer: Any) -> tuple[Event, ...]:
    from deep5.training.checkpointer import Checkpointer

    events: list[Event] = []
    if schedules := schedule_components(recipe):
        from deep5.training.optimizer import RuleOptimizer
        from deep5.training.rule import UpdateRule

        bound = RuleOptimizer(optimizer) if isinstance(optimizer, UpdateRule) else optimizer
        # One that says nothing of its hyperparameters is asked when it has to set one.
        allowed = getattr(bound, "changeable", None)
        for name in schedules:
            if allowed is not None and name not in allowed:
                unknown = UnknownName(
                    f"hyperparameter of {type(getattr(bound, 'rule', bound)).__name__}", name, allowed
                )
                raise RecipeError(f"{recipe.where('schedules')}'schedules': {unknown}")
        from deep5.training.schedules import Scheduled

        try:
            # First of all, so that what others see of a hyperparameter is what the step takes.
            events.append(Scheduled(schedules))
        except Deep5Error as error:
            raise RecipeError(f"{recipe.where('schedules')}'schedules': {error}") from error
    for made in components_of(recipe, "events", "events"):
        event = make(recipe, "events", made)
        if not isinstance(event, Event):
            raise not_a(recipe, "events", event, "d5.Event objects, their classes or names")
        events.append(event)
    if len(savers := [event for event in events if isinstance(event, Checkpointer)]) > 1:
        raise RecipeError(f"{recipe.where('events')}{len(savers)} of 'events' are a Checkpointer; allowed: one")
    return tuple(events)
