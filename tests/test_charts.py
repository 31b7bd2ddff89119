"""Pictures of operators' times: real files with the marks that belong there, drawn from raw samples."""

from __future__ import annotations

import json
import re
import struct
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deep5.errors import MissingDependency, UsageError
from deep5.metric import Sample
from deep5.results.charts import box_chart, common_sizes, draw, violin_chart, violin_outline
from deep5.results.folder import ResultFolder
from deep5.results.result import load
from deep5.results.samples_file import sample_rows
from deep5.results.schema import blank_document

CANDIDATES = (("pytorch", False), ("pytorch (bare)", True), ("jax", False))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of two sizes and three candidates, the second with gradients."""
    draw_from = np.random.default_rng(0)
    made = ResultFolder.create(tmp_path_factory.mktemp("out"), "times", blank_document(recipe={"name": "times"}))
    rows, samples = [], []
    for problem, middle in (("p-1", 1e-3), ("p-2", 1e-1)):
        for direction in ("forward", "backward")[: 1 + (problem == "p-2")]:
            for candidate, bare in CANDIDATES:
                name = f"time[{problem} | {direction} | {candidate} | warm | process 1]"
                values = middle * draw_from.lognormal(0, 0.1, 20)
                samples += sample_rows(name, "s", [Sample(float(value)) for value in values])
                rows.append({
                    "problem": problem, "title": "N=1", "direction": direction, "candidate": candidate, "bare": bare,
                    "framework": candidate.split(" ")[0],
                    "median_s": float(np.median(values)), "series": [name],
                })  # fmt: skip
    made.write_samples(samples)
    made.write_file("operators.json", json.dumps({"rows": rows}))
    return made.path


def count(svg: bytes, role: str) -> int:
    """Elements that Vega marks as one of these, by its accessible description."""
    return len(re.findall(rf'aria-roledescription="{role}"', svg.decode()))


def test_pictures_are_drawn_with_the_marks_that_belong_there(folder: Path) -> None:
    pictures, missing = draw(folder, "p-2")
    assert missing == []
    assert sorted(pictures) == ["box.png", "box.svg", "violin.png", "violin.svg"]
    for name, content in pictures.items():
        if name.endswith(".png"):
            assert content[:8] == b"\x89PNG\r\n\x1a\n"
            width, height = struct.unpack(">II", content[16:24])
            assert width > 400
            assert height > 400
        else:
            assert ET.fromstring(content).tag.endswith("svg")  # noqa: S314 - drawn a moment ago
    # A violin and its median a candidate and direction, and one of the ratio to the bare framework with a line at 1; a
    # box, its median and whiskers likewise.
    assert count(pictures["violin.svg"], "area mark") == 6 + 2
    assert count(pictures["violin.svg"], "rule mark") == 6 + 2 + 2
    assert count(pictures["box.svg"], "box") == 6
    told = {name: pictures[name].decode() for name in ("violin.svg", "box.svg")}
    assert re.search(r">\d+ms<", told["violin.svg"]), "ticks have their unit"
    assert re.search(r">\d+ms<", told["box.svg"])
    assert "forward: time a call" in told["violin.svg"]
    assert "backward: time a call" in told["box.svg"]
    assert "quartiles of 20 to 20 samples" in told["box.svg"]
    assert all("through deep5" in text and ">bare<" in text for text in told.values())
    for candidate, _ in CANDIDATES:
        assert pictures["violin.svg"].decode().count(f">{candidate}<") == 2
        assert pictures["box.svg"].decode().count(f">{candidate}<") == 2


def test_without_the_size_of_the_box_the_other_picture_is_drawn(folder: Path) -> None:
    pictures, missing = draw(folder, "p-3")
    assert sorted(pictures) == ["violin.png", "violin.svg"]
    assert missing == ["no box.svg was drawn: the problem 'p-3' was not measured in this run"]
    assert sorted(draw(folder)[0]) == ["violin.png", "violin.svg"]


def parts(folder: Path) -> tuple[Any, Any]:
    return json.loads((folder / "operators.json").read_text())["rows"], load(folder).samples()


def test_boxes_hold_every_raw_sample(folder: Path) -> None:
    rows, samples = parts(folder)
    chart = box_chart(rows, samples, "p-1").to_dict()
    (panel,) = chart["hconcat"]
    values = panel.get("data", chart.get("data"))["values"]
    wanted = [sample.value for row in rows if row["problem"] == "p-1" for sample in samples[row["series"][0]]]
    assert sorted(entry["s"] for entry in values) == sorted(wanted)
    assert len(wanted) == 60
    with pytest.raises(UsageError, match="the problem 'p-9' is not among those measured"):
        box_chart(rows, samples, "p-9")


def test_violins_follow_the_samples_and_sizes_weigh_alike(folder: Path) -> None:
    few, many = [1e-3, 1.1e-3], [0.1, 0.11] * 100
    times, widths = violin_outline([few, many])
    assert times[0] == pytest.approx(1e-3)
    assert times[-1] == pytest.approx(0.11)
    assert widths.max() == pytest.approx(0.45)
    # Two sizes, two humps of one width: a hundred times the samples do not make the second wider.
    assert widths[0] == pytest.approx(widths[-1], rel=0.05)
    assert widths[len(widths) // 2] < widths[0]
    times, widths = violin_outline([[2e-3]])
    assert times == pytest.approx([2e-3, 2e-3], rel=0.01)
    panel = violin_chart(*parts(folder)).to_dict()["hconcat"][1]["vconcat"]
    wanted = [row["median_s"] for row in parts(folder)[0] if row["direction"] == "backward"]
    assert [entry["s"] for entry in panel[0]["layer"][1]["data"]["values"]] == wanted


def test_violins_hold_the_sizes_that_every_candidate_ran_and_say_how_many(folder: Path) -> None:
    rows, samples = parts(folder)
    fewer = [row for row in rows if (row["problem"], row["candidate"]) != ("p-1", "jax")]
    assert common_sizes(rows)["forward"] == {"p-1", "p-2"}
    assert common_sizes(fewer)["forward"] == {"p-2"}
    left_out = [{"problem": "p-3", "direction": "forward"}]
    forward = violin_chart(fewer, samples, left_out).to_dict()["hconcat"][0]["vconcat"][0]
    assert forward["title"] == ["forward: time a call", "1 of 3 sizes, those that all ran"]
    outlines = forward["layer"][0]["data"]["values"]
    # p-1 takes a hundredth of the time: it is in nobody's violin.
    assert min(entry["s"] for entry in outlines) > 0.03
    apart = [row for row in rows if (row["problem"] == "p-1") == (row["candidate"] == "jax")]
    assert "forward" not in common_sizes(apart)


def test_what_deep5_costs_is_drawn_size_by_size(folder: Path) -> None:
    rows, samples = parts(folder)
    slower = [dict(row) for row in rows]
    for row in slower:
        if row["candidate"] == "pytorch":
            (bare,) = (r for r in rows if r["bare"] and all(r[k] == row[k] for k in ("problem", "direction")))
            row["median_s"] = 1.5 * bare["median_s"]
    ratio = violin_chart(slower, samples).to_dict()["hconcat"][0]["vconcat"][1]
    violins, one = ratio["layer"]
    (middle,) = violins["layer"][1]["data"]["values"]
    # Both sizes are 1.5 times as slow, though one takes a hundred times as long as the other.
    assert middle["s"] == pytest.approx(1.5)
    assert [entry["s"] for entry in violins["layer"][0]["data"]["values"]] == pytest.approx([1.5, 1.5], rel=0.01)
    assert "pytorch 1.50x" in json.dumps(ratio)
    assert one["data"]["values"] == [{"s": 1.0}]
    alone = [row for row in rows if not row["bare"]]
    assert len(violin_chart(alone, samples).to_dict()["hconcat"][0]["vconcat"]) == 1, "nothing to compare with"


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_a_missing_package_is_told_with_its_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=rf"'{package}'; remedy: pip install 'deep5\[report\]'"):
        draw(folder)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no result folder"):
        draw(tmp_path)
    made = ResultFolder.create(tmp_path, "other", blank_document(recipe={"name": "other"}))
    with pytest.raises(UsageError, match=r"holds no operators\.json"):
        draw(made.path)
