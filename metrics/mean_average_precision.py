"""Mean average precision of detections, by pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import UsageError
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.plugins import missing_dependency
from deep5.core.tensors import Arrays, to_numpy
from deep5.distributed.rows import gather_rows
from deep5.training.detection.nms import suppressed

__all__ = ["MeanAveragePrecision", "average_precision"]

_BOXES, _SCORES = "predicted_boxes", "predicted_scores"
# Liu et al., SSD, section 3: predictions below 0.01 are dropped; COCO counts a hundred detections per image.
_LEAST_SCORE, _MOST = 0.01, 100
# Before suppression, which compares all pairs.
_CANDIDATES = 200


class _Precision(Observer):
    def __init__(self, iou: float | None, nms: float | None) -> None:
        self._iou, self._nms = iou, nms
        self._samples: list[Sample] = []
        self._forget()

    def _forget(self) -> None:
        """Begin with no images."""
        self._images = np.empty(0, np.int64)
        # Rows of image, class, left, top, width, height; and with a score.
        self._true, self._found = np.empty((0, 6)), np.empty((0, 7))

    def before_training(self, trainer: Any) -> None:
        _pycocotools()
        self.check_network(trainer.executor.network)

    def check_network(self, network: Any) -> None:
        for name, where, what in (
            (_BOXES, network.outputs, "output"),
            (_SCORES, network.outputs, "output"),
            ("boxes", network.inputs, "input"),
            ("classes", network.inputs, "input"),
        ):
            if name not in where:
                raise UsageError(
                    f"mean_average_precision: the network has no {what} {name!r}; it has {', '.join(where)}; remedy: a "
                    "detector, such as ssd"
                )

    def before_evaluation(self, trainer: Any, epoch: int) -> None:
        self._forget()

    def after_evaluation_batch(self, trainer: Any, ids: Any, inputs: Arrays, outputs: Arrays) -> None:
        boxes, classes = to_numpy(inputs["boxes"]).astype(np.float64), to_numpy(inputs["classes"])
        places, scores = (to_numpy(outputs[name]).astype(np.float64) for name in (_BOXES, _SCORES))
        if classes.size and classes.max() >= scores.shape[2]:
            raise UsageError(
                f"mean_average_precision: got an object of class {classes.max()} and a network of {scores.shape[2]} "
                f"classes; allowed: 0 to {scores.shape[2] - 1}, and -1 for no object"
            )
        if ids is None:  # a framework's loader: numbers that no other rank uses
            rank, size = (
                (0, 1) if trainer.communicator is None else (trainer.communicator.rank, trainer.communicator.size)
            )
            ids = (len(self._images) + np.arange(len(boxes))) * size + rank
        image, object_ = np.nonzero(classes >= 0)
        true = _row(np.asarray(ids)[image], classes[image, object_], boxes[image, object_])
        found = [
            _row(np.full(len(kept[0]), number), *kept)
            for number, *kept in (
                (int(number), *_detections(places[index], scores[index], self._nms)) for index, number in enumerate(ids)
            )
        ]
        self._images = np.concatenate([self._images, np.asarray(ids, dtype=np.int64)])
        self._true = np.concatenate([self._true, true])
        self._found = np.concatenate([self._found, *found])

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        if trainer.communicator is not None:
            # The other ranks may still be evaluating.
            self._images, self._true, self._found = (
                np.concatenate(gather_rows(trainer.communicator, rows, timeout_s=10 * TIMEOUT_S))
                for rows in (self._images, self._true, self._found)
            )
        value = average_precision(self._ground_truth(), self._detections(), self._iou)
        if value is not None:
            self._samples.append(Sample(value, trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def _ground_truth(self) -> dict[str, Any]:
        """The true boxes as a COCO document; identifiers of annotations begin at 1, since pycocotools skips 0."""
        most = max((rows[:, 1].max(initial=-1) for rows in (self._true, self._found)), default=-1)
        return {
            "images": [{"id": int(number)} for number in self._images],
            "categories": [{"id": number, "name": str(number)} for number in range(int(most) + 1)],
            "annotations": [
                {
                    "id": number,
                    "image_id": int(row[0]),
                    "category_id": int(row[1]),
                    "bbox": row[2:6].tolist(),
                    "area": float(row[4] * row[5]),
                    "iscrowd": 0,
                }
                for number, row in enumerate(self._true, start=1)
            ],
        }

    def _detections(self) -> list[dict[str, Any]]:
        return [
            {
                "image_id": int(row[0]),
                "category_id": int(row[1]),
                "bbox": row[2:6].tolist(),
                "score": float(row[6]),
            }
            for row in self._found
        ]

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None

    def files(self) -> dict[str, bytes | str]:
        if not self._samples:
            return {}
        return {
            "detections.json": json.dumps(self._detections()),
            "ground_truth.json": json.dumps(self._ground_truth()),
        }


def _row(image: np.ndarray, classes: np.ndarray, boxes: np.ndarray, *scores: np.ndarray) -> np.ndarray:
    """Rows of image, class, left, top, width, height and, if given, score."""
    sides = boxes[:, 2:] - boxes[:, :2]
    parts = [np.asarray(image)[:, None], classes[:, None], boxes[:, :2], sides, *(each[:, None] for each in scores)]
    return np.concatenate([part.astype(np.float64) for part in parts], axis=1)


def _detections(boxes: np.ndarray, scores: np.ndarray, nms: float | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The detections of one image, best first: classes, boxes, scores.

    Corners are rounded to hundredths of a pixel and scores to five digits, as they are stored.
    """
    corners = np.round(boxes, 2)
    usable = np.asarray(np.isfinite(corners).all(axis=1) & (corners[:, 2:] > corners[:, :2]).all(axis=1))
    place, classes = np.nonzero((scores >= _LEAST_SCORE) & usable[:, None])
    best = np.argsort(-scores[place, classes], kind="stable")[: _MOST if nms is None else _CANDIDATES]
    place, classes = place[best], classes[best]
    corners, values = corners[place], np.round(scores[place, classes], 5)
    if nms is not None:
        kept = suppressed(corners, values, classes, nms)[:_MOST]
        classes, corners, values = classes[kept], corners[kept], values[kept]
    return classes, corners, values


