"""The report: one page that shows all valid data, runs only its own code, and its figures."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import re
import struct
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import browser
import report_cases as cases
from command import Command
from deep5.core.errors import MissingDependency, UsageError
from deep5.core.notebook import style
from deep5.results.comparison import load_comparison
from deep5.results.comparison_table import comparison_tables
from deep5.results.kind import COMPARISON
from deep5.results.markup import Markup, element, escape, named
from deep5.results.report import collect, curves, report_figures, report_page
from deep5.results.report.charts import ratio_chart, samples_chart
from deep5.results.report.drawing import file_of
from deep5.results.report.numbers import number, seconds
from deep5.results.report.paper_tables import report_tables
from deep5.results.report.theme import dark_rules, inline, themed
from deep5.results.result import load
from deep5.results.study.record import Study

VOID = {"meta", "link", "br", "path", "rect", "line"}


class Reader(HTMLParser):
    """Elements, their attributes and text, in document order; raises an error for unclosed elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two comparisons, a run and a study."""
    out = tmp_path_factory.mktemp("results")
    cases.comparison(out, seen={"jax": {"threads": 1, "spinning": True}})
    cases.comparison(out, "quick-compare", workloads=("gemm-1", "gemm-2"), rounds=2)
    cases.run(out)
    cases.study(out)
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return report_page(collect([folder]))


def test_the_page_is_whole_and_says_what_it_is_of(page: str) -> None:
    read = Reader(page)
    text = " ".join(read.text)
    assert "2 comparisons, 1 run, 1 study" in text
    assert read.all("html")[0]["lang"] == "en"
    identifiers = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    linked = {str(link["href"])[1:] for link in read.all("a")}
    assert linked <= set(identifiers)
    levels = [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    assert "8 values" not in text  # three candidates and two parts make six
    assert "all 6 values within what is allowed" in text


def test_the_page_says_that_it_is_no_audit(page: str) -> None:
    head = page[page.index("<header>") : page.index("</header>")]
    assert "Not audited here: <code>deep5 audit FOLDER</code> re-derives every number." in head
    assert "audit" not in report_page(collect(["/nowhere"]))


def test_the_machine_of_one_result_is_told(tmp_path: Path) -> None:
    cases.comparison(tmp_path, "one", rounds=2)
    cases.comparison(tmp_path, "two", rounds=2)
    for folders, said in (([tmp_path / "one"], "nothing to compare"), ([tmp_path], "All 2 results are of one machine")):
        page = report_page(collect(folders))
        assert said in page
        told = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page[page.index('id="environments"') :]))
        assert told["processor"] == "Some Processor"
        assert (told["memory"], told["Python"], told["deep5"]) == ("16 GiB", "3.11.7", "0.1.0")


def test_a_difference_of_many_times_is_told_as_such(tmp_path: Path) -> None:
    folder = cases.comparison(tmp_path, rounds=2)
    spoiled(folder, lambda document: document["verdicts"][0].update(word="no difference shown", floor=206.2))
    page = report_page(collect([folder]))
    assert "no difference shown (too noisy: identical code may differ by up to 206 times)" in page
    assert ">206 times<" in page
    assert "%" not in re.findall("identical code may differ [^)]*", page)[0]
    out = io.StringIO()
    comparison_tables(load_comparison(folder), Console(file=out, width=200))
    assert "too noisy: identical code may differ by up to 206 times" in out.getvalue()


def test_verdicts_come_before_everything_else(page: str) -> None:
    first = page.index('id="verdicts"')
    assert first < page.index("<table") < page.index("Proof of equivalence")
    assert page.index("slower") < page.index("<table")


def test_the_policy_lets_one_script_run_and_nothing_be_loaded(page: str) -> None:
    policy = re.search('Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    for _, attributes in Reader(page).elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:,"))
    assert "http" not in re.sub(r'xmlns(:xlink)?="http://www.w3.org/[0-9a-z/]*"', "", page).replace("http-equiv", "")


def test_pictures_are_named_and_tables_can_be_reached(page: str) -> None:
    read = Reader(page)
    pictures = read.all("svg")
    # Three per comparison, two curves and a breakdown of the run, two curves of the study.
    assert len(pictures) == 6 + 3 + 2
    assert all(picture["role"] == "img" and len(str(picture["aria-label"])) > 20 for picture in pictures)
    regions = [attributes for _, attributes in read.elements if attributes.get("role") == "region"]
    assert len(regions) == len(read.all("table")) + len(pictures)
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in regions)
    assert all(head["scope"] in {"col", "row"} for head in read.all("th"))


def test_cells_hold_the_numbers_that_they_are_sorted_by(folder: Path, page: str) -> None:
    result = load_comparison(folder / "demo-compare")
    for row in result.verdicts:
        assert f'data-sort="{row["ratio"]!r}"' in page
    for row in result.results:
        assert f'data-sort="{row["median_s"]!r}"' in page


def test_what_is_too_much_is_left_out_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.results.report import chart_parts, tables

    monkeypatch.setattr(tables, "_ROWS", 3)
    monkeypatch.setattr(chart_parts, "_SAMPLES_BYTES", 300)
    cases.comparison(tmp_path, rounds=2)
    cases.run(tmp_path)
    page = report_page(collect([tmp_path]))
    assert "all 6 values within what is allowed (the first 3 of 6 rows)" in page
    for what in ("the samples", "the accuracy", "the loss"):
        told = page.index(f"{what} cannot be shown")
        assert "allowed: at most 300" in page[told : told + 600]
    assert page.count("cannot be shown") == 3
    assert max(table.count("<tr>") for table in re.findall("<tbody>.*?</tbody>", page)) == 3
    monkeypatch.setattr(tables, "_COLUMNS", 4)
    assert "(the first 4 of 10 columns)" in report_page(collect([tmp_path]))


def test_how_it_was_measured_is_told(tmp_path: Path) -> None:
    folder = cases.comparison(tmp_path, batches={"jax": 128}, seed=17)
    page = report_page(collect([folder]))
    told = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert (told["seed"], told["order"]) == ("17", "round after round")
    assert told["verdicts after"] == "10, 16, 24, 30 rounds; intervals at 95 %"
    quick = report_page(collect([cases.comparison(tmp_path / "quick", rounds=2)]))
    assert "<dt>verdicts after</dt><dd>2 rounds; intervals at 95 %</dd>" in quick
    assert told["proof"] == "over 100 steps of training; every network is smooth"
    rows = {row["candidate"]: row for row in load_comparison(folder).verdicts}
    assert (rows["jax"]["per"], rows["reference"]["per"]) == ("sample", "call")
    assert rows["jax"]["ratio"] == pytest.approx(0.75, rel=0.02)  # 1.5 times the time, and twice the batch
    assert page.count("per sample: their batches differ in size") == 1
    drawing = ratio_chart(load_comparison(folder))
    assert drawing is not None
    assert "time per call or sample / that of pytorch" in json.dumps(themed(drawing.chart))


def test_settings_that_differ_are_marked_and_stand_first(page: str) -> None:
    table = page[page.index("Settings, as each candidate") :]
    table = table[: table.index("</table>")]
    rows = [re.sub("<[^<>]*>", "|", row) for row in re.findall("<tr>(.*?)</tr>", table)]
    told = {re.split(r"\|+", row)[1]: row for row in rows}
    assert "DIFFERS" in told["threads"]
    assert "not reported by all" in told["spinning"]
    assert "its own" in told["framework"]
    assert "same" in told["deterministic"]
    assert "DIFFERS" in rows[0]


def test_environments_that_differ_are_told_apart(tmp_path: Path) -> None:
    cases.comparison(tmp_path, "one", rounds=2)
    newer = {**cases.SOFTWARE, "packages": {"numpy": "9.9.9"}}
    larger = {**cases.SYSTEM, "memory_bytes": {"total": 32 * 10**9, "available": 10**9}}
    cases.comparison(tmp_path, "two", rounds=2, software=newer, system={"before": larger, "after": larger})
    page = report_page(collect([tmp_path]))
    assert "of 2 environments" in page
    assert "packages: numpy" in page
    assert "9.9.9" in page
    assert ">29.8 GiB<" in page
    same = report_page(collect([tmp_path / "one", tmp_path / "one" / COMPARISON]))
    assert "nothing to compare" in same  # named twice, it counts once


def test_runs_of_different_fixed_parts_are_never_side_by_side(tmp_path: Path) -> None:
    cases.run(tmp_path, "first", seed=0)
    cases.run(tmp_path, "second", seed=1)
    # It claims the same hash, with another model.
    cases.run(tmp_path, "changed", seed=2, fixed={"model": "resnet"}, division="open")
    page = report_page(collect([tmp_path]))
    assert "demo: 2 runs" in page
    assert "demo: 1 run<" in page
    assert "not comparable" in page
    assert "open division: its fixed part or its goals were changed" in page
    cases.run(tmp_path, "small", **SMALL)
    assert "open division: run at size smoke, not full" in report_page(collect([tmp_path]))


def test_a_study_of_different_fixed_parts_is_taken_apart(tmp_path: Path) -> None:
    folder = cases.study(tmp_path)
    odd = cases.run(folder / "runs", "odd", 7, fixed={"model": "resnet"})
    document = json.loads((folder / "study.json").read_text("utf-8"))
    document["candidates"]["adam"]["runs"].append(str(odd.relative_to(folder)))
    (folder / "study.json").write_text(json.dumps(document), "utf-8")
    page = report_page(collect([folder]))
    assert "not comparable: its runs are of 2 different fixed parts" in page
    files, lost = report_figures(collect([folder]), "svg")
    assert len(files) == 4
    assert lost == []


def curves_of(out: Path, failures: dict[str, list[str]], **runs: list[dict[str, Any]]) -> Any:
    """Learning curves of runs by candidate, their seeds counted from 0."""
    made = {
        name: [load(cases.run(out, f"{name}{place}", **{"seed": place, **own})) for place, own in enumerate(each)]
        for name, each in runs.items()
    }
    return curves.curves(made, failures, "training_loss"), curves.loss_drawing(made, failures)


def test_a_band_says_of_how_many_seeds_it_is(tmp_path: Path) -> None:
    nan = {"last_loss": float("nan")}
    whole = [{} for _ in range(4)]
    found, drawing = curves_of(
        tmp_path, {"c": ["seed 2: no memory"]}, a=whole, b=[*whole, nan], c=[{}, {}], d=[nan, nan], e=[{}, {"seed": 0}]
    )
    names = [
        "a (seeds=4)",
        "b (seeds=4 of 5, 1 diverged)",
        "c (seeds=2 of 3, 1 failed)",
        "e (2 of 2 runs, 1 seed)",
    ]
    assert list(dict.fromkeys(point.candidate for point in found.points)) == names
    assert found.left_out == ["not drawn: d (seeds=0 of 2, 2 diverged)"]
    # A run that diverged in its last epoch is not part of the mean before that either.
    assert {point.seeds for point in found.points if point.candidate == names[1]} == {4}
    assert found.left_out[0] in drawing.about
    svg = file_of(drawing, "svg").decode()
    for name in [*names, found.left_out[0]]:
        assert name in svg  # a standalone picture has no caption


def test_a_run_alone_is_drawn_as_far_as_it_came(tmp_path: Path) -> None:
    found, _ = curves_of(tmp_path, {}, a=[{"ended": "aborted"}], b=[{}], c=[{"ended": "failed"}, {}])
    names = ["a (aborted)", "b", "c (seeds=1 of 2, 1 failed)"]
    assert list(dict.fromkeys(point.candidate for point in found.points)) == names


def test_no_band_is_over_several_environments(tmp_path: Path) -> None:
    other = {"system": {**cases.SYSTEM, "cpu": {**cases.SYSTEM["cpu"], "model": "Another"}}}
    found, _ = curves_of(tmp_path, {"a": ["seed 3: no memory"]}, a=[{}, {}, other], b=[other, other])
    assert {point.candidate: point.seeds for point in found.points} == {
        "a, environment A (seeds=2)": 2,
        "a, environment B": 1,
        "b, environment B (seeds=2)": 2,
    }
    assert found.left_out == ["a: 1 failed"]


def test_a_run_that_failed_before_it_had_samples_has_no_curve_and_no_fault(tmp_path: Path) -> None:
    folder = cases.run(tmp_path, ended="failed")
    (folder / "samples.csv").unlink()
    document = json.loads((folder / "result.json").read_text("utf-8"))
    (folder / "result.json").write_text(json.dumps({**document, "metrics": []}), "utf-8")
    files, lost = report_figures(collect([folder]), "svg")
    assert ([name.rpartition("-")[2] for name in files], lost) == (["breakdown.svg"], [])
    page = report_page(collect([folder]))
    assert "cannot be shown" not in page
    assert "failed" in page


@pytest.mark.parametrize(("count", "told"), [(15, "3 of 15 curves are"), (13, "1 of 13 curves is")])
def test_curves_that_are_not_drawn_are_counted(count: int, told: str, tmp_path: Path) -> None:
    found, drawing = curves_of(tmp_path, {}, **{f"c{place}": [{}] for place in range(count)})
    assert len({point.candidate for point in found.points}) == 12
    assert f"{told} not drawn" in drawing.about


def test_hostile_names_and_numbers_are_shown_and_run_nothing(tmp_path: Path) -> None:
    folder = cases.hostile(tmp_path)
    found = collect([folder])
    assert len(found) == 1, found.unreadable
    page = report_page(found)
    page.encode()  # half a surrogate pair would fail here
    read = Reader(page)
    assert len(read.all("script")) == 1
    assert read.all("img") == []
    assert "cannot be shown" not in page
    for word in ("not a number", "infinite", "about 1e400"):
        assert word in page
    assert not re.search("[\x00-\x08\x0b\x1b\u202e\ud800]", page)
    assert len(page) < 600_000  # a long name is never shown in full


def spoiled(folder: Path, change: Any) -> None:
    file = folder / COMPARISON
    document = json.loads(file.read_text("utf-8"))
    change(document)
    file.write_text(json.dumps(document), "utf-8")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("truncated", "truncated"),
        ("empty", "truncated"),
        ("deep", "truncated|cannot be read"),
        ("missing", "the document has no verdicts"),
        ("binary", "truncated|cannot be read"),
        ("huge", "too large"),
        ("link", "is a link"),
        ("samples", "is a link"),
        ("folder", "is not a plain file"),
        ("pipe", "is not a plain file"),
        ("pipe of samples", "is not a plain file"),
        ("endless", "is not a plain file|is a link"),
        ("two", "holds result.json and comparison.json"),
    ],
)
def test_a_damaged_folder_is_told_and_the_others_are_shown(tmp_path: Path, name: str, what: str) -> None:
    good, bad = cases.comparison(tmp_path, "good", rounds=2), cases.comparison(tmp_path, "bad", rounds=1)
    file = bad / COMPARISON
    text = file.read_text("utf-8")
    (tmp_path / "secret").write_text("secret words")
    victim = bad / "samples.csv" if "samples" in name else file
    instead: dict[str, Callable[[], None]] = {
        "link": lambda: victim.symlink_to(tmp_path / "secret"),
        "samples": lambda: victim.symlink_to(tmp_path / "secret"),
        "folder": victim.mkdir,
        "pipe": lambda: os.mkfifo(victim),
        "pipe of samples": lambda: os.mkfifo(victim),
        "endless": lambda: victim.symlink_to("/dev/zero"),
    }
    if name in instead:
        victim.unlink()
        instead[name]()
    elif name == "two":
        (bad / "result.json").write_text("{}")
    elif name == "missing":
        spoiled(bad, lambda document: document.pop("verdicts"))
    else:
        huge = text.replace('"seed": 0', '"seed": 1e999')
        content = {"truncated": text[:500], "empty": "", "deep": "[" * 200_000, "huge": huge}
        file.write_bytes(b"\xff\xfe\x00" if name == "binary" else content[name].encode())
    found = collect([good, bad])
    assert [row.path for row in found.unreadable] == [str(bad)]
    assert re.search(what, found.unreadable[0].reason)
    page = report_page(found)
    assert "could not be read" in page
    assert "secret words" not in page
    assert len(found.comparisons) == 1


def test_numbers_that_deep5_never_wrote_cost_a_part_and_not_the_page(tmp_path: Path) -> None:
    folder = cases.comparison(tmp_path, rounds=2)
    spoiled(folder, lambda document: document["system"]["before"].update(cpu=[], load_average="busy"))
    lines = (folder / "samples.csv").read_text("utf-8").splitlines()
    (folder / "samples.csv").write_text("\n".join([*lines, "a,b,c"]), "utf-8")
    page = report_page(collect([folder]))
    assert "the samples cannot be shown" in page
    assert "Proof of equivalence" in page


def test_numbers_beyond_any_float_do_not_stop_the_page(tmp_path: Path) -> None:
    folder = cases.comparison(tmp_path, rounds=10)

    def grow(document: Any) -> None:
        huge = 10**400
        document["candidates"][0] |= {"memory_bytes": huge}
        document["results"][0] |= dict.fromkeys(("median_s", "low_s", "first_call_s", "samples"), huge)
        document["verdicts"][0] |= dict.fromkeys(("ratio", "low", "high", "floor", "smallest", "rounds"), huge)
        document["equivalence"][0] |= {"relative": huge}

    spoiled(folder, grow)
    found = collect([folder])
    page = report_page(found)
    # The reader may refuse the file, or accept it: then each of its parts is shown.
    assert len(found.unreadable) + page.count("about 1e400") > 0
    assert "cannot be shown" not in page
    assert len(report_figures(found, "svg")[1]) == 0


@pytest.mark.parametrize("text", ["../outside", "/etc", "runs/../../outside", "runs/link", "..\\outside", "a\x00b"])
def test_a_study_reads_no_run_outside_its_folder(tmp_path: Path, text: str) -> None:
    folder = cases.study(tmp_path)
    (cases.run(tmp_path, "aside")).rename(tmp_path / "outside")
    (folder / "runs" / "link").symlink_to(tmp_path / "outside")
    document = json.loads((folder / "study.json").read_text("utf-8"))
    document["candidates"]["adam"]["runs"] = [text]
    (folder / "study.json").write_text(json.dumps(document), "utf-8")
    found = collect([folder])
    assert found.studies[0].runs["adam"] == []
    assert len(found.unreadable) == 1
    assert "momentum" in report_page(found)


def test_figures_come_in_three_formats(folder: Path) -> None:
    for kind, begin in (("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        files, lost = report_figures(collect([folder / "demo-compare"]), kind)
        assert lost == []
        assert [Path(name).suffix for name in files] == [f".{kind}"] * 3
        assert all(content.startswith(begin) for content in files.values())
        if kind == "svg":
            assert all(ET.fromstring(content) is not None for content in files.values())  # noqa: S314
        if kind == "png":
            assert all(struct.unpack(">I", content[16:20])[0] > 900 for content in files.values())


SMALL = {"size": "smoke", "division": "open"}
OPERATORS = {"problem": "p-1", "title": "N=1", "direction": "forward", "candidate": "jax", "bare": False}
OPERATORS |= {"framework": "jax", "median_s": 1.25, "low_s": None, "high_s": None, "series": ["training_loss"]}


def texts(picture: bytes) -> str:
    """The text of a picture, in document order."""
    return " ".join(text.strip() for text in ET.fromstring(picture).itertext() if text.strip())  # noqa: S314


@pytest.mark.parametrize(
    ("kind", "changes", "standing"),
    [
        ("comparison", {}, ""),
        ("comparison", {"status": "aborted", "reasons": ["it was stopped"]}, "aborted"),
        ("comparison", {"status": "failed", "reasons": ["it failed"]}, "failed"),
        ("comparison", {"recipe": {**cases.RECIPE, **SMALL}}, "size smoke; open division"),
        ("comparison", {"recipe": {**cases.RECIPE, "size": "<&'\x1b" * 99}}, "size <&'\ufffd"),
        ("run", {}, ""),
        ("run", {"ended": "failed"}, "failed"),
        ("run", {"ended": "aborted", **SMALL}, "aborted; size smoke; open division"),
        ("study", {}, ""),
        ("study", {"finished": False}, "the study is not finished"),
        ("study", {"notes": ["the study was interrupted"]}, "the study is not finished"),
        ("study", {"finished": True}, ""),
    ],
)
def test_a_picture_says_what_its_results_are_not(
    kind: str, changes: dict[str, Any], standing: str, tmp_path: Path
) -> None:
    make = {"comparison": cases.comparison, "run": cases.run, "study": cases.study}[kind]
    folder = make(tmp_path, **changes)
    if kind == "run":
        (folder / "operators.json").write_text(json.dumps({"rows": [OPERATORS]}), "utf-8")
    found = collect([folder])
    files, lost = report_figures(found, "svg")
    assert lost == []
    assert len(files) == {"comparison": 3, "run": 4, "study": 2}[kind]
    for name, picture in files.items():
        told = texts(picture)
        for word in ("aborted", "size ", "open division", "not finished"):
            assert (word in told) == (word in standing or (word == "aborted" and "(aborted)" in told)), name
        assert standing in told, name
        assert len(told) < 2_000
    if kind == "study":
        assert str(tmp_path) not in report_page(found)
        verdicts = report_page(found).partition("<section")[0]
        assert ("the study is <b" in verdicts) == ("not finished" in standing)
    labels = [str(picture["aria-label"]) for picture in Reader(report_page(found)).all("svg")]
    assert len(labels) == len(files)
    assert all(f". {standing}" in label for label in labels)


def test_of_several_runs_a_picture_says_how_many_are_not_whole(tmp_path: Path) -> None:
    for seed, ended in enumerate(("success", "aborted", "success")):
        cases.run(tmp_path, f"run{seed}", seed=seed, ended=ended)
    files, _ = report_figures(collect([tmp_path]), "svg")
    (accuracy,) = [picture for name, picture in files.items() if name.endswith("-accuracy.svg")]
    assert "aborted: 1 of 3 runs" in texts(accuracy)


def test_every_format_has_room_for_what_a_picture_says(tmp_path: Path) -> None:
    heights = []
    for name, changes in (("whole", {}), ("small", {"recipe": {**cases.RECIPE, **SMALL}})):
        files, _ = report_figures(collect([cases.comparison(tmp_path, name, **changes)]), "png")
        heights.append([struct.unpack(">I", content[20:24])[0] for content in files.values()])
    assert all(small > whole + 20 for whole, small in zip(*heights, strict=True))


def test_one_specification_serves_page_and_paper(folder: Path, page: str) -> None:
    result = load_comparison(folder / "demo-compare")
    files, _ = report_figures(collect([result.folder]), "svg")
    drawn = files["demo-compare-ratios.svg"].decode()
    paths = re.findall(' d="([^"]{20,})"', drawn)
    assert paths
    assert all(path in page for path in paths)


def test_every_colour_of_a_picture_has_its_counterpart_in_the_dark(page: str) -> None:
    rules = dark_rules()
    for picture in re.findall("<svg.*?</svg>", page, re.DOTALL):
        for kind, colour in set(re.findall(r'(fill|stroke)="(#[0-9a-fA-F]+|black|white)"', picture)):
            assert f'[{kind}="{colour.lower()}" i]' in rules, colour


def values_in(part: Any) -> list[list[dict[str, Any]]]:
    """All data within a specification."""
    if isinstance(part, list):
        return [found for entry in part for found in values_in(entry)]
    if not isinstance(part, dict):
        return []
    own = [part["data"]["values"]] if "values" in part.get("data", {}) else []
    return own + [found for entry in part.values() for found in values_in(entry)]


def test_the_ratio_chart_holds_interval_floor_and_verdict(folder: Path) -> None:
    result = load_comparison(folder / "demo-compare")
    drawing = ratio_chart(result)
    assert drawing is not None
    specification = themed(drawing.chart)
    rows = [row for data in values_in(specification) for row in data]
    by_ratio = {row["ratio"]: row for row in rows}
    for verdict in result.verdicts:
        row = by_ratio[verdict["ratio"]]
        assert (row["low"], row["high"]) == (verdict["low"], verdict["high"])
        assert row["noise"] == verdict["floor"]
        assert row["word"] == verdict["word"] == "slower"
    assert specification["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"


def test_many_workloads_are_cut_and_said_so(tmp_path: Path) -> None:
    folder = cases.comparison(tmp_path, workloads=tuple(f"w{n}" for n in range(40)), labels=("a", "b"), rounds=2)
    drawing = samples_chart(load_comparison(folder))
    assert drawing is not None
    assert "56 of 80 rows are not drawn" in drawing.about


def test_one_is_told_as_one(tmp_path: Path) -> None:
    labels, workloads = tuple("abcde"), tuple(f"w{n}" for n in range(5))
    folder = cases.comparison(tmp_path, workloads=workloads, labels=labels, rounds=2)
    drawing = samples_chart(load_comparison(folder))
    assert drawing is not None
    assert "1 of 25 rows is not drawn" in drawing.about
    spoiled(folder, lambda document: document["equivalence"][0].update(passed=False))
    study = cases.study(tmp_path, "one")
    document = json.loads((study / "study.json").read_text("utf-8"))
    del document["candidates"]["momentum"]
    document["candidates"]["adam"]["runs"].pop()
    (study / "study.json").write_text(json.dumps(document), "utf-8")
    page = report_page(collect([tmp_path]))
    assert "1 of 10 values differs by more" in page
    assert "study of 1 candidate," in page
    assert "adam: 1 run<" in page
    assert not re.search(r"\b1 (runs|candidates|values|rows|results|folders|workloads|threads|curves)\b", page)


def study_with_target(out: Path, goal: float, name: str = "demo-study") -> str:
    """The verdicts at the top of a study's page, as plain text."""
    target = {"metric": "test_accuracy", "relation": ">=", "goal": goal, "unit": "%", "origin": "asked"}
    page = report_page(collect([cases.study(out, name, target=target, seeds=[0, 1, 2])]))
    (told,) = re.findall(r'<ul class="verdicts">.*?</ul>', page)
    return re.sub("<[^>]*>", "", told.replace("</li>", "\n"))


