"""Operators of ONNX's other domains: classical machine learning, and the update rules of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from deep5.frameworks.reference.kernels import features, trees, updates
from deep5.frameworks.reference.kernels.memory import Array
from deep5.frameworks.reference.kernels.text import decoded
from deep5.frameworks.reference.table import Call, Operator, Site, configured, first, plain
from deep5.networks.onnx.attributes import attribute

__all__ = ["OPERATORS"]

_KINDS = {"int64s": np.int64, "floats": np.float32, "strings": object}
_DEFAULTS = {"int64": ("default_int64", -1), "float": ("default_float", -0.0), "string": ("default_string", "_Unused")}


def _update(function: Callable[..., tuple[Array, ...]], **defaults: Any) -> Operator:
    def make(site: Site) -> Call:
        settings = {name: site.attribute(name, default) for name, default in defaults.items()}
        return Call(first(partial(function, **settings), site.outputs), site.given)

    return Operator(make)


def _momentum(site: Site) -> Call:
    settings = {name: site.attribute(name) for name in ("norm_coefficient", "alpha", "beta")}
    function = partial(updates.momentum, nesterov=site.attribute("mode") == "nesterov", **settings)
    return Call(first(function, site.outputs), site.given)


def _momentum_refusal(node: ir.Node) -> str | None:
    mode = attribute(node, "mode")
    return None if mode in ("standard", "nesterov") else f"got mode={mode!r}; allowed: standard, nesterov"


def _listed(node: ir.Node, side: str) -> Array | None:
    """The keys or the values of a LabelEncoder."""
    given = attribute(node, f"{side}_tensor")
    if given is not None:
        held: Array = decoded(given.numpy().reshape(-1))
        return held
    for kind, dtype in _KINDS.items():
        if (values := attribute(node, f"{side}_{kind}")) is not None:
            return np.array(values, dtype)
    return None


def _label_encoder(site: Site) -> Call:
    keys, values = (_listed(site.node, side) for side in ("keys", "values"))
    assert keys is not None  # noqa: S101 - not refused
    assert values is not None  # noqa: S101 - as above
    tensor = site.attribute("default_tensor")
    if tensor is not None:
        default = decoded(tensor.numpy().reshape(-1))[0]
    else:
        kind = "string" if values.dtype == object else "float" if values.dtype.kind == "f" else "int64"
        default = site.attribute(*_DEFAULTS[kind])
    return Call(partial(features.encode_labels, keys=keys, values=values, default=default), (0,))


def _label_encoder_refusal(node: ir.Node) -> str | None:
    keys, values = _listed(node, "keys"), _listed(node, "values")
    if keys is None or values is None or len(keys) != len(values):
        counts = [0 if found is None else len(found) for found in (keys, values)]
        return f"got {counts[0]} keys and {counts[1]} values; allowed: as many of each"
    return None


def _trees(site: Site) -> Call:
    def whole(name: str) -> Array:
        return np.array(site.attribute(name), np.int64)

    modes = site.attribute("nodes_modes").numpy().reshape(-1)
    missing = site.attribute("nodes_missing_value_tracks_true")
    members = site.attribute("membership_values")
    groups = [] if members is None else _groups(members.numpy().reshape(-1))
    targets = whole("leaf_targetids")
    ensemble = trees.Trees(
        roots=whole("tree_roots"),
        features=whole("nodes_featureids"),
        modes=modes,
        splits=site.attribute("nodes_splits").numpy().reshape(-1),
        members=dict(zip(np.flatnonzero(modes == trees.MEMBER).tolist(), groups, strict=False)),
        next_node=np.stack([whole("nodes_falsenodeids"), whole("nodes_truenodeids")]),
        ends=np.stack([whole("nodes_falseleafs"), whole("nodes_trueleafs")]) != 0,
        missing=np.zeros(len(modes), bool) if missing is None else np.array(missing) != 0,
        targets=targets,
        weights=site.attribute("leaf_weights").numpy().reshape(-1),
        results=site.attribute("n_targets") or int(targets.max(initial=-1)) + 1,
    )
    function = partial(
        trees.tree_ensemble,
        trees=ensemble,
        aggregate=site.attribute("aggregate_function", 1),
        transform=site.attribute("post_transform", 0),
    )
    return Call(function, (0,))


def _groups(members: Array) -> list[Array]:
    """The elements between NaNs."""
    return [part[~np.isnan(part)] for part in np.split(members, np.flatnonzero(np.isnan(members)))]


def _trees_refusal(node: ir.Node) -> str | None:
    transform, aggregate = attribute(node, "post_transform", 0), attribute(node, "aggregate_function", 1)
    if transform not in range(4) or aggregate not in range(4):
        return (
            f"got post_transform={transform} and aggregate_function={aggregate}; allowed: 0 to 3 of either (no PROBIT)"
        )
    return None


OPERATORS: dict[str, dict[str, Operator]] = {
    "ai.onnx.ml": {
        "ArrayFeatureExtractor": plain(features.extract_features),
        "Binarizer": configured(features.binarize, threshold=0.0),
        "LabelEncoder": Operator(_label_encoder, refusal=_label_encoder_refusal),
        "TreeEnsemble": Operator(_trees, refusal=_trees_refusal),
    },
    "ai.onnx.preview.training": {
        "Adagrad": _update(updates.adagrad, norm_coefficient=0.0, decay_factor=0.0, epsilon=1e-6),
        "Adam": _update(
            updates.adam, norm_coefficient=0.0, norm_coefficient_post=0.0, alpha=0.9, beta=0.999, epsilon=1e-6
        ),
        "Momentum": Operator(_momentum, refusal=_momentum_refusal),
    },
}
"""Operators by domain."""
