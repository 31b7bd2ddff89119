"""The study of data loading: the same pixels from every format, files that are warm or cold as stated, its chart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.audit import audit
from deep5.cli.clean import found_in_cache
from deep5.core.errors import Deep5Error, MissingDependency, OutputError, RunFailed, UsageError
from deep5.measuring.page_cache import drop_pages, resident_share
from deep5.measuring.timing import Rounds
from deep5.recipe.recipe import load_recipe
from deep5.recipes.loading import files, measured, sides
from deep5.recipes.loading.files import FORMATS, PACKED, decoded, image, image_files, opened, paths_of
from deep5.results.report.loading_rates import loading_drawing, loading_table
from deep5.run.execute import execute
from deep5.training.datasets.decoders import DECODERS

EPOCH = {"images": 20, "size": 32, "batch_size": 8, "order": "shuffled"}
FEW: dict[str, Any] = {**EPOCH, "formats": ["tar", PACKED], "decoders": ["pillow"], "workers": [0, 2]}

SMALL: dict[str, Any] = {
    "steps": 2,
    "threads": 1,
    "network_kwargs": {"width": 2, "image": 32},
    "images": 20,
    "size": 32,
    "batch_size": 8,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DEEP5_CACHE", str(folder))
    return folder


@pytest.fixture
def _on_a_disk(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(1 << 16))
    drop_pages([tmp_path / "x"])
    if resident_share([tmp_path / "x"]) > 0:
        pytest.skip("the folder for temporary files is in memory: no file in it can be cold")


# Files


def test_every_format_holds_the_same_images() -> None:
    folder = image_files(25, 40, 3)
    reference = decoded(folder).batch(np.arange(25))
    for form in FORMATS:
        for decoder in DECODERS if form != PACKED else ("pillow",):
            data = opened(folder, form, decoder, 40)
            found = data.batch(np.arange(len(data)))
            for name, values in reference.items():
                np.testing.assert_array_equal(found[name], values, err_msg=f"{form}, {decoder}")
                assert found[name].dtype == values.dtype
    assert reference["input"].shape == (25, 3, 40, 40)
    assert sorted(set(reference["label"].tolist())) == list(range(10))
    # The images of the rule: at quality 90 the steps of quantization are on average 12 levels for luma and 18 for
    # chroma, and an error is uniform within a step, of deviation step / sqrt(12).
    pixels = np.stack([image(number, 40, 3) for number in range(25)]).transpose(0, 3, 1, 2)
    assert np.abs(255 * reference["input"] - pixels).mean() < 6
    assert len({pixels[number].tobytes() for number in range(25)}) == 25


def test_files_are_written_once_and_cleaned(cache: Path) -> None:
    folder = image_files(20, 32, 0)
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert image_files(20, 32, 0) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times
    others = {image_files(21, 32, 0), image_files(20, 33, 0), image_files(20, 32, 1)}
    assert folder not in others
    assert len(others) == 3
    assert not list(folder.parent.glob(".*"))
    (entry,) = (found for found in found_in_cache(cache) if found.path.name == "loading_files")
    assert entry.kind == "data"
    assert entry.size_bytes > 20 * 32 * 32 * 3
    assert sum(len(paths_of(folder, form)) for form in FORMATS) == 20 + 3


def test_files_that_cannot_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file", encoding="utf-8")
    with pytest.raises(OutputError, match=r"cannot be written .*remedy: set DEEP5_CACHE"):
        image_files(20, 32, 0)
    cache.unlink()
    monkeypatch.setattr(files, "_entries", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match="No space left on device"):
        image_files(20, 32, 0)
    assert [path for path in cache.rglob("*") if path.is_file()] == []


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"formats": ["zip"]}, r"formats=\['zip'\]; allowed: a list of 'folder', 'tar', 'tfrecord', 'packed'"),
        ({"formats": []}, r"formats=\[\]; allowed: a list of"),
        ({"decoders": ["gimp"]}, "allowed: a list of 'pillow', 'turbojpeg', 'opencv'"),
        ({"workers": [-1]}, r"workers=\[-1\]; allowed: a list of 0 to 64"),
        ({"workers": 2}, "workers=2; allowed: a list of 0 to 64"),
        ({"workers": [True]}, "allowed: a list of 0 to 64"),
        ({"order": "random"}, "allowed: a list of 'shuffled', 'sequential'"),
        ({"batch_size": 0}, "batch_size=0; allowed: an integer of at least 1"),
        ({"images": 5}, "images=5; allowed: integers from 10 to 100000"),
        ({"size": 3}, "size=3; allowed: integers from 8 to 4096"),
    ],
)
def test_settings_that_are_not_allowed(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sides.warm_files(seed=0, **{**FEW, **settings})


def test_a_missing_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from deep5.training.datasets import decoders

    monkeypatch.setitem(sys.modules, "cv2", None)
    decoders._opencv.cache_clear()
    try:
        with pytest.raises(MissingDependency, match=r"pip install 'deep5\[decoders\]'"):
            sides.warm_files(seed=0, **{**FEW, "decoders": ["opencv"]})
    finally:
        decoders._opencv.cache_clear()


# Epochs


def test_warm_files_are_in_the_page_cache_and_every_case_is_timed() -> None:
    work = sides.warm_files(seed=0, **FEW)
    for _ in range(2):
        work()
    reported = work.reported
    assert list(reported["seconds"]) == sides.cases(["tar", PACKED], ["pillow"], [0, 2])
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in reported["seconds"].values())
    assert reported["misplaced"] == [0.0] * 8
    assert (reported["difference"], reported["images"], reported["cache_state"]) == (0, 20, "warm")


@pytest.mark.usefixtures("_on_a_disk")
@pytest.mark.parametrize("order", sides.ORDERS)
def test_cold_files_are_not(order: str) -> None:
    work = sides.cold_files(seed=0, **{**FEW, "formats": list(FORMATS), "order": order})
    for _ in range(2):
        work()
    assert work.reported["misplaced"] == [0.0] * 16
    assert work.reported["cache_state"] == "cold"


@pytest.mark.usefixtures("_on_a_disk")
def test_files_that_stay_warm_are_no_cold_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: here, nothing is removed from the page cache."""
    work = sides.cold_files(seed=0, **FEW)
    monkeypatch.setattr("deep5.measuring.page_cache.drop_pages", lambda paths: None)
    with pytest.raises(UsageError, match="stay in the page cache after they were dropped"):
        work()


