"""Charts of runs that timed code or collectives: what they hold, leave out and refuse, in the page and as files."""

from __future__ import annotations

import json
import math
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import report_cases as cases
from deep5.core.errors import UsageError
from deep5.measuring.samples import median_interval, non_inferiority, ratio_interval
from deep5.results.ranks_file import rank_samples
from deep5.results.report import chart_parts, collect, report_figures, report_page
from deep5.results.report.code_times import times_drawing
from deep5.results.report.collective_times import collective_drawing
from deep5.results.report.drawing import file_of
from deep5.results.report.theme import dark_rules, themed
from deep5.results.result import load
from deep5.results.timed_rounds import SIDES, timed_rounds

SMALL = {"size": "smoke", "division": "open"}


def values_in(part: Any) -> list[dict[str, Any]]:
    """All rows of data within a specification."""
    if isinstance(part, list):
        return [found for entry in part for found in values_in(entry)]
    if not isinstance(part, dict):
        return []
    own = part["data"].get("values", []) if "data" in part else []
    return own + [found for entry in part.values() for found in values_in(entry)]


def drawn(folder: Path) -> Any:
    """The chart of a run that timed code."""
    drawing = times_drawing(load(folder))
    assert drawing is not None
    return drawing


def texts(picture: bytes) -> str:
    return " ".join(text.strip() for text in ET.fromstring(picture).itertext() if text.strip())  # noqa: S314


def rounds(count: int, candidate: float = 1e-3, baseline: float = 2e-3) -> dict[str, list[float]]:
    """Times that increase from round to round by a hundredth of the first."""
    middles = dict(zip(SIDES, (candidate, baseline, baseline), strict=True))
    return {side: [middle * (1 + place / 100) for place in range(count)] for side, middle in middles.items()}


def test_the_chart_of_rounds_has_every_time_with_the_interval_of_the_result(tmp_path: Path) -> None:
    folder = cases.timed(tmp_path)
    times = timed_rounds(load(folder))
    specification = themed(drawn(folder).chart)
    rows = values_in(specification)
    seconds, ratios = (values_in(panel) for panel in specification["vconcat"])
    for side in SIDES:
        name = side.replace("_", " ")
        assert [row["value"] for row in seconds if row.get("name") == name and "value" in row] == times[side]
        middle = next(row for row in seconds if row.get("name") == name and "middle" in row)
        interval = median_interval(times[side])
        assert (middle["middle"], middle["low"], middle["high"]) == (
            np.median(times[side]), interval.low, interval.high
        )  # fmt: skip
    answer = non_inferiority(*times.values())
    ours, noise = [row for row in ratios if "middle" in row][:2]
    assert (ours["name"], noise["name"]) == ("candidate", "baseline again")
    assert (ours["middle"], ours["low"], ours["high"]) == (answer.ratio, answer.interval.low, answer.interval.high)
    same = ratio_interval(times["baseline_again"], times["baseline"])
    assert (noise["low"], noise["high"]) == (same.low, same.high)
    assert {"one": 1.0} in rows
    for panel in specification["vconcat"]:
        assert any(layer["encoding"]["x"]["scale"]["type"] == "log" for layer in panel["layer"])


def test_the_page_and_the_files_show_a_run_of_timed_code(tmp_path: Path) -> None:
    found = collect([cases.timed(tmp_path, **SMALL)])
    page = report_page(found)
    assert "cannot be shown" not in page
    caption = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert len(caption) == 1
    for said in ("mine:fast", "mine:plain", "8 rounds", "95 % intervals", "(A/A)", "of the same round: candidate 0.5"):
        assert said in caption[0]
    (label,) = re.findall('<svg role="img" aria-label="([^"]*)"', page)
    assert label.startswith("Times of rounds. size smoke; open division. Candidate: mine:fast")
    for row in ("candidate / baseline", "baseline again / baseline", "Times of a round"):
        assert row in page
    files, lost = report_figures(found, "svg")
    assert (list(files), lost) == ([f"{found.runs[0].folder.name}-times.svg"], [])
    told = texts(*files.values())
    for said in ("size smoke; open division", "time of a round (5 steps)", "baseline again", "the same round"):
        assert said in told


