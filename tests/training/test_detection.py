"""Boxes, matching, suppression and targets of object detection, against definitions and other implementations."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from pycocotools import mask

import deep5 as d5
from deep5.networks.zoo.anchors import anchor_boxes
from deep5.training.detection import decoded, encoded, intersection_over_union, matched, suppressed


def drawn_boxes(seed: int, count: int, size: float = 40.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, size, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(1, size / 2, (count, 2))], axis=1)


def xywh(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


# -- boxes ------------------------------------------------------------------------------------------------------------


def test_overlaps_are_those_of_pycocotools() -> None:
    first, second = drawn_boxes(0, 30), drawn_boxes(1, 20)
    theirs = mask.iou(xywh(first), xywh(second), [0] * len(second))
    # A handful of float64 operations, of which theirs subtracts and adds the corner again.
    np.testing.assert_allclose(intersection_over_union(first, second), theirs, rtol=1e-12, atol=1e-14)


def test_overlaps_by_hand() -> None:
    box = np.array([[0.0, 0.0, 4.0, 4.0]])
    others = np.array([[2, 2, 6, 6], [4, 0, 8, 4], [1, 1, 3, 3], [1, 1, 1, 3], [3, 3, 1, 1]])
    # 4 of 28; a common side; 4 of 16; no area; corners in the wrong order.
    assert intersection_over_union(box, others).tolist() == [[4 / 28, 0.0, 0.25, 0.0, 0.0]]
    nothing = np.zeros((1, 4))
    assert intersection_over_union(nothing, nothing).tolist() == [[0.0]]


def test_decoding_inverts_encoding() -> None:
    anchors = anchor_boxes(32)
    boxes = drawn_boxes(2, len(anchors))
    # float64; a logarithm and its exponential.
    np.testing.assert_allclose(decoded(encoded(boxes, anchors), anchors), boxes, rtol=1e-11, atol=1e-11)


def test_offsets_by_hand() -> None:
    """Liu et al., equation 2, for an anchor of 10 x 20 at (15, 20) and a box of 20 x 10 at (20, 15)."""
    found = encoded(np.array([[10.0, 10.0, 30.0, 20.0]]), np.array([[10.0, 10.0, 20.0, 30.0]]))
    assert found[0].tolist() == pytest.approx([0.5 / 0.1, -0.25 / 0.1, math.log(2) / 0.2, math.log(0.5) / 0.2])


# -- anchors ----------------------------------------------------------------------------------------------------------


def test_anchors_by_hand() -> None:
    boxes = anchor_boxes(64)
    assert boxes.shape == ((16 * 16 + 8 * 8) * 4, 4)
    centers, sizes = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    # The second cell of the first row, and the first cell of the second row.
    assert centers[4].tolist() == pytest.approx([6, 2])
    assert centers[16 * 4].tolist() == pytest.approx([2, 6])
    side = 0.2 * 64
    wide, both = side * math.sqrt(2), 64 * math.sqrt(0.2 * 0.35)
    expected = [(side, side), (wide, wide / 2), (wide / 2, wide), (both, both)]
    assert np.ravel(sizes[:4]).tolist() == pytest.approx(np.ravel(expected).tolist())
    # The second map: cells of eight pixels, larger anchors.
    assert centers[1024].tolist() == pytest.approx([4, 4])
    assert sizes[1024].tolist() == pytest.approx([0.35 * 64] * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((60,), r"anchors of images of size 60; allowed: a positive multiple of 8"),
        (
            (64, (0.2, 0.2, 0.5)),
            r"anchors with scales \(0.2, 0.2, 0.5\); allowed: three increasing numbers in \(0, 1\]",
        ),
        ((64, (0.2, 0.5)), r"allowed: three increasing numbers"),
        ((64, "abc"), r"allowed: three increasing numbers"),
    ],
)
def test_wrong_anchors_are_rejected(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(d5.UsageError, match=message):
        anchor_boxes(*arguments)  # type: ignore[arg-type]


# -- matching ---------------------------------------------------------------------------------------------------------


def test_matching_by_hand() -> None:
    anchors = np.array([[0, 0, 10, 10], [0, 0, 10, 8], [20, 0, 30, 10], [50, 50, 60, 60], [0, 0, 10, 4]])
    boxes = np.array([[0, 0, 10, 10], [28, 0, 38, 10]])
    # The first box: anchors 0 (1.0) and 1 (0.8), not 4 (0.4); the second its best anchor, 2, with 20 of 180.
    assert matched(anchors, boxes).tolist() == [0, 0, 1, -1, -1]


def test_each_box_has_an_anchor_though_two_prefer_the_same() -> None:
    anchors = np.array([[0, 0, 10, 10], [6, 0, 16, 10]])
    # Both overlap the first anchor most: 100 of 100, and 90 of 110 against 50 of 150.
    boxes = np.array([[1, 0, 11, 10], [0, 0, 10, 10]])
    assert matched(anchors, boxes).tolist() == [1, 0]


def test_what_overlaps_no_anchor_has_none() -> None:
    anchors = np.array([[0, 0, 10, 10]])
    assert matched(anchors, np.array([[20, 20, 30, 30]])).tolist() == [-1]
    assert matched(anchors, np.empty((0, 4))).tolist() == [-1]


def by_definition(anchors: np.ndarray, boxes: np.ndarray) -> list[int]:
    """The matching with loops and pycocotools' overlaps."""
    overlap = mask.iou(xywh(anchors), xywh(boxes), [0] * len(boxes))
    found = [int(row.argmax()) if row.max() >= 0.5 else -1 for row in overlap]
    pairs = sorted(np.ndindex(overlap.shape), key=lambda pair: -overlap[pair])
    anchors_taken, boxes_taken = set[int](), set[int]()
    for anchor, box in pairs:
        if overlap[anchor, box] > 0 and anchor not in anchors_taken and box not in boxes_taken:
            anchors_taken.add(anchor)
            boxes_taken.add(box)
            found[anchor] = box
    return found