def _pycocotools() -> tuple[Any, Any]:
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ModuleNotFoundError as error:
        raise missing_dependency("mean_average_precision", error) from error
    return COCO, COCOeval


def average_precision(
    truth: Mapping[str, Any], detections: list[dict[str, Any]], iou: float | None = None
) -> float | None:
    """Mean over classes (and thresholds) of the average precision, in percent.

    Args:
        truth: A COCO document with images, annotations and categories.
        detections: COCO's results: image_id, category_id, bbox (x, y, width, height), score.
        iou: A detection is right where its intersection over union with an unmatched box of its class is at least this.
            None: the mean over 0.5, 0.55, …, 0.95.

    Returns:
        The value; None if there are no annotations. Classes without annotations do not count.

    Raises:
        MissingDependency: pycocotools is not installed.

    >>> box = {"image_id": 0, "category_id": 3, "bbox": [2.0, 2.0, 10.0, 8.0]}
    >>> truth = {
    ...     "images": [{"id": 0}],
    ...     "categories": [{"id": 3}],
    ...     "annotations": [{**box, "id": 1, "area": 80.0, "iscrowd": 0}],
    ... }
    >>> round(average_precision(truth, [{**box, "score": 0.9}]), 6), average_precision(truth, [])
    (100.0, 0.0)
    """
    if not truth["annotations"]:
        return None
    coco, evaluator = _pycocotools()
    with contextlib.redirect_stdout(io.StringIO()):
        expected, found = coco(), coco()
        expected.dataset = dict(truth)
        expected.createIndex()
        found.dataset = {
            "images": truth["images"],
            "categories": truth["categories"],
            "annotations": [
                {**one, "id": number, "area": one["bbox"][2] * one["bbox"][3], "iscrowd": 0}
                for number, one in enumerate(detections, start=1)
            ],
        }
        found.createIndex()
        run = evaluator(expected, found, "bbox")
        if iou is not None:
            run.params.iouThrs = np.array([iou])
        # Only objects of any area, and the largest number of detections: the other rows are not read.
        run.params.areaRng, run.params.areaRngLbl = run.params.areaRng[:1], run.params.areaRngLbl[:1]
        run.params.maxDets = [_MOST]
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"]
    return 100.0 * float(precision[precision > -1].mean())


class MeanAveragePrecision(Metric):
    """Mean average precision of a detector on the test set, as COCO evaluates it, after the last epoch.

    The mean over classes, and over thresholds of the intersection over union of 0.5, 0.55, …, 0.95 unless one is given,
    of the precision at 101 recalls. The network has the outputs `predicted_boxes` (N, K, 4), corners in pixels, and
    `predicted_scores` (N, K, classes); the true `boxes` and `classes` are among its inputs. Predictions with a score of
    at least 0.01 count, after non-maximum suppression within each class, up to 100 per image.

    The result's files `detections.json` and `ground_truth.json` are in COCO's formats: `image_id` is the number of the
    test sample and `category_id` the class, coordinates are rounded to hundredths of a pixel, scores to five digits.
    pycocotools computes the same value from them.

    Nothing is on a clock. Needs pycocotools: `pip install 'deep5[detection]'`.

    Args:
        iou: One threshold of the intersection over union, in (0, 1); None: COCO's ten.
        nms: Boxes that overlap a better one of their class by more than this intersection over union are dropped; None:
            none is, for a network whose scores are zero except at peaks.

    Raises:
        UsageError: A threshold is out of its range.

    References:
        Lin et al., Microsoft COCO: Common objects in context, ECCV 2014, and its evaluation code, pycocotools.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.MeanAveragePrecision(iou=0.5).observer()
    >>> trainer = SimpleNamespace(communicator=None, step=6, elapsed_ns=lambda: 0)
    >>> observer.before_evaluation(trainer, epoch=0)
    >>> inputs = {"boxes": np.array([[[2.0, 2.0, 10.0, 12.0]]]), "classes": np.array([[0]])}
    >>> outputs = {
    ...     "predicted_boxes": np.array([[[2.0, 2.0, 10.0, 11.0], [2.0, 2.0, 10.0, 14.0]]]),
    ...     "predicted_scores": np.array([[[0.9], [0.8]]]),
    ... }
    >>> observer.after_evaluation_batch(trainer, np.array([0]), inputs, outputs)
    >>> observer.after_evaluation(trainer, epoch=0, scores={})
    >>> round(observer.value(), 6)  # the second box is suppressed by the first
    100.0
    """

    name = "mean_average_precision"
    unit = "%"
    direction = "higher"
    possible = (0.0, 100.0)

    def __init__(self, iou: float | None = None, *, nms: float | None = 0.5) -> None:
        for name, value in (("iou", iou), ("nms", nms)):
            known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1
            if value is not None and not known:
                raise UsageError(
                    f"mean_average_precision with {name}={value!r:.60}; allowed: a number between 0 and 1, or None"
                )
        self.iou, self.nms = iou, nms

    def observer(self) -> Observer:
        """Samples: the percentage after every epoch."""
        return _Precision(self.iou, self.nms)