@pytest.mark.parametrize("make", [cases.timed, cases.collective])
def test_each_color_has_its_counterpart_in_the_dark(make: Callable[..., Path], tmp_path: Path) -> None:
    rules = dark_rules()
    (picture,) = report_figures(collect([make(tmp_path)]), "svg")[0].values()
    colors = set(re.findall(r'(fill|stroke)="(#[0-9a-fA-F]+|black|white)"', picture.decode()))
    assert len(colors) > 3
    for kind, color in colors:
        assert f'[{kind}="{color.lower()}" i]' in rules, color


def test_a_round_of_ranks_takes_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    first, second = rounds(7), rounds(7, candidate=1.03e-3, baseline=1.9e-3)
    folder = cases.timed(tmp_path, times=first, others=[second])
    found = timed_rounds(load(folder))
    assert found == {side: [max(pair) for pair in zip(first[side], second[side], strict=True)] for side in SIDES}
    assert found["candidate"] == second["candidate"]
    assert found["baseline"] == first["baseline"]
    assert "of the slowest of 2 ranks" in drawn(folder).about
    (folder / rank_samples(1)).unlink()
    with pytest.raises(UsageError, match=r"timed-\S+ has samples of 1 of its 2 ranks; allowed: of all.*remedy"):
        times_drawing(load(folder))
    assert "times of rounds cannot be shown" in report_page(collect([folder]))
    ended = cases.timed(tmp_path, "ended", others=[second], ended="failed")
    (ended / rank_samples(1)).unlink()
    assert times_drawing(load(ended)) is None


def test_few_rounds_have_no_interval_and_one_has_a_chart(tmp_path: Path) -> None:
    for count, said in ((5, "5 rounds"), (1, "1 round,")):
        folder = cases.timed(tmp_path, f"of{count}", times=rounds(count))
        drawing = drawn(folder)
        assert "there are fewer than six rounds" in drawing.about
        assert said in drawing.about
        assert not [row for row in values_in(themed(drawing.chart)) if "low" in row]
        assert b"baseline again" in file_of(drawing, "svg")
        assert "cannot be shown" not in report_page(collect([folder]))


def test_of_very_many_rounds_some_are_drawn_with_the_extremes(tmp_path: Path) -> None:
    times = rounds(5_000)
    times["candidate"][1234], times["candidate"][4321] = 5e-4, 9e-1
    drawing = drawn(cases.timed(tmp_path, times=times))
    assert "Of 5000 rounds, at most 300 are drawn, with the fastest and the slowest" in drawing.about
    rows = values_in(themed(drawing.chart)["vconcat"][0])
    own = [row["value"] for row in rows if row.get("name") == "candidate" and "value" in row]
    assert len(own) <= 300
    assert {5e-4, 9e-1} <= set(own)
    assert len(file_of(drawing, "svg")) < 1 << 20


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda times: times["baseline"].pop(), "are of 7 to 8 rounds"),
        (lambda times: times.pop("baseline_again"), "are of 0 to 8 rounds"),
        (lambda times: times["candidate"].__setitem__(0, math.nan), "candidate time of round 0 is"),
        (lambda times: times["candidate"].__setitem__(1, -1.0), "candidate time of round 1 is"),
        (lambda times: times["baseline"].__setitem__(2, 0.0), "baseline time of round 2 is"),
        (lambda times: times["baseline"].__setitem__(2, math.inf), "baseline time of round 2 is"),
        (lambda times: times["candidate"].__setitem__(2, 1e300), "took 1e+300 s; allowed: 1e-10 to 1e+08 s"),
    ],
)
def test_times_that_no_run_has_cost_a_part_and_not_the_page(
    change: Callable[[Any], object], said: str, tmp_path: Path
) -> None:
    times = rounds(8)
    change(times)
    found = collect([cases.timed(tmp_path, times=times)])
    with pytest.raises(UsageError, match=re.escape(said)):
        times_drawing(found.runs[0])
    page = report_page(found)
    assert "times of rounds cannot be shown" in page
    assert "The machine during" in page
    files, lost = report_figures(found, "svg")
    assert (files, [row.path for row in lost]) == ({}, [found.runs[0].folder.name])


