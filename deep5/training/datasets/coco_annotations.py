"""Annotation files in the JSON format of COCO, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.arguments import is_finite, is_whole
from deep5.core.errors import UsageError, brief
from deep5.training.detection.boxes import ROOM

__all__ = ["AnnotatedImage", "AnnotationFile", "read_annotations"]


@dataclass(frozen=True, kw_only=True)
class AnnotatedImage:
    """An image and its objects.

    Attributes:
        number: Its identifier in the file.
        name: Its file.
        width: In pixels, as the annotation file says.
        height: Likewise.
        boxes: x, y, width and height of each object in pixels.
        classes: Their classes.
    """

    number: int
    name: str
    width: int
    height: int
    boxes: list[list[float]]
    classes: list[int]


@dataclass(frozen=True, kw_only=True)
class AnnotationFile:
    """The content of an annotation file.

    Attributes:
        path: The file.
        images: In the order of the file.
        categories: Identifiers and names, sorted.
        crowds: The number of annotations left out.
    """

    path: Path
    images: list[AnnotatedImage]
    categories: list[tuple[int, str]]
    crowds: int


def read_annotations(path: Path) -> AnnotationFile:
    """Read and check an annotation file.

    Args:
        path: The file.

    Raises:
        UsageError: It cannot be read, is not in the format, or an annotation is wrong; the message names it.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:  # invalid UTF-8 and JSON are ValueErrors
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the annotation file {path} cannot be read ({reason}); allowed: a file of JSON") from error
    lists = ("images", "annotations", "categories")
    if not isinstance(document, dict) or not all(isinstance(document.get(name), list) for name in lists):
        raise UsageError(f"the annotation file {path}: allowed: an object with the lists {', '.join(lists)}")
    categories: dict[int, str] = {}
    for entry in document["categories"]:
        number = _identifier(path, "category", entry, categories)
        categories[number] = str(entry.get("name", number))
    classes = {number: position for position, number in enumerate(sorted(categories))}
    images: dict[int, AnnotatedImage] = {}
    for entry in document["images"]:
        number = _identifier(path, "image", entry, images)
        name, width, height = (entry.get(key) for key in ("file_name", "width", "height"))
        if (
            not isinstance(name, str)
            or not name
            or "\0" in name
            or not all(is_whole(one) and one > 0 for one in (width, height))
        ):
            raise UsageError(
                f"{path}, image {number}: got file_name {brief(name)}, width {brief(width)}, height {brief(height)}; "
                "allowed: a path, and integers of at least 1"
            )
        images[number] = AnnotatedImage(number=number, name=name, width=width, height=height, boxes=[], classes=[])
    if not images or not categories:
        raise UsageError(
            f"the annotation file {path} lists no {'category' if images else 'image'}; allowed: at least one"
        )
    seen: dict[int, None] = {}
    crowds = 0
    for entry in document["annotations"]:
        number = _identifier(path, "annotation", entry, seen)
        seen[number] = None
        where = f"{path}, annotation {number}"
        image, category = (entry.get(key) for key in ("image_id", "category_id"))
        if not is_whole(image) or image not in images:
            raise UsageError(f"{where}: got the image_id {brief(image)}, which is not among the images of the file")
        if not is_whole(category) or category not in classes:
            raise UsageError(f"{where}: got the category_id {brief(category)}; allowed: {_shown(sorted(classes))}")
        box = _box(where, entry.get("bbox"), images[image])
        if entry.get("iscrowd"):
            crowds += 1
        else:
            images[image].boxes.append(box)
            images[image].classes.append(classes[category])
    return AnnotationFile(path=path, images=list(images.values()), categories=sorted(categories.items()), crowds=crowds)


def _identifier(path: Path, what: str, entry: Any, known: Mapping[int, Any]) -> int:
    """The identifier of an entry, which no earlier entry has."""
    number = entry.get("id") if isinstance(entry, dict) else None
    if not is_whole(number):
        raise UsageError(f"{path}: got the {what} {brief(entry)}; allowed: an object with an integer as its id")
    if number in known:
        raise UsageError(f"{path}, {what} {number}: this id occurs twice; allowed: each once")
    return int(number)


def _box(where: str, box: Any, image: AnnotatedImage) -> list[float]:
    """x, y, width and height of a box, which is within its image."""
    if not isinstance(box, list) or len(box) != 4 or not all(is_finite(value) for value in box):
        raise UsageError(f"{where}: got the bbox {brief(box)}; allowed: x, y, width and height in pixels")
    x, y, width, height = map(float, box)
    if width <= 0 or height <= 0:
        raise UsageError(f"{where}: the bbox {box} has no area; allowed: a width and a height above 0")
    if x < -ROOM or y < -ROOM or x + width > image.width + ROOM or y + height > image.height + ROOM:
        raise UsageError(
            f"{where}: the bbox {box} is outside its image; allowed: x, y, width and height within {image.width} x "
            f"{image.height} pixels"
        )
    return [x, y, width, height]


def _shown(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
