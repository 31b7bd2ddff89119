"""The table of workloads on the site, against its stored values."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from mkdocs.exceptions import PluginError

import stored_results
import workload_table

LINE = "# Page\n\n<!-- workloads -->\n"


def _cells(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_row_states_the_median_and_the_range_of_its_seeds() -> None:
    rows = _cells(workload_table.with_workloads(LINE, "results/page.md"))
    assert len(rows) == 2 * len(workload_table.measured())
    for recipe, goal, framework, reached, value, seconds in rows:
        name = re.match(r"\[(\w+)\]", recipe)[1]
        metric = re.match(r"`(\w+)`", goal)[1]
        values = pd.read_csv(stored_results.STORED / "workloads" / name / "values.csv")
        runs = values[values["framework"] == framework]
        assert sorted(json.loads(seeds)["run"] for seeds in runs["seeds"]) == [0, 1, 2, 3, 4], name
        assert reached == f"{sum(runs['accepted'])} of 5"
        for cell, column in ((value, metric), (seconds, "wall_clock_time")):
            numbers = sorted(runs[f"metric.{column}"])
            shown = [float(each) for each in re.findall(r"[-\d.e+]*\d", cell)]
            expected = [numbers[2]] if len(shown) == 1 else [numbers[2], numbers[0], numbers[-1]]
            assert shown == pytest.approx(expected, rel=1e-3), (name, column)  # four digits are shown


def test_a_run_that_misses_its_goal_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = workload_table.measured()[0]
    copy = tmp_path / "workloads" / name
    shutil.copytree(stored_results.STORED / "workloads" / name, copy)
    monkeypatch.setattr(stored_results, "STORED", tmp_path)
    values = pd.read_csv(copy / "values.csv")
    values.loc[0, "accepted"] = False
    values.to_csv(copy / "values.csv", index=False)
    first, second = _cells(workload_table.with_workloads(LINE, "page.md"))
    assert first[3] == f"{int(values['accepted'][:5].sum())} of 5"
    assert second[3] == f"{int(values['accepted'][5:].sum())} of 5"
    values.drop(columns="metric.wall_clock_time").to_csv(copy / "values.csv", index=False)
    with pytest.raises(PluginError, match=f"workloads/{name} has no wall_clock_time; remedy: make figures"):
        workload_table.with_workloads(LINE, "page.md")


def test_a_page_without_measurements_says_how_to_make_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_results, "STORED", tmp_path)
    with pytest.raises(PluginError, match=r"none is measured; remedy: make figures ONLY=workloads/"):
        workload_table.with_workloads(LINE, "results/page.md")
    assert workload_table.with_workloads("# Other\n", "page.md") == "# Other\n"