@pytest.mark.parametrize("rank", [0, 1])
def test_samples_that_are_damaged_or_too_many_are_refused(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cases.timed(tmp_path, times=rounds(8), others=[rounds(8)])
    file = folder / rank_samples(rank)
    content = file.read_text("utf-8") + "more,0,1.0,s,,,\n"  # the larger of the two
    file.write_text(content, "utf-8")
    monkeypatch.setattr(chart_parts, "_SAMPLES_BYTES", len(content) - 1)
    with pytest.raises(UsageError, match=rf"{file.name} has \d+ bytes; allowed: at most \d+"):
        times_drawing(load(folder))
    monkeypatch.undo()
    file.write_text(content + "candidate_time,x,1.0,s,,,\n", "utf-8")
    with pytest.raises(UsageError, match="is not a sample"):
        times_drawing(load(folder))
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is a link"):
        times_drawing(load(folder))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UsageError, match="is not a plain file"):
        times_drawing(load(folder))


def test_other_runs_and_runs_without_samples_have_no_chart_of_rounds(tmp_path: Path) -> None:
    training = load(cases.run(tmp_path))
    assert times_drawing(training) is None
    assert collective_drawing(training) is None
    ended = cases.timed(tmp_path, "ended", times={}, ended="aborted")
    (ended / "samples.csv").unlink()
    assert times_drawing(load(ended)) is None
    assert "cannot be shown" not in report_page(collect([ended]))


@pytest.mark.parametrize("value", [cases.HOSTILE, ["a", {"b": None}], "x\x1b[31m\u202e" * 5_000, None])
def test_a_component_with_any_name_is_shown_as_plain_characters(value: Any, tmp_path: Path) -> None:
    folder = cases.timed(tmp_path, fixed={**cases.TIMED, "candidate": value, "baseline": cases.HOSTILE})
    page = report_page(collect([folder]))
    assert "cannot be shown" not in page
    assert page.count("<script>") == 1
    assert not re.search("[\x1b\u202e]", page)
    assert len(drawn(folder).about) < 700


def test_the_report_draws_the_chart_of_collectives(tmp_path: Path) -> None:
    found = collect([cases.collective(tmp_path, **SMALL)])
    page = report_page(found)
    assert "cannot be shown" not in page
    (label,) = re.findall('<svg role="img" aria-label="([^"]*)"', page)
    assert label.startswith("Times of collectives. size smoke; open division. Time per call of all-reduce by 2 ranks")
    for cell in ("64 KiB", "measured / model", "pipeline"):
        assert cell in page
    files, lost = report_figures(found, "svg")
    assert (list(files), lost) == ([f"{found.runs[0].folder.name}-collective.svg"], [])
    told = texts(*files.values())
    for said in ("all-reduce, sum of float32, threads, Some Processor", "2 ranks; line: median", "size smoke", "ring",
                 "algorithm bandwidth (GB/s)", "bus bandwidth (GB/s)"):  # fmt: skip
        assert said in told


