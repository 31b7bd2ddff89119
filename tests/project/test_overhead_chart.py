"""The chart of what deep5 costs shows the tables of overhead.md, in README as on the home page."""

from __future__ import annotations

import re

import pytest

import overhead_chart


def test_the_file_in_readme_is_drawn_from_the_tables_of_today() -> None:
    """Remedy: python docs/building/overhead_chart.py."""
    assert overhead_chart.FILE.read_text(encoding="utf-8") == overhead_chart.file_content()


def test_every_step_against_code_for_the_same_framework_is_a_row() -> None:
    page = overhead_chart.TABLES.read_text(encoding="utf-8")
    page, workloads = page.split("## Training steps of the workloads")  # which the page charts itself
    assert "<!-- chart: ratios Training steps of the workloads, against code written for the framework -->" in workloads
    names = re.findall(r"`overhead_((?:pytorch|tensorflow|jax)_\w+_step)`", page)
    costs = overhead_chart.costs()
    assert len(costs) == len({*names}) > 10
    assert all(cost["low"] <= cost["ratio"] <= cost["high"] for cost in costs)
    assert {cost["framework"] for cost in costs} == {*overhead_chart.FRAMEWORKS.values()}


def test_each_row_states_its_ratio() -> None:
    rows = [f"{cost['ratio']:.3f} ({cost['low']:.3f} to {cost['high']:.3f})" for cost in overhead_chart.costs()]
    for svg in (overhead_chart.draw(""), overhead_chart.file_content()):
        assert re.findall(r">(\d\.\d{3} \([^)]*\))</text>", svg) == rows


def test_a_subject_is_refused() -> None:
    with pytest.raises(ValueError, match="no subjects; got: 'jax'"):
        overhead_chart.draw("jax")
