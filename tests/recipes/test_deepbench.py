"""DeepBench's recipes: what they omit, on which frameworks they run, and with how many threads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from deep5.bench import measure as measuring
from deep5.bench import series as timed
from deep5.bench.plan import workloads
from deep5.bench.recipe import check_operators, plan_of
from deep5.bench.record import OPERATORS
from deep5.core.errors import UsageError
from deep5.core.plugins import registered
from deep5.operators import problems
from deep5.operators.zoo.problems import BATCHES
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.keys import WORKLOAD
from deep5.recipe.recipe import load_recipe
from deep5.recipes.deepbench import MUTABLE
from deep5.run.execute import execute
from quick_peaks import quick_peaks as peaks_of_numpy

RECIPES = ("deepbench_conv", "deepbench_gemm", "deepbench_rnn")
FRAMEWORKS = MUTABLE["frameworks"]
DOCS = Path(__file__).parents[2] / "docs" / "how_to" / "operators.md"


@pytest.fixture
def quick_peaks() -> Iterator[None]:
    """No test here checks a share of a peak."""
    with peaks_of_numpy():
        yield


STUDIES = ("convolution_algorithms", "layer_batches", "matmul_batches", "recurrent_batches")


@pytest.mark.parametrize("name", [*RECIPES, *STUDIES])
def test_what_is_timed_cannot_change_in_a_closed_run(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.division == "closed"
    assert not WORKLOAD & recipe.mutable.keys()
    assert recipe.with_settings({"take": 6}).division == "open"
    if name in RECIPES:
        assert check_operators(recipe_parts(recipe.with_settings({"uses": "inference_server", "take": 1}))), (
            "whatever its box is of"
        )
        with pytest.raises(UsageError, match="'limit_gflop' is fixed by the recipe"):
            recipe.with_settings({"limit_gflop": 0.3})


def test_every_back_end_is_in_every_recipe() -> None:
    assert set(FRAMEWORKS) == set(registered("frameworks"))
    for name in RECIPES:
        plan = plan_of(recipe_parts(load_recipe(name)))
        assert plan.frameworks == FRAMEWORKS
        assert plan.bare is not None


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_limit_leaves_is_what_the_guide_says(name: str) -> None:
    recipe = load_recipe(name)
    works, left_out = workloads(plan_of(recipe_parts(recipe)))
    told = f"{len(works)} of {len(works) + len(left_out)}"
    assert all("(limit_gflop=10)" in entry["reason"] for entry in left_out)
    assert f"{told} problems and directions would be run" in check_operators(recipe_parts(recipe))[0]
    assert re.search(rf"`{name}` (keeps )?{told}", " ".join(DOCS.read_text().split()))
    whole = plan_of(recipe_parts(recipe.at_size("whole")))
    assert not any("limit_gflop" in entry["reason"] for entry in workloads(whole)[1])
    smoke = plan_of(recipe_parts(recipe.at_size("smoke")))
    assert len(workloads(smoke)[0]) <= 3, "a smoke size stays quick"


@pytest.mark.slow
def test_recurrent_layers_run_forward_and_backward_on_every_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_peaks: None
) -> None:
    cells = ("vanilla", "lstm", "gru")
    rows = [{"use": "training", "hidden": 8, "batch": 2, "timesteps": 2, "cell": cell} for cell in cells]
    monkeypatch.setattr(problems, "problem_rows", lambda table: rows)
    monkeypatch.setattr(timed, "_WARM_UP_S", 0.01)
    recipe = load_recipe("deepbench_rnn").with_settings({"rounds": 1, "pictures": False})
    # test_problems compares the hand-written code with these.
    result = execute(replace(recipe, fixed={**recipe.fixed, "bare": None, "box": None}), out=tmp_path, quiet=True)
    told = json.loads((result.folder / OPERATORS).read_text())
    assert told["left_out"] == []
    assert {(row["title"].split()[0], row["direction"], row["candidate"]) for row in told["rows"]} == {
        (cell, direction, framework)
        for cell in cells
        for direction in ("forward", "backward")
        for framework in FRAMEWORKS
    }
    assert result.metric("operator_coverage") == 100


# Batch, channels, height and width; filters; their size; pads; stride.
SMALL_CONVOLUTIONS = [(2, 3, 8, 8, 4, 3, 1, 2), (1, 4, 9, 7, 2, 3, 0, 1)]
NO_GRADIENTS = ("onnxruntime", "openvino", "reference")
"""Frameworks that compute none by themselves: nothing bare appears next to deep5's there."""


