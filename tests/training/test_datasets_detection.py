"""The data sets of object detection: canvases with digits, and COCO's annotation files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

import deep5 as d5
from deep5.core.errors import MissingDependency, OutputError
from deep5.training.datasets.splitting import stratified
from deep5.training.datasets.uci_digits import enlarge
from deep5.training.detection import intersection_over_union

NAMES = [*"0123456789"]


@pytest.fixture(scope="module")
def canvases() -> d5.Splits:
    return d5.datasets.digit_canvases(train=60, test=20)


def every(data: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = data.batch(np.arange(len(data)))
    return found


# -- canvases ---------------------------------------------------------------------------------------------------------


def test_canvases_follow_their_rule(canvases: d5.Splits) -> None:
    for part in (canvases.train, canvases.test):
        samples = every(part)
        present = samples["classes"] >= 0
        counts = present.sum(axis=1)
        assert set(counts.tolist()) == {1, 2, 3, 4}
        assert (samples["boxes"][~present] == -1).all()
        boxes = samples["boxes"][present]
        assert (boxes >= 0).all()
        assert (boxes <= 64).all()
        assert (boxes == boxes.round()).all()
        sizes = boxes[:, 2:] - boxes[:, :2]
        assert (sizes > 0).all()
        assert sizes.max() <= 32
        for own, kinds in zip(samples["boxes"], samples["classes"], strict=True):
            overlap = intersection_over_union(own[kinds >= 0], own[kinds >= 0])
            assert overlap[~np.eye(len(overlap), dtype=bool)].max(initial=0) <= 0.1


def test_boxes_are_tight(canvases: d5.Splits) -> None:
    """Without overlaps, the ink within the union of the boxes is all, and reaches all four sides of each."""
    samples = every(canvases.train)
    for image, boxes, kinds in zip(samples["input"], samples["boxes"], samples["classes"], strict=True):
        ink, left = image[0] > 0, image[0] > 0
        for one, (x, y, right, bottom) in enumerate(boxes[kinds >= 0].astype(int)):
            within = ink[y:bottom, x:right]
            others = np.delete(boxes[kinds >= 0], one, axis=0)
            if intersection_over_union(boxes[one : one + 1], others).max(initial=0) == 0:
                assert within[0].any()
                assert within[-1].any()
                assert within[:, 0].any()
                assert within[:, -1].any()
            left = left.copy()
            left[y:bottom, x:right] = False
        assert not left.any()


def test_a_single_digit_is_one_of_its_part() -> None:
    """The pixels of a box are those of an enlarged digit of the training part with the stated class, and of no other
    part."""
    data = d5.datasets.digit_canvases(train=12, test=12, most=1, smallest=20, largest=20)
    whole = d5.datasets.digits(size=8)
    for name in ("train", "test"):
        digits = every(getattr(whole, name))
        large = np.rint(enlarge(digits["input"][:, 0], 20) * np.float32(255)).astype(np.uint8)
        samples = every(getattr(data, name))
        for image, boxes, kinds in zip(samples["input"], samples["boxes"], samples["classes"], strict=True):
            pixels = np.rint(image[0] * 255).astype(np.uint8)
            left, top, right, bottom = boxes[0].astype(int)
            crop = pixels[top:bottom, left:right]
            matches = [
                label for one, label in zip(large, digits["label"], strict=True) if np.array_equal(_tight(one), crop)
            ]
            assert set(matches) == {kinds[0]}


def _tight(ink: np.ndarray) -> np.ndarray:
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def test_the_split_of_the_digits_is_that_of_digits() -> None:
    labels = every(d5.datasets.digits(size=8).test)["label"]
    assert len(labels) == 359
    with np.load(Path(d5.__file__).parent / "training/datasets/digits.npz") as archive:
        train, test = stratified(archive["labels"].astype(np.int64), 0.2, 0)
    assert not set(train.tolist()) & set(test.tolist())


def test_canvases_depend_on_the_seed_and_their_number_only(canvases: d5.Splits) -> None:
    again = d5.datasets.digit_canvases(train=30, test=20)
    assert again.test.content_hash() == canvases.test.content_hash()
    for name, array in every(again.train).items():
        np.testing.assert_array_equal(array, every(canvases.train)[name][:30])
    other = d5.datasets.digit_canvases(train=30, test=20, data_seed=1)
    assert not np.array_equal(every(other.train)["boxes"], every(again.train)["boxes"])
    # The same on every machine: no library computes the pixels.
    assert canvases.test.content_hash() == "0f1095c63c440725bb9597dc5fbbd7ddf4c7bf22c1a3c8347846db1aac60e77e"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"most": 0}, r"digit_canvases with most 0; allowed: an integer of at least 1"),
        ({"train": 2.5}, r"digit_canvases with train 2.5"),
        ({"largest": 65}, r"size 64 with digits from 16 to 65 pixels; allowed: 8 <= smallest <= largest <= size"),
        ({"smallest": 7}, r"digits from 7 to 32"),
        ({"smallest": 33}, r"digits from 33 to 32"),
    ],
)
def test_wrong_canvases_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(d5.UsageError, match=message):
        d5.datasets.digit_canvases(**arguments)


# -- COCO -------------------------------------------------------------------------------------------------------------


def test_canvases_survive_coco_files_bit_by_bit(canvases: d5.Splits, tmp_path: Path) -> None:
    paths = {}
    for name in ("train", "test"):
        paths[name] = str(tmp_path / name / "boxes.json")
        d5.write_coco(getattr(canvases, name), paths[name], names=NAMES)
    data = d5.datasets.coco(**paths, channels=1)
    for name in ("train", "test"):
        read, written = every(getattr(data, name)), every(getattr(canvases, name))
        assert read.keys() == written.keys()
        for part, array in read.items():
            assert array.dtype == written[part].dtype
            np.testing.assert_array_equal(array, written[part])
    assert data.description["classes"] == {name: number for number, name in enumerate(NAMES)}
    # pycocotools reads the same.
    theirs = COCO(paths["test"])
    assert len(theirs.getImgIds()) == 20
    classes = every(canvases.test)["classes"]
    assert [len(theirs.getAnnIds(imgIds=[number])) for number in range(20)] == (classes >= 0).sum(axis=1).tolist()
    assert 0 not in theirs.getAnnIds(), "pycocotools treats a match with the annotation 0 as none"


def document(**changes: Any) -> dict[str, Any]:
    """Two images of 40 x 20 pixels, two categories with a gap, three annotations."""
    made: dict[str, Any] = {
        "images": [
            {"id": 7, "file_name": "a.png", "width": 40, "height": 20},
            {"id": 3, "file_name": "b.png", "width": 40, "height": 20},
        ],
        "categories": [{"id": 90, "name": "bird"}, {"id": 2, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 90, "bbox": [0, 0, 20, 10], "iscrowd": 0},
            {"id": 2, "image_id": 7, "category_id": 2, "bbox": [10, 5, 30, 15], "iscrowd": 0},
            {"id": 3, "image_id": 3, "category_id": 2, "bbox": [0, 0, 40, 20], "iscrowd": 1},
        ],
    }
    return {**made, **changes}


def written(folder: Path, content: object, sizes: tuple[int, int] = (40, 20)) -> str:
    for name in ("a.png", "b.png"):
        Image.new("RGB", sizes, (255, 0, 0)).save(folder / name)
    path = folder / "boxes.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_boxes_are_scaled_with_the_images(tmp_path: Path) -> None:
    path = written(tmp_path, document())
    data = d5.datasets.coco(path, test=path, size=16)
    samples = every(data.train)
    assert samples["input"].shape == (2, 3, 16, 16)
    assert samples["classes"].tolist() == [[1, 0], [-1, -1]], "by the order of the identifiers; crowds are left out"
    # 40 x 20 pixels become 16 x 16.
    assert samples["boxes"][0].tolist() == [[0, 0, 8, 8], [4, 4, 16, 16]]
    assert samples["boxes"][1].tolist() == [[-1] * 4] * 2
    assert data.description["classes"] == {"cat": 0, "bird": 1}
    assert data.description["left out"] == "2 annotations of crowds"
    assert data.train.labels("classes").tolist() == samples["classes"].tolist()


def test_a_drawn_split_limits_and_more_rows(tmp_path: Path) -> None:
    path = written(tmp_path, document())
    data = d5.datasets.coco(path, test_share=0.5, most=5, pixels="uint8")
    assert (len(data.train), len(data.test)) == (1, 1)
    assert data.train.specs["boxes"].shape == (5, 4)
    assert data.train.specs["input"].dtype == "uint8"
    both = d5.datasets.coco(path, test=path, limit=1)
    assert (len(both.train), len(both.test)) == (1, 2)
    assert both.train.content_hash() != both.test.content_hash()
    cast = both.train.cast({
        "input": d5.TensorSpec(shape=("N", 3, 64, 64), dtype="float64"),
        "boxes": d5.TensorSpec(shape=("N", 2, 4), dtype="float64"),
        "classes": d5.TensorSpec(shape=("N", 2), dtype="int64"),
    })  # fmt: skip
    assert {spec.dtype for spec in cast.specs.values()} == {"float64", "int64"}
    assert every(cast)["boxes"].dtype == np.float64


def annotation(**changes: Any) -> dict[str, Any]:
    made = {"id": 5, "image_id": 7, "category_id": 2, "bbox": [1, 1, 5, 5]}
    return document(annotations=[{**made, **changes}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (annotation(bbox=[30, 1, 11, 5]), r"annotation 5: the bbox \[30, 1, 11, 5\] is outside its image; .* 40 x 20"),
        (annotation(bbox=[-1, 1, 11, 5]), r"annotation 5: the bbox \[-1, 1, 11, 5\] is outside its image"),
        (annotation(bbox=[1, 1, 0, 5]), r"annotation 5: the bbox \[1, 1, 0, 5\] has no area; allowed: a width"),
        (annotation(bbox=[1, 1, 5, -2]), r"annotation 5: the bbox \[1, 1, 5, -2\] has no area"),
        (annotation(bbox=[1, 1, 5]), r"annotation 5: got the bbox \[1, 1, 5\]; allowed: x, y, width and height"),
        (annotation(bbox=[1, 1, 5, "5"]), r"annotation 5: got the bbox"),
        (annotation(bbox=None), r"annotation 5: got the bbox None"),
        (annotation(bbox=[1, 1, 5, float("nan")]), r"annotation 5: got the bbox"),
        (annotation(category_id=1), r"annotation 5: got the category_id 1; allowed: 2, 90"),
        (annotation(category_id=[2]), r"annotation 5: got the category_id \[2\]"),
        (annotation(image_id=8), r"annotation 5: got the image_id 8, which is not among the images of the file"),
        (annotation(id="5"), r"got the annotation .*; allowed: an object with an integer as its id"),
        (document(annotations=[document()["annotations"][0]] * 2), r"annotation 1: this id occurs twice"),
        (document(images=[document()["images"][0]] * 2), r"image 7: this id occurs twice"),
        (document(categories=[{"id": 2}, {"id": 2}]), r"category 2: this id occurs twice"),
        (document(images=[{"id": 7, "file_name": "a.png"}]), r"image 7: got file_name 'a.png', width None"),
        (document(images=[], annotations=[]), r"lists no image; allowed: at least one"),
        (document(categories=[], annotations=[]), r"lists no category; allowed: at least one"),
        (document(images=[3]), r"got the image 3; allowed: an object with an integer"),
        ({"images": []}, r"allowed: an object with the lists images, annotations, categories"),
        ([1], r"allowed: an object with the lists"),
        ("{", r"boxes.json cannot be read \(.*\); allowed: a file of JSON"),
    ],
)
def test_wrong_annotation_files_are_rejected(content: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(d5.UsageError, match=message):
        d5.datasets.coco(written(tmp_path, content))


def test_hundredths_beyond_the_border_are_rounding(tmp_path: Path) -> None:
    path = written(tmp_path, annotation(bbox=[30.005, 1, 10.005, 5]))
    data = d5.datasets.coco(path, test=path, size=40)
    assert every(data.train)["boxes"][0, 0, 2] == 40


def test_wrong_images_are_rejected(tmp_path: Path) -> None:
    path = written(tmp_path, document(), sizes=(20, 40))
    with pytest.raises(d5.UsageError, match=r"a.png has 20 x 40 pixels; allowed: 40 x 20, as the annotation file says"):
        d5.datasets.coco(path, test=path)
    (tmp_path / "a.png").unlink()
    with pytest.raises(d5.UsageError, match=r"a.png is not there"):
        d5.datasets.coco(path, test=path)
    with pytest.raises(d5.UsageError, match=r"missing.json cannot be read \(No such file or directory\)"):
        d5.datasets.coco(str(tmp_path / "missing.json"))


def test_an_image_that_does_not_decode_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path, document())
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(d5.UsageError, match=r"a.png does not decode"):
        every(d5.datasets.coco(path, test=path).train)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"most": 1}, r"the image 7 \(a.png\) has 2 boxes; allowed: at most 1; remedy: most=2"),
        ({"most": 0}, r"coco with most 0; allowed: None or an integer of at least 1"),
        ({"pixels": "normalised"}, r"coco with pixels 'normalised'; allowed: 'unit', 'uint8'"),
        ({"limit": 3}, r"coco with limit 3; allowed: None or an integer from 1 to 2"),
        ({"test_limit": 0}, r"coco with test_limit 0"),
    ],
)
def test_wrong_arguments_are_rejected(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path, document())
    with pytest.raises(d5.UsageError, match=message):
        d5.datasets.coco(path, test=path, **arguments)


def test_both_files_have_the_same_categories(tmp_path: Path) -> None:
    path = written(tmp_path, document())
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document(categories=[{"id": 2, "name": "dog"}, {"id": 90, "name": "bird"}])))
    with pytest.raises(d5.UsageError, match=r"the categories of .*other.json differ from those of .*boxes.json"):
        d5.datasets.coco(path, test=str(other))


def changed(**parts: np.ndarray) -> Callable[[], d5.ArrayDataset]:
    made = {
        "input": np.zeros((1, 1, 8, 8), np.float32),
        "boxes": np.array([[[1.0, 1, 4, 5]]]),
        "classes": np.array([[0]]),
    }
    return lambda: d5.ArrayDataset({**made, **parts})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            changed(input=np.full((1, 1, 8, 8), 0.3, np.float32)),
            r"the pixels of the sample 0 are not bytes divided by 255",
        ),
        (changed(input=np.full((1, 1, 8, 8), 2.0, np.float32)), r"the pixels of the sample 0 are not bytes"),
        (
            changed(input=np.zeros((1, 2, 8, 8), np.float32)),
            r"got samples .*; allowed: input \(1 or 3, H, W\), boxes and",
        ),
        (changed(classes=np.array([[1]])), r"the sample 0 has the class 1; allowed: the 1 classes that have a name"),
        (
            changed(boxes=np.array([[[1.0, 1, 4, 9]]])),
            r"the sample 0 has the box \[1.0, 1.0, 4.0, 9.0\]; allowed: left, .* within 8 x 8 pixels, with right above",
        ),
        (changed(boxes=np.array([[[4.0, 1, 4, 5]]])), r"the sample 0 has the box \[4.0, 1.0, 4.0, 5.0\]; allowed"),
        (lambda: d5.datasets.digits(limit=10).train, r"got samples input float32\[1, 28, 28\], label int64\[\]"),
    ],
)
def test_what_cannot_be_written_is_rejected(data: Callable[[], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "boxes.json"
    with pytest.raises(d5.UsageError, match=message):
        d5.write_coco(data(), path, names=["zero"])
    assert not path.exists()


def test_color_images_and_bytes_are_written(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 16)).astype(np.uint8)
    boxes, classes = np.array([[[1.0, 1, 4, 5]], [[-1.0] * 4]]), np.array([[0], [-1]])
    data = d5.ArrayDataset({"input": pixels, "boxes": boxes, "classes": classes})
    d5.write_coco(data, tmp_path / "boxes.json", names=["zero"])
    with Image.open(tmp_path / "000000000001.png") as image:
        np.testing.assert_array_equal(np.asarray(image), pixels[1].transpose(1, 2, 0))
    with pytest.raises(OutputError, match=r"boxes.json exists; remedy: another path"):
        d5.write_coco(data, tmp_path / "boxes.json", names=["zero"])


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"write_coco: .*file cannot be written"):
        d5.write_coco(changed()(), tmp_path / "file" / "boxes.json", names=["zero"])


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, document())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependency, match=r"pip install 'deep5\[data\]'"):
        d5.datasets.coco(path)
    with pytest.raises(MissingDependency, match=r"pip install 'deep5\[data\]'"):
        d5.write_coco(changed()(), tmp_path / "new.json", names=["zero"])
