"""Charts of studies of batch sizes: which candidates form a line, what is omitted, and what is drawn."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from deep5.core.errors import UsageError
from deep5.results.study.batches import BatchPoint, batch_chart, batch_points


def run(batch_size: Any, accuracy: float | None = 90.0, seconds: float = 2.0, **fixed: Any) -> Any:
    """The parts of a run that the points use."""
    return SimpleNamespace(
        verdicts=(
            SimpleNamespace(name="test_accuracy", value=accuracy),
            SimpleNamespace(name="wall_clock_time", value=seconds),
        ),
        document={"recipe": {"fixed": fixed, "mutable": {"batch_size": batch_size}}},
    )


def growing(start: int) -> dict[str, Any]:
    return {"batches": "growing", "start": start, "factor": 4.0, "every": 3, "most": None}


def test_points_by_hand() -> None:
    runs = {
        "linear 64": [run(64, 80.0, 3.0), run(64, 90.0, 5.0), run(64, 88.0, 4.0)],
        "linear 32": [run(32, 95.0, 9.0)],
        "growing 32": [run(growing(32), 94.0, 6.0)],
        "growing 64": [run(growing(64), 93.0, 4.0)],
    }
    assert batch_points(runs) == [
        BatchPoint("linear", 32, 95.0, 95.0, 95.0, 9.0, 9.0, 9.0, 1),
        BatchPoint("linear", 64, 86.0, 80.0, 90.0, 4.0, 3.0, 5.0, 3),
        BatchPoint("growing", 32, 94.0, 94.0, 94.0, 6.0, 6.0, 6.0, 1),
        BatchPoint("growing", 64, 93.0, 93.0, 93.0, 4.0, 4.0, 4.0, 1),
    ]


def test_names_of_settings_are_lines_too() -> None:
    both = {f"batch_size={size}, optimizer={name}": [run(size)] for name in ("adam", "sgd") for size in (8, 16)}
    assert [(point.series, point.batch) for point in batch_points(both)] == [
        (f"optimizer={name}", size) for name in ("adam", "sgd") for size in (8, 16)
    ]
    assert {point.series for point in batch_points({f"batch_size={size}": [run(size)] for size in (8, 16)})} == {"all"}


def test_what_is_no_point() -> None:
    """One size, a name without it or with another number, other functions of the epoch, no run and no finite value."""
    for wrong in (
        {"a 8": [run(8)], "b 16": [run(16)]},
        {"1 rank": [run(64)], "2 ranks": [run(128)]},
        {"a 80": [run(8)], "a 16": [run(16)]},
        {"a 8": [run({"object": "own"})], "a 16": [run(16)]},
        {"a 8": [], "a 16": [run(16)]},
        {"a 8": [run(8, math.nan)], "a 16": [run(16)]},
        {"a 8": [run(8, None)], "a 16": [run(16)]},
        {"a 1": [run(True)], "a 16": [run(16)]},
    ):
        assert batch_points(wrong) == [], wrong
    # A seed without a value is omitted, and the others count.
    half = {"a 8": [run(8, math.inf), run(8, 70.0)], "a 16": [run(16)]}
    assert [(point.batch, point.accuracy, point.seeds) for point in batch_points(half)] == [(8, 70.0, 1), (16, 90.0, 1)]


def test_the_chart_has_a_line_per_rule_and_both_panels() -> None:
    points = batch_points(
        {f"{rule} {size}": [run(size), run(size, 92.0)] for rule in ("linear", "LARS") for size in (32, 2048)}
    )
    spec = json.loads(batch_chart(points, "a title").to_json())
    titles = [panel["layer"][0]["encoding"]["y"]["title"] for panel in spec["vconcat"]]
    assert titles == ["test accuracy (%)", "training time"]
    for panel in spec["vconcat"]:
        assert panel["layer"][0]["encoding"]["x"]["axis"]["values"] == [32, 2048]
        assert panel["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["linear", "LARS"]
    assert spec["title"]["text"] == "a title"
    assert spec["title"]["subtitle"] == ["2 seeds: mean accuracy, median time; bars: smallest and largest"]
    with pytest.raises(UsageError, match="no points to draw"):
        batch_chart([])