def test_other_pixels_are_noticed() -> None:
    folder = image_files(20, 32, 0)
    pixels = np.load(folder / "train.npy", mmap_mode="r+")
    pixels[7, 1, 2, 3] ^= 128
    del pixels
    assert sides.warm_files(seed=0, **FEW).reported["difference"] == pytest.approx(128, abs=1e-4)


def test_a_damaged_file_is_an_error_with_its_name() -> None:
    folder = image_files(20, 32, 0)
    path = paths_of(folder, "folder")[5]
    path.write_bytes(path.read_bytes()[:-20])
    for decoder in DECODERS:
        with pytest.raises(UsageError, match=rf"{path.name} does not decode"):
            sides.warm_files(seed=0, **{**FEW, "formats": ["folder"], "decoders": [decoder]})


# Metrics


def _rounds(reported: dict[str, Any], count: int = 6) -> Rounds:
    seconds = tuple(0.1 + 0.01 * number for number in range(count))
    return Rounds(
        candidate=seconds,
        baseline=seconds,
        baseline_again=seconds,
        steps=1,
        warmups=3,
        first_call_s=1.0,
        reported={"candidate": reported, "baseline": {}},
    )


def test_rates_are_those_of_the_rounds() -> None:
    case = sides.Case(form="tar", decoder="pillow", workers=2)
    seconds = [9.0, 9.0, 9.0, 9.0, 1.0, 2.0, 4.0, 5.0, 8.0, 10.0]  # four calls before the first round
    reported = {"seconds": {case: seconds}, "images": 40, "misplaced": [0.0, 0.25], "difference": 3.0}
    observers = [
        metric.observer()
        for metric in (
            measured.ImagesPerSecond("tar", "pillow", 2),
            measured.ImagesPerSecond("tar", "pillow", 4),
            measured.IdealImagesPerSecond(),
            measured.MisplacedPages(),
            measured.PixelDifference(),
        )
    ]
    for observer in observers:
        observer.after_timing(_rounds(reported))
    rate, left_out, ideal, pages, difference = observers
    assert [sample.value for sample in rate.samples()] == [40, 20, 10, 8, 5, 4]
    assert rate.value() == 9
    assert rate.interval() == (4, 40)
    assert (left_out.value(), left_out.missing()) == (None, "the settings of this run leave the case out")
    assert ideal.value() == pytest.approx(median(40 / second for second in _rounds(reported).baseline))
    assert (pages.value(), difference.value()) == (25, 3)
    rate.after_timing(_rounds(reported, 5))
    assert rate.interval() is None  # fewer than six


