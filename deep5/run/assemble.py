"""Assemble a training recipe: create all components that it names and connect them."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deep5.core.errors import RecipeError
from deep5.core.events import Event
from deep5.core.executors import GraphExecutor
from deep5.core.seeds import derive_seed
from deep5.recipe.generators import seeded_call
from deep5.recipe.own_network import made_network
from deep5.recipe.part import Parts
from deep5.run.assemble_executor import ExecutorMaker
from deep5.run.assemble_network import NetworkPart, network_part
from deep5.run.assemble_optimizer import events_of, float16_warnings, make_optimizer
from deep5.run.assemble_samples import samplers, splits_of
from deep5.run.assemble_scheme import plain_scheme, wrapped
from deep5.run.weights import initial_weights, prepared

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["Components", "assemble"]


@dataclass(frozen=True, kw_only=True)
class Components:
    """The components that a training recipe names, and the settings that its executor reports.

    `build` makes an executor of another network as the recipe's was made, from the network and a seed.
    """

    framework: str
    executor: GraphExecutor
    settings: Mapping[str, Any]
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
    network: NetworkPart | None
    build: Callable[[Any, int], GraphExecutor]


def assemble(parts: Parts, communicator: Communicator | None = None, *, as_graph: bool = False) -> Components:
    """Create all components that a training recipe names.

    Args:
        parts: The recipe's parts, by key.
        as_graph: Whether a model of a framework's library is exported even if it runs as it is, as in comparisons.
        communicator: Communicator of the ranks that train together: each rank gets its part of every batch, and the
            scheme wraps its optimizer; None: a single process without a scheme.

    Raises:
        RecipeError: A component cannot be found or created, two components are incompatible, or the framework cannot
            run the network or has no such device.
        MissingDependency: A package that a component needs is not installed.
    """
    # Before any framework is loaded, so that errors in the scheme are reported immediately.
    scheme = None if communicator is None else plain_scheme(parts)
    seed = parts["seed"].value
    seeds = {purpose: derive_seed(seed, purpose) for purpose in ("weights", "order", "noise")}
    # Dropout masks depend on the position in the batch, so every rank uses a different seed.
    noise = (
        derive_seed(seeds["noise"], "rank", communicator.rank) if communicator and communicator.rank else seeds["noise"]
    )
    maker = ExecutorMaker(parts, ranks=_ranks_here(communicator))
    made, unrepeatable = made_network(parts["model"], seeds["weights"])

    @functools.cache
    def splits() -> Any:
        return splits_of(parts["dataset"], parts["validation"])

    # A module's weights may be drawn when its executor is created.
    device = maker.place
    found = seeded_call(
        seeds["weights"],
        lambda: network_part(
            parts, made, splits, lambda: maker.framework, device=device, seed=seeds["weights"], as_graph=as_graph
        ),
    )
    executor: GraphExecutor | None = None
    build = maker.make
    if found is not None and found.graph is not None:
        network: Any = prepared(parts, found.graph)
        if found.own is not None and found.as_it_is:
            build = found.own.executor_of
    else:
        _check_native(parts)
        executor = seeded_call(
            seeds["weights"], lambda: maker.make(made, noise) if found is None else found.executor(noise)
        )
        network, maker.name = executor.network, executor.settings().get("framework", maker.name)
    if found is not None:
        maker.warnings += [f"the export of {found.document['name']}: {change}" for change in found.changes]
    train_sampler, validation, batch_size = samplers(
        parts, network, None if found is None else found.own, splits(), seeds["order"], communicator
    )
    if executor is None:
        executor = build(network, noise)
    settings = maker.settle(executor)
    optimizer = make_optimizer(parts, maker.name)
    maker.warnings += float16_warnings(executor.network, optimizer)
    if communicator is not None and scheme is not None:
        scheme = wrapped(parts["scheme"], scheme, optimizer, communicator, seed)
    return Components(
        framework=maker.name,
        executor=executor,
        settings=settings,
        optimizer=optimizer if scheme is None else scheme,
        splits=splits(),
        train_sampler=train_sampler,
        validation_sampler=validation,
        batch_size=batch_size,
        events=events_of(parts, optimizer),
        seeds={"run": seed, **seeds},
        noise=noise,
        threads=maker.threads,
        warnings=(*maker.warnings, *([] if unrepeatable is None else [unrepeatable])),
        network=found,
        build=build,
    )


def _ranks_here(communicator: Communicator | None) -> int:
    """Number of ranks that share the cores of this machine."""
    if communicator is None or communicator.size == 1:
        return 1
    from deep5.distributed.texts import gather_texts

    hosts = gather_texts(communicator, platform.node())
    return hosts.count(hosts[communicator.rank])


def _check_native(parts: Parts) -> None:
    """Reject keys that apply to a graph only."""
    if parts["precision"].value is not None:
        raise RecipeError(
            f"{parts['precision'].where}'precision' is for a d5.Network; remedy: set it in the function under 'model'"
        )
    if initial_weights(parts["init"]) is not None:
        raise RecipeError(
            f"{parts['init'].where}'init' is for a d5.Network; remedy: load the weights in the function under 'model'"
        )