def convolution_row(n: int, c: int, h: int, w: int, k: int, taps: int, pad: int, stride: int) -> dict[str, Any]:
    return {
        "use": "training", "width": w, "height": h, "in_channels": c, "batch": n, "out_channels": k,
        "kernel_width": taps, "kernel_height": taps, "pad_width": pad, "pad_height": pad, "stride_width": stride,
        "stride_height": stride,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "rows", "directions"),
    [
        pytest.param(
            "deepbench_conv",
            [convolution_row(*sizes) for sizes in SMALL_CONVOLUTIONS],
            ("forward", "backward by data", "backward by weights"),
            marks=pytest.mark.slow,
        ),
        (
            "deepbench_gemm",
            [{"use": "training", "m": 6, "n": 5, "k": 7, "transpose_a": True, "transpose_b": False}],
            ("forward",),
        ),
    ],
)
def test_small_sizes_run_in_every_direction_on_every_framework_and_bare(
    name: str,
    rows: list[dict[str, Any]],
    directions: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quick_peaks: None,
) -> None:
    """Also the recipes' own hand-written functions: a candidate with different results would be missing."""
    monkeypatch.setattr(problems, "problem_rows", lambda table: rows)
    monkeypatch.setattr(timed, "_WARM_UP_S", 0.01)
    recipe = load_recipe(name).with_settings({"rounds": 1, "pictures": False})
    result = execute(replace(recipe, fixed={**recipe.fixed, "box": None}), out=tmp_path, quiet=True)
    told = json.loads((result.folder / OPERATORS).read_text())
    table = name.removeprefix("deepbench_")
    every = {
        (f"{table}-{number + 1}", direction, label)
        for number in range(len(rows))
        for direction in directions
        for framework in FRAMEWORKS
        for label in (framework, f"{framework} (bare)")
    }
    by_nobody = {
        (problem, direction, label)
        for problem, direction, label in every
        if direction != "forward" and label in {f"{framework} (bare)" for framework in NO_GRADIENTS}
    }
    left_out = {(entry["problem"], entry["direction"], entry["candidate"]): entry for entry in told["left_out"]}
    assert left_out.keys() == by_nobody, told["left_out"]
    assert all("computes no gradients by itself" in entry["reason"] for entry in left_out.values())
    measured = [(row["problem"], row["direction"], row["candidate"]) for row in told["rows"]]
    assert set(measured) == every - by_nobody
    assert len(set(measured)) == len(measured)
    assert result.metric("operator_coverage") == 100


WAYS = {False: "through deep5", True: "bare"}


@pytest.mark.parametrize("name", ["deepbench_conv", "deepbench_gemm"])
def test_a_smoke_run_draws_every_candidate(name: str, tmp_path: Path, quick_peaks: None) -> None:
    recipe = load_recipe(name).at_size("smoke")
    result = execute(recipe, out=tmp_path, quiet=True)
    assert not [text for text in result.document["warnings"] if "drawn" in text]
    for picture in ("violin", "box"):
        assert (result.folder / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((result.folder / OPERATORS).read_text())
    frameworks = plan_of(recipe_parts(recipe)).frameworks
    wanted = {(framework, bare) for framework in frameworks for bare in (False, True)}
    assert {(row["framework"], row["bare"]) for row in told["rows"]} == wanted
    box, violin = ((result.folder / f"{picture}.svg").read_text() for picture in ("box", "violin"))
    for text in (box, violin):
        names = re.findall(r"<text[^>]*>([^<]*)</text>", text)
        assert {name.split()[0] for name in names if name} >= set(frameworks)
        assert set(names) >= set(WAYS.values())
    # The value of each mark is its label, with the renderer's twelve digits.
    boxes = re.findall(
        r'aria-label="framework: (\w+);[^"]*; way: ([\w ]+);[^"]*Median of time per call: ([\d.e-]+);', box
    )
    medians = {(framework, way): float(value) for framework, way, value in boxes}
    assert medians == {
        (row["framework"], WAYS[row["bare"]]): pytest.approx(row["median_s"], rel=1e-6)
        for row in told["rows"]
        if row["problem"] == recipe.value("box")
    }
    assert len(medians) == len(wanted)
    # So few sizes appear as points: one per size and candidate.
    points = re.findall(r'aria-label="left: [^"]*; time per call: ([\d.e-]+); way: ([\w ]+)"', violin)
    assert sorted((way, float(value)) for value, way in points) == [
        (way, pytest.approx(value, rel=1e-6))
        for way, value in sorted((WAYS[row["bare"]], row["median_s"]) for row in told["rows"])
    ]


@pytest.mark.slow
def test_products_of_every_batch_size_run_at_their_full_size(tmp_path: Path, quick_peaks: None) -> None:
    recipe = load_recipe("matmul_batches").with_settings({"frameworks": "pytorch", "rounds": 1})
    assert plan_of(recipe_parts(recipe)).limit_gflop is None
    result = execute(recipe, out=tmp_path, quiet=True)
    told = json.loads((result.folder / OPERATORS).read_text())
    assert told["left_out"] == []
    assert [row["problem"] for row in told["rows"]] == [f"matmul-{batch}" for batch in BATCHES]
    assert [row["flops"] for row in told["rows"]] == [2 * batch * 4096 * 9192 for batch in BATCHES]
    # Samples per second of a batch next to those of the largest, as in the raw times.
    largest, *others = (row["median_s"] / batch for row, batch in zip(told["rows"], BATCHES, strict=True))
    shares = [100 * largest / other for other in others]
    assert result.metric("linear_scaling") == pytest.approx(median(shares))
    assert result.metric("linear_scaling_of_1") == pytest.approx(shares[-1])
    assert result.metric("operator_coverage") == 100
    assert (result.folder / "study.svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_deep5_and_bare_have_the_same_threads_on_every_framework(quick_peaks: None) -> None:
    """A product that several threads could share: no candidate keeps more than one processor busy."""
    given = replace(plan_of(recipe_parts(load_recipe("deepbench_gemm"))), take=1, limit_gflop=1.0, rounds=7)
    found = measuring.measure_here(given)
    busy = {series["candidate"]: series["processors"] for series in found["series"]}
    assert set(busy) == {label for name in FRAMEWORKS for label in (name, f"{name} (bare)")}, found["left_out"]
    # Processor time over wall-clock time: 1 where one thread computes, whatever else runs on the machine.
    assert max(busy.values()) < 1.3, busy
    assert found["warnings"] == []
    assert {settings["threads"] for settings in found["settings"].values()} == {1}
