"""Pictures of operators' times: real files with the expected marks, drawn from raw samples."""

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

from deep5.core.charts import WIDTH, altair, files, names_axis, ticks
from deep5.core.errors import MissingDependency, UsageError
from deep5.core.metric import Sample
from deep5.measuring.environment import describe_system
from deep5.results.charts.operator_study import study_chart
from deep5.results.charts.operators import box_chart, common_sizes, draw, violin_chart, violin_outline
from deep5.results.folder import ResultFolder
from deep5.results.result import load
from deep5.results.samples_file import sample_rows
from deep5.results.schema import blank_document

SYSTEM = describe_system()
SYSTEM["cpu"]["model"] = "Some Processor"
DOCUMENT = blank_document(
    recipe={"name": "times"},
    components={"plan": {"problems": "demo.set", "threads": 2}},
    system=SYSTEM,
)
CANDIDATES = (("pytorch", False), ("pytorch (bare)", True), ("jax", False))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of two sizes and three candidates, the second with gradients."""
    draw_from = np.random.default_rng(0)
    made = ResultFolder.create(tmp_path_factory.mktemp("out"), "times", DOCUMENT)
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
            # At twice its size: it is read in a column, for any number of candidates.
            assert width < 2 * 600
        else:
            assert ET.fromstring(content).tag.endswith("svg")  # noqa: S314 - drawn a moment ago
    # Two sizes: their medians are points, and lines are the medians of these; the same for the ratios to the bare
    # framework, with a line at 1 per direction. A box, its median and whiskers likewise.
    assert count(pictures["violin.svg"], "area mark") == 0
    assert count(pictures["violin.svg"], "circle") == 3 * (2 + 1) + (2 + 1)
    assert count(pictures["violin.svg"], "rule mark") == 6 + 2 + 2
    assert count(pictures["box.svg"], "box") == 6
    told = {name: pictures[name].decode() for name in ("violin.svg", "box.svg")}
    assert all(f">{tick}<" in told["violin.svg"] for tick in ("1 ms", "10 ms", "100 ms")), "decades are named"
    assert re.search(r">\d+ ms<", told["box.svg"])
    assert "forward: 2 of 2 sizes, those that all candidates ran" in told["violin.svg"]
    assert "backward: N=1" in told["box.svg"]
    assert "quartiles of 20 samples" in told["box.svg"]
    assert all("demo.set, Some Processor, 2 threads" in text for text in told.values())
    assert all("through deep5" in text and ">bare<" in text for text in told.values())
    for framework in ("pytorch", "jax"):
        # Named once per direction, with the median ratio where there is one.
        assert len(re.findall(rf">{framework}( [\d.]+x)?<", told["violin.svg"])) == 2
        assert told["box.svg"].count(f">{framework}<") == 2


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
    (panel,) = chart["vconcat"]
    values = panel.get("data", chart.get("data"))["values"]
    wanted = [sample.value for row in rows if row["problem"] == "p-1" for sample in samples[row["series"][0]]]
    assert sorted(entry["s"] for entry in values) == sorted(wanted)
    assert len(wanted) == 60
    with pytest.raises(UsageError, match="the problem 'p-9' was not measured"):
        box_chart(rows, samples, "p-9")


def test_violins_follow_the_samples_and_sizes_weigh_alike(folder: Path) -> None:
    few, many = [1e-3, 1.1e-3], [0.1, 0.11] * 100
    times, widths = violin_outline([few, many])
    assert times[0] == pytest.approx(1e-3)
    assert times[-1] == pytest.approx(0.11)
    assert widths.max() == pytest.approx(1)
    # Two sizes, two humps of one width: a hundred times the samples do not make the second wider.
    assert widths[0] == pytest.approx(widths[-1], rel=0.05)
    assert widths[len(widths) // 2] < widths[0]
    times, widths = violin_outline([[2e-3]])
    assert times == pytest.approx([2e-3, 2e-3], rel=0.01)
    panels = violin_chart(*parts(folder)).to_dict()["vconcat"]
    wanted = [row["median_s"] for row in parts(folder)[0] if row["direction"] == "backward"]
    assert [entry["s"] for entry in panels[2]["layer"][0]["data"]["values"]] == wanted


def many(folder: Path, sizes: int) -> tuple[Any, Any]:
    """The forward rows of one size, repeated for several sizes."""
    rows, samples = parts(folder)
    forward = [row for row in rows if (row["problem"], row["direction"]) == ("p-1", "forward")]
    return [{**row, "problem": f"m-{number}"} for number in range(sizes) for row in forward], samples


def test_fewer_than_eight_sizes_are_points_and_more_are_violins(folder: Path) -> None:
    for sizes, areas, circles in ((7, 0, 3 * 7 + 7), (8, 3 + 1, 0)):
        svg = files("violin", violin_chart(*many(folder, sizes)))["violin.svg"]
        assert (count(svg, "area mark"), count(svg, "circle")) == (areas, circles)


def test_panels_are_of_one_width_below_each_other(folder: Path) -> None:
    for chart in (violin_chart(*parts(folder)), box_chart(*parts(folder), "p-2")):
        panels = chart.to_dict()["vconcat"]
        assert len(panels) >= 2
        assert {panel["width"] for panel in panels} == {WIDTH}


@pytest.mark.parametrize("power", [-7.3, -3.0, -0.5, 0.0, 1.9])
@pytest.mark.parametrize("span", [1.05, 1.4, 3, 30, 1e4])
def test_an_axis_has_marks_within_what_is_drawn_and_powers_of_ten_among_them(power: float, span: float) -> None:
    least = 10**power
    found = ticks([least, least * span])
    assert 1 <= len(found) <= 6
    assert found == sorted(found)
    assert all(least * 0.99 <= tick <= least * span * 1.01 for tick in found)
    decades = [10.0**k for k in range(-9, 9) if least <= float(f"1e{k}") <= least * span]
    assert not decades or any(tick == pytest.approx(decade) for tick in found for decade in decades)


def test_batches_are_drawn_against_linear_scaling() -> None:
    rows = [
        {"problem": f"dense-{batch}", "title": "", "candidate": name, "median_s": s, "low_s": 0.9 * s, "high_s": None}
        for name, factor in (("a", 1e-3), ("b", 2e-3))
        for batch, s in ((1, 3 * factor), (64, 64 * factor))
    ]
    chart = study_chart(rows, "studies.layers")
    (panel,) = chart.to_dict()["vconcat"]
    linear = panel["layer"][0]["data"]["values"]
    # Both take three times as long as linear scaling from the largest batch predicts for the smallest.
    assert [entry["s"] for entry in linear if entry["batch"] == 1] == pytest.approx([1e-3, 2e-3])
    svg = files("study", chart)["study.svg"]
    assert count(svg, "circle") == 4
    assert b"linear scaling" in svg


def test_algorithms_are_drawn_size_by_size() -> None:
    rows = [
        {"problem": f"size-{size}-{name}", "title": f"N={size}, {name}", "candidate": "a", "median_s": size * 1e-3}
        for size in (1, 2)
        for name in ("own", "fft")
    ]
    svg = files("study", study_chart(rows))["study.svg"]
    assert count(svg, "point") == 4
    assert all(f">{text}<".encode() in svg for text in ("N=1", "N=2", "own", "fft"))


def test_violins_hold_the_sizes_that_every_candidate_ran_and_say_how_many(folder: Path) -> None:
    rows, samples = parts(folder)
    fewer = [row for row in rows if (row["problem"], row["candidate"]) != ("p-1", "jax")]
    assert common_sizes(rows)["forward"] == {"p-1", "p-2"}
    assert common_sizes(fewer)["forward"] == {"p-2"}
    left_out = [{"problem": "p-3", "direction": "forward"}]
    forward = violin_chart(fewer, samples, left_out).to_dict()["vconcat"][0]
    assert forward["title"] == "forward: 1 of 3 sizes, those that all candidates ran; line: median"
    points = forward["layer"][1]["data"]["values"]
    # p-1 takes a hundredth of the time: no point is from it.
    assert min(entry["s"] for entry in points) > 0.03
    apart = [row for row in rows if (row["problem"] == "p-1") == (row["candidate"] == "jax")]
    assert "forward" not in common_sizes(apart)


def test_what_deep5_costs_is_drawn_size_by_size(folder: Path) -> None:
    rows, samples = parts(folder)
    slower = [dict(row) for row in rows]
    for row in slower:
        if row["candidate"] == "pytorch":
            (bare,) = (r for r in rows if r["bare"] and all(r[k] == row[k] for k in ("problem", "direction")))
            row["median_s"] = 1.5 * bare["median_s"]
    ratio = violin_chart(slower, samples).to_dict()["vconcat"][1]
    medians, points, one = ratio["layer"]
    (middle,) = medians["data"]["values"]
    # Both sizes are 1.5 times as slow, though one takes a hundred times as long as the other.
    assert middle["s"] == pytest.approx(1.5)
    assert [entry["s"] for entry in points["data"]["values"]] == pytest.approx([1.5, 1.5])
    assert "pytorch 1.50x" in json.dumps(ratio)
    assert one["data"]["values"] == [{"s": 1.0}]
    alone = [row for row in rows if not row["bare"]]
    assert len(violin_chart(alone, samples).to_dict()["vconcat"]) == 2, "nothing to compare with: a panel a direction"


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_a_missing_package_is_told_with_its_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingDependency, match=rf"'{package}', which is not installed; remedy: pip install 'deep5\[report\]'"
    ):
        draw(folder)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a result folder"):
        draw(tmp_path)
    made = ResultFolder.create(tmp_path, "other", blank_document(recipe={"name": "other"}))
    with pytest.raises(UsageError, match=r"holds no operators\.json"):
        draw(made.path)


@pytest.mark.parametrize(("least", "most"), [(0.955, 1.15), (0.97, 1.03), (0.9, 1.9), (0.78, 4.0), (0.999, 1.002)])
def test_marks_of_a_ratio_stand_apart_on_both_sides_of_one(least: float, most: float) -> None:
    gap = 0.2  # the height of one line of text in a panel of 90 pixels
    found = ticks([least, 1.0, most], gap)
    assert 1.0 in found
    assert max(found) > 1, "the upper side has a mark too"
    steps = np.diff(np.log(found)) / np.log(most / least)
    assert steps.min() >= 0.999 * gap


def labels_of(chart: Any) -> list[tuple[str, float, bool]]:
    """The panels' numbers with their height in the picture, as drawn: text, y, whether it is rotated."""
    import vl_convert

    found = []
    svg = ET.fromstring(vl_convert.vegalite_to_svg(chart.to_json()))  # noqa: S314 - drawn a moment ago
    for group in svg.iter("{http://www.w3.org/2000/svg}g"):
        if "role-axis-label" in group.get("class", ""):
            for text in group.iter("{http://www.w3.org/2000/svg}text"):
                place = text.get("transform", "")
                height = re.search(r"translate\([^,]+,([-\d.]+)\)", place)
                assert height is not None
                found.append((text.text or "", float(height[1]), "rotate" in place))
    return found


