"""Training: assemble a recipe, train, and write the result during the run."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from deep5.core.canonical import canonical_hash
from deep5.core.compiler import why_numpy
from deep5.core.errors import CheckpointError, Deep5Error, RecipeError, described
from deep5.core.events import Event
from deep5.recipe.experiment import Experiment
from deep5.results.table import NATIVE
from deep5.run.curve import CurveWriter, followed
from deep5.run.description import description_of
from deep5.run.load import MachineLoad, load_warnings, timed_goals, timed_metrics
from deep5.run.observers import check_metrics
from deep5.run.record import CLOCK, RunRecord
from deep5.run.sample_saver import SampleSaver
from deep5.run.workload import Options

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.results.result import Result
    from deep5.run.assemble import Components
    from deep5.run.rank_files import Together
    from deep5.training.checkpointer import Checkpointer
    from deep5.training.trainer import Trainer

__all__ = ["begin_again", "train"]

_WEIGHTS = "weights.safetensors"
# The executor's settings that determine the bits.
_NUMERICS = ("dtype", "compute_dtype", "compute_kernels", "update_dtype", "tf32", "deterministic")


def train(
    experiment: Experiment, options: Options, resume: Path | None, ranks: Communicator | None = None
) -> Result | None:
    """Train a recipe; errors as for `deep5.run.workload.Workload.run`.

    Args:
        experiment: The experiment to train.
        options: The options of the run.
        resume: The folder of an interrupted run to resume in.
        ranks: Communicator of the ranks that train together; None: a single process without a scheme.
    """
    from deep5.core.communicator import SingleRank
    from deep5.results.mllog import MLLog
    from deep5.run.assemble import assemble
    from deep5.run.assemble_samples import length
    from deep5.run.weights import initial_weights
    from deep5.training.checkpointer import Checkpointer
    from deep5.training.divergence import NonFiniteLoss
    from deep5.training.interruption import saved_when_interrupted
    from deep5.training.progress import ProgressBar

    begin = perf_counter()
    machine = MachineLoad()
    values, quiet = experiment.values, options.quiet
    follow = None if options.follow is None else followed(experiment, options.follow)
    parts = assemble(experiment.parts, ranks)
    network, epochs = parts.executor.network, values["epochs"]
    check_metrics(experiment, network)
    init = initial_weights(experiment.parts["init"])
    kinds = {type(event) for event in parts.events}
    keeper, requested = _keeper(parts.events, options.checkpointer)
    own = [event for event in parts.events if not (quiet and isinstance(event, ProgressBar))]
    own = [event for event in own if not isinstance(event, Checkpointer)]
    listeners = (*own, *(event for event in options.events if type(event) not in kinds))
    saving: list[Event] = [] if keeper is None else [keeper]
    communicator = SingleRank() if ranks is None else ranks
    trainer = _trainer(experiment, parts, communicator)
    if communicator.rank:
        from deep5.run.rank_files import train_as_rank

        train_as_rank(experiment, trainer, communicator, listeners, keeper, resuming=resume is not None)
        return None
    settings, components = parts.settings, _described(trainer, (*listeners, *(saving if requested else ())))
    if parts.network is not None and parts.network.document:
        components = {"model": dict(parts.network.document), **components}
    bound = {**settings, **parts.executor.settings()}  # binding the optimizer adds the type of updates
    run = RunRecord(
        experiment,
        options.out,
        framework={
            "name": parts.framework,
            "version": settings.get("version"),
            "device": str(parts.executor.device),
        },
        components=components,
        level=2 if communicator.size == 1 else 3,
        numerics={key: bound[key] for key in _NUMERICS if key in bound},
        threads={"asked": parts.threads, "framework": settings.get("threads")},
        measurement={
            "mode": "quick",
            "clock": CLOCK,
            "scope": "as each metric says",
            "processes": 1,
            "first_call_s": None,
        },
        provenance={
            "data": (
                content := canonical_hash([part.content_hash() for part in (parts.splits.train, parts.splits.test)])
            ),
            "split": parts.splits.split_hash or content,
            "initial_weights": network.weights_hash(),
            "init": None if init is None else hashlib.sha256(init.read_bytes()).hexdigest(),
            "batch_order": parts.train_sampler.order_hash(epochs),
            "network": network.structure_hash(),
        },
        seeds=parts.seeds,
        ranks=communicator.size,
        set_up_s=perf_counter() - begin,
        resume=resume,
        begin_again=begin_again,
    )
    run.warn(*parts.warnings)
    if (share := values["validation"]) is not None:
        run.warn(f"'validation' is {share:g}: what metrics call test samples is held out of the training samples")
    if communicator.size > 1 and (reason := _other_function(network, trainer.loss)) is not None:
        _warn(run, reason, quiet=quiet)
    if communicator.size == 1 and values["scheme"] is not None:
        run.warn("one process trained by itself, and the recipe's scheme had nothing to do; remedy: --ranks 2, say")
    if components["optimizer"].get("kernel") == "numpy" and (reason := why_numpy()):
        run.warn(f"NumPy ran the update rule, more slowly: {reason}")
    went_on = None
    if keeper is not None:
        keeper.folder = keeper.folder or run.folder.path / "checkpoints"
        keeper.about = lambda: {"run_id": run.folder.run_id, "ranks": communicator.size, **run.position()}
        run.checkpointer = keeper
    together = None
    if ranks is not None:
        from deep5.run.rank_files import Together

        together = Together(communicator, trainer, keeper)
        together.folder(run.folder.path)
    if together is not None and communicator.size > 1:
        saving = [together.votes]
    if resume is not None:
        went_on = _go_on(run, trainer, keeper, together, quiet=quiet)
    log = MLLog(
        run.folder.append_event,
        keys={
            "submission_benchmark": experiment.name,
            "submission_division": run.document["recipe"]["division"],
            "seed": parts.seeds["run"],
            "global_batch_size": parts.batch_size * values["accumulate"],
            "train_samples": length(parts.splits.train),
            "eval_samples": length(parts.splits.test),
            "opt_name": str(run.document["recipe"]["mutable"].get("optimizer", values["optimizer"])),
            # The optimizer's own learning rate is not used if a schedule sets it.
            **({} if "lr" in values["schedules"] else _learning_rate(run.document["components"]["optimizer"])),
        },
        target=next((goal for metric, goal in experiment.metrics if metric.name == "test_accuracy"), None),
        resumed=went_on is not None,
    )
    with run.guarded():
        run.folder.write_file("dataset.json", json.dumps(parts.splits.description, indent=2) + "\n")
        watch = NonFiniteLoss(lambda warning: _warn(run, warning, quiet=quiet))
        # The saver comes after the observers, so that none of them times its reads.
        saver: list[Event] = [SampleSaver(run)]
        if follow is not None:
            saver.append(CurveWriter(run.folder.path, run.observers[follow]))
        with nullcontext() if keeper is None else saved_when_interrupted(keeper):
            trainer.train(epochs - trainer.epoch, [log, *run.observers, *saver, watch, *listeners, *saving])
        if together is not None and communicator.size > 1:
            for name, text in together.collect(run).items():
                run.folder.write_file(name, text)
        _write_network(run, trainer)
        if communicator.size == 1:  # other ranks on this machine are no other programs
            goals, reported = timed_goals(experiment.metrics), timed_metrics(experiment.metrics)
            run.others_share = machine.others_share(wait=bool(goals))
            run.warn(*load_warnings(goals, run.others_share, machine.processors, parts.threads, reported))
        result = run.finish(stopped=trainer.reason if trainer.status == "stopped" else None)
        if keeper is not None and not requested:
            keeper.clear()
        return result


def begin_again(folder: Path) -> str:
    """How to start an interrupted run again in its folder, as the end of a message."""
    return f"; to start again there, add --resume {folder} to the command"


def _other_function(network: Any, loss: str) -> str | None:
    """Why ranks that share a batch compute another function than one process, if the network is of such a kind."""
    from deep5.networks.labels import weighs_otherwise
    from deep5.networks.network import Network

    reason = weighs_otherwise(network, loss) if isinstance(network, Network) else None
    return reason and (
        f"{reason}, and ranks weigh their parts of a batch by samples: several ranks are another function than one; "
        "remedy: a loss that is the mean over samples"
    )


def _keeper(
    events: Iterable[Event], checkpointer: Checkpointer | Literal["default"] | None
) -> tuple[Checkpointer | None, bool]:
    """The writer of the checkpoints, and whether checkpoints were requested."""
    from deep5.training.checkpointer import Checkpointer

    own = next((event for event in events if isinstance(event, Checkpointer)), None)
    if checkpointer is None or (own is None and checkpointer != "default"):
        # A copy here too: ranks that are threads receive the same object.
        return copy.copy(checkpointer), True
    if own is None:
        return Checkpointer(), False
    if checkpointer == "default":
        # A copy, so that the recipe's own object stays unchanged for its next run.
        return copy.copy(own), True
    folder, every_steps, every_s = checkpointer.folder or own.folder, checkpointer.every_steps, checkpointer.every_s
    return Checkpointer(folder, every_steps=every_steps, every_s=every_s, keep=own.keep, best=own.best), True


def _go_on(
    run: RunRecord, trainer: Trainer, keeper: Checkpointer | None, together: Together | None, *, quiet: bool
) -> Mapping[str, Any] | None:
    """Restore the trainer from the last checkpoint.

    Returns:
        The checkpoint's description; None if there is none, and the run starts again.
    """
    from deep5.training.checkpointer import checkpoints, restore

    folder = run.folder.path / "checkpoints" if keeper is None or keeper.folder is None else keeper.folder
    if not checkpoints(folder):
        _warn(run, "the run was interrupted before its first checkpoint: it starts again", quiet=quiet)
        run.went_on(None, None)
        return None

    def report(warning: str) -> None:
        _warn(run, warning, quiet=quiet)

    if together is not None:
        return together.go_on(run, folder, report)
    about, path = restore(trainer, folder, tell=report)
    if about.get("run_id") != run.folder.run_id:
        raise CheckpointError(
            f"the checkpoint {path} is of the run {about.get('run_id')!r}; allowed: of {run.folder.run_id!r}"
        )
    run.went_on(about, path)
    return about


def _trainer(experiment: Experiment, parts: Components, communicator: Communicator) -> Trainer:
    """The trainer, with its optimizer bound: the first point at which a user's rule runs."""
    from deep5.run.weights import as_key
    from deep5.training.trainer import Trainer

    where = experiment.parts["optimizer"].where
    try:
        return Trainer(
            parts.executor,
            parts.optimizer,
            parts.train_sampler,
            parts.validation_sampler,
            seed=parts.noise,
            communicator=communicator,
            accumulate=experiment.values["accumulate"],
        )
    except Deep5Error as error:
        raise RecipeError(f"{where}{as_key(str(error))}") from error
    except Exception as error:
        raise RecipeError(
            f"{where}the optimizer raised {described(error)} while it was bound; allowed: a method bind that does not "
            "raise; remedy: --debug shows where"
        ) from error