def test_algorithms_and_sizes_that_are_too_many_are_left_out_and_counted(tmp_path: Path) -> None:
    many = load(cases.collective(tmp_path, algorithms=[f"a{place}" for place in range(30)]))
    drawing = collective_drawing(many)
    assert drawing is not None
    assert "18 of 90 rows are not drawn; the table has them all" in drawing.about
    long = load(cases.collective(tmp_path, "long", sizes=[4 * place for place in range(1, 71)]))
    drawing = collective_drawing(long)
    assert drawing is not None
    assert "18 of 210 rows are not drawn" in drawing.about
    twins = load(cases.collective(tmp_path, "twins", algorithms=["x" * 50 + "a", "x" * 50 + "b", cases.HOSTILE]))
    drawing = collective_drawing(twins)
    assert drawing is not None
    names = {row["algorithm"] for data in values_of(drawing) for row in data}
    assert len(names) == 3
    assert max(map(len, names)) <= 32
    assert report_page(collect([twins.folder])).count("<script>") == 1


def values_of(drawing: Any) -> list[list[dict[str, Any]]]:
    """The data of the chart's layers."""
    return [[row for row in values_in(panel) if "algorithm" in row] for panel in themed(drawing.chart)["vconcat"]]


def edited(folder: Path, change: Callable[[Any], object]) -> Any:
    """The run, after a change of its collective.json."""
    file = folder / "collective.json"
    document = json.loads(file.read_text("utf-8"))
    change(document)
    file.write_text(json.dumps(document), "utf-8")
    return load(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("rows"),
        lambda document: document.update(rows=[1]),
        lambda document: document.update(rows=3),
        lambda document: document["rows"][0].pop("median_s"),
        lambda document: document["rows"][0].update(median_s="nan"),
        lambda document: document["rows"][0].update(median_s=None),
        lambda document: document["rows"][0].update(low_s=True),
        lambda document: document["rows"][0].update(algorithm=["ring"]),
        lambda document: document["rows"][0].update(size_bytes=10**400),
        lambda document: document.update(plan=None),
        lambda document: document["system"].update(cpu=[]),
    ],
)
def test_a_collective_file_that_deep5_never_wrote_costs_a_part(change: Callable[[Any], object], tmp_path: Path) -> None:
    run = edited(cases.collective(tmp_path), change)
    with pytest.raises(
        UsageError, match=r"collective.json of collective-\S+ is not as deep5 writes it.*remedy: restore"
    ):
        collective_drawing(run)
    page = report_page(collect([run.folder]))
    assert "times of collectives cannot be shown" in page
    assert "The machine during" in page
    assert [row.path for row in report_figures(collect([run.folder]), "svg")[1]] == [run.folder.name]


def test_collective_numbers_beyond_the_axes_are_left_out(tmp_path: Path) -> None:
    def spoil(document: Any) -> None:
        first, second, third, fourth, *_ = document["rows"]
        first["median_s"], second["low_s"], third["size_bytes"], fourth["bus_gbyte_s"] = 1e300, 0.0, -4, 1e30
        document["rows"][4]["modelled_s"] = 0.0  # constants that were fitted to 0: only the model is not drawn

    run = edited(cases.collective(tmp_path), spoil)
    drawing = collective_drawing(run)
    assert drawing is not None
    assert "4 of 9 rows are not drawn" in drawing.about
    assert b"<svg" in file_of(drawing, "svg")
    assert "cannot be shown" not in report_page(collect([run.folder]))
    none = edited(run.folder, lambda document: [row.update(median_s=1e300) for row in document["rows"]])
    assert collective_drawing(none) is None
    assert "Times per call of the slowest rank" in report_page(collect([none.folder]))


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "text"])
def test_a_collective_file_that_is_no_file_is_not_read(kind: str, tmp_path: Path) -> None:
    folder = cases.collective(tmp_path)
    file = folder / "collective.json"
    file.unlink()
    made = {
        "link": lambda: file.symlink_to("/etc/hostname"),
        "pipe": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "text": lambda: file.write_text(cases.HOSTILE),
    }
    made[kind]()
    page = report_page(collect([folder]))
    assert "times of collectives cannot be shown" in page
    assert page.count("<script>") == 1
