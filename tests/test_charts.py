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
from deep5.results.charts import box_chart, draw, violin_chart, violin_outline
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
    # A violin and its median a candidate and direction; a box, its median and whiskers likewise.
    assert count(pictures["violin.svg"], "area mark") == 6
    assert count(pictures["violin.svg"], "rule mark") == 6
    assert count(pictures["box.svg"], "box") == 6
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
    medians = violin_chart(*parts(folder)).to_dict()["hconcat"][1]["layer"][1]["data"]["values"]
    wanted = [row["median_s"] for row in parts(folder)[0] if row["direction"] == "backward"]
    assert [entry["s"] for entry in medians] == wanted


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
