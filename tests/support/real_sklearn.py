"""Models of scikit-learn for the run of real files, written by skl2onnx."""

from __future__ import annotations

from typing import Any

import onnx

__all__ = ["KINDS", "by_skl2onnx"]

KINDS = (
    "linear",
    "forest",
    "boosting",
    "histograms",
    "vectors",
    "perceptron",
    "neighbors",
    "clusters",
    "process",
    "components",
    "encoders",
    "words",
    "maps",
)
"""The models."""


def by_skl2onnx(kind: str) -> bytes:
    """A fitted model as skl2onnx writes it.

    Args:
        kind: One of `KINDS`.
    """
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn import datasets

    x, y = datasets.load_iris(return_X_y=True)
    x = x.astype("float32")
    if kind in ("encoders", "words"):
        strings = [["a", "b"], ["b", "c"], ["a", "c"]] if kind == "encoders" else ["a b", "b c d", "a d"]
        model = _of_strings(kind).fit(strings)
        size = 2 if kind == "encoders" else 1
        # Not every machine has the locale en_US, which they are read in otherwise.
        options = {id(model): {"locale": "C"}} if kind == "words" else {}
        proto: onnx.ModelProto = to_onnx(model, initial_types=[("x", StringTensorType([None, size]))], options=options)
        return proto.SerializeToString()
    model = _model(kind)
    model.fit(x, x[:, 0] if kind in ("boosting", "histograms", "process") else y)
    options = {id(model): {"zipmap": kind == "maps"}} if hasattr(model, "predict_proba") or kind == "vectors" else {}
    proto = to_onnx(model, x[:1], options=options)
    return proto.SerializeToString()


def _model(kind: str) -> Any:
    from sklearn import (
        cluster,
        decomposition,
        ensemble,
        gaussian_process,
        linear_model,
        neighbors,
        neural_network,
        pipeline,
        preprocessing,
        svm,
    )

    if kind in ("linear", "maps"):
        return pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
    if kind == "components":
        return pipeline.make_pipeline(decomposition.PCA(2), linear_model.LogisticRegression())
    models = {
        "forest": lambda: ensemble.RandomForestClassifier(10, max_depth=4, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0),
        "histograms": lambda: ensemble.HistGradientBoostingRegressor(max_iter=5, random_state=0),
        "vectors": lambda: svm.SVC(random_state=0),
        "perceptron": lambda: neural_network.MLPClassifier((8,), max_iter=50, random_state=0),
        "neighbors": lambda: neighbors.KNeighborsClassifier(3),
        "clusters": lambda: cluster.KMeans(3, n_init=1, random_state=0),
        "process": lambda: gaussian_process.GaussianProcessRegressor(alpha=0.1, random_state=0),
    }
    return models[kind]()


def _of_strings(kind: str) -> Any:
    from sklearn import feature_extraction, preprocessing

    if kind == "encoders":
        return preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return feature_extraction.text.TfidfVectorizer(token_pattern="[a-z]+")  # noqa: S106 - a pattern of words
