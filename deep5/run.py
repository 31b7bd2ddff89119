"""`run_recipe` and `execute`: a recipe to a result."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from deep5.canonical import canonical, canonical_hash
from deep5.errors import CheckpointError, Deep5Error, RecipeError, UsageError
from deep5.events import Event
from deep5.recipe import FULL, Recipe
from deep5.record import RunRecord, SampleSaver

if TYPE_CHECKING:
    from deep5.assemble import Components
    from deep5.communicator import Communicator
    from deep5.results.result import Result
    from deep5.training.checkpointer import Checkpointer
    from deep5.training.trainer import Trainer

__all__ = ["execute", "progress", "run_recipe"]

_CLOCK = "time.perf_counter_ns"
# Of what an executor reads back, that which decides the bits.
_NUMERICS = ("dtype", "compute_dtype", "compute_kernels", "tf32", "deterministic")


def run_recipe(
    fixed: Mapping[str, Any],
    mutable: Mapping[str, Any],
    metrics: Sequence[tuple[Any, Any]],
    *,
    sizes: Mapping[str, Mapping[str, Any]] | None = None,
    size: str = FULL,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = "results",
    quiet: bool = False,
) -> Result:
    """Run a recipe and print its table.

    Called from a recipe's own `if __name__ == "__main__":`, it ends a program that cannot go on with a message and
    an exit status, as `deep5 run` does; called from other code it raises.

    Args:
        fixed: Components that must not change.
        mutable: Components that may.
        metrics: Pairs of metric and goal. None of the three is changed.
        sizes: Changes by name of size.
        size: Which of them is run.
        settings: Mutable parts set anew, by key.
        out: Where the result folder goes.
        quiet: Print nothing.

    Returns:
        The result; true where the run succeeded and met every goal.

    Raises:
        RecipeError: The recipe is not valid.
        RunFailed: The run started and could not be completed.
    """
    caller = sys._getframe(1).f_globals
    script = caller.get("__name__") == "__main__"
    path = Path(str(caller["__file__"])) if script and "__file__" in caller else None
    path = path if path is not None and path.is_file() else None  # a script may come from standard input
    try:
        recipe = Recipe.make(
            fixed,
            mutable,
            metrics,
            name=path.stem if path else "recipe",
            sizes=caller.get("SIZES") if sizes is None and script else sizes,
            path=path,
            source=path.read_bytes() if path else None,
        )
        recipe = recipe.at_size(size).with_settings(settings or {})
        result = execute(recipe, out=out, events=() if quiet else progress(recipe), quiet=quiet)
    except (Deep5Error, KeyboardInterrupt) as error:
        if not script:
            raise
        print(f"deep5: {str(error) or 'interrupted'}", file=sys.stderr)  # noqa: T201 - this is the recipe's own terminal
        sys.exit(error.exit_status if isinstance(error, Deep5Error) else 130)
    if not quiet:
        from rich.console import Console

        from deep5.results.table import verdict_table

        verdict_table(result, Console())
    return result


def progress(recipe: Recipe) -> tuple[Event, ...]:
    """The listeners that show a run on a terminal."""
    from deep5.training.progress import ProgressBar

    return () if recipe.timing or recipe.operators else (ProgressBar(),)


def execute(
    recipe: Recipe,
    *,
    out: str | Path = "results",
    events: Iterable[Event] = (),
    quiet: bool = False,
    resume: str | Path | None = None,
    checkpointer: Checkpointer | Literal["default"] | None = "default",
) -> Result:
    """Run a recipe into a new result folder, or go on in one that a run left before its end.

    A run that trains writes checkpoints, every 30 s where nobody says otherwise; those that nobody asked for are
    deleted when it is done.

    Args:
        recipe: The recipe, at the size and with the settings to run.
        out: Where the folder goes.
        events: Listeners beside those of the recipe; a progress bar that the recipe has already is not doubled.
        quiet: Leave the recipe's own progress bar out.
        resume: The folder to go on in. Its run has to be of this recipe, at the same size and with the same settings,
            data and weights; what may change bits all the same (threads, versions) becomes a warning. A run that was
            finished is returned as it is.
        checkpointer: Writes checkpoints in place of the recipe's; None: there are none.

    Raises:
        CheckpointError: A run that cannot be gone on with.
        UsageError: The recipe cannot be assembled, or the folder cannot be written; nothing is left behind.
        RunFailed: The run started and could not be completed; its folder is named, marked and readable.
    """
    recipe.describe()  # what cannot be hashed is refused before anything is loaded or built
    if recipe.operators or recipe.timing:
        if resume is not None or checkpointer not in ("default", None):
            raise UsageError(
                f"{recipe.name} times operators or code and trains nothing; allowed: neither --resume nor "
                "--checkpoint-every; remedy: run it again"
            )
        if recipe.timing:
            return _time(recipe, out)
        from deep5.bench.record import time_operators

        return time_operators(recipe, out, quiet=quiet, judged=True)
    if resume is not None:
        from deep5.results.result import load

        if (left := load(resume)).status == "success":
            return left
    return _train(recipe, out, tuple(events), quiet, None if resume is None else Path(resume), checkpointer)


def _train(
    recipe: Recipe,
    out: str | Path,
    events: tuple[Event, ...],
    quiet: bool,
    resume: Path | None,
    checkpointer: Checkpointer | Literal["default"] | None,
) -> Result:
    from deep5.assemble import assemble, initial_weights, length
    from deep5.communicator import SingleRank
    from deep5.results.mllog import MLLog
    from deep5.training.checkpointer import Checkpointer
    from deep5.training.divergence import NonFiniteLoss
    from deep5.training.progress import ProgressBar

    begin = perf_counter()
    parts = assemble(recipe)
    network, epochs = parts.executor.network, recipe.value("epochs")
    init = initial_weights(recipe)
    kinds = {type(event) for event in parts.events}
    keeper, asked = _keeper(parts.events, checkpointer)
    own = [event for event in parts.events if not (quiet and isinstance(event, ProgressBar))]
    own = [event for event in own if not isinstance(event, Checkpointer)]
    listeners = (*own, *(event for event in events if type(event) not in kinds))
    communicator = SingleRank()
    trainer = _trainer(recipe, parts, communicator)
    settings = parts.executor.settings()
    run = RunRecord(
        recipe,
        out,
        framework={
            "name": parts.framework,
            "version": settings.get("version"),
            "device": str(parts.executor.device),
        },
        components=_described(trainer, listeners),
        level=2,
        numerics={key: settings[key] for key in _NUMERICS if key in settings},
        threads={"asked": parts.threads, "framework": settings.get("threads"), "pools": _pools()},
        measurement={
            "mode": "quick",
            "clock": _CLOCK,
            "scope": "as each metric says",
            "processes": 1,
            "first_call_s": None,
        },
        provenance={
            "data": canonical_hash([parts.splits.train.content_hash(), parts.splits.test.content_hash()]),
            "split": parts.splits.split_hash,
            "initial_weights": network.weights_hash(),
            "init": None if init is None else hashlib.sha256(init.read_bytes()).hexdigest(),
            "batch_order": parts.train_sampler.order_hash(epochs),
            "network": network.structure_hash(),
        },
        seeds=parts.seeds,
        ranks=communicator.size,
        set_up_s=perf_counter() - begin,
        resume=resume,
    )
    run.warn(*parts.warnings)
    if _how(trainer) == "numpy":
        run.warn("there is no C compiler, so the update rule ran in NumPy; remedy: install gcc or clang")
    went_on = None
    if keeper is not None:
        keeper.folder = keeper.folder or run.folder.path / "checkpoints"
        keeper.about = lambda: {"run_id": run.folder.run_id, **run.position()}
        run.checkpointer = keeper
    if resume is not None:
        went_on = _go_on(run, trainer, keeper, quiet=quiet)
    log = MLLog(
        run.folder.append_event,
        keys={
            "submission_benchmark": recipe.name,
            "submission_division": run.document["recipe"]["division"],
            "seed": parts.seeds["run"],
            "global_batch_size": parts.batch_size * recipe.value("accumulate"),
            "train_samples": length(parts.splits.train),
            "eval_samples": length(parts.splits.test),
            "opt_name": str(run.document["recipe"]["mutable"].get("optimizer", recipe.value("optimizer"))),
            **_learning_rate(run.document["components"]["optimizer"]),
        },
        resumed=went_on is not None,
    )
    with run.guarded():
        run.folder.write_file("dataset.json", json.dumps(parts.splits.description, indent=2) + "\n")
        watch = NonFiniteLoss(lambda told: _warn(run, told, quiet=quiet))
        # Behind the observers: what it reads is on none of their clocks.
        saving = [] if keeper is None else [keeper]
        trainer.train(epochs - trainer.epoch, [log, *run.observers, SampleSaver(run), watch, *listeners, *saving])
        _write_network(run, trainer)
        result = run.finish(stopped=trainer.reason if trainer.status == "stopped" else None)
        if keeper is not None and not asked:
            keeper.clear()
        return result


def _keeper(
    events: Iterable[Event], checkpointer: Checkpointer | Literal["default"] | None
) -> tuple[Checkpointer | None, bool]:
    """What writes the checkpoints, and whether anybody asked for them."""
    from deep5.training.checkpointer import Checkpointer

    if checkpointer != "default":
        return checkpointer, True
    own = [event for event in events if isinstance(event, Checkpointer)]
    return (own[0], True) if own else (Checkpointer(), False)


def _go_on(run: RunRecord, trainer: Trainer, keeper: Checkpointer | None, *, quiet: bool) -> Mapping[str, Any] | None:
    """Put the trainer where the last checkpoint stands.

    Returns:
        What the checkpoint says that it is of; None where there is none, and the run begins again.
    """
    from deep5.training.checkpointer import checkpoints, restore

    folder = run.folder.path / "checkpoints" if keeper is None or keeper.folder is None else keeper.folder
    if not checkpoints(folder):
        _warn(run, "the run was ended before its first checkpoint: it begins again", quiet=quiet)
        run.went_on(None, None)
        return None
    about, path = restore(trainer, folder, tell=lambda told: _warn(run, told, quiet=quiet))
    if about.get("run_id") != run.folder.run_id:
        raise CheckpointError(
            f"the checkpoint {path} is of the run {about.get('run_id')!r}; allowed: of {run.folder.run_id!r}"
        )
    run.went_on(about, path)
    return about


def _trainer(recipe: Recipe, parts: Components, communicator: Communicator) -> Trainer:
    """The trainer, its optimizer bound: the first moment at which a rule of the user's runs."""
    from deep5.training.trainer import Trainer

    try:
        return Trainer(
            parts.executor,
            parts.optimizer,
            parts.train_sampler,
            parts.validation_sampler,
            seed=parts.seeds["noise"],
            communicator=communicator,
            accumulate=recipe.value("accumulate"),
        )
    except Deep5Error as error:
        raise RecipeError(f"{recipe.where('optimizer')}{error}") from error
    except Exception as error:
        raise RecipeError(
            f"{recipe.where('optimizer')}the optimizer raised {type(error).__name__} while it was bound: {error}; "
            "remedy: --debug shows where"
        ) from error