def _write_network(run: RunRecord, trainer: Trainer) -> None:
    """Write the trained network as used in evaluation: its weights, and as ONNX if it is a graph."""
    from deep5.networks.native import NativeNetwork
    from deep5.networks.onnx.weights import write_weights

    executor, network = trainer.executor, trainer.executor.network
    trained: Any
    # The executor knows the weights that an update rule uses for evaluation, but not an optimizer that owns its step.
    with getattr(trainer.optimizer, "averaged", nullcontext)():
        if isinstance(network, NativeNetwork):
            trained = replace(network, values=executor.state_dict())
        else:
            trained = executor.export()
    if isinstance(network, NativeNetwork):
        run.warn(NATIVE)
        run.folder.include(_WEIGHTS)  # without network.onnx, nothing else identifies them
    else:
        run.folder.write_file("network.onnx", trained.to_onnx().SerializeToString(deterministic=True))
    write_weights(trained, run.folder.path / _WEIGHTS)
    run.document["provenance"]["trained_weights"] = trained.weights_hash()


def _warn(run: RunRecord, warning: str, *, quiet: bool) -> None:
    """Add a warning to the result, and print it unless quiet."""
    run.warn(warning)
    if not quiet:
        print(f"deep5: warning: {warning}", file=sys.stderr)  # noqa: T201 - the terminal of the run


def _learning_rate(optimizer: Any) -> dict[str, float]:
    """MLPerf's key for the learning rate, if the optimizer has one."""
    rate = optimizer.get("lr") if isinstance(optimizer, Mapping) else None
    return {"opt_base_learning_rate": rate} if isinstance(rate, (int, float)) else {}


def _described(trainer: Any, listeners: Iterable[Event]) -> dict[str, Any]:
    """The optimizer and the events before the first step, in JSON types."""
    return {
        "optimizer": description_of(trainer.optimizer),
        "events": [description_of(listener) for listener in listeners],
    }