def test_a_study_says_who_was_first_at_the_target(tmp_path: Path) -> None:
    """By design: after the epochs adam has 65, 70 and 75 %, momentum five more, and the second seed one more."""
    said = study_with_target(tmp_path / "first", 70.0).splitlines()
    assert said == [
        "first to a test accuracy of at least 70 %: momentum; each took, as the median over the seeds (least to most):",
        "adam: 2 runs, 2 s (2 to never), 2 epochs (2 to never), target not reached in 1 of 3",
        "momentum: 2 runs, 1 failed, 1 s (1 to never), 1 epoch (1 to never), target not reached in 1 of 3",
    ]
    said = study_with_target(tmp_path / "none", 99.0).splitlines()
    assert said[0] == "no candidate reached a test accuracy of at least 99 %"
    assert said[1:] == [
        "adam: 2 runs, target not reached in 3 of 3",
        "momentum: 2 runs, 1 failed, target not reached in 3 of 3",
    ]
    said = study_with_target(tmp_path / "some", 81.0).splitlines()
    assert said[0] == "no candidate reached a test accuracy of at least 81 % with more than half of its seeds"


def test_studies_of_one_recipe_can_be_told_apart(tmp_path: Path) -> None:
    cases.study(tmp_path, "demo-study-20260102-030405-abcdef")
    cases.study(tmp_path, "elsewhere")
    page = report_page(collect([tmp_path]))
    for told in ("demo: study of 2 candidates, 2026-01-02 03:04:05", "demo: study of 2 candidates, elsewhere"):
        assert page.count(told) == 3  # in the contents, at the top, above its section


