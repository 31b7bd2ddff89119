"""ONNX files that exporters write here: PyTorch's two, Keras's, tf2onnx and skl2onnx."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx

__all__ = ["EXPORTS", "export"]

_MODULES = ("convolutions", "lstm", "attention", "embedding", "interpolation", "functions")


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

    from exported_modules import MODULES

    torch.manual_seed(0)
    case, file = MODULES[name], io.BytesIO()
    values = [torch.randn(own) if isinstance(own[0], int) else torch.randint(own[1], own[0]) for own in case.inputs]
    names = {"input_names": [f"x{number}" for number in range(len(values))], "output_names": ["y"]}
    settings: dict[str, Any] = {"dynamo": True} if form == "dynamo" else {"dynamo": False, "opset_version": 17}
    torch.onnx.export(case.make().eval(), tuple(values), file, **names, **settings, verbose=False)
    return file.getvalue()


def _keras_model(kind: str) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    if kind == "convolutions":
        parts = [
            layers.Conv2D(4, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(2),
        ]
        parts += [layers.DepthwiseConv2D(3, strides=2, padding="same"), layers.GlobalAveragePooling2D()]
        return keras.Sequential([keras.Input((8, 8, 3)), *parts, layers.Dense(5, activation="softmax")])
    if kind == "recurrent":
        parts = [layers.LSTM(4, return_sequences=True), layers.GRU(3), layers.Dense(2, activation="sigmoid")]
        return keras.Sequential([keras.Input((6, 5)), *parts])
    # tf2onnx writes gelu with an operator, Erfc, that ONNX does not have.
    parts = [layers.Dense(8, activation="tanh"), layers.LayerNormalization(), layers.Dropout(0.2), layers.Dense(3)]
    return keras.Sequential([keras.Input((5,)), *parts])


def _keras(kind: str) -> bytes:
    """Through Keras's own `Model.export`, on PyTorch, which needs no other exporter."""
    import tempfile

    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.onnx")
        model = _keras_model(kind)
        model(keras.ops.zeros((1, *model.inputs[0].shape[1:])))  # its export wants a model that has been called
        model.export(path, format="onnx", verbose=False)
        return path.read_bytes()


def _tf2onnx(kind: str) -> bytes:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import tensorflow
    import tf2onnx

    model = _keras_model(kind)
    shape = [None, *model.inputs[0].shape[1:]]
    function = tensorflow.function(lambda x: model(x, training=False))
    signature = [tensorflow.TensorSpec(shape, "float32", name="x")]
    proto, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=17)
    written: bytes = proto.SerializeToString()
    return written


def _skl2onnx(kind: str) -> bytes:
    from skl2onnx import to_onnx
    from sklearn import datasets, ensemble, linear_model, neural_network, pipeline, preprocessing, svm

    x, y = datasets.load_iris(return_X_y=True)
    x = x.astype("float32")
    if kind == "linear":
        model = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
    elif kind == "forest":
        model = ensemble.RandomForestClassifier(10, max_depth=4, random_state=0)
    elif kind == "boosting":
        model, y = ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0), x[:, 0]
    elif kind == "vectors":
        model = svm.SVC(probability=False, random_state=0)
    else:
        model = neural_network.MLPClassifier((8,), max_iter=50, random_state=0)
    model.fit(x, y)
    options = {} if kind == "boosting" else {id(model): {"zipmap": False}}
    proto: onnx.ModelProto = to_onnx(model, x[:1], options=options)
    return proto.SerializeToString()


EXPORTS: dict[str, tuple[tuple[str, ...], Callable[[], bytes]]] = {
    **{
        f"torch dynamo, {name}": (("torch", "onnxscript"), lambda name=name: _torch(name, "dynamo"))
        for name in _MODULES
    },
    **{f"torch script, {name}": (("torch",), lambda name=name: _torch(name, "script")) for name in _MODULES},
    **{
        f"keras, {kind}": (("keras", "torch", "onnxscript"), lambda kind=kind: _keras(kind))
        for kind in ("dense", "convolutions", "recurrent")
    },
    **{
        f"tf2onnx, {kind}": (("tensorflow", "tf2onnx"), lambda kind=kind: _tf2onnx(kind))
        for kind in ("dense", "convolutions", "recurrent")
    },
    **{
        f"skl2onnx, {kind}": (("sklearn", "skl2onnx"), lambda kind=kind: _skl2onnx(kind))
        for kind in ("linear", "forest", "boosting", "vectors", "perceptron")
    },
}
"""Which packages each file needs, and what writes it."""
