"""The recipes of object detection run at their smoke size on every framework, and store what they found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.audit import audit
from deep5.metrics.mean_average_precision import average_precision
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute

NAMES = ("detection_ssd", "detection_centers")


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax", "onnxruntime"])
@pytest.mark.parametrize("name", NAMES)
def test_the_smoke_size_runs_and_learns(name: str, framework: str, tmp_path: Path) -> None:
    recipe = load_recipe(name).at_size("smoke").with_settings({"framework": framework})
    result = execute(recipe, out=tmp_path)
    assert result.status == "success"
    losses = [row.value for row in result.samples()["training_loss"]]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    # The stored detections have the value that the run reports.
    found, truth = (json.loads((result.folder / name).read_text()) for name in ("detections.json", "ground_truth.json"))
    assert len(truth["images"]) == 16
    assert average_precision(truth, found, 0.5) == result.metric("mean_average_precision")


def test_guessed_classes_are_far_from_the_goal() -> None:
    """The baseline of the docstrings: all true boxes, each with all classes at random scores."""
    data = d5.datasets.digit_canvases(train=1, test=300).test.batch(np.arange(300))
    rng = np.random.default_rng(0)
    annotations: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for image, (boxes, classes) in enumerate(zip(data["boxes"], data["classes"], strict=True)):
        for (left, top, right, bottom), kind in zip(boxes[classes >= 0].tolist(), classes[classes >= 0], strict=True):
            box = [left, top, right - left, bottom - top]
            one = {"image_id": image, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            annotations.append({**one, "id": len(annotations) + 1, "category_id": int(kind)})
            found += [{**one, "category_id": guess, "score": float(rng.random())} for guess in range(10)]
    truth = {
        "images": [{"id": image} for image in range(300)],
        "categories": [{"id": kind} for kind in range(10)],
        "annotations": annotations,
    }
    value = average_precision(truth, found, 0.5)
    assert value is not None
    # One in ten is right; the precisions at small recalls, of few detections, vary.
    assert 8 < value < 16
    for name in NAMES:
        assert str(load_recipe(name).metrics[0][1]) == ">= 90"


@pytest.mark.slow
def test_the_audit_finds_nothing(tmp_path: Path) -> None:
    result = execute(load_recipe("detection_centers").at_size("smoke"), out=tmp_path)
    report = audit([result.folder])
    assert not report.findings