def test_the_share_of_loading() -> None:
    observer = measured.LoadingShare().observer()
    observer.after_timing(
        Rounds(
            candidate=(2.0, 4.0, 5.0, 8.0, 10.0, 1.0),
            baseline=(0.5, 1.0, 1.0, 2.0, 1.0, 1.0),
            baseline_again=(1.5, 1.0, 1.0, 2.0, 3.0, 1.0),
            steps=4,
            warmups=3,
            first_call_s=1.0,
        )
    )
    shares = [50, 75, 80, 75, 80, 0]
    assert [sample.value for sample in observer.samples()] == pytest.approx(shares)
    assert observer.value() == pytest.approx(75)
    assert observer.interval() == pytest.approx((0, 80))


# The recipes


@pytest.mark.usefixtures("_on_a_disk")
@pytest.mark.parametrize("state", ["warm", "cold"])
def test_the_recipe_runs_and_passes_the_audit(state: str, tmp_path: Path) -> None:
    recipe = load_recipe(f"data_loading_{state}").at_size("smoke")
    recipe = replace(recipe, mutable={**recipe.mutable, "candidate_kwargs": FEW, "baseline_kwargs": EPOCH})
    result: Any = execute(recipe, out=tmp_path, quiet=True)
    assert result.status == "success"
    assert result.document["measurement"]["cache_state"] == state
    assert (result.metric("pixel_difference"), result.metric("misplaced_pages")) == (0, 0)
    rates = {verdict.label: verdict.value for verdict in result.verdicts if verdict.name == "images_per_second"}
    assert len(rates) == 40
    assert sum(value is not None for value in rates.values()) == 4
    assert not audit([result.folder]).findings
    # A rate that does not follow from its samples is a finding.
    document = json.loads((result.folder / "result.json").read_text())
    row = next(row for row in document["metrics"] if row["name"] == "images_per_second" and row["value"])
    row["value"] *= 1.5
    (result.folder / "result.json").write_text(json.dumps(document))
    assert any("images_per_second" in str(finding) for finding in audit([result.folder]).findings)