def test_ratios_are_explained_where_they_are_first_told(page: str, tmp_path: Path) -> None:
    told = "below 1 is faster"
    assert page.index('id="verdicts"') < page.index(told) < page.index('class="verdicts"')
    assert told not in report_page(collect([cases.run(tmp_path)]))


def test_an_end_of_an_interval_close_to_1_never_prints_as_1(tmp_path: Path, deep5: Command) -> None:
    """The verdict "faster" says that the interval excludes 1."""
    folder = cases.comparison(tmp_path, "close")
    ends = {"ratio": 0.959, "low": 0.936, "high": 0.99996, "word": "faster"}
    spoiled(folder, lambda document: document["verdicts"][0].update(ends))
    out = io.StringIO()
    comparison_tables(load_comparison(folder), Console(file=out, width=200))
    (tables, _), page = report_tables(collect([folder])), report_page(collect([folder]))
    for shown in (out.getvalue(), page, *(content.decode() for content in tables.values())):
        assert "0.959 (0.936 to 0.99996)" in shown
    assert re.search(r"<td[^>]*>0\.99996</td>", page), "a cell of the table of verdicts"
    assert "0.959 [0.936, 0.99996] faster" in " ".join(
        deep5("results", str(folder.parent), "--columns", "verdict").out.split()
    )