def _write_network(run: RunRecord, trainer: Trainer) -> None:
    """The trained network as evaluation uses it: as ONNX where it is a graph, its weights alone in any case."""
    from deep5.networks.native import NativeNetwork
    from deep5.networks.weights import write_weights

    executor, network = trainer.executor, trainer.executor.network
    trained: Any
    if isinstance(network, NativeNetwork):
        with getattr(trainer.optimizer, "averaged", nullcontext)():
            trained = replace(network, values=executor.state_dict())
        run.warn("the network is native code: the result holds its weights and no network.onnx")
    else:
        trained = executor.export()
        run.folder.write_file("network.onnx", trained.to_onnx().SerializeToString(deterministic=True))
    write_weights(trained, run.folder.path / "weights.safetensors")
    run.document["provenance"]["trained_weights"] = trained.weights_hash()


def _warn(run: RunRecord, told: str, *, quiet: bool) -> None:
    """Into the result, and to whoever is looking."""
    run.warn(told)
    if not quiet:
        print(f"deep5: warning: {told}", file=sys.stderr)  # noqa: T201 - the terminal of the run


def _learning_rate(optimizer: Any) -> dict[str, float]:
    """MLPerf's key for it, where the optimizer has one."""
    rate = optimizer.get("lr") if isinstance(optimizer, Mapping) else None
    return {"opt_base_learning_rate": rate} if isinstance(rate, (int, float)) else {}


