"""Mean average precision: of a few boxes, against pycocotools on the stored files, and over ranks."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import deep5 as d5
from deep5.core.errors import MissingDependency
from deep5.distributed.communicators.threads import run_in_threads
from deep5.metrics.mean_average_precision import average_precision

BOXES = np.array(
    [[[2.0, 2.0, 12.0, 12.0], [20.0, 4.0, 30.0, 24.0]], [[5.0, 5.0, 15.0, 25.0], [-1.0, -1.0, -1.0, -1.0]]]
)
CLASSES = np.array([[0, 1], [1, -1]])


def outputs(boxes: Any, scores: Any) -> dict[str, np.ndarray]:
    return {"predicted_boxes": np.asarray(boxes, np.float32), "predicted_scores": np.asarray(scores, np.float32)}


def one_hot(classes: np.ndarray, score: float = 0.9, count: int = 2) -> np.ndarray:
    return score * (classes[..., None] == np.arange(count))


def evaluated(
    found: dict[str, np.ndarray], *, iou: float | None = None, nms: float | None = 0.5, ids: Any = (0, 1)
) -> Any:
    observer = d5.MeanAveragePrecision(iou, nms=nms).observer()
    trainer = SimpleNamespace(communicator=None, step=6, elapsed_ns=lambda: 10**9)
    observer.before_evaluation(trainer, epoch=0)
    inputs = {"boxes": BOXES, "classes": CLASSES}
    observer.after_evaluation_batch(trainer, None if ids is None else np.array(ids), inputs, found)
    observer.after_evaluation(trainer, epoch=0, scores={})
    return observer


def value(*arguments: Any, **options: Any) -> float:
    return float(evaluated(*arguments, **options).value())


# -- a few boxes ------------------------------------------------------------------------------------------------------


def test_perfect_detections_have_all_of_it() -> None:
    # pycocotools adds the spacing of one to each denominator.
    assert value(outputs(BOXES, one_hot(CLASSES))) == pytest.approx(100, rel=1e-12)
    assert value(outputs(BOXES, one_hot(CLASSES)), iou=0.5) == pytest.approx(100, rel=1e-12)


def test_no_detections_have_none_of_it() -> None:
    assert value(outputs(BOXES, np.zeros((2, 2, 2)))) == 0
    assert value(outputs(np.full((2, 2, 4), np.nan), one_hot(CLASSES))) == 0


def test_half_right_detections_by_hand() -> None:
    """Class 0 is found, and one of two objects of class 1: recall 1/2 at precision 1, so 51 of 101 recalls count."""
    kinds = np.array([[0, 1], [-1, -1]])
    assert value(outputs(BOXES, one_hot(kinds))) == pytest.approx((100 + 100 * 51 / 101) / 2)


def test_a_false_detection_with_a_higher_score_halves_the_precision() -> None:
    """Of class 0 the first detection is wrong, the second right: precision 1/2 at all recalls."""
    boxes = BOXES.copy()
    boxes[1, 1] = [40, 40, 50, 50]
    scores = one_hot(CLASSES)
    scores[1, 1, 0] = 0.95
    assert value(outputs(boxes, scores)) == pytest.approx((50 + 100) / 2)


def test_thresholds_of_the_overlap_by_hand() -> None:
    """A box of 10 x 10 that is found as 10 x 8 has an overlap of 0.8: right at seven of ten thresholds."""
    boxes = BOXES.copy()
    boxes[0, 0, 3] = 10
    found = outputs(boxes, one_hot(CLASSES))
    assert value(found) == pytest.approx((70 + 100) / 2)
    assert value(found, iou=0.5) == pytest.approx(100)
    assert value(found, iou=0.85) == pytest.approx(50)


def test_a_wrong_class_is_not_found() -> None:
    assert value(outputs(BOXES, one_hot(1 - CLASSES))) == 0


def test_doubles_are_suppressed_on_request() -> None:
    """Doubles of all objects with scores that begin with the doubles of one: of class 1, right, wrong, right, wrong."""
    boxes = np.concatenate([BOXES, BOXES + np.array([0, 0, 0, 1])], axis=1)
    scores = np.concatenate([one_hot(CLASSES), one_hot(CLASSES, 0.95)], axis=1)
    scores[1] -= 0.4 * (scores[1] > 0)
    kept = evaluated(outputs(boxes, scores), iou=0.5)
    assert kept.value() == pytest.approx(100)
    assert len(json.loads(kept.files()["detections.json"])) == 3
    every = evaluated(outputs(boxes, scores), iou=0.5, nms=None)
    assert len(json.loads(every.files()["detections.json"])) == 6
    # Of class 1, the second object is the third detection: precision 1 up to recall 1/2, then 2/3.
    assert every.value() == pytest.approx((100 + 100 * (51 + 50 * 2 / 3) / 101) / 2)


def test_predictions_without_an_area_and_small_scores_are_dropped() -> None:
    boxes = np.concatenate([BOXES, BOXES[..., [2, 1, 0, 3]]], axis=1)
    scores = np.concatenate([one_hot(CLASSES) + 0.009 * (CLASSES[..., None] != np.arange(2))] * 2, axis=1)
    found = json.loads(evaluated(outputs(boxes, scores)).files()["detections.json"])
    assert len(found) == 3
    assert all(one["score"] == 0.9 for one in found)


def test_a_test_set_without_objects_has_no_value() -> None:
    assert average_precision({"images": [{"id": 0}], "categories": [{"id": 0}], "annotations": []}, []) is None
    assert d5.MeanAveragePrecision().observer().value() is None
    assert d5.MeanAveragePrecision().observer().files() == {}


# -- against pycocotools on files -------------------------------------------------------------------------------------


def by_pycocotools(files: dict[str, str], folder: Path, iou: float | None) -> float:
    for name, content in files.items():
        (folder / name).write_text(content)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(folder / "ground_truth.json"))
        run = COCOeval(truth, truth.loadRes(str(folder / "detections.json")), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    # Its first two numbers are AP and AP at 0.5.
    return 100 * float(run.stats[0 if iou is None else 1])


@pytest.mark.parametrize("nms", [0.5, None])
@pytest.mark.parametrize("iou", [0.5, None])
@pytest.mark.parametrize("seed", range(3))
def test_stored_files_have_the_same_value(seed: int, iou: float | None, nms: float | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    data = d5.datasets.digit_canvases(train=1, test=40, data_seed=seed).test
    observer = d5.MeanAveragePrecision(iou, nms=nms).observer()
    trainer = SimpleNamespace(communicator=None, step=6, elapsed_ns=lambda: 10**9)
    observer.before_evaluation(trainer, epoch=0)
    for ids in (np.arange(30), np.arange(30, 40)):
        inputs = data.batch(ids)
        boxes = np.repeat(inputs["boxes"], 4, axis=1)
        boxes = boxes + rng.normal(0, 2, boxes.shape)
        scores = rng.random((*boxes.shape[:2], 10)) ** 8
        scores += 0.5 * rng.random(boxes.shape[:2])[..., None] * one_hot(np.repeat(inputs["classes"], 4, axis=1), 1, 10)
        observer.after_evaluation_batch(trainer, ids, inputs, outputs(boxes, scores))
    observer.after_evaluation(trainer, epoch=2, scores={})
    found = observer.value()
    assert found is not None
    assert 5 < found < 95, "neither trivial value"
    files = {name: str(content) for name, content in observer.files().items()}
    # The same sums of the same numbers.
    assert by_pycocotools(files, tmp_path, iou) == pytest.approx(found, rel=1e-12)
    (only,) = observer.samples()
    assert (only.value, only.step, only.epoch, only.time_s) == (found, 6, 3, 1.0)


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    value(outputs(BOXES, one_hot(CLASSES)))
    assert capsys.readouterr() == ("", "")


# -- ranks, loaders, resumption ---------------------------------------------------------------------------------------


def test_ranks_gather_all_detections() -> None:
    """Two images on two ranks, none on the third: each has the value of all, of which half is missing on one."""
    kinds = np.array([[0, 1], [-1, -1]])
    whole = outputs(BOXES, one_hot(kinds))

    def rank(communicator: Any) -> tuple[float | None, dict[str, Any]]:
        observer = d5.MeanAveragePrecision().observer()
        trainer = SimpleNamespace(communicator=communicator, step=6, elapsed_ns=lambda: 0)
        observer.before_evaluation(trainer, epoch=0)
        if communicator.rank < 2:
            own = slice(communicator.rank, communicator.rank + 1)
            inputs = {"boxes": BOXES[own], "classes": CLASSES[own]}
            observer.after_evaluation_batch(
                trainer, np.array([communicator.rank]), inputs, {name: array[own] for name, array in whole.items()}
            )
        observer.after_evaluation(trainer, epoch=0, scores={})
        return observer.value(), observer.files()

    alone = evaluated(whole)
    for found, files in run_in_threads(3, rank):
        assert found == alone.value()
        assert files == alone.files()


def test_samples_of_a_loader_are_numbered() -> None:
    files = evaluated(outputs(BOXES, one_hot(CLASSES)), ids=None).files()
    assert [one["id"] for one in json.loads(files["ground_truth.json"])["images"]] == [0, 1]


def test_an_observer_continues_from_its_state() -> None:
    done = evaluated(outputs(BOXES, one_hot(CLASSES)))
    fresh = d5.MeanAveragePrecision().observer()
    fresh.load_state_dict(done.state_dict())
    assert (fresh.value(), fresh.files()) == (done.value(), done.files())


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"iou": 0}, r"mean_average_precision with iou=0; allowed: a number between 0 and 1, or None"),
        ({"iou": 1.0}, r"with iou=1.0"),
        ({"iou": float("nan")}, r"with iou=nan"),
        ({"iou": "0.5"}, r"with iou='0.5'"),
        ({"nms": True}, r"with nms=True"),
    ],
)
def test_wrong_arguments_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(d5.UsageError, match=message):
        d5.MeanAveragePrecision(**arguments)


def test_other_networks_are_rejected_before_training() -> None:
    data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    trainer = d5.Trainer(executor, d5.Adam(), d5.OrderedSampler(data.train, 6), d5.OrderedSampler(data.test, 6))
    with pytest.raises(
        d5.UsageError, match=r"the network has no output 'predicted_boxes'; it has .*; remedy: a detector"
    ):
        trainer.train(epochs=1, events=[d5.MeanAveragePrecision().observer()])


def test_classes_that_the_network_lacks_are_rejected() -> None:
    with pytest.raises(
        d5.UsageError, match=r"an object of class 1 and a network of 1 classes; allowed: 0 to 0, and -1"
    ):
        evaluated(outputs(BOXES, np.zeros((2, 2, 1))))


def test_without_pycocotools_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(MissingDependency, match=r"pip install 'deep5\[detection\]'"):
        d5.MeanAveragePrecision().observer().before_training(None)
