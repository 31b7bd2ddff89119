"""A recipe around a model that is named in place of one: `FILE.py:NAME`, or an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deep5.core.errors import RecipeError
from deep5.core.files import is_file
from deep5.core.plugins import owner_of
from deep5.recipe.faults import is_onnx_file
from deep5.recipe.keys import kind_of
from deep5.recipe.own_network import IDENTITY_SEED, made_network
from deep5.recipe.part import part_of

__all__ = ["METRICS", "names_model", "parts_around"]

METRICS = (("training_loss", None), ("test_accuracy", None), ("throughput", None), ("step_latency", None))
"""The metrics of such a recipe, without goals."""

_GENERAL: dict[str, Any] = {
    "dataset": "synthetic",
    "epochs": 1,
    "batch_size": 32,
    "optimizer": "sgd",
    "optimizer_kwargs": {"lr": 0.01},
}


def names_model(text: str) -> bool:
    """Whether the argument of a command names a model in place of a recipe."""
    return is_onnx_file(text) or (".py:" in text and text.rpartition(":")[2].isidentifier())


def parts_around(text: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Name, FIXED and MUTABLE of a recipe that trains a model; every mutable part can be set.

    The framework is that of the model's library, or ONNX Runtime for a file. The data are `synthetic`, of the shape
    that the model's first input has, if it is known.

    Args:
        text: `FILE.py:NAME`, or the path of an ONNX file.

    Raises:
        RecipeError: There is no such file or name, or it cannot be created.
    """
    if is_onnx_file(text) and not is_file(Path(text)):
        raise RecipeError(f"the model {text} is not there; allowed: an ONNX file, FILE.py:NAME, or a recipe")
    about = kind_of({"model": text}).keys["model"]
    part = part_of("model", about, {"model": text}, where=lambda key: "", file=None, folder=None)
    made, _ = made_network(part, IDENTITY_SEED)
    mutable = {**_GENERAL, "framework": owner_of(made) or "onnxruntime"}
    if "loss" not in getattr(made, "outputs", ()):
        mutable["loss"] = "cross_entropy"
    shape = _shape(made)
    if shape is not None:
        mutable["dataset_kwargs"] = {"shape": shape, **_classes(made)}
    name = Path(text).stem if is_onnx_file(text) else text.rpartition(":")[2]
    return name, {"model": text}, mutable


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