def test_many_ulps_have_no_exponent(tmp_path: Path) -> None:
    folder = cases.comparison(tmp_path, rounds=2)
    spoiled(folder, lambda document: [row.update(ulps=16_837.2) for row in document["equivalence"]])
    out = io.StringIO()
    comparison_tables(load_comparison(folder), Console(file=out, width=200))
    for shown in (out.getvalue(), report_page(collect([folder]))):
        assert re.search(r"16,8[04]0?", shown)
        assert "e+04" not in shown


def test_times_of_what_computes_something_else_are_not_drawn(tmp_path: Path) -> None:
    folder = cases.comparison(tmp_path, rounds=2)
    spoiled(folder, lambda document: document.update(results=document["results"][:1], verdicts=[]))
    result = load_comparison(folder)
    drawing = samples_chart(result)
    assert drawing is not None
    names = {row["name"] for data in values_in(themed(drawing.chart)) for row in data}
    assert names == {result.results[0]["candidate"]}
    spoiled(folder, lambda document: document.update(results=[]))
    assert samples_chart(load_comparison(folder)) is None


def test_many_verdicts_are_counted_at_the_top(tmp_path: Path) -> None:
    cases.comparison(tmp_path, workloads=tuple(f"w{n}" for n in range(12)), labels=("a", "b"), rounds=2)
    page = report_page(collect([tmp_path]))
    assert "12 workloads" in page
    assert "slower on 12" in page


