"""A recipe that times operators (level 0): checked, run into a result folder, drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.bench.plan import Plan, remarks, workloads
from deep5.core.errors import Deep5Error, MissingDependency, RecipeError, UsageError
from deep5.recipe.components import check_arguments, component, is_factory, not_a
from deep5.recipe.recipe import Recipe
from deep5.run.record import RunRecord

if TYPE_CHECKING:
    from deep5.bench.summary import OperatorTimes
    from deep5.results.result import Result

__all__ = ["OPERATORS", "check_operators", "plan_of", "time_operators"]

OPERATORS = "operators.json"
"""The file of a result folder that holds medians, rates, coverage and the machine's peaks."""

# What the function under `bare` is called with, by name.
_GIVEN = ("inputs", "output_grads", "needs", "threads", "device")


def plan_of(recipe: Recipe) -> Plan:
    """What a level-0 recipe runs, in JSON's types.

    Raises:
        RecipeError: `bare` is no function that another process could find.
    """
    operator = recipe.value("operator")
    return Plan(
        operator=operator if operator is None else _absolute(operator, recipe.folder_of("operator")),
        problems=recipe.value("problems"),
        uses=_names(recipe.value("uses")),
        shapes=tuple(tuple(shape) for shape in recipe.value("shapes")),
        attributes=recipe.value("attributes"),
        dtype=_dtype(recipe.value("dtype")),
        bounds=None if recipe.value("bounds") is None else tuple(recipe.value("bounds")),
        frameworks=_names(recipe.value("frameworks")),
        bare=_bare(recipe),
        backward=recipe.value("backward"),
        cold=recipe.value("cold"),
        mode="rigorous" if recipe.value("rigorous") else "quick",
        processes=recipe.value("processes"),
        rounds=recipe.value("rounds"),
        threads=recipe.value("threads"),
        device=str(recipe.value("device")),
        seed=recipe.value("seed"),
        limit_gflop=recipe.value("limit_gflop"),
        take=recipe.value("take"),
        keep=recipe.value("box"),
    )


def _dtype(value: str | Sequence[str]) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else tuple(value) if len(value) > 1 else value[0]


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(value.split(",") if isinstance(value, str) else value)


def _absolute(text: str, folder: Path | None) -> str:
    """`FILE.py:NAME` with the whole path: another process may stand elsewhere."""
    if ".py:" not in text:
        return text
    file, _, name = text.rpartition(":")
    return f"{Path(folder or '', file).resolve()}:{name}"


def _bare(recipe: Recipe) -> str | None:
    value = recipe.value("bare")
    if value is None or isinstance(value, str):
        return None if value is None else _absolute(value, recipe.folder_of("bare"))
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not is_factory(value) or not module or not name.isidentifier():
        raise not_a(recipe, "bare", value, "a function at the top level of a module, or FILE.py:NAME")
    # A recipe's file is run as a module of its own name, which no other process knows.
    own = recipe.path is not None and module.startswith(("deep5_recipe_", "__main__"))
    return f"{Path(str(recipe.path)).resolve()}:{name}" if own else f"{module}:{name}"


def check_operators(recipe: Recipe) -> list[str]:
    """Whether a level-0 recipe could run: its problems, its operator, its function for the bare frameworks.

    Returns:
        What would be run, and how much would be left out.

    Raises:
        RecipeError: A part is not there or does not fit.
    """
    plan, notes = plan_of(recipe), []
    if plan.bare is not None:
        made = component(recipe, "bare", "candidates")
        check_arguments(recipe, "bare", made, None, None, **dict.fromkeys(_GIVEN))
    try:
        works, left_out = workloads(plan)
    except MissingDependency:
        raise
    except Deep5Error as error:
        raise RecipeError(f"{recipe.where('operator')}{error}") from error
    if not works:
        raise RecipeError(f"{recipe.where('limit_gflop')}nothing is left to run; {_least(plan, left_out)}")
    _check_box(recipe, plan)
    notes.append(f"{len(works)} of {len(works) + len(left_out)} problems and directions would be run")
    return notes + remarks(plan, works, left_out)


def _least(plan: Plan, left_out: list[dict[str, Any]]) -> str:
    """Why nothing is left, and the smallest limit that would leave something."""
    all_works, _ = workloads(replace(plan, limit_gflop=None, take=None))
    works = [work.flops for work in all_works if work.flops is not None]
    if plan.limit_gflop is None or not works:
        return f"the first of {len(left_out)} reasons: {left_out[0]['reason']}"
    least = ceil(min(works) / 1e9 * (digits := 10.0 ** (2 - floor(log10(min(works) / 1e9))))) / digits
    return f"got limit_gflop={plan.limit_gflop:g}; allowed: at least {least:.3g}, the work of the smallest problem"


