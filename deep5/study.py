"""`deep5 study`: a recipe with each of several settings and seeds, its runs side by side in pictures and a table."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import click

from deep5.canonical import canonical
from deep5.errors import Deep5Error, Errors, MissingDependency, OutputError, RecipeError, UsageError
from deep5.recipe import FULL, Recipe, load_recipe
from deep5.recipe_file import read_recipe_file
from deep5.results.result import Result
from deep5.seeds import generator

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["STUDY", "Study", "load_study", "run_study", "study_command"]

STUDY = "study.json"
"""The file of a study's folder that says what was run and what became of it."""

_RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs of one recipe with several settings and seeds.

    Attributes:
        folder: Holds `study.json`, the pictures, and in `runs` a result folder a run.
        recipe: Its name.
        size: Of the recipe.
        settings: By candidate.
        runs: By candidate, the runs that came to their end, in the order of the seeds.
        failures: By candidate, what became of those that did not.
        notes: What is to be known, a sentence each.
    """

    folder: Path
    recipe: str
    size: str
    settings: Mapping[str, Mapping[str, Any]]
    runs: Mapping[str, Sequence[Result]]
    failures: Mapping[str, Sequence[str]]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """What was run and what became of it, in JSON's types; of each metric the values, their mean and deviation."""
        candidates = {
            name: {
                "settings": canonical(self.settings[name], strict=False),
                "runs": [str(result.folder.relative_to(self.folder)) for result in self.runs[name]],
                "seeds": [result.document["seeds"].get("run") for result in self.runs[name]],
                "failures": list(self.failures[name]),
                "metrics": {metric: _summary(values) for metric, values in self._values(name).items()},
            }
            for name in self.settings
        }
        return {"recipe": self.recipe, "size": self.size, "candidates": candidates, "notes": list(self.notes)}

    def _values(self, name: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for result in self.runs[name]:
            for verdict in result.verdicts:
                if verdict.value is not None:
                    found.setdefault(verdict.label, []).append(verdict.value)
        return found

    def print(self, console: Console) -> None:
        """A row a candidate: mean and deviation of each metric over the seeds.

        Args:
            console: Where to print.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        units = {
            verdict.label: verdict.unit for own in self.runs.values() for result in own for verdict in result.verdicts
        }
        table = Table(box=box.SIMPLE, pad_edge=False)
        for column in ("candidate", *(f"{name.replace('_', ' ')} [{unit}]" for name, unit in units.items())):
            table.add_column(column, overflow="fold")
        for name in self.settings:
            values = self._values(name)
            cells = [_told(values[metric]) if metric in values else "-" for metric in units]
            table.add_row(*(Text(cell) for cell in (name, *cells)))
        console.print(table)
        for name, failed in self.failures.items():
            for reason in failed:
                console.print(Text(f"{name}: {reason}"), overflow="fold")
        for note in self.notes:
            console.print(Text(f"note: {note}"), overflow="fold")
        console.print(Text(str(self.folder)), soft_wrap=True)


def _summary(values: Sequence[float]) -> dict[str, Any]:
    listed = [value if math.isfinite(value) else str(value) for value in values]
    if not all(map(math.isfinite, values)):
        return {"values": listed, "mean": None, "deviation": None}
    return {"values": listed, "mean": mean(values), "deviation": stdev(values) if len(values) > 1 else None}


def _told(values: Sequence[float]) -> str:
    if not all(map(math.isfinite, values)):
        return f"{sum(not math.isfinite(value) for value in values)} of {len(values)} without a finite value"
    return f"{mean(values):.5g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


def load_study(name_or_path: str | Path, size: str = FULL) -> tuple[Recipe, dict[str, dict[str, Any]]]:
    """A recipe and the settings that its file compares: a dict STUDY from a candidate's name to settings.

    Args:
        name_or_path: A registered name, or the path of a Python file.
        size: One of the recipe's sizes.

    Raises:
        RecipeError: No such recipe, no STUDY in it, or one that is no dict of settings.
        UsageError: Settings that the recipe does not take.
    """
    recipe = load_recipe(name_or_path)
    if recipe.path is None:
        raise RecipeError(f"the recipe {name_or_path} has no file; allowed: one that has")
    scope, _ = read_recipe_file(recipe.path)
    study = scope.get("STUDY")
    if not isinstance(study, Mapping) or not study or not all(isinstance(own, Mapping) for own in study.values()):
        raise RecipeError(
            f"{recipe.path}: STUDY is {study!r:.60}; allowed: a dict such as {{'adam': {{'optimizer': 'adam'}}, …}}"
        )
    at_size = recipe.at_size(size)
    for name, own in study.items():
        if not isinstance(name, str) or not name:
            raise RecipeError(f"{recipe.path}: STUDY names the candidate {name!r}; allowed: a text")
        at_size.with_settings(own)  # refuses what is none of its mutable parts, before anything runs
    return at_size, {name: dict(own) for name, own in study.items()}


def run_study(
    recipe: Recipe,
    settings: Mapping[str, Mapping[str, Any]],
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    common: Mapping[str, Any] | None = None,
    out: str | Path = "results",
    tell: Callable[[str], None] | None = None,
) -> Study:
    """Run a recipe with each settings and each seed, and draw accuracy against epoch and loss against time.

    Seed after seed all candidates run, in an order that the seed draws, so that what changes on the machine meanwhile
    falls on all of them. A run that fails is noted, and the others go on.

    Args:
        recipe: A training recipe, at the size to run.
        settings: By candidate, mutable parts set anew.
        seeds: Of weights, order and noise; each candidate has the same ones.
        common: Settings of all candidates, such as the framework.
        out: Where the study's folder goes.
        tell: Takes a line before each run.

    Raises:
        UsageError: No candidate, no seed, settings that do not fit, or a folder that cannot be written.
    """
    from deep5.run import execute

    if not settings or not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(f"a study of {list(settings)} with the seeds {list(seeds)}; allowed: at least one each, once")
    made = {
        (name, seed): recipe.with_settings({**(common or {}), **own, "seed": seed})
        for name, own in settings.items()
        for seed in seeds
    }
    folder = _folder(Path(out), recipe.name)
    runs: dict[str, list[Result]] = {name: [] for name in settings}
    failures: dict[str, list[str]] = {name: [] for name in settings}

    def study(*notes: str) -> Study:
        return Study(
            folder=folder,
            recipe=recipe.name,
            size=recipe.size,
            settings=settings,
            runs=runs,
            failures=failures,
            notes=notes,
        )

    try:
        for seed in seeds:
            order = generator(seed, "study").permutation(len(settings))
            for name in (list(settings)[place] for place in order):
                if tell is not None:
                    tell(f"{name}, seed {seed}")
                try:
                    runs[name].append(execute(made[name, seed], out=folder / _RUNS, quiet=True))
                except Deep5Error as error:
                    failures[name].append(f"seed {seed}: {error}")
                # Whatever ends the study, it holds what was done.
                _written(folder, study("the study is not finished"), {})
    except KeyboardInterrupt:
        _written(folder, study("the study was interrupted"), {})
        raise KeyboardInterrupt(f"interrupted; what the study left is in {folder}") from None
    drawn, missing = _drawn(recipe, runs)
    finished = study(*missing)
    _written(folder, finished, drawn)
    return finished


def _folder(out: Path, name: str) -> Path:
    """A new folder of a study."""
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = out.absolute() / f"{name}-study-{now}-{secrets.token_hex(3)}"
    try:
        (folder / _RUNS).mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            f"cannot make {folder}: {error.strerror or error}; allowed: a folder that can be written; remedy: --out"
        ) from error
    return folder


def _written(folder: Path, study: Study, drawn: Mapping[str, bytes]) -> None:
    from deep5.files import write_atomically

    try:
        for name, content in drawn.items():
            write_atomically(folder / name, content)
        write_atomically(folder / STUDY, json.dumps(study.document(), indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write into {folder}: {error.strerror or error}; the runs are in it") from error


def _drawn(recipe: Recipe, runs: Mapping[str, Sequence[Result]]) -> tuple[dict[str, bytes], list[str]]:
    """The pictures, and why one is missing."""
    from deep5.results import training_charts as charts

    there = {name: own for name, own in runs.items() if own}
    drawn: dict[str, bytes] = {}
    missing = []
    seeds = max((len(own) for own in there.values()), default=0)
    title = f"{recipe.name}" + (f", {seeds} seeds: mean and extremes" if seeds > 1 else "")
    for name, points, chart in (
        ("accuracy", charts.accuracy_points, charts.accuracy_chart),
        ("loss", charts.loss_points, charts.loss_chart),
    ):
        try:
            drawn |= charts.pictures(name, chart(points(there), title))
        except (MissingDependency, UsageError) as error:
            missing.append(f"no {name}.svg was drawn: {error}")
    return drawn, missing


def study_command(errors: Errors) -> click.Command:
    """The command, for a command line that says how errors are told.

    Args:
        errors: The command line's own.
    """

    @click.command("study")
    @click.argument("recipe")
    @click.option("--size", metavar="NAME", default=FULL, help="A size of the recipe, such as smoke.")
    @click.option(
        "--seeds", type=click.IntRange(min=1), default=5, show_default=True, metavar="N", help="Seeds 0 to N-1."
    )
    @click.option("--only", metavar="NAMES", help="These candidates, with commas between.")
    @click.option("--framework", metavar="NAME", help="Run on this framework.")
    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads within an operator.")
    @click.option("--out", metavar="DIR", default="results", show_default=True, help="Where the study's folder goes.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--quiet", is_flag=True, help="Print nothing but errors.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def study(
        recipe: str,
        size: str,
        seeds: int,
        only: str | None,
        out: str,
        as_json: bool,
        quiet: bool,
        debug: bool,
        **common: Any,
    ) -> None:
        """Run RECIPE with each of the settings in its STUDY and several seeds, and draw them side by side.

        The pictures are accuracy against epoch and loss against time, a band over the seeds around each mean.
        """
        with errors(debug, as_json) as show:
            found, settings = load_study(recipe, size)
            chosen = _chosen(settings, only)
            told = {name: value for name, value in common.items() if value is not None}
            tell = None if quiet or as_json else lambda line: click.echo(line, err=True)
            done = run_study(found, chosen, seeds=range(seeds), common=told, out=out, tell=tell)
            if as_json:
                show(json.dumps({**done.document(), "folder": str(done.folder)}, indent=2, allow_nan=False))
            elif not quiet:
                from rich.console import Console

                console = Console()
                with console.capture() as text:
                    done.print(console)
                show(text.get().rstrip("\n"))

    return study


def _chosen(settings: Mapping[str, Mapping[str, Any]], only: str | None) -> dict[str, Mapping[str, Any]]:
    from deep5.errors import UnknownName

    names = list(settings) if only is None else [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in settings:
            raise UnknownName("candidate", name, settings)
    return {name: settings[name] for name in names}