def test_times_of_operators_are_drawn_and_told(tmp_path: Path) -> None:
    folder = cases.run(tmp_path)
    (folder / "operators.json").write_text(json.dumps({"rows": [OPERATORS]}), "utf-8")
    page = report_page(collect([folder]))
    assert "cannot be shown" not in page
    assert "Times of operators" in page
    assert 'data-sort="1.25"' in page
    assert len(report_figures(collect([folder]), "svg")[0]) == 4
    (folder / "operators.json").unlink()
    (folder / "operators.json").symlink_to("/etc/hostname")
    assert "times of operators cannot be shown" in report_page(collect([folder]))


def test_a_picture_with_anything_but_a_drawing_is_refused() -> None:
    svg = '<svg width="1"><text id="a" fill="url(#b)">x</text></svg>'
    assert 'id="picture-3-a"' in inline(svg, "label", 3)
    assert "url(#picture-3-b)" in inline(svg, "label", 3)
    for bad in ("<script>1</script>", '<a href="x">y</a>', '<g onclick="1"></g>', '<g fill="url(http://x)"></g>'):
        with pytest.raises(UsageError, match="remedy"):
            inline(svg.replace("</svg>", f"{bad}</svg>"), "label", 1)


def test_everything_is_escaped_but_what_is_markup() -> None:
    made = element("p", "<b>", Markup("<i>"), None, ["&", 3], title='"', hidden=False, data_sort=1)
    assert made == '<p title="&quot;" data-sort="1">&lt;b&gt;<i>&amp;3</p>'
    assert escape(made + "<u>") == "&lt;p title=&quot;&amp;quot;&quot; data-sort=&quot;1&quot;&gt;" + str(
        escape("&lt;b&gt;<i>&amp;3</p><u>")
    )
    assert named("a" * 60).count("a") > 60  # truncated, and complete in its title
    assert (number(float("-inf")), number(10**18), seconds(0.0)) == ("minus infinite", "1e+18", "0 s")


