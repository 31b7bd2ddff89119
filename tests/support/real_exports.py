"""ONNX files that exporters write here: PyTorch's two, Keras's on two back-ends, tf2onnx and skl2onnx."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import real_keras
import real_sklearn

__all__ = ["EXPORTS", "export"]

# The names in `real_modules`, which needs PyTorch.
_BOTH = ("convolutions", "transposed", "lstm", "gru", "encoder", "attention", "embedding", "interpolation", "functions")
_BOTH += ("bag", "offsets", "half", "half lstm", "half perceptron")
_DYNAMO, _SCRIPT = (*_BOTH, "bfloat16 perceptron", "cond", "scan"), (*_BOTH, "branch", "loop")


def export(name: str, target: str, wheels: list[str]) -> str | None:
    """Write one exported file.

    Args:
        name: A key of `EXPORTS`.
        target: The file.
        wheels: Unpacked wheels of exporters that are not installed.

    Returns:
        Why there is no file, with the command that brings the exporter; None: it is written.
    """
    # Installed packages come first.
    sys.path += wheels
    needs, make = EXPORTS[name]
    for package in needs:
        if find_spec(package) is None:
            return f"{package} is not installed; remedy: pip install {package}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Path(target).write_bytes(make())
    return None


def _torch(name: str, form: str) -> bytes:
    import torch

    from real_modules import DYNAMO, SCRIPT

    torch.manual_seed(0)
    case, file = (DYNAMO if form == "dynamo" else SCRIPT)[name], io.BytesIO()
    values = [torch.randn(own) if isinstance(own[0], int) else torch.randint(own[1], own[0]) for own in case.inputs]
    module = case.make().eval()
    for word, dtype in (("half", torch.float16), ("bfloat16", torch.bfloat16)):
        if word in name:
            module = module.to(dtype)
            values = [value.to(dtype) if value.is_floating_point() else value for value in values]
    names = {"input_names": [f"x{number}" for number in range(len(values))], "output_names": ["y"]}
    settings: dict[str, Any] = {"dynamo": True} if form == "dynamo" else {"dynamo": False, "opset_version": 17}
    torch.onnx.export(module, tuple(values), file, **names, **settings, verbose=False)
    return file.getvalue()


def _exports() -> dict[str, tuple[tuple[str, ...], Callable[[], bytes]]]:
    torch, keras, tf2onnx = ("torch",), ("keras",), ("tensorflow", "tf2onnx")
    found: dict[str, tuple[tuple[str, ...], Callable[[], bytes]]] = {}
    for name in _DYNAMO:
        found[f"torch dynamo, {name}"] = ((*torch, "onnxscript"), partial(_torch, name, "dynamo"))
    for name in _SCRIPT:
        found[f"torch script, {name}"] = (torch, partial(_torch, name, "script"))
    for kind in real_keras.KINDS:
        make = partial(real_keras.by_keras, kind)
        # PyTorch's older exporter, which Keras uses for unknown sizes, does not write its layer normalization.
        if kind not in ("dense", "attention"):
            found[f"keras on torch, {kind}"] = ((*torch, *keras), partial(make, "torch", fixed=False))
        found[f"keras on torch, {kind}, fixed sizes"] = (
            (*torch, *keras, "onnxscript"),
            partial(make, "torch", fixed=True),
        )
        found[f"keras on tensorflow, {kind}"] = ((*tf2onnx, *keras), partial(make, "tensorflow", fixed=False))
    for kind in (*real_keras.KINDS, "bag", "branch", "loop", "half"):
        found[f"tf2onnx, {kind}"] = ((*tf2onnx, *keras), partial(real_keras.by_tf2onnx, kind))
    for kind in real_sklearn.KINDS:
        found[f"skl2onnx, {kind}"] = (("sklearn", "skl2onnx"), partial(real_sklearn.by_skl2onnx, kind))
    return found


EXPORTS = _exports()
"""Which packages each file needs, and what writes it."""
