"""Write samples with boxes as image files and an annotation file of COCO's format."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.errors import OutputError, UsageError
from deep5.core.files import exists, write_atomically
from deep5.core.plugins import missing_dependency
from deep5.training.dataset import Dataset
from deep5.training.detection.boxes import are_inside

__all__ = ["write_coco"]


def write_coco(data: Dataset, path: str | Path, *, names: Sequence[str]) -> None:
    """Write samples with boxes as PNG files and an annotation file of COCO's format, beside each other.

    The identifiers of images are the numbers of the samples, those of categories the classes, those of annotations
    count from 1. Images are written first, so an annotation file is complete.

    Args:
        data: Samples `input` (1 or 3, H, W), uint8 or floating-point multiples of 1 / 255 in [0, 1], `boxes` (M, 4)
            corners in pixels and `classes` (M); rows of class -1 are not written.
        path: The annotation file, which must not exist; its folder is created.
        names: Names of the classes.

    Raises:
        UsageError: The samples do not have these parts, pixels that bytes cannot hold, or a class without a name.
        OutputError: The annotation file exists, or a file cannot be written.
        MissingDependency: Pillow is not installed.

    >>> import json
    >>> import tempfile
    >>> from pathlib import Path
    >>> import deep5 as d5
    >>> data = d5.datasets.digit_canvases(train=2, test=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     d5.write_coco(data.train, Path(folder, "boxes.json"), names=[*"0123456789"])
    ...     sorted(path.name for path in Path(folder).iterdir())
    ...     json.loads(Path(folder, "boxes.json").read_text())["annotations"][0]["bbox"]
    ['000000000000.png', '000000000001.png', 'boxes.json']
    [19.0, 5.0, 25.0, 27.0]
    """
    path = Path(path)
    missing = [name for name in ("input", "boxes", "classes") if name not in data.specs]
    shape = data.specs["input"].shape if not missing else ()
    if missing or len(shape) != 3 or shape[0] not in (1, 3):
        got = ", ".join(f"{name} {spec}" for name, spec in data.specs.items())
        raise UsageError(f"write_coco: got samples {got}; allowed: input (1 or 3, H, W), boxes and classes")
    if exists(path):
        raise OutputError(f"write_coco: {path} exists; remedy: another path")
    height, width = map(int, shape[1:])
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in range(len(data)):
            sample = {name: array[0] for name, array in data.batch(np.array([number])).items()}
            name = f"{number:012d}.png"
            write_atomically(path.parent / name, _png(sample["input"], number))
            images.append({"id": number, "file_name": name, "width": width, "height": height})
            for row in np.flatnonzero(sample["classes"] >= 0):
                left, top, right, bottom = map(float, sample["boxes"][row])
                category = int(sample["classes"][row])
                if category >= len(names):
                    raise UsageError(
                        f"write_coco: the sample {number} has the class {category}; allowed: the {len(names)} classes "
                        "that have a name"
                    )
                if not are_inside(np.array([left, top, right, bottom]), width, height):
                    raise UsageError(
                        f"write_coco: the sample {number} has the box {[left, top, right, bottom]}; allowed: left, "
                        f"top, right and bottom within {width} x {height} pixels, with right above left and bottom "
                        "above top"
                    )
                box = [left, top, right - left, bottom - top]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": category,
                        "bbox": box,
                        "area": box[2] * box[3],
                        "iscrowd": 0,
                    }
                )
        categories = [{"id": number, "name": str(name)} for number, name in enumerate(names)]
        document = {"images": images, "annotations": annotations, "categories": categories}
        write_atomically(path, json.dumps(document))
    except OSError as error:
        raise OutputError(f"write_coco: {path.parent} cannot be written ({error.strerror or error})") from error


def _png(pixels: np.ndarray, number: int) -> bytes:
    """An image file with exactly these pixels."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise missing_dependency("write_coco", error) from error
    values = pixels if pixels.dtype == np.uint8 else np.rint(pixels.astype(np.float64) * 255)
    if pixels.dtype != np.uint8:
        # The same division as the reader's.
        whole = np.clip(values, 0, 255).astype(np.uint8)
        if not np.array_equal(whole.astype(np.float32) / np.float32(255), pixels.astype(np.float32)):
            raise UsageError(
                f"write_coco: the pixels of the sample {number} are not bytes divided by 255; allowed: such values, or "
                "uint8"
            )
        values = whole
    image = Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
