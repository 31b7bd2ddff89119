"""A recipe around a model that is named in place of one: `FILE.py:NAME`, or an ONNX file."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.content_hashes import file_hash
from deep5.core.errors import RecipeError, UsageError
from deep5.core.files import is_file
from deep5.core.plugins import owner_of
from deep5.recipe.faults import is_onnx_file
from deep5.recipe.key_checks import check_parts
from deep5.recipe.keys import kind_of
from deep5.recipe.own_network import IDENTITY_SEED, made_network
from deep5.recipe.part import Part, is_factory, part_of
from deep5.recipe.settings import changed_by_settings

__all__ = ["ARGUMENTS", "METRICS", "InPlace", "changed_around", "in_place_of", "names_model", "parts_around"]

ARGUMENTS = ("model_args", "model_kwargs")
"""The keys of such a recipe's fixed part that can be set: another model, and another hash."""

METRICS = (("training_loss", None), ("test_accuracy", None), ("throughput", None), ("step_latency", None))
"""The metrics of such a recipe, without goals."""

_GENERAL: dict[str, Any] = {
    "dataset": "synthetic",
    "epochs": 1,
    "batch_size": 32,
    "optimizer": "sgd",
    "optimizer_kwargs": {"lr": 0.01},
}


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """A model that is given in place of a recipe.

    Attributes:
        text: `FILE.py:NAME`, or the path of an ONNX file, as given.
        path: The file, absolute.
        sha256: SHA-256 of its content.
    """

    text: str
    path: Path
    sha256: str

    def read(self) -> bytes:
        """The content of the file.

        Raises:
            RecipeError: It is missing, or changed since its hash was taken.
        """
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise RecipeError(f"the model's file {self.path} cannot be read ({error.strerror or error})") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise RecipeError(f"the model's file {self.path} changed since the start; remedy: start again")
        return content


def in_place_of(text: str) -> InPlace:
    """The file of a model that is given in place of a recipe.

    Args:
        text: `FILE.py:NAME`, or the path of an ONNX file.

    Raises:
        RecipeError: The file cannot be read.
    """
    file = text if is_onnx_file(text) else text.rpartition(":")[0]
    path = Path(os.path.abspath(file))  # noqa: PTH100 - links stay, as they may be replaced
    try:
        return InPlace(text=text, path=path, sha256=file_hash(path))
    except OSError as error:
        raise RecipeError(f"the model's file {path} cannot be read ({error.strerror or error})") from error


def names_model(text: str) -> bool:
    """Whether the argument of a command names a model in place of a recipe."""
    return is_onnx_file(text) or (".py:" in text and text.rpartition(":")[2].isidentifier())


def parts_around(text: str, arguments: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Name, FIXED and MUTABLE of a recipe that trains a model; every mutable part can be set.

    The framework is that of the model's library, or ONNX Runtime for a file. The data are `synthetic`, of the shape
    that the model's first input has, if it is known.

    Args:
        text: `FILE.py:NAME`, or the path of an ONNX file.
        arguments: `model_args` and `model_kwargs`, if any.

    Raises:
        RecipeError: There is no such file or name, or it cannot be created.
    """
    if is_onnx_file(text) and not is_file(Path(text)):
        raise RecipeError(f"the model {text} is not there; allowed: an ONNX file, FILE.py:NAME, or a recipe")
    fixed = {"model": text, **(arguments or {})}
    about = kind_of(fixed).keys["model"]
    part = part_of("model", about, fixed, where=lambda key: "", settings={}, file=None, folder=None)
    made = _made(part)
    mutable = {**_GENERAL, "framework": owner_of(made) or "onnxruntime"}
    if "loss" not in getattr(made, "outputs", ()):
        mutable["loss"] = "cross_entropy"
    shape = _shape(made)
    if shape is not None:
        mutable["dataset_kwargs"] = {"shape": shape, **_classes(made)}
    name = Path(text).stem if is_onnx_file(text) else text.rpartition(":")[2]
    return name, fixed, mutable


def changed_around(
    name: str,
    fixed: Mapping[str, Any],
    mutable: Mapping[str, Any],
    before: Mapping[str, Any],
    settings: Mapping[str, Any],
    where: Callable[[str], str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """FIXED and MUTABLE of a recipe by `parts_around`, with new values; other arguments make another model.

    Args:
        name: The recipe's name, for messages.
        fixed: FIXED.
        mutable: MUTABLE.
        before: The parts of MUTABLE that were set earlier.
        settings: As for `changed_by_settings`.
        where: As for `check_parts`.

    Raises:
        UsageError: As `changed_by_settings`; or the model itself is set.
        RecipeError: The model cannot be created.
    """
    if "model" in settings:
        raise UsageError(
            f"'model' is {fixed['model']!r}, which is given in place of a recipe; allowed to set: its arguments, "
            "model_args and model_kwargs; remedy: give the other model in its place"
        )
    changed = changed_by_settings(name, {}, {**fixed, **mutable}, settings)
    stated = {key: changed.pop(key) for key in ("model", *ARGUMENTS) if key in changed}
    if stated == fixed:
        return stated, changed
    check_parts(stated, mutable, where)
    _, stated, around = parts_around(stated["model"], {key: stated[key] for key in ARGUMENTS if key in stated})
    others = {key: value for key, value in settings.items() if key.partition(".")[0] not in ARGUMENTS}
    return stated, changed_by_settings(name, stated, changed_by_settings(name, stated, around, before), others)


def _made(part: Part) -> Any:
    """The model; None if it has required arguments that are not set yet, which is reported where it is needed."""
    try:
        return made_network(part, IDENTITY_SEED)[0]
    except RecipeError:
        component = part.component()
        if not is_factory(component):
            raise
        try:
            inspect.signature(component).bind(*part.args, **part.kwargs)
        except TypeError as error:
            if "missing" in str(error):
                return None
        raise


def _shape(made: Any) -> tuple[int, ...] | None:
    """The shape of a sample: of a graph's first input, or of a built Keras model's."""
    inputs = getattr(made, "inputs", None)
    if isinstance(inputs, dict):
        shape = next((spec.shape for spec in inputs.values()), ())
    else:
        shape = getattr(made, "input_shape", None) or ()
    sample = tuple(shape[1:]) if isinstance(shape, tuple) else ()
    return sample if sample and all(isinstance(extent, int) for extent in sample) else None


def _classes(made: Any) -> dict[str, int]:
    """The number of classes, if the scores of a graph or a Keras model have one."""
    outputs = getattr(made, "outputs", None)
    if isinstance(outputs, dict):
        spec = outputs.get("logits", next(iter(outputs.values()), None))
        shape: Any = () if spec is None else spec.shape
    else:
        shape = getattr(made, "output_shape", None) or ()
    known = isinstance(shape, tuple) and len(shape) > 1 and isinstance(shape[1], int)
    return {"classes": shape[1]} if known else {}