def _described(trainer: Any, listeners: Iterable[Event]) -> dict[str, Any]:
    """The optimizer and the events as they are before the first step, in JSON's types."""

    def told(component: Any) -> Any:
        describe = getattr(component, "describe", None)
        plain = {
            key: value
            for key, value in vars(component).items()
            if not key.startswith("_") and isinstance(value, (bool, int, float, str, type(None)))
        }
        return canonical(
            describe() if callable(describe) else {"object": type(component).__qualname__, **plain}, strict=False
        )

    return {"optimizer": told(trainer.optimizer), "events": [told(listener) for listener in listeners]}


def _how(trainer: Any) -> str | None:
    """Whether an update rule runs as C or as NumPy; None for an optimizer that owns its step."""
    describe = getattr(trainer.optimizer, "describe", None)
    return describe().get("kernel") if callable(describe) else None


def _pools() -> dict[str, int]:
    """Threads of every pool that is loaded in this process, as read back from it."""
    from threadpoolctl import threadpool_info

    return {
        f"{pool['internal_api']} ({Path(pool['filepath']).name})": pool["num_threads"] for pool in threadpool_info()
    }


def _time(recipe: Recipe, out: str | Path) -> Result:
    from deep5.components import make_candidate
    from deep5.metric import Sample
    from deep5.results.samples_file import sample_rows
    from deep5.timing import time_rounds

    candidate = make_candidate(recipe, "candidate")
    baseline, again = make_candidate(recipe, "baseline"), make_candidate(recipe, "baseline")
    run = RunRecord(
        recipe,
        out,
        level=2,
        threads={"asked": recipe.value("threads"), "framework": None, "pools": _pools()},
        measurement={
            "mode": "quick",
            "clock": _CLOCK,
            "scope": f"whole calls of {recipe.value('steps')} steps",
            "loops": recipe.value("steps"),
            "processes": 1,
            "order": "candidate, baseline and a second baseline in a new random order each round",
            "cache_state": "warm",
        },
        seeds={"run": recipe.value("seed")},
    )
    with run.guarded():
        rounds = time_rounds(
            candidate,
            baseline,
            again,
            rounds=recipe.value("rounds"),
            steps=recipe.value("steps"),
            seed=recipe.value("seed"),
        )
        run.document["measurement"] |= {"warmups": rounds.warmups, "first_call_s": rounds.first_call_s}
        for name in ("candidate", "baseline", "baseline_again"):
            run.extra_rows += sample_rows(f"{name}_time", "s", [Sample(value) for value in getattr(rounds, name)])
        for observer in run.observers:
            observer.after_timing(rounds)
        return run.finish()
