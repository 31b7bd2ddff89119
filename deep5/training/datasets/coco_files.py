"""Images with boxes, described by a file in the JSON format of COCO."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError
from deep5.core.tensors import TensorSpec
from deep5.training.dataset import Dataset, Splits, fitted
from deep5.training.datasets.coco_annotations import AnnotatedImage, read_annotations
from deep5.training.datasets.images import Decoder, image_files
from deep5.training.datasets.pixels import scaling_of
from deep5.training.datasets.splitting import check_limit, drawn, split_hash
from deep5.training.downloads import given_path

__all__ = ["coco"]


def coco(
    train: str,
    *,
    test: str | None = None,
    root: str | None = None,
    test_root: str | None = None,
    size: int = 64,
    channels: int = 3,
    pixels: str = "unit",
    most: int | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
    workers: int | None = None,
) -> Splits:
    """Images in a folder with boxes in an annotation file of COCO's format, decoded on access.

    Images are scaled to `size` x `size` pixels, and boxes likewise. Annotations of crowds (`iscrowd` 1) are left out.
    Classes are the positions of the categories, sorted by their identifiers.

    Args:
        train: The annotation file of the training images.
        test: That of the test images; None: a seeded split of the training images.
        root: The folder that `file_name` is relative to; None: that of the annotation file.
        test_root: The same for the test images; None: as `root`, or the folder of the test annotations without it.
        size: Height and width of the samples.
        channels: 3 for RGB, 1 for grayscale.
        pixels: "unit" for values in [0, 1], or "uint8".
        most: Rows of `boxes`; None: as many as the image with the most boxes has.
        test_share: Fraction of the images in the test set, if `test` is not given.
        split_seed: The seed of that draw.
        limit: The number of training images to keep, the first ones; None: all.
        test_limit: The same for the test images.
        workers: Decoding threads; None: one per processor, up to eight.

    Returns:
        Samples `input` float32 or uint8 (channels, size, size), `boxes` float32 (most, 4): left, top, right and bottom
        in pixels of the sample, and `classes` int64 (most,); rows without an object are -1.

    Raises:
        UsageError: A file is missing or not in the format, an argument is out of its range, or an annotation is wrong:
            its box is outside the image or has no area, its image or category is unknown, or its identifier occurs
            twice. The message names the annotation.
        MissingDependency: Pillow is not installed.

    References:
        Lin et al., Microsoft COCO: Common objects in context, ECCV 2014; the format at https://cocodataset.org, "Data
        format", "Object detection": a box is x, y, width and height in pixels from the top left corner.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import deep5 as d5
    >>> canvases = d5.datasets.digit_canvases(train=8, test=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, part in (("train", canvases.train), ("test", canvases.test)):
    ...         d5.write_coco(part, Path(folder, name, "boxes.json"), names=[*"0123456789"])
    ...     files = {name: str(Path(folder, name, "boxes.json")) for name in ("train", "test")}
    ...     data = d5.datasets.coco(**files, channels=1)
    ...     read, written = data.train.batch([3]), canvases.train.batch([3])
    >>> {name: (str(spec), bool((read[name] == written[name]).all())) for name, spec in data.train.specs.items()}
    {'input': ('float32[1, 64, 64]', True), 'boxes': ('float32[4, 4]', True), 'classes': ('int64[4]', True)}
    """
    what = "coco"
    # Boxes refer to the pixels as they are stored.
    decoder = Decoder(size=size, channels=channels, turn=False)
    scaling = scaling_of(pixels, (0.0,) * channels, (1.0,) * channels, what) if pixels != "normalised" else None
    if pixels not in ("unit", "uint8"):
        raise UsageError(f"{what} with pixels {pixels!r:.60}; allowed: 'unit', 'uint8'")
    if most is not None and not (is_whole(most) and most >= 1):
        raise UsageError(f"{what} with most {most!r:.60}; allowed: None or an integer of at least 1")
    files = [read_annotations(given_path(what, train, "train"))]
    folders = [given_path(what, root, "root") if root is not None else files[0].path.parent]
    if test is not None:
        files.append(read_annotations(given_path(what, test, "test")))
        folders.append(
            given_path(what, test_root, "test_root")
            if test_root is not None
            else (folders[0] if root is not None else files[1].path.parent)
        )
        if files[0].categories != files[1].categories:
            raise UsageError(
                f"{what}: the categories of {files[1].path} differ from those of {files[0].path}; allowed: the same "
                "identifiers and names"
            )
        order = [np.arange(len(file.images)) for file in files]
        split = "the two annotation files"
    else:
        order = list(drawn(what, len(files[0].images), test_share, split_seed))
        split = f"{test_share:g} of the images to the test set, seed {split_seed}"
    for place, (name, least) in enumerate((("limit", limit), ("test_limit", test_limit))):
        order[place] = order[place][: check_limit(what, name, least, len(order[place]))]
    kept = [[file.images[index] for index in ids] for file, ids in zip((files * 2)[:2], order, strict=True)]
    rows = max(1, *(len(image.boxes) for part in kept for image in part))
    for image in (image for part in kept for image in part):
        if most is not None and len(image.boxes) > most:
            raise UsageError(
                f"{what}: the image {image.number} ({image.name}) has {len(image.boxes)} boxes; allowed: at most "
                f"{most}; remedy: most={rows}"
            )
    parts = [
        _dataset(part, folder, most or rows, decoder, scaling, workers)
        for part, folder in zip(kept, (folders * 2)[:2], strict=True)
    ]
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=split_hash(*order),
        description={
            "source": "images with boxes, COCO's format: " + " and ".join(file.path.name for file in files),
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "classes": {name: number for number, (_, name) in enumerate(files[0].categories)},
            "split": split,
            "preparation": f"{decoder.describe()}; {scaling.describe() if scaling else 'bytes'}; boxes scaled likewise",
            "decoder": decoder.library,
            "left out": f"{sum(file.crowds for file in files)} annotations of crowds",
        },
    )


def _dataset(
    images: Sequence[AnnotatedImage], folder: Path, most: int, decoder: Decoder, scaling: Any, workers: int | None
) -> _BoxedImages:
    """The data set of some images, whose files have the stated sizes."""
    from PIL import Image

    boxes = np.full((len(images), most, 4), -1, np.float32)
    classes = np.full((len(images), most), -1, np.int64)
    for index, image in enumerate(images):
        count = len(image.boxes)
        if count:
            corners = np.array(image.boxes)
            corners[:, 2:] += corners[:, :2]
            limits = np.array([image.width, image.height] * 2, np.float64)
            boxes[index, :count] = np.clip(corners, 0, limits) * (decoder.size / limits)
            classes[index, :count] = image.classes
    # Also reports files that are missing.
    inner = image_files(
        folder,
        [image.name for image in images],
        np.arange(len(images)),
        decoder=decoder,
        scaling=scaling,
        workers=workers,
    )
    for image in images:
        try:
            with Image.open(folder / image.name) as opened:  # reads only the header
                width, height = opened.size
        except Exception:  # noqa: S112 - decoding reports it, with its reason
            continue
        if (width, height) != (image.width, image.height):
            raise UsageError(
                f"the image {folder / image.name} has {width} x {height} pixels; allowed: {image.width} x "
                f"{image.height}, as the annotation file says of the image {image.number}"
            )
    return _BoxedImages(inner, boxes, classes)


class _BoxedImages(Dataset):
    """Images with boxes and classes; `inner` has `input`, and a `label` that is not used."""

    def __init__(self, inner: Dataset, boxes: np.ndarray, classes: np.ndarray) -> None:
        self._inner, self._boxes, self._classes = inner, boxes, classes
        self.specs = {
            "input": inner.specs["input"],
            "boxes": TensorSpec(shape=boxes.shape[1:], dtype=str(boxes.dtype)),
            "classes": TensorSpec(shape=classes.shape[1:], dtype="int64"),
        }

    def __len__(self) -> int:
        return len(self._boxes)

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        images = self._inner.batch(ids)["input"]
        ids = np.asarray(ids, dtype=np.int64)
        return {"input": images, "boxes": self._boxes[ids], "classes": self._classes[ids]}

    def labels(self, name: str = "label") -> np.ndarray | None:
        return {"boxes": self._boxes, "classes": self._classes}.get(name)

    def content_hash(self) -> str:
        digest = hashlib.sha256(self._inner.content_hash().encode())
        for array in (self._boxes, self._classes):
            digest.update(f"{array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> _BoxedImages:
        dtypes = fitted(self.specs, specs)
        label = self._inner.specs["label"]
        wanted = {
            "input": specs["input"],
            "label": TensorSpec(shape=("N", *label.shape), dtype=label.dtype),
        }
        return _BoxedImages(self._inner.cast(wanted), self._boxes.astype(dtypes["boxes"], copy=False), self._classes)