def test_names_that_would_steer_a_terminal_are_written_out(tmp_path: Path, deep5: Command) -> None:
    steer = "\x1b[31m"
    folder = cases.comparison(tmp_path, f"a{steer}", labels=("one", f"two{steer}"), warnings=[steer], reasons=[steer])
    spoiled(folder, lambda document: document["candidates"][0].update(reason=steer, left_out=[steer, ""]))
    out = io.StringIO()
    comparison_tables(load_comparison(folder), Console(file=out, width=200))
    assert out.getvalue().count(r"\x1b[31m") >= 8
    assert "\x1b" not in out.getvalue()
    for arguments in ((folder.name, "missing" + steer), (folder.name, "-o", f"{steer}.html"), (steer,)):
        answer = deep5("report", *arguments)
        assert r"\x1b[31m" in answer.out + answer.err
        assert "\x1b" not in answer.out + answer.err


def made_study(runs: Any, failures: Any, recipe: str = "demo", **more: Any) -> Study:
    """A study, as it is returned at its end."""
    parts = {"folder": Path("nowhere"), "hash": "a" * 64, "size": "full", "seeds": [0, 1]}
    return Study(recipe=recipe, settings={name: {} for name in runs}, runs=runs, failures=failures, **parts, **more)


def test_a_study_breaks_no_word_in_eighty_columns(tmp_path: Path) -> None:
    metrics = ["test_accuracy", "training_loss", "time_to_accuracy", "epochs_to_accuracy", "throughput", "step_latency"]
    folder = cases.run(tmp_path, "run")
    with (folder / "result.json").open("r+", encoding="utf-8") as file:
        document = json.load(file)
        row = document["metrics"][0]
        document["metrics"] = [
            {**row, "name": name, "parameters": {"target": 97.0}, "value": "inf" if "to_acc" in name else 123.45}
            for name in metrics
        ]
        file.seek(0)
        json.dump(document, file)
        file.truncate()
    runs = [load(folder), load(folder)]
    study = made_study({"momentum": runs, "x" * 50: runs}, {"momentum": [], "x" * 50: []})
    for width in (60, 80, 250):
        told = io.StringIO()
        study.print(Console(width=width, file=told, color_system=None))
        lines = told.getvalue().splitlines()
        assert max(map(len, lines[:-1])) <= width
        words = set(" ".join(lines).split())
        assert {"candidate", "momentum", "accuracy", "training", "loss", "throughput", "latency", "±"} <= words
        assert " ".join(lines).count("not reached in 2 of 2") == 4