def _check_box(recipe: Recipe, plan: Plan) -> None:
    from deep5.operators.problems import problem_set

    box = recipe.value("box")
    if box is None or plan.problems is None:
        return
    # Of all uses: one that a setting leaves out is told when the pictures are drawn.
    names = [problem.name for problem in problem_set(plan.problems, (), plan.peak_dtype)]
    if box not in names:
        raise RecipeError(f"{recipe.where('box')}'box' is {box!r}; allowed: one of {names[0]} … {names[-1]}")


def time_operators(recipe: Recipe, out: str | Path, *, quiet: bool = False, judged: bool = False) -> Result:
    """Run a level-0 recipe into a new result folder.

    Args:
        recipe: At the size and with the settings to run.
        out: Where the folder goes.
        quiet: Print nothing.
        judged: The verdict is printed next, and the run's warnings with it: they are not printed here too.

    Raises:
        UsageError: The recipe names something that is not there; nothing is left behind.
        RunFailed: The run could not be completed; its folder is marked and readable.
    """
    from deep5.bench.measure import SCOPE, measure
    from deep5.bench.summary import summarise
    from deep5.results.samples_file import sample_rows

    check_operators(recipe)
    plan = plan_of(recipe)
    run = RunRecord(
        recipe,
        out,
        framework=_framework(plan),
        components={"plan": json.loads(plan.to_json())},
        level=0,
        numerics={"dtype": plan.dtype},
        threads={"asked": plan.threads, "framework": None, "pools": {}},
        measurement={
            "mode": plan.mode,
            "clock": "time.perf_counter_ns",
            "scope": SCOPE,
            "processes": plan.processes if plan.mode == "rigorous" else 1,
            "order": "all frameworks in a new random order each round, problem after problem",
            "cache_state": "warm, cold" if plan.cold else "warm",
        },
        seeds={"run": recipe.value("seed")},
    )
    with run.guarded():
        times = summarise(measure(plan))
        run.document["threads"]["pools"] = _pools()
        run.document["threads"]["framework"] = _same(times, "threads")
        run.document["warnings"] += [*times.warnings, *_unsure(times)]
        for name, samples in times.samples():
            run.extra_rows += sample_rows(name, "s", samples)
        run.folder.write_file(OPERATORS, json.dumps(_told(times), indent=2, default=str) + "\n")
        for observer in run.observers:
            observer.after_timing(times)
        if recipe.value("pictures"):
            run.save_samples()
            run.document["warnings"] += _draw(run, recipe.value("box"))
        result = run.finish()
    if not quiet:
        from rich.console import Console

        from deep5.bench.report import operator_table

        operator_table({**_told(times), **({"warnings": []} if judged else {})}, Console())
    return result


def _framework(plan: Plan) -> dict[str, Any] | None:
    """The framework, where there is one; several stand in operators.json."""
    from deep5.core.plugins import framework

    if len(plan.frameworks) > 1:
        return None
    try:
        version = framework(plan.frameworks[0]).version()
    except MissingDependency:
        version = None
    return {"name": plan.frameworks[0], "version": version, "device": plan.device}


def _pools() -> dict[str, int]:
    from threadpoolctl import threadpool_info

    return {f"{p['internal_api']} ({Path(p['filepath']).name})": p["num_threads"] for p in threadpool_info()}


def _same(times: OperatorTimes, key: str) -> Any:
    """What every framework says of a setting, where all say the same."""
    found = {settings[key] for raw in times.raw for settings in raw["settings"].values() if key in settings}
    return found.pop() if len(found) == 1 else None


def _unsure(times: OperatorTimes) -> list[str]:
    """One line for all numbers that may be unstable; which they are, and why, stands in operators.json."""
    number = sum(bool(row["warnings"]) for row in times.rows)
    if not number:
        return []
    return [f"{number} of {len(times.rows)} numbers may be unstable; {OPERATORS} says which, why, and what to do"]


def _told(times: OperatorTimes) -> dict[str, Any]:
    from dataclasses import asdict

    from deep5.bench.summary import series_name

    series: dict[tuple[str, str, str], list[str]] = {}
    for raw in times.raw:
        for entry in raw["series"]:
            key = (entry["problem"], entry["direction"], entry["candidate"])
            series.setdefault(key, []).append(series_name(entry, "samples", raw["process"]))
    rows = [{**row, "series": series[row["problem"], row["direction"], row["candidate"]]} for row in times.rows]
    clocks: list[Mapping[str, Any]] = [
        {name: raw[name] for name in ("process", "resolution_s", "overhead_s", "settings")} for raw in times.raw
    ]
    return {
        "rows": rows,
        "left_out": list(times.left_out),
        "coverage": times.coverage,
        "roofline": {**asdict(times.roofline), "seen": dict(times.roofline.seen)},
        "processes": clocks,
        "warnings": list(times.warnings),
    }


def _draw(run: RunRecord, box: str | None) -> list[str]:
    """The pictures, and what is to be known where they could not be drawn."""
    from deep5.results.charts.operators import draw

    try:
        pictures, missing = draw(run.folder.path, box)
    except UsageError as error:
        return [f"no pictures were drawn: {error}"]
    for name, content in pictures.items():
        run.folder.write_file(name, content)
    return missing