def test_numbers_of_the_ratio_do_not_overlap_and_names_with_room_are_level(folder: Path) -> None:
    rows, samples = parts(folder)
    near = []
    for row in (row for row in rows if row["direction"] == "forward" and row["framework"] == "pytorch"):
        ratio = 0.955 if row["problem"] == "p-1" else 1.15
        near.append({**row, "median_s": row["median_s"] if row["bare"] else ratio * _bare_of(row, rows)})
    twice = near + [{**row, "framework": "tensorflow", "candidate": f"t {row['bare']}"} for row in near]
    _, ratio = violin_chart(twice, samples).vconcat
    drawn = labels_of(ratio)
    heights = sorted(y for text, y, _ in drawn if re.fullmatch(r"[\d.]+", text))
    assert len(heights) >= 3
    assert min(np.diff(heights)) >= 12, "letters are 12 pixels high"
    names = [(text, turned) for text, _, turned in drawn if text.startswith(("pytorch", "tensorflow"))]
    assert [turned for _, turned in names] == [False, False]
    assert all(re.search(r" 1\.\d\dx$", text) for text, _ in names)


def _bare_of(row: Any, rows: Any) -> float:
    (found,) = [
        r["median_s"] for r in rows if r["bare"] and r["problem"] == row["problem"] and r["direction"] == "forward"
    ]
    return float(found)


def test_many_long_names_are_turned() -> None:
    alt = altair()
    assert names_axis(alt, ["onnxruntime 1.02x"] * 6)["labelAngle"] == -30
    assert names_axis(alt, ["onnxruntime 1.02x"] * 3)["labelAngle"] == 0


def test_a_layer_of_one_batch_has_no_line_and_no_word_of_it() -> None:
    rows = [
        {"problem": problem, "title": "", "candidate": "a", "median_s": s}
        for problem, s in (("conv-256", 1e-2), ("dense-1", 1e-3), ("dense-64", 1e-2))
    ]
    alone, several = study_chart(rows).to_dict()["vconcat"]
    assert alone["title"] == "conv"
    assert several["title"] == "dense; dashed: linear scaling from the largest batch"
    svg = files("study", study_chart(rows))["study.svg"]
    assert svg.count(b"stroke-dasharray") == 1
