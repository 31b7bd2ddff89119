"""Operators of classical machine learning, domain ai.onnx.ml: features, linear models, support vectors, forests."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels import features, forests, linear_models
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.kernels.trees import Trees
from deep5.frameworks.reference.table import Call, Operator, Site, chosen, first, plain
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
_TRANSFORM = chosen(post_transform=_TRANSFORMS)


def _numbers(site: Site, name: str, default: Any = (), dtype: Any = np.float32) -> Array:
    return np.array(site.attribute(name, default), dtype).reshape(-1)


def _table(site: Site, name: str) -> Array:
    """Numbers in a list, or in the tensor of a later version."""
    tensor = site.attribute(f"{name}_as_tensor")
    if tensor is not None:
        held: Array = tensor.numpy().reshape(-1)
        return held
    return _numbers(site, name)


def _labels(node: ir.Node) -> Array:
    for name, dtype in (("strings", object), ("ints", np.int64), ("int64s", np.int64)):
        if (values := attribute(node, f"classlabels_{name}")) is not None and len(values):
            return np.array(values, dtype)
    return np.empty(0, np.int64)


def _scaler(site: Site) -> Call:
    settings: dict[str, Any] = {"offset": _numbers(site, "offset", [0]), "factor": _numbers(site, "scale", [1])}
    return Call(partial(features.scale, **settings), (0,))


def _normalizer(site: Site) -> Call:
    return Call(partial(features.normalize, norm=site.attribute("norm", "MAX")), (0,))


def _imputer(site: Site) -> Call:
    floats = site.attribute("imputed_value_floats")
    settings: dict[str, Any]
    if floats is not None and len(floats):
        settings = {"replaced": float(site.attribute("replaced_value_float", 0.0)), "by": np.array(floats, np.float32)}
    else:
        settings = {
            "replaced": site.attribute("replaced_value_int64", 0),
            "by": _numbers(site, "imputed_value_int64s", (), np.int64),
        }
    return Call(partial(features.impute, **settings), (0,))


def _one_hot(site: Site) -> Call:
    strings = site.attribute("cats_strings")
    categories = _numbers(site, "cats_int64s", (), np.int64) if strings is None else np.array(strings, object)
    return Call(partial(features.one_hot, categories=categories), (0,))


def _one_hot_refusal(node: ir.Node) -> str | None:
    if attribute(node, "zeros", 1) != 1:
        texts = attribute(node, "cats_strings", None) is not None
        remedy = "zeros=1 in the file" if texts else "framework 'onnxruntime'"  # which takes no strings
        return f"got zeros=0, which rejects unknown categories; allowed: 1; remedy: {remedy}"
    return None


def _category_mapper(site: Site) -> Call:
    words, numbers = np.array(site.attribute("cats_strings", []), object), _numbers(site, "cats_int64s", (), np.int64)
    value = site.node.inputs[0]
    if value is not None and value.dtype == ir.DataType.STRING:
        keys, values, default = words, numbers, site.attribute("default_int64", -1)
    else:
        keys, values, default = numbers, words, site.attribute("default_string", "_Unused")
    return Call(partial(features.encode_labels, keys=keys, values=values, default=default), (0,))


def _linear_regressor(site: Site) -> Call:
    targets = site.attribute("targets", 1)
    settings: dict[str, Any] = {
        "weights": _numbers(site, "coefficients").reshape(targets, -1),
        "bias": _numbers(site, "intercepts", [0] * targets),
        "transform": site.attribute("post_transform", "NONE"),
    }
    return Call(partial(linear_models.linear_values, **settings), (0,))


def _linear_regressor_refusal(node: ir.Node) -> str | None:
    if attribute(node, "targets", 1) == 1 and attribute(node, "post_transform", "NONE") != "NONE":
        return f"got post_transform={attribute(node, 'post_transform')!r} for one target; allowed: NONE"
    return _TRANSFORM(node)


def _linear_classifier(site: Site) -> Call:
    bias = _numbers(site, "intercepts")
    settings: dict[str, Any] = {
        "weights": _numbers(site, "coefficients").reshape(len(bias), -1),
        "bias": bias,
        "labels": _labels(site.node),
        "transform": site.attribute("post_transform", "NONE"),
    }
    return Call(first(partial(linear_models.linear_classes, **settings), site.outputs), (0,))


def _linear_classifier_refusal(node: ir.Node) -> str | None:
    labels, rows = len(_labels(node)), len(attribute(node, "intercepts", []))
    if rows < 1 or labels < 2 or labels != rows + (labels == 2 and rows == 1):
        return f"got {rows} intercepts and {labels} labels; allowed: an intercept per label, or one for two labels"
    return _TRANSFORM(node)


def _machine(site: Site, vectors: int) -> linear_models.Machine:
    gamma, offset, degree = (*_numbers(site, "kernel_params").tolist(), 0.0, 0.0, 0.0)[:3]
    coefficients = _numbers(site, "coefficients")
    return linear_models.Machine(
        kernel=site.attribute("kernel_type", "LINEAR") if vectors else "LINEAR",
        gamma=gamma,
        offset=offset,
        degree=degree,
        vectors=_numbers(site, "support_vectors").reshape(vectors, -1) if vectors else coefficients.reshape(1, -1),
        coefficients=coefficients if vectors else np.ones(1, np.float32),
        rho=_numbers(site, "rho"),
    )


def _svm_regressor(site: Site) -> Call:
    machine = _machine(site, site.attribute("n_supports", 0))
    function = partial(linear_models.support_values, machine=machine, one_class=bool(site.attribute("one_class", 0)))
    return Call(function, (0,))


def _svm_classifier(site: Site) -> Call:
    counts = _numbers(site, "vectors_per_class", (), np.int64)
    machine = _machine(site, int(counts.sum()))
    rows = machine.coefficients.reshape(len(counts) - 1, -1)
    function = partial(
        linear_models.support_classes,
        machine=linear_models.Machine(**{**vars(machine), "coefficients": rows}),
        counts=counts,
        labels=_labels(site.node),
        slopes=_numbers(site, "prob_a"),
        shifts=_numbers(site, "prob_b"),
    )
    return Call(first(function, site.outputs), (0,))


def _svm_classifier_refusal(node: ir.Node) -> str | None:
    classes, labels = len(attribute(node, "vectors_per_class", [])), len(_labels(node))
    if classes < 2 or classes != labels:
        return f"got support vectors of {classes} classes and {labels} labels; allowed: of each label, at least 2"
    if not attribute(node, "prob_a", []) and classes == 2:
        return "got two classes without prob_a and prob_b; allowed: probabilities; remedy: framework 'onnxruntime'"
    if attribute(node, "post_transform", "NONE") != "NONE":
        return f"got post_transform={attribute(node, 'post_transform')!r}; allowed: NONE"
    return _kernel_refusal(node)


def _kernel_refusal(node: ir.Node) -> str | None:
    return chosen(post_transform=("NONE",), kernel_type=("LINEAR", "POLY", "RBF", "SIGMOID"))(node)


def _forest(site: Site, kind: str, results: int) -> dict[str, Any]:
    """The trees of an ensemble, and the weights of their leaves, (leaves, results)."""

    def whole(name: str) -> list[int]:
        return [int(number) for number in site.attribute(name, [])]

    keys = list(zip(whole("nodes_treeids"), whole("nodes_nodeids"), strict=True))
    modes = list(site.attribute("nodes_modes", []))
    inner = [key for key, mode in zip(keys, modes, strict=True) if mode != "LEAF"]
    leaves = [key for key, mode in zip(keys, modes, strict=True) if mode == "LEAF"]
    place = {key: number for number, key in enumerate(inner)} | {key: number for number, key in enumerate(leaves)}
    ends, at = set(leaves), {key: number for number, key in enumerate(keys)}
    nexts, features_of = [whole("nodes_falsenodeids"), whole("nodes_truenodeids")], whole("nodes_featureids")
    splits, missing = _table(site, "nodes_values"), whole("nodes_missing_value_tracks_true")
    sides = [[(key[0], side[at[key]]) for key in inner] for side in nexts]
    firsts: dict[int, tuple[int, int]] = {}
    for key in keys:
        firsts.setdefault(key[0], key)
    # A tree of one leaf gets a node before it, of which both sides lead to it.
    single = [key for key in firsts.values() if key in ends]
    roots = [place[key] if key not in ends else len(inner) + single.index(key) for key in firsts.values()]
    rows = [at[key] for key in inner]
    weights = np.full((max(len(leaves), 1), results), np.nan, np.float64)
    given = _table(site, f"{kind}_weights")
    targets = zip(whole(f"{kind}_treeids"), whole(f"{kind}_nodeids"), whole(f"{kind}_ids"), given, strict=True)
    for tree, node, target, weight in targets:
        if (tree, node) not in ends:
            continue  # a sample ends in no branch, whose weights do not count
        row = place[tree, node]
        weights[row, target] = weight if np.isnan(weights[row, target]) else weights[row, target] + weight
    trees = Trees(
        roots=np.array(roots, np.int64),
        features=np.array([features_of[row] for row in rows] + [0] * len(single), np.int64),
        modes=np.array([_MODES.index(modes[row]) for row in rows] + [0] * len(single), np.int64),
        splits=np.concatenate([splits[rows], np.zeros(len(single), splits.dtype)]),
        members={},
        next_node=np.array([[place[key] for key in (*side, *single)] for side in sides], np.int64),
        ends=np.array([[key in ends for key in (*side, *single)] for side in sides], bool),
        missing=np.array([bool(missing[row]) if missing else False for row in rows] + [False] * len(single)),
        targets=np.empty(0, np.int64),
        weights=np.empty(0),
        results=results,
    )
    return {
        "trees": trees,
        "weights": weights,
        "base": _table(site, "base_values").astype(np.float64),
        "transform": site.attribute("post_transform", "NONE"),
    }


def _forest_refusal(node: ir.Node) -> str | None:
    wrong = sorted(set(attribute(node, "nodes_modes", [])) - {*_MODES, "LEAF"})
    return f"got the mode {wrong[0]!r}; allowed: LEAF, {', '.join(_MODES)}" if wrong else _TRANSFORM(node)


def _tree_regressor(site: Site) -> Call:
    settings = _forest(site, "target", site.attribute("n_targets", 1))
    function = partial(forests.forest_values, aggregate=site.attribute("aggregate_function", "SUM"), **settings)
    return Call(function, (0,))


def _tree_regressor_refusal(node: ir.Node) -> str | None:
    targets, transform = attribute(node, "n_targets", 1), attribute(node, "post_transform", "NONE")
    if transform != "NONE" and targets == 1:
        return f"got post_transform={transform!r} for one target; allowed: NONE; remedy: framework 'onnxruntime'"
    return chosen(aggregate_function=("SUM", "AVERAGE", "MIN", "MAX"))(node) or _forest_refusal(node)


def _tree_classifier(site: Site) -> Call:
    labels = _labels(site.node)
    function = partial(forests.forest_classes, labels=labels, **_forest(site, "class", len(labels)))
    return Call(first(function, site.outputs), (0,))


def _tree_classifier_refusal(node: ir.Node) -> str | None:
    labels, classes = _labels(node), set(attribute(node, "class_ids", []))
    base = attribute(node, "base_values", [])
    tensor = attribute(node, "base_values_as_tensor")
    held = len(base) if tensor is None else int(tensor.size)
    if len(labels) == 2 and (len(classes) != 1 or held > (0 in classes)):
        return (
            f"got two labels, leaves that weight {len(classes)} of them and {held} base values, for which ONNX does "
            "not define the scores; allowed: leaves that weight one; remedy: framework 'onnxruntime'"
        )
    return _forest_refusal(node)


OPERATORS: dict[str, Operator] = {
    "CategoryMapper": Operator(_category_mapper),
    "FeatureVectorizer": plain(features.join_features),
    "Imputer": Operator(_imputer),
    "LinearClassifier": Operator(_linear_classifier, refusal=_linear_classifier_refusal),
    "LinearRegressor": Operator(_linear_regressor, refusal=_linear_regressor_refusal),
    "Normalizer": Operator(_normalizer, refusal=chosen(norm=("MAX", "L1", "L2"))),
    "OneHotEncoder": Operator(_one_hot, refusal=_one_hot_refusal),
    "SVMClassifier": Operator(_svm_classifier, refusal=_svm_classifier_refusal),
    "SVMRegressor": Operator(_svm_regressor, refusal=_kernel_refusal),
    "Scaler": Operator(_scaler),
    "TreeEnsembleClassifier": Operator(_tree_classifier, refusal=_tree_classifier_refusal),
    "TreeEnsembleRegressor": Operator(_tree_regressor, refusal=_tree_regressor_refusal),
}