@pytest.mark.parametrize("seed", range(10))
def test_matching_follows_its_definition(seed: int) -> None:
    anchors, boxes = anchor_boxes(32), drawn_boxes(seed, 5, 20)
    assert matched(anchors, boxes).tolist() == by_definition(anchors, boxes)


# -- suppression ------------------------------------------------------------------------------------------------------


def by_onnx_runtime(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> set[tuple[int, int]]:
    """Pairs of class and box that ONNX's NonMaxSuppression selects from boxes (K, 4) and scores (classes, K)."""
    make = onnx.helper.make_tensor_value_info
    float32, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    node = onnx.helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["selected"])
    graph = onnx.helper.make_graph(
        [node],
        "suppression",
        [make("boxes", float32, [1, None, 4]), make("scores", float32, [1, None, None])],
        [make("selected", int64, [None, 3])],
        [
            onnx.helper.make_tensor("most", int64, [1], [1000]),
            onnx.helper.make_tensor("iou", float32, [1], [threshold]),
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feed = {"boxes": boxes[None].astype(np.float32), "scores": scores[None].astype(np.float32)}
    return {(int(kind), int(box)) for _, kind, box in session.run(None, feed)[0]}


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("seed", range(5))
def test_suppression_is_that_of_onnx_runtime(seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    # On a grid of eighths, which float32 holds exactly; overlaps differ from the thresholds.
    boxes = np.round(drawn_boxes(seed, 40, 20) * 8) / 8
    scores = rng.permutation(120).reshape(3, 40) / 128
    kinds, places = (part.ravel() for part in np.indices(scores.shape))
    kept = suppressed(boxes[places], scores.ravel(), kinds, threshold)
    assert {(int(kinds[one]), int(places[one])) for one in kept} == by_onnx_runtime(boxes, scores, threshold)
    assert (np.diff(scores.ravel()[kept]) < 0).all()


def test_suppression_of_equal_scores_keeps_the_first() -> None:
    boxes = np.array([[0, 0, 4, 4]] * 3)
    assert suppressed(boxes, np.array([0.5, 0.5, 0.5]), np.array([0, 0, 1]), 0.5).tolist() == [0, 2]
    assert suppressed(np.empty((0, 4)), np.empty(0), np.empty(0, np.int64), 0.5).tolist() == []


# -- targets ----------------------------------------------------------------------------------------------------------


def sample(boxes: list[list[float]], classes: list[int], side: int = 32) -> dict[str, np.ndarray]:
    return {
        "input": np.zeros((1, 1, side, side), np.float32),
        "boxes": np.array([boxes], np.float32),
        "classes": np.array([classes]),
    }


def test_targets_of_anchors_are_decoded_to_the_boxes() -> None:
    given = sample([[2, 3, 12, 17], [20, 8, 30, 28], [-1, -1, -1, -1]], [2, 0, -1])
    made = d5.MatchAnchors(classes=3)(given, None, 0)
    found = made["class_targets"][0]
    assert set(np.unique(found)) == {0.0, 1.0}
    assert found.sum(axis=1).max() == 1
    assert found[:, 1].sum() == 0
    for kind, box in ((2, [2, 3, 12, 17]), (0, [20, 8, 30, 28])):
        rows = found[:, kind] == 1
        assert rows.any()
        boxes = decoded(made["offset_targets"][0], anchor_boxes(32))[rows]
        # Offsets are rounded to float32.
        np.testing.assert_allclose(boxes, np.broadcast_to(box, boxes.shape), rtol=1e-5, atol=1e-5)
    assert not made["offset_targets"][0][found.sum(axis=1) == 0].any()
    assert given.keys() == {"input", "boxes", "classes"}


def test_an_image_without_objects_has_only_background() -> None:
    given = sample([[-1, -1, -1, -1]], [-1])
    assert not any(made.any() for made in (d5.MatchAnchors(3)(given, None, 0)[name] for name in ("class_targets",)))
    assert not d5.DrawCenters(3)(given, None, 0)["heat_targets"].any()


def test_centers_by_hand() -> None:
    """A box of 4 x 6 cells: r = (10 - sqrt(100 - 1.2 * 24)) / 4, sigma = (2 r + 1) / 6."""
    made = d5.DrawCenters(classes=2)(sample([[4, 2, 20, 26]], [1]), None, 0)
    heat = made["heat_targets"][0]
    assert heat.shape == (2, 8, 8)
    assert not heat[0].any()
    # The center is at (12, 14), in row 3 and column 3; the next cell is at distance 1.
    assert np.argwhere(heat[1] == 1).tolist() == [[3, 3]]
    radius = (10 - math.sqrt(100 - 1.2 * 24)) / 4
    assert (4 - 2 * radius) * (6 - 2 * radius) == pytest.approx(0.7 * 24)
    sigma = (2 * radius + 1) / 6
    assert heat[1, 3, 4] == pytest.approx(math.exp(-1 / (2 * sigma**2)), rel=1e-6)  # rounded to float32
    assert heat[1, 4, 4] == pytest.approx(math.exp(-2 / (2 * sigma**2)), rel=1e-6)
    assert made["size_targets"][0, :, 3, 3].tolist() == [4, 6, 0, 0.5]
    assert np.count_nonzero(made["size_targets"].any(axis=1)) == 1


def test_two_objects_of_a_class_keep_their_peaks() -> None:
    made = d5.DrawCenters(classes=1)(sample([[0, 0, 8, 8], [4, 4, 12, 12]], [0, 0]), None, 0)
    assert np.argwhere(made["heat_targets"][0, 0] == 1).tolist() == [[1, 1], [2, 2]]


def test_centers_on_the_border_belong_to_the_last_cell() -> None:
    # A hundredth of a pixel is rounding.
    made = d5.DrawCenters(classes=1)(sample([[31.99, 31.99, 32.01, 32.01]], [0]), None, 0)
    assert np.argwhere(made["heat_targets"][0, 0] == 1).tolist() == [[7, 7]]


@pytest.mark.parametrize("make", [d5.MatchAnchors, d5.DrawCenters])
def test_targets_have_the_stated_specs(make: type) -> None:
    given = sample([[2, 3, 12, 17]], [2])
    transform = make(classes=3)
    specs = {name: d5.TensorSpec(shape=array.shape[1:], dtype=str(array.dtype)) for name, array in given.items()}
    made = transform(given, None, 0)
    assert {
        name: d5.TensorSpec(shape=array.shape[1:], dtype=str(array.dtype)) for name, array in made.items()
    } == transform.specs(specs)
    assert transform.describe()["classes"] == 3


@pytest.mark.parametrize("make", [d5.MatchAnchors, d5.DrawCenters])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"classes": np.array([[3]])},
            r"got an object of class 3; allowed: 0 to 2, and -1 for no object; remedy: .*=4",
        ),
        ({"boxes": np.array([[[4.0, 4, 4, 9]]])}, r"got the box \[4.0, 4.0, 4.0, 9.0\]; allowed: left, top, right"),
        ({"boxes": np.array([[[4.0, 4, np.nan, 9]]])}, r"got the box \[4.0, 4.0, nan, 9.0\]"),
        ({"boxes": np.array([[[4.0, 4, 32.5, 9]]])}, r"got the box \[4.0, 4.0, 32.5, 9.0\]; .* in pixels from 0 to 32"),
        ({"boxes": np.array([[[-0.5, 4, 8, 9]]])}, r"got the box \[-0.5, 4.0, 8.0, 9.0\]; allowed: left, top, right"),
        ({"boxes": np.zeros((1, 2, 4))}, r"boxes are float64\[2, 4\] and classes int64\[1\]; allowed: \(M, 4\)"),
        ({"classes": np.zeros((1, 1))}, r"classes float64\[1\]; allowed: \(M, 4\) numbers and \(M\) integers"),
        ({"input": np.zeros((1, 1, 36, 36))}, r"allowed: square images, a multiple of 8 wide"),
        ({"input": np.zeros((1, 1, 32, 40))}, r"allowed: square images"),
        ({"input": np.zeros((1, 32))}, r"allowed: images"),
    ],
)
def test_wrong_samples_are_rejected(make: type, change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(d5.UsageError, match=message):
        make(classes=3)({**sample([[2, 3, 12, 17]], [2]), **change}, None, 0)


def test_samples_of_other_data_sets_are_rejected() -> None:
    data = d5.datasets.digits(size=32, limit=10)
    with pytest.raises(d5.UsageError, match=r"DrawCenters: the samples have no part 'boxes'; allowed: .* detection"):
        d5.DrawCenters(classes=10).specs(data.train.specs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: d5.MatchAnchors(0), r"MatchAnchors: got classes=0; allowed: an integer of at least 1"),
        (lambda: d5.DrawCenters("ten"), r"DrawCenters: got classes='ten'"),
        (lambda: d5.MatchAnchors(3, (0.5, 0.2, 0.1)), r"anchors with scales \(0.5, 0.2, 0.1\)"),
    ],
)
def test_wrong_arguments_are_rejected(make: object, message: str) -> None:
    with pytest.raises(d5.UsageError, match=message):
        make()  # type: ignore[operator]
