"""The chart of what deep5 costs shows the tables of overhead.md, in README as on the home page."""

from __future__ import annotations

import re

import pytest

import overhead_chart

PAGE = overhead_chart.TABLES.read_text(encoding="utf-8")


def test_the_file_in_readme_is_drawn_from_the_tables_of_today() -> None:
    """Remedy: python docs/building/overhead_chart.py."""
    assert overhead_chart.FILE.read_text(encoding="utf-8") == overhead_chart.file_content()


def test_every_step_against_code_for_the_same_framework_is_a_row() -> None:
    names = re.findall(r"`overhead_((?:pytorch|tensorflow|jax)_\w+)_step`", PAGE)
    costs = overhead_chart.costs(PAGE)
    assert len(costs) == len({*names}) > 10
    assert all(cost.low <= cost.ratio <= cost.high for cost in costs)
    assert {cost.framework for cost in costs} == {*overhead_chart.FRAMEWORKS}


@pytest.mark.parametrize("svg", [overhead_chart.draw(""), overhead_chart.file_content()], ids=["page", "file"])
def test_each_row_is_marked_at_its_ratio(svg: str) -> None:
    costs = overhead_chart.costs(PAGE)
    assert [f"{cost.ratio:.3f} ({cost.low:.3f} to {cost.high:.3f})" in svg for cost in costs] == [True] * len(costs)
    one = float(re.findall(r'<text x="([\d.]+)"[^>]*>1</text>', svg)[0])
    marks = [float(place) for place in re.findall(r'<circle cx="([\d.]+)"', svg)]
    assert [mark < one for mark in marks] == [cost.ratio < 1 for cost in costs]


def test_a_subject_is_refused() -> None:
    with pytest.raises(ValueError, match="no subjects; got: 'jax'"):
        overhead_chart.draw("jax")
