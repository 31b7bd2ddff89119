"""Workload of a serving recipe: a network answers the requests of a load, in batches."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from deep5.bench.serving.recipe import described_load, serving_plan
from deep5.core.errors import Deep5Error, MissingDependency, RecipeError, UsageError, contained
from deep5.core.progress import Ongoing
from deep5.core.seeds import derive_seed
from deep5.recipe.part import Parts, where_of
from deep5.run.load import MachineLoad, load_warnings, timed_goals, timed_metrics
from deep5.run.observers import observers_of
from deep5.run.record import CLOCK, RunRecord
from deep5.run.workload import Options, Timed

if TYPE_CHECKING:
    from deep5.bench.serving.model import ServedModel
    from deep5.bench.serving.plan import ServingPlan
    from deep5.bench.serving.records import ServedLoad
    from deep5.bench.serving.summary import PhaseSummary
    from deep5.bench.serving.system import System
    from deep5.core.communicator import Communicator
    from deep5.networks.network import Network
    from deep5.results.result import Result
    from deep5.run.assemble_executor import ExecutorMaker

__all__ = ["Serving", "recipe_network"]

_NUMERICS = ("dtype", "compute_dtype", "compute_kernels", "tf32", "deterministic")
_SCOPE = "from the scheduled time of a query to the end of its answer"


class Serving(Timed):
    """A network served under a load, at one rate after another."""

    compared = ()
    compares = "the rates of a load"
    shared = False

    def check(self) -> list[str]:
        """Check that the load is valid, and that the network can be served and fits the data set."""
        from deep5.training.downloads import DataMissing, nothing_fetched

        plan, parts = self.plan(), self.experiment.parts
        with contained():
            observers_of(self.experiment)
            network = recipe_network(parts)
            try:
                with nothing_fetched():
                    _samples(parts, network)
            except DataMissing as error:
                return [described_load(plan), f"the data set is not there yet: {error}"]
        return [described_load(plan)]

    def check_shares(self) -> None:
        """Always rejected: one process generates the load."""
        raise UsageError(
            f"{self.experiment.name} serves a network and trains nothing; allowed: one process; remedy: no --ranks"
        )

    def plan(self) -> ServingPlan:
        """The load that the recipe requests.

        Raises:
            RecipeError: Its values do not fit each other.
        """
        parts = self.experiment.parts
        return serving_plan(self.experiment.values.__getitem__, lambda key: parts[key].where)

    def frameworks(self) -> Sequence[str]:
        """The framework that the recipe names."""
        value = self.experiment.values["framework"]
        return [value] if isinstance(value, str) else super().frameworks()

    def time(self, options: Options, communicator: Communicator | None) -> Result | None:
        """Serve the load; every request becomes a row of requests.csv."""
        from deep5.bench.serving.generator import generate_load
        from deep5.bench.serving.summary import summarise_load, unsure

        begin = perf_counter()
        machine, plan = MachineLoad(), self.plan()
        served = _Served(self.experiment.parts, plan)
        run = self._record(served, options, perf_counter() - begin)
        run.warn(*served.warnings)
        with run.guarded():
            if plan.transport == "in_process":  # a server's process warms up before it is ready
                run.document["measurement"]["warm_up_s"] = served.warm_up()
            with served.system() as (system, samples), Ongoing(f"serving {plan.requests} requests"):
                load = generate_load(plan, system, samples)
                ended = system.ended()
            phases = summarise_load(load)
            _write(run, load, phases, served)
            run.warn(*unsure(load, phases))
            goals, reported = timed_goals(self.experiment.metrics), timed_metrics(self.experiment.metrics)
            if ended:
                failed = sum(phase.failures for phase in phases)
                raise Deep5Error(f"{ended}; {failed} of {plan.requests} requests failed")
            run.others_share = machine.others_share(wait=bool(goals))
            run.warn(*load_warnings(goals, run.others_share, machine.processors, served.threads, reported))
            result = run.finish()
        if not options.quiet:
            from deep5.bench.serving.report import serving_table
            from deep5.core.terminal import printed

            print(printed(partial(serving_table, plan, phases)))  # noqa: T201 - the output of the recipe
        return result

    def _record(self, served: _Served, options: Options, set_up_s: float) -> RunRecord:
        settings, values = served.settings, self.experiment.values
        return RunRecord(
            self.experiment,
            options.out,
            framework={"name": served.framework, "version": settings.get("version"), "device": served.device},
            level=1,
            numerics={key: settings[key] for key in _NUMERICS if key in settings},
            threads={"asked": served.threads, "framework": settings.get("threads")},
            measurement={
                "mode": "quick",
                "clock": CLOCK,
                "scope": _SCOPE,
                "processes": 1,
                "order": "rates in ascending order",
                "cache_state": "warm",
                "warmups": len(served.model.sizes),
            },
            provenance={
                "network": served.network.structure_hash(),
                "initial_weights": served.network.weights_hash(),
            },
            seeds={"run": values["seed"], "weights": derive_seed(values["seed"], "weights")},
            set_up_s=set_up_s,
        )


class _Served:
    """The network of a recipe on its framework, and the samples of the requests.

    Args:
        parts: The recipe's parts, by key.
        plan: The load.
    """

    def __init__(self, parts: Parts, plan: ServingPlan) -> None:
        from deep5.bench.serving.model import ServedModel
        from deep5.run.assemble_executor import ExecutorMaker

        self.plan = plan
        maker: ExecutorMaker = ExecutorMaker(parts)
        self.network = recipe_network(parts)
        self.samples = _samples(parts, self.network)
        executor = maker.make(self.network, parts["seed"].value)
        self.settings = maker.settle(executor)
        if plan.transport == "http" and maker.framework is None:
            raise RecipeError(
                f"{parts['executor'].where}'executor' is the recipe's own function, which the server's process cannot "
                "call; allowed: 'framework' in place of 'executor', or transport='in_process'"
            )
        self.framework, self.device, self.threads = maker.name, str(executor.device), maker.threads
        self.warnings = tuple(maker.warnings)
        try:
            self.model: ServedModel = ServedModel(
                executor, name=self.network.model.graph.name or "model", max_batch=plan.max_batch
            )
        except UsageError as error:
            raise RecipeError(f"{parts['max_batch'].where}{error}") from error
        if (fault := self.model.fault(self.samples[0])) is not None:
            raise RecipeError(
                f"{where_of(parts['model'], parts['dataset'])}the samples do not fit the network: {fault}"
            )

    def warm_up(self) -> float:
        """Run a batch of each size; the seconds that it took."""
        begin = perf_counter()
        with Ongoing(f"running batches of {', '.join(map(str, self.model.sizes))} before the clock starts"):
            self.model.warm_up(self.samples[0])
        return perf_counter() - begin

    @contextmanager
    def system(self) -> Iterator[tuple[System, Sequence[Any]]]:
        """The system under test, and the samples in its form."""
        from deep5.bench.serving.system import BatchServer

        plan = self.plan
        if plan.transport == "http":
            with self._over_http() as found:
                yield found
            return
        with BatchServer(self.model.run, max_batch=plan.max_batch, deadline_s=plan.deadline_s) as server:
            yield server, self.samples

    @contextmanager
    def _over_http(self) -> Iterator[tuple[System, Sequence[Any]]]:
        """A server process with the same network, and a client of it."""
        from deep5.bench.serving.http_client import HTTPSystem, ServerProcess
        from deep5.core.python_child import python_command
        from deep5.run.server_process import serve_file

        plan = self.plan
        options = {
            "name": self.model.name,
            "framework_name": self.framework,
            "device": self.device,
            "threads": self.threads,
            "max_batch": plan.max_batch,
            "deadline_s": plan.deadline_s,
        }
        with tempfile.TemporaryDirectory(prefix="deep5-serving-") as folder:
            path = Path(folder, "network.onnx")
            self.network.save(path)
            with (
                ServerProcess(python_command(serve_file, str(path), options, parent=os.getpid())) as process,
                HTTPSystem(process.url, process.model, timeout_s=plan.timeout_s, ended=process.ended) as client,
            ):
                yield client, client.prepared(self.samples)

    def about(self) -> dict[str, Any]:
        """How the server runs, for the result."""
        return {"batch_sizes": list(self.model.sizes), "samples": len(self.samples), "transport": self.plan.transport}


def recipe_network(parts: Parts) -> Network:
    """The network under `model`, with its initial weights and without its loss.

    Args:
        parts: The recipe's parts, by key.

    Raises:
        RecipeError: It is not a graph, or cannot be served.
    """
    from deep5.bench.serving.model import served_network
    from deep5.networks.network import Network
    from deep5.recipe.generators import seeded_call
    from deep5.recipe.own_network import made_network
    from deep5.run.weights import prepared

    seed = derive_seed(parts["seed"].value, "weights")
    made = seeded_call(seed, lambda: made_network(parts["model"], seed)[0])
    if not isinstance(made, Network):
        raise parts["model"].not_a(made, "a d5.Network, a name of the zoo, or an ONNX file; remedy: export the model")
    try:
        return served_network(prepared(parts, made))
    except RecipeError:
        raise
    except Deep5Error as error:
        raise RecipeError(f"{parts['model'].where}'model': {error}") from error


def _samples(parts: Parts, network: Network) -> list[dict[str, Any]]:
    """The first test samples of the data set: arrays by input of the network.

    Raises:
        RecipeError: The data set has no samples in a fixed order, or does not fit the network.
    """
    import numpy as np

    from deep5.run.assemble_samples import splits_of
    from deep5.training.dataset import Dataset

    data = splits_of(parts["dataset"]).test
    if not isinstance(data, Dataset) or not len(data):
        raise parts["dataset"].not_a(data, "a data set whose test samples have indices, at least one")
    where = parts["dataset"].where
    missing = [name for name in network.inputs if name not in data.specs]
    if missing:
        raise RecipeError(
            f"{where}the data set has the parts {', '.join(data.specs)}, and the network takes {', '.join(missing)} "
            "too; allowed: a part for each of its inputs"
        )
    found = data.batch(np.arange(min(parts["samples"].value, len(data))))
    rows = {name: _cast(found[name], spec.dtype) for name, spec in network.inputs.items()}
    return [{name: array[place] for name, array in rows.items()} for place in range(len(found[next(iter(rows))]))]


def _cast(array: Any, dtype: str) -> Any:
    """Samples of floating-point numbers in the network's precision; others as they are."""
    from deep5.core.tensors import numpy_dtype

    return array.astype(numpy_dtype(dtype)) if array.dtype.kind == "f" else array


def _write(run: RunRecord, load: ServedLoad, phases: Sequence[PhaseSummary], served: _Served) -> None:
    """Write the requests and their summary, and pass them to the metrics."""
    from deep5.bench.serving.record import SERVING, serving_document, serving_pictures
    from deep5.bench.serving.records import REQUESTS, requests_text

    run.folder.write_file(REQUESTS, requests_text(load.requests))
    document = serving_document(load, phases, served.about())
    run.folder.write_file(SERVING, json.dumps(document, indent=2, allow_nan=False) + "\n")
    try:
        for name, content in serving_pictures(document).items():
            run.folder.write_file(name, content)
    except (MissingDependency, UsageError) as error:
        run.warn(f"no serving.svg was drawn: {error}")
    for observer in run.observers:
        observer.after_serving(load)