def test_its_chart_and_table(tmp_path: Path) -> None:
    recipe = load_recipe("data_loading_warm").at_size("smoke")
    recipe = replace(recipe, mutable={**recipe.mutable, "candidate_kwargs": FEW, "baseline_kwargs": EPOCH})
    result: Any = execute(recipe, out=tmp_path, quiet=True)
    drawing = loading_drawing(result)
    assert drawing is not None
    assert drawing.name == "loading"
    chart = json.loads(drawing.chart.to_json())
    *_, points = chart["layer"]
    values = points["data"]["values"]
    assert [(value["name"], value["workers"]) for value in values] == [
        ("tar, pillow", "0"),
        ("tar, pillow", "2"),
        ("packed", "0"),
        ("packed", "2"),
    ]
    assert "Images per second of warm files" in str(loading_table(result))
    (row,) = (row for row in result.document["metrics"] if row["name"] == "ideal_images_per_second")
    assert chart["layer"][0]["data"]["values"] == [{"ideal": row["value"]}]
    broken = next(row for row in result.document["metrics"] if row["name"] == "images_per_second" and row["value"])
    broken["parameters"]["workers"] = "many"
    with pytest.raises(UsageError, match="is not as deep5 writes it; allowed: form, decoder, workers"):
        loading_table(result)


def test_a_run_whose_files_do_not_become_cold_leaves_nothing_or_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deep5.measuring.page_cache.drop_pages", lambda paths: None)
    recipe = load_recipe("data_loading_cold").at_size("smoke")
    with pytest.raises(Deep5Error, match="stay in the page cache") as raised:
        execute(recipe, out=tmp_path / "out", quiet=True)
    assert not isinstance(raised.value, RunFailed)
    assert not (tmp_path / "out").exists()


def test_other_recipes_have_no_such_chart(tmp_path: Path) -> None:
    result: Any = execute(load_recipe("overhead_trainer").at_size("smoke"), out=tmp_path, quiet=True)
    assert loading_drawing(result) is None
    assert loading_table(result) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_the_share_of_a_training_is_measured(workers: int, tmp_path: Path) -> None:
    recipe = load_recipe("data_loading_training").at_size("smoke")
    recipe = recipe.with_settings({"candidate_kwargs": {**recipe.mutable["candidate_kwargs"], "workers": workers}})
    result: Any = execute(recipe, out=tmp_path, quiet=True)
    assert result.status == "success"
    assert result.metric("loading_share") < 100
    assert not audit([result.folder]).findings
    assert loading_drawing(result) is None  # only its rounds are drawn


@pytest.mark.parametrize("framework", ["tensorflow", "jax", "onnxruntime", "reference"])
@pytest.mark.slow
def test_the_share_on_other_frameworks(framework: str, tmp_path: Path) -> None:
    recipe = load_recipe("data_loading_training").at_size("smoke")
    given = {key: {**recipe.mutable[key], "framework": framework} for key in ("candidate_kwargs", "baseline_kwargs")}
    result: Any = execute(recipe.with_settings(given), out=tmp_path, quiet=True)
    assert result.status == "success"


def test_both_sides_of_a_training_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and arrays give the same batches in the same order, so the weights after the steps are bit-identical."""
    from deep5.core.plugins import load
    from deep5.recipes.loading import training

    made: list[Any] = []
    original = training.executor
    monkeypatch.setattr(training, "executor", lambda *given: made.append(original(*given)) or made[-1])
    same = {**SMALL, "seed": 3, "framework": "pytorch", "network": load("networks", "resnet18_small")}
    training.from_arrays(**same)()
    for form in FORMATS:
        training.from_files(**same, form=form, decoder="turbojpeg", workers=2)()
    first, *others = [{name: d5.to_numpy(value) for name, value in each.parameters().items()} for each in made]
    for other in others:
        for name, values in first.items():
            np.testing.assert_array_equal(other[name], values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": -1}, "workers=-1; allowed: an integer from 0 to 64"),
        ({"steps": 9}, "9 steps of an epoch of 3 batches; allowed: at most as many"),
        ({"form": "zip"}, "'zip'"),
    ],
)
def test_trainings_that_are_not_possible(settings: dict[str, Any], message: str) -> None:
    from deep5.core.plugins import load
    from deep5.recipes.loading import training

    given = {**SMALL, "seed": 0, "framework": "reference", "network": load("networks", "resnet18_small")}
    given |= {"form": "folder", "decoder": "pillow", "workers": 0}
    with pytest.raises(UsageError, match=message):
        training.from_files(**{**given, **settings})
