"""The table of workloads: whether each reaches its goals with five seeds on each of two back-ends, and in what time.

`make figures ONLY=workloads/NAME,…` measures; a page shows the table by the line `<!-- workloads -->`.
"""

from __future__ import annotations

import json

import pandas as pd
from mkdocs.exceptions import PluginError

import stored_results
from deep5.recipe.recipe import load_recipe

MARK = "<!-- workloads -->"


def measured() -> list[str]:
    """The recipes whose workloads are measured and stored."""
    stored = stored_results.STORED / "workloads"
    return [name for name in stored_results.WORKLOADS if (stored / name / "record.json").is_file()]


def with_workloads(markdown: str, page: str) -> str:
    """Shows the table where a page requires it.

    Raises:
        PluginError: No workload is measured yet, or a stored result lacks what the table shows.
    """
    if MARK not in markdown:
        return markdown
    up = "../" * page.count("/")
    names = measured()
    if not names:
        raise PluginError(f"{page} shows workloads, and none is measured; remedy: make figures ONLY=workloads/NAME")
    lines = ["| recipe | goal | back-end | reached | value | time (s) |", "|---|---|---|---:|---:|---:|"]
    lines += [line for name in names for line in _rows(name, up)]
    sources = [f"- `{record['command']}`: {stored_results.standing(record)}" for record in map(_record, names)]
    return markdown.replace(MARK, "\n".join((*lines, "", *sources)))


def _record(name: str) -> dict[str, object]:
    return stored_results.record_of(f"workloads/{name}")


def _rows(name: str, up: str) -> list[str]:
    """The rows of one recipe: one per back-end."""
    goals = [(metric, str(goal)) for metric, goal in load_recipe(name).metrics if goal is not None]
    judged, goal = goals[0]
    place = stored_results.STORED / "workloads" / name
    units = json.loads((place / "record.json").read_text(encoding="utf-8"))["units"]
    values = pd.read_csv(place / "values.csv")
    unit = units.get(judged.name, judged.unit)
    asked = goal if not unit or goal.endswith(unit) else f"{goal} {unit}"
    rows = []
    for framework in dict.fromkeys(values["framework"]):
        runs = values[values["framework"] == framework]
        reached = int((runs["accepted"].astype(str) == "True").sum())
        found, taken = (_spread(runs, metric, name) for metric in (judged.name, "wall_clock_time"))
        shown = f"[{name}]({up}start/gallery.md#{name}) | `{judged.name}` {asked} | {framework}"
        rows.append(f"| {shown} | {reached} of {len(runs)} | {found} | {taken} |")
    return rows


def _spread(runs: pd.DataFrame, metric: str, name: str) -> str:
    """The median of a metric, and its range."""
    column = f"metric.{metric}"
    if column not in runs:
        raise PluginError(
            f"the stored result workloads/{name} has no {metric}; remedy: make figures ONLY=workloads/{name}"
        )
    low, middle, high = (f"{each:.4g}" for each in runs[column].quantile([0, 0.5, 1]))
    return f"{middle} ({low} … {high})" if low != high else middle