def test_a_notebook_shows_a_table_without_a_script(folder: Path) -> None:
    run = load(next(folder.glob("demo-2*")))
    for shown, words in (
        (load_comparison(folder / "demo-compare"), "slower"),
        (run, "finished, not evaluated"),
        (made_study({"adam": [run]}, {"adam": ["seed 1: it diverged"]}), "study of 1 candidate<"),
    ):
        html = shown._repr_html_()
        assert "<table" in html
        assert words in html
        assert "<script" not in html
        Reader(html)
    assert "seed 1: it diverged" in html


def test_a_notebook_runs_nothing_that_a_result_holds(tmp_path: Path) -> None:
    bad = cases.HOSTILE
    run = load(cases.run(tmp_path, name="a", last_loss=float("nan")))
    run.document["recipe"]["name"] = bad
    study = made_study({bad: [run]}, {bad: [bad]}, recipe=bad, notes=(bad,), finished=False)
    for shown in (load_comparison(cases.hostile(tmp_path)), run, study):
        html = shown._repr_html_()
        assert html.startswith(style())  # a constant; what follows has no other style
        html = html.removeprefix(style())
        assert "<script" not in html
        assert "&lt;script" in html
        assert {tag for tag, _ in Reader(html).elements} <= {
            *("div", "p", "strong", "span", "b", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td"),
            "code",
        }


def test_the_command_writes_a_page_and_figures(folder: Path, deep5: Command, tmp_path: Path) -> None:
    answer = deep5("report", str(folder), "-o", "sub/page.html")
    assert (answer.status, answer.out.strip(), answer.err) == (0, "sub/page.html", "")
    assert (tmp_path / "sub" / "page.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    answer = deep5("report", str(folder / "demo-compare"), "--format", "svg", "-o", "drawn")
    assert answer.status == 0
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == sorted(
        Path(line).name for line in answer.out.split()
    )


def test_the_folder_that_one_is_in_has_its_name(folder: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "demo-compare")
    files, lost = report_figures(collect(["."]), "svg")
    assert lost == []
    assert all(name.startswith("demo-compare-") for name in files)


def test_the_command_tells_what_is_wrong(folder: Path, deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, what in (
        ([], "no folder given"),
        (["nowhere"], "is not a folder"),
        (["empty"], "holds none of"),
        ([str(folder), "-o", "result.json"], r"allowed: a file that ends in \.html"),
        ([str(folder), "--format", "gif"], "allowed: html, svg, pdf, png, tex"),
    ):
        answer = deep5("report", *arguments)
        assert answer.status == 2
        assert re.search(what, answer.err)
        assert answer.err.count("\n") == 1
    answer = deep5("report", str(folder / "quick-compare"), "nowhere")
    assert answer.status == 1
    assert "not in the report: nowhere" in answer.err
    assert "nowhere is not a folder" in (tmp_path / "report.html").read_text("utf-8")
    (tmp_path / "file").write_text("")
    assert deep5("report", str(folder), "-o", "file/page.html").status == 2


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_a_missing_package_is_told_with_its_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=re.escape("pip install 'deep5[report]'")):
        report_page(collect([folder]))


def test_a_browser_that_is_required_and_missing_ends_the_session(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (session,) = [made for made in request.config.pluginmanager.get_plugins() if hasattr(made, "_require")]
    monkeypatch.setattr(browser.shutil, "which", lambda program: None)
    with pytest.raises(pytest.UsageError, match="lists 'browser', but the program 'chromium' is not installed; remedy"):
        session._require("browser")


def contrast(one: str, other: str) -> float:
    """Contrast of two colors, as WCAG 2.2 defines it."""
    shades = []
    for colour in (one, other):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        shades.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(shades) + 0.05) / (min(shades) + 0.05)


def test_text_stands_out_in_light_and_in_the_dark(page: str) -> None:
    schemes = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", scheme))
        for ink in ("ink", "muted", "link"):
            assert contrast(colours[ink], colours["paper"]) >= 4.5
            assert contrast(colours[ink], colours["shade"]) >= 4.5
        for kind in ("good", "bad", "warn"):
            assert contrast(colours[kind], colours[f"{kind}-shade"]) >= 4.5


def scaled_study(out: Path) -> Path:
    """A study of one rank and two, which took 10 s and 8 s a step."""
    note = "other programs took up to 40 % of the processors in 2 runs; remedy: a quiet machine"
    folder = cases.study(out, notes=[note])
    for place, path in enumerate(sorted((folder / "runs").iterdir())):
        ranks = 1 + place // 2
        document = json.loads((path / "result.json").read_text("utf-8"))
        row = {**document["metrics"][-1], "name": "throughput", "unit": "samples/s", "value": 100.0 * ranks**0.5}
        document["metrics"].append({**row, "direction": "higher", "parameters": {}})
        document["ranks"] = ranks
        document["recipe"]["mutable"] = {**document["recipe"]["mutable"], "batch_size": 64, "ranks": ranks}
        document["recipe"]["size"] = "smoke"
        (path / "result.json").write_text(json.dumps(document), "utf-8")
    return folder


def test_a_study_of_scaling_has_its_table_and_its_picture(tmp_path: Path) -> None:
    found = collect([scaled_study(tmp_path)])
    page = report_page(found)
    assert "strong scaling, 64 samples a step for all ranks, against adam: median over the seeds" in page
    assert "serial fraction" in page
    assert "70.7" in page  # the efficiency in percent
    files, lost = report_figures(found, "svg")
    assert lost == []
    (scaling,) = [picture for name, picture in files.items() if name.endswith("-scaling.svg")]
    for picture in files.values():
        assert "size smoke; other programs took up to 40 % of" in texts(picture)
    assert "parallel efficiency" in texts(scaling)
    assert len(Reader(page).all("svg")) == len(files)
