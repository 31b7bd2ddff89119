"""Workload of a recipe that times operators (level 0): run into a result folder, with charts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.bench.plan import Plan
from deep5.bench.recipe import check_operators, plan_of
from deep5.bench.record import OPERATORS, operators_document, unsure
from deep5.core.errors import MissingDependency, UsageError
from deep5.core.progress import Reporter
from deep5.recipe.experiment import Experiment
from deep5.run.record import CLOCK, RunRecord, thread_pools
from deep5.run.workload import Options, Timed

if TYPE_CHECKING:
    from deep5.bench.summary import OperatorTimes
    from deep5.core.communicator import Communicator
    from deep5.results.result import Result

__all__ = ["Operators", "time_operators"]


class Operators(Timed):
    """Operators timed on every framework."""

    compared = ("operators",)
    shared = False

    def check(self) -> list[str]:
        """Check its problems, its operator, and its function for the bare frameworks."""
        return check_operators(self.experiment.parts)

    def check_shares(self) -> None:
        """Always rejected: operators are timed in one process."""
        raise UsageError(
            f"{self.experiment.name} times operators and trains nothing; allowed: one process; remedy: no --ranks"
        )

    def time(self, options: Options, communicator: Communicator | None) -> Result | None:
        """Time every problem; the caller prints the verdict."""
        return time_operators(self.experiment, options.out, quiet=options.quiet, reported=True)

    def frameworks(self) -> Sequence[str]:
        """The frameworks that the recipe names."""
        names = self.experiment.values["frameworks"]
        return list(names.split(",") if isinstance(names, str) else names)


def time_operators(experiment: Experiment, out: str | Path, *, quiet: bool = False, reported: bool = False) -> Result:
    """Run a level-0 recipe into a new result folder.

    Args:
        experiment: The experiment to run.
        out: Parent of the result folder.
        quiet: Print nothing.
        reported: The caller prints the verdict and the run's warnings, so that they are not printed here too.

    Raises:
        UsageError: The recipe names something that does not exist; nothing is left on disk.
        RunFailed: The run could not be completed; its folder is marked and readable.
    """
    from deep5.bench.measure import SCOPE, measure
    from deep5.bench.summary import summarise
    from deep5.results.samples_file import sample_rows

    check_operators(experiment.parts)
    plan, values = plan_of(experiment.parts), experiment.values
    run = RunRecord(
        experiment,
        out,
        framework=_framework(plan),
        components={"plan": json.loads(plan.to_json())},
        level=0,
        numerics={"dtype": plan.dtype},
        threads={"asked": plan.threads, "framework": None, "pools": {}},
        measurement={
            "mode": plan.mode,
            "clock": CLOCK,
            "scope": SCOPE,
            "processes": plan.processes if plan.mode == "rigorous" else 1,
            "order": "all frameworks in a new random order each round, problem after problem",
            "cache_state": "warm, cold" if plan.cold else "warm",
        },
        seeds={"run": values["seed"]},
    )
    with run.guarded():
        with Reporter(quiet=quiet) as tell:
            times = summarise(measure(plan, tell=tell))
        run.document["threads"]["pools"] = thread_pools()
        run.document["threads"]["framework"] = _same(times, "threads")
        run.document["warnings"] += [*times.warnings, *unsure(times)]
        for name, samples in times.samples():
            run.extra_rows += sample_rows(name, "s", samples)
        run.folder.write_file(OPERATORS, json.dumps(operators_document(times), indent=2, default=str) + "\n")
        for observer in run.observers:
            observer.after_timing(times)
        if values["pictures"]:
            run.save_samples()
            run.document["warnings"] += _draw(run, values["box"])
        result = run.finish()
    if not quiet:
        from deep5.bench.report import operator_table
        from deep5.core.terminal import printed

        shown = {**operators_document(times), **({"warnings": []} if reported else {})}
        print(printed(partial(operator_table, shown)))  # noqa: T201 - the output of the recipe
    return result


def _framework(plan: Plan) -> dict[str, Any] | None:
    """The framework if there is only one; operators.json lists several."""
    from deep5.bench.plan import framework_of

    if len(plan.frameworks) > 1:
        return None
    try:
        version = framework_of(plan, plan.frameworks[0]).version()
    except MissingDependency:
        version = None
    return {"name": plan.frameworks[0], "version": version, "device": plan.device}


def _same(times: OperatorTimes, key: str) -> Any:
    """The value of a setting if all frameworks report the same."""
    found = {settings[key] for raw in times.raw for settings in raw["settings"].values() if key in settings}
    return found.pop() if len(found) == 1 else None


def _draw(run: RunRecord, box: str | None) -> list[str]:
    """Draw the charts; returns warnings if they could not be drawn."""
    from deep5.results.charts.operators import draw

    try:
        pictures, missing = draw(run.folder.path, box)
    except UsageError as error:
        return [f"no pictures were drawn: {error}"]
    for name, content in pictures.items():
        run.folder.write_file(name, content)
    return missing
