"""Components to a result: the folder is there from the first moment, and true at every moment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from deep5.errors import Deep5Error, RunFailed
from deep5.events import Event
from deep5.metric import Goal, Metric, Observer
from deep5.recipe import FULL, Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deep5.results.result import Result

__all__ = ["execute", "run_recipe"]

_CLOCK = "time.perf_counter_ns"
# Samples and observers are written this often at most: after a kill, what is missing is no older.
_SAVE_INTERVAL_S = 5.0


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
    try:
        recipe = Recipe.make(
            fixed,
            mutable,
            metrics,
            name=path.stem if path else "recipe",
            sizes=sizes if sizes is not None else caller.get("SIZES") if script else None,
            path=path,
            source=path.read_text(encoding="utf-8") if path else None,
        )
        recipe = recipe.at_size(size).with_settings(settings or {})
        result = execute(recipe, out=out, events=() if quiet else _progress(recipe), quiet=quiet)
    except (Deep5Error, KeyboardInterrupt) as error:
        if not script:
            raise
        message, status = ("interrupted", 130) if isinstance(error, KeyboardInterrupt) else (error, error.exit_status)
        print(f"deep5: {message}", file=sys.stderr)  # noqa: T201 - this is the recipe's own terminal
        sys.exit(status)
    if not quiet:
        from rich.console import Console

        from deep5.results.table import verdict_table

        verdict_table(result, Console())
    return result


def _progress(recipe: Recipe) -> tuple[Event, ...]:
    from deep5.training.progress import ProgressBar

    return () if recipe.timing else (ProgressBar(),)


def execute(
    recipe: Recipe, *, out: str | Path = "results", events: Iterable[Event] = (), quiet: bool = False
) -> Result:
    """Run a recipe into a new result folder.

    Args:
        recipe: The recipe, at the size and with the settings to run.
        out: Where the folder goes.
        events: Listeners beside those of the recipe; a progress bar that the recipe has already is not doubled.
        quiet: Leave the recipe's own progress bar out.

    Raises:
        UsageError: The recipe cannot be assembled, or the folder cannot be written; nothing is left behind.
        RunFailed: The run started and could not be completed; its folder is named, marked and readable.
    """
    return _time(recipe, out) if recipe.timing else _train(recipe, out, tuple(events), quiet)


def _train(recipe: Recipe, out: str | Path, events: tuple[Event, ...], quiet: bool) -> Result:
    from deep5.assemble import assemble
    from deep5.communicator import SingleRank
    from deep5.results.mllog import MLLog
    from deep5.training.progress import ProgressBar
    from deep5.training.trainer import Trainer

    begin = perf_counter()
    parts = assemble(recipe)
    network, epochs = parts.executor.network, recipe.value("epochs")
    kinds = {type(event) for event in parts.events}
    own = [event for event in parts.events if not (quiet and isinstance(event, ProgressBar))]
    listeners = (*own, *(event for event in events if type(event) not in kinds))
    communicator = SingleRank()
    trainer = Trainer(
        parts.executor,
        parts.optimizer,
        parts.train_sampler,
        parts.validation_sampler,
        seed=parts.seeds["noise"],
        communicator=communicator,
    )
    settings = parts.executor.settings()
    run = _Run(
        recipe,
        out,
        framework={
            "name": parts.framework,
            "version": settings.get("version"),
            "device": str(parts.executor.device),
        },
        level=2,
        numerics={key: settings[key] for key in ("dtype", "tf32", "deterministic") if key in settings},
        threads={"framework": settings.get("threads"), "optimizer": _how(trainer)},
        measurement={
            "mode": "quick",
            "clock": _CLOCK,
            "scope": "as each metric says",
            "processes": 1,
            "first_call_s": None,
        },
        provenance={
            "data": parts.splits.train.content_hash(),
            "split": parts.splits.split_hash,
            "initial_weights": network.weights_hash(),
            "batch_order": parts.train_sampler.order_hash(epochs),
            "network": network.structure_hash(),
        },
        seeds=parts.seeds,
        ranks=communicator.size,
        set_up_s=perf_counter() - begin,
    )
    log = MLLog(
        run.folder.append_event,
        keys={
            "submission_benchmark": recipe.name,
            "submission_division": run.document["recipe"]["division"],
            "seed": parts.seeds["run"],
            "global_batch_size": recipe.value("batch_size"),
            "train_samples": len(parts.splits.train),
            "eval_samples": len(parts.splits.test),
            "opt_name": str(run.document["recipe"]["mutable"].get("optimizer", recipe.value("optimizer"))),
        },
    )
    with run.guarded():
        run.folder.write_file("dataset.json", json.dumps(parts.splits.description, indent=2) + "\n")
        trainer.train(epochs, [log, *run.observers.values(), _Saver(run), *listeners])
        run.folder.write_file("network.onnx", parts.executor.export().to_onnx().SerializeToString(deterministic=True))
        return run.finish(stopped=trainer.reason if trainer.status == "stopped" else None)


def _how(trainer: Any) -> str | None:
    """Whether an update rule runs as C or as NumPy; None for an optimizer that owns its step."""
    describe = getattr(trainer.optimizer, "describe", None)
    return describe().get("kernel") if callable(describe) else None


def _time(recipe: Recipe, out: str | Path) -> Result:
    from deep5.assemble import make_candidate
    from deep5.results.samples_file import sample_rows
    from deep5.timing import time_rounds

    candidate = make_candidate(recipe, "candidate")
    baseline, again = make_candidate(recipe, "baseline"), make_candidate(recipe, "baseline")
    run = _Run(
        recipe,
        out,
        level=2,
        threads={"asked": recipe.value("threads")},
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
        from deep5.metric import Sample

        for name in ("candidate", "baseline", "baseline_again"):
            run.extra_rows += sample_rows(f"{name}_time", "s", [Sample(value) for value in getattr(rounds, name)])
        for observer in run.observers.values():
            observer.after_timing(rounds)
        return run.finish()


class _Run:
    """The result folder of a run under way, and what goes into it."""

    def __init__(self, recipe: Recipe, out: str | Path, *, set_up_s: float = 0.0, **known: Any) -> None:
        from deep5.environment import describe_software, describe_system, environment_hash
        from deep5.results.folder import ResultFolder
        from deep5.results.schema import blank_document

        self.recipe = recipe
        self.observers: dict[tuple[Metric, Goal | None], Observer] = {
            (metric, goal): metric.observer() for metric, goal in recipe.metrics
        }
        self.extra_rows: list[Any] = []
        self._begin, self._cpu, self._set_up_s = perf_counter(), process_time(), set_up_s
        system, software = describe_system(), describe_software()
        provenance = {
            **known.pop("provenance", {}),
            "recipe_source": recipe.source_hash(),
            "environment": environment_hash(system, software),
        }
        self.document = blank_document(
            recipe={
                "name": recipe.name,
                "hash": recipe.fixed_hash(),
                **recipe.describe(),
                "size": recipe.size,
                "division": "closed" if recipe.published else "open",
            },
            system=system,
            software=software,
            provenance=provenance,
            metrics=self._rows(judged=False),
            started=_now(),
            **known,
        )
        name = "".join(letter if letter.isalnum() or letter in "_.-" else "_" for letter in recipe.name)
        self.folder = ResultFolder.create(out, name, self.document)
        self.document["run_id"] = self.folder.run_id

    def _rows(self, *, judged: bool) -> list[dict[str, Any]]:
        from deep5.results.schema import metric_row

        return [
            metric_row(
                metric,
                goal,
                value=observer.value(),
                judged=judged,
                interval=observer.interval(),
                samples=len(observer.samples()),
                scope=_scope(metric),
            )
            for (metric, goal), observer in self.observers.items()
        ]

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever ends the run, the folder says what it was."""
        try:
            self._write_inputs()
            yield
        except KeyboardInterrupt:
            self._end("aborted", "interrupted by the user")
            raise
        except Deep5Error as error:
            self._end("failed", str(error))
            raise RunFailed(f"the run failed: {error}; what it left is in {self.folder.path}") from error
        except Exception as error:
            self._end("failed", f"{type(error).__name__}: {error}")
            raise RunFailed(
                f"the run failed: {type(error).__name__}: {error}; what it left is in {self.folder.path}; "
                "remedy: --debug shows where"
            ) from error

    def _write_inputs(self) -> None:
        if self.recipe.source is not None:
            self.folder.write_file("recipe.py", self.recipe.source)
        environment = {"system": self.document["system"]["before"], "software": self.document["software"]}
        self.folder.write_file("environment.json", json.dumps(environment, indent=2) + "\n")

    def save_samples(self) -> None:
        """Write every sample so far."""
        from deep5.results.samples_file import sample_rows

        rows = list(self.extra_rows)
        for (metric, _), observer in self.observers.items():
            rows += sample_rows(metric.name, metric.unit, observer.samples())
        self.folder.write_samples(rows)

    def _close(self) -> None:
        from deep5.environment import describe_system

        self.save_samples()
        self.document["system"]["after"] = describe_system()
        self.document["finished"] = _now()
        self.document["resources"] = {
            "set_up_s": self._set_up_s,
            "wall_time_s": perf_counter() - self._begin,
            "cpu_time_s": process_time() - self._cpu,
        }

    def _end(self, status: str, reason: str) -> None:
        self._close()
        self.document |= {"status": status, "reasons": [reason], "accepted": None}
        self.document["metrics"] = self._rows(judged=False)
        self.folder.write_result(self.document)

    def finish(self, stopped: str | None = None) -> Result:
        """Judge, write, and read back what was written."""
        from deep5.results.result import load

        self._close()
        rows = self._rows(judged=True)
        failed = [row["name"] for row in rows if row["passed"] is False]
        judged = any(row["passed"] is not None for row in rows)
        reasons = [f"{name} did not meet its goal" for name in failed] + ([f"stopped: {stopped}"] if stopped else [])
        self.document |= {
            "status": "success",
            "reasons": reasons,
            "accepted": not failed if judged else None,
            "metrics": rows,
        }
        self.folder.write_result(self.document)
        return load(self.folder.path)


class _Saver(Event):
    """Writes samples while the run goes on."""

    def __init__(self, run: _Run) -> None:
        self._run, self._last = run, perf_counter()

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        """Every few seconds, at the end of an epoch."""
        if perf_counter() - self._last >= _SAVE_INTERVAL_S:
            self._run.save_samples()
            self._last = perf_counter()


def _scope(metric: Metric) -> str | None:
    """What a metric's docstring says of the clock."""
    import inspect

    text = " ".join((inspect.getdoc(type(metric)) or "").split())
    begin = text.find("On the clock:")
    if begin < 0:
        return None
    end = text.find(" Args:", begin)
    return text[begin : end if end > 0 else None].strip()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


