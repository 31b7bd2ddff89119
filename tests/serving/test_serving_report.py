"""Charts and tables of served loads: what they hold, leave out and refuse, in the page and as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import deep5 as d5
from deep5.bench.serving.plan import ServingPlan
from deep5.bench.serving.record import serving_document, serving_pictures
from deep5.bench.serving.records import Request, ServedLoad
from deep5.bench.serving.report import serving_table as printed_table
from deep5.bench.serving.summary import summarise_load, unsure
from deep5.core.errors import UsageError
from deep5.core.terminal import printed
from deep5.recipe.recipe import Recipe
from deep5.results.charts.serving import serving_chart
from deep5.results.report.collect import collect
from deep5.results.report.figures import report_figures
from deep5.results.report.page import report_page
from deep5.results.report.serving_times import serving_drawing, serving_table
from deep5.results.result import Result, load
from deep5.run.execute import execute

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
pytestmark = pytest.mark.usefixtures("warm")

FIXED: dict[str, Any] = {
    "scenario": "server", "queries": 20, "rate": (100, 300), "bound_s": 0.5, "model": "mlp",
    "model_kwargs": {"features": 16, "hidden": 8, "classes": 3}, "dataset": "synthetic",
    "dataset_kwargs": {"shape": (16,), "classes": 3, "train": 8, "test": 40},
}  # fmt: skip


def of_latencies(*latencies_s: float, rates: tuple[float, ...] = (10.0,), status: str = "ok") -> ServedLoad:
    """A load with these latencies at each rate, of queries that all arrive at the start."""
    each = len(latencies_s)
    plan = ServingPlan(scenario="server", queries=each, rates=rates, bound_s=0.2, max_batch=4, deadline_s=0.002)
    rows = tuple(
        Request(
            request=number, query=number, phase=number // each, sample=0, scheduled_s=0.0, issued_s=0.0,
            started_s=0.0, first_s=0.0, last_s=latencies_s[number % each], batch=1, status=status,
        )
        for number in range(each * len(rates))
    )  # fmt: skip
    return ServedLoad(plan=plan, requests=rows, begins_s=(0.0,) * len(rates))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    recipe = Recipe.make(FIXED, {"framework": "reference", "max_batch": 4}, [(d5.Goodput(0.5), None)], name="served")
    return execute(recipe, out=tmp_path_factory.mktemp("served"), quiet=True)


def test_the_folder_has_the_chart(result: Result) -> None:
    assert {"serving.svg", "serving.png", "serving.json", "requests.csv"} <= {
        each.name for each in result.folder.iterdir()
    }
    assert "Latency against throughput; dashed: the bound of 500 ms" in (result.folder / "serving.svg").read_text()


def test_the_page_has_chart_and_table(result: Result) -> None:
    page = report_page(collect([result.folder]))
    assert "Load of" in page
    assert "Latencies from the scheduled time, percentiles by the nearest rank" in page
    assert "Latency against throughput" in page
    files, lost = report_figures(collect([result.folder]), "svg")
    assert not lost
    assert any(name.endswith("-serving.svg") for name in files)


def values(chart: Any) -> list[dict[str, Any]]:
    """All values of a chart, by panel and layer."""
    found: list[dict[str, Any]] = []

    def look(part: Any) -> None:
        if isinstance(part, dict):
            found.extend(part.get("data", {}).get("values", ()))
            for entry in part.values():
                look(entry)
        elif isinstance(part, list):
            for entry in part:
                look(entry)

    look(chart.to_dict())
    return found


def test_the_chart_holds_the_percentiles_and_the_rates() -> None:
    made = of_latencies(*(0.01 * number for number in range(1, 101)), rates=(10.0, 20.0))
    document = serving_document(made, summarise_load(made), {})
    drawn = values(serving_chart(document["phases"], 0.2))
    latencies = [(each["name"], each["s"]) for each in drawn if "throughput" in each]
    assert latencies == [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] * 2
    rates = {(each["name"], each["rate"], each["value"]) for each in drawn if "rate" in each}
    # A hundred answers in a second, twenty of them within 0.2 s.
    assert rates == {
        (name, rate, value) for rate in (10.0, 20.0) for name, value in (("throughput", 100.0), ("goodput", 20.0))
    }
    assert {"s": 0.2} in drawn
    assert set(serving_pictures(document)) == {"serving.svg", "serving.png"}


def test_a_load_without_answers_has_no_chart() -> None:
    made = of_latencies(0.1, 0.2, status="the server ended")
    document = serving_document(made, summarise_load(made), {})
    assert document["phases"][0]["percentiles"]["50"] == "inf"
    with pytest.raises(UsageError, match="no latencies to draw; allowed: a load of which at least half"):
        serving_pictures(document)


def test_the_printed_table_has_a_row_by_rate() -> None:
    made = of_latencies(*(0.01 * number for number in range(1, 101)), rates=(10.0, 20.0))
    text = printed(lambda console: printed_table(made.plan, summarise_load(made), console))
    assert "  10         100  500 ms  900 ms  990 ms       20" in text
    assert "scenario server, 100 queries at each rate; bound: p99 within 200 ms" in text


def test_what_makes_a_load_unsure() -> None:
    made = of_latencies(*(0.01 * number for number in range(1, 101)))
    (said,) = unsure(made, summarise_load(made))
    assert said == (
        "1 of 100 queries are above the 99th percentile, so that single queries decide it; allowed: 10; remedy: "
        "queries=1000"
    )
    late = replace(made, requests=tuple(replace(row, scheduled_s=-0.05) for row in made.requests))
    assert any(
        "more than 0.05 s late, above a tenth of the bound of 0.2 s" in said
        for said in unsure(late, summarise_load(late))
    )


# Doctored documents


def edited(folder: Path, change: Callable[[Any], None]) -> None:
    document = json.loads((folder / "serving.json").read_text())
    change(document)
    (folder / "serving.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("plan"),
        lambda told: told["plan"].update(bound_s="soon"),
        lambda told: told["plan"].update(transport=7),
        lambda told: told.update(phases=3),
        lambda told: told["phases"][0].update(throughput="x"),
        lambda told: told["phases"][0]["percentiles"].update({"99": "nan"}),
        lambda told: told["phases"][0]["percentiles"].pop("50"),
        lambda told: told["phases"][0].update(mean_batch=[]),
    ],
)
def test_a_document_in_another_format_is_named(result: Result, tmp_path: Path, change: Callable[[Any], None]) -> None:
    import shutil

    folder = tmp_path / result.folder.name
    shutil.copytree(result.folder, folder)
    edited(folder, change)
    for draw in (serving_drawing, serving_table):
        with pytest.raises(UsageError, match=r"serving\.json of .* is not as deep5 writes it; allowed: its plan"):
            draw(load(folder))


def test_other_runs_have_no_load(tmp_path: Path, result: Result) -> None:
    import shutil

    folder = tmp_path / result.folder.name
    shutil.copytree(result.folder, folder)
    (folder / "serving.json").unlink()
    assert serving_drawing(load(folder)) is None
    assert serving_table(load(folder)) is None
