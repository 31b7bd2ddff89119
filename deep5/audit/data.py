"""Rules 1 and 12: compares the inputs of a run or candidate with their description, and recreates them if possible.

The hashes of data, split and initial weights are of contents that no result stores. deep5's own digits are in the
package, and the networks of its own recipes are drawn from the seed: their hashes are recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from deep5.audit.drawn_order import seed_for
from deep5.audit.files import json_of
from deep5.audit.finding import Ledger
from deep5.audit.hashes import hash_of_values
from deep5.audit.identity import own_recipe
from deep5.audit.numerics import PLAYED
from deep5.audit.run_times import logged
from deep5.core.errors import Deep5Error

__all__ = ["check_data", "check_description", "check_own_network", "check_weights", "without_kinks"]

_FILE = "dataset.json"
# Arguments of the digits that read no file; the maximum image size.
_ARGUMENTS = {"size": int, "test_share": float, "split_seed": int, "limit": int, "labels": bool}
_LARGEST_IMAGE = 64
# The recipe's part that replaces the test samples, next to these arguments.
_HELD_OUT = "validation"
# Operators with continuous derivatives: those of LeNet with tanh, the smooth one of deep5's recipes.
_SMOOTH = {
    "Conv", "AveragePool", "Gemm", "MatMul", "Add", "Mul", "Tanh", "Sigmoid", "Softmax", "Flatten", "Reshape",
    "SoftmaxCrossEntropyLoss",
}  # fmt: skip


# Samplers whose batches are not known in advance.
_UNKNOWN_ORDER = ("stream", *PLAYED)


def check_description(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """dataset.json exists, describes the data, and has the same number of samples as the events.

    Args:
        ledger: Receives the findings.
        root: The folder.
        document: result.json of a finished training run.
    """
    provenance, reported = document["provenance"], json_of(root, _FILE)
    parts = document["recipe"]["fixed"] | document["recipe"]["mutable"]
    for key, rule in (("data", 1), ("split", 12), ("initial_weights", 1), ("batch_order", 1)):
        if key == "batch_order" and provenance[key] is None and parts.get("train_sampler") in _UNKNOWN_ORDER:
            ledger.skip("the order of the batches is unknown until the stream ends or the episodes are played")
            continue
        ledger.hold(rule, provenance[key] is not None, f"there is no hash of the run's {key.replace('_', ' ')}")
    if not ledger.hold(12, isinstance(reported, dict), f"there is no {_FILE}: the data are not described"):
        return
    counts = reported.get("samples")
    if not isinstance(counts, dict):
        ledger.skip(f"{_FILE}: the data set does not describe its samples")
        return
    for part, key in (("train", "train_samples"), ("test", "eval_samples")):
        events = logged(root, key)
        if events and part in counts:
            ledger.same(12, f"the number of samples of the {part} set in {_FILE}", counts[part], events[0])
    name, arguments = _digits(parts)
    if name is not None:
        ledger.same(12, f"the description of the digits in {_FILE}", reported, _made(arguments)[2])


def check_data(ledger: Ledger, who: str, parts: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """The hashes of data and split are those of the digits, if the data are the digits.

    Args:
        ledger: Receives the findings.
        who: Name used in findings.
        parts: Fixed and mutable parts of the recipe.
        provenance: Its hashes.
    """
    name, arguments = _digits(parts)
    if name is None:
        ledger.skip("hashes of data and split: the data set is not in the package")
        return
    data, split, _ = _made(arguments)
    ledger.same(1, f"the hash of the data of {who}", provenance.get("data"), data)
    ledger.same(12, f"the hash of the split of {who}", provenance.get("split"), split)


def check_weights(
    ledger: Ledger, who: str, document: Mapping[str, Any], provenance: Mapping[str, Any], seed: object
) -> None:
    """The hash of the initial weights is that of the weights drawn from the seed, for deep5's own recipes.

    Args:
        ledger: Receives the findings.
        who: Name used in findings.
        document: result.json or comparison.json.
        provenance: Its hashes.
        seed: Seed of the run.
    """
    recipe = document["recipe"]
    parts = {**recipe["fixed"], **recipe["mutable"]}
    if provenance.get("init") is not None or {"init", "precision"} & parts.keys() or "model" not in recipe["fixed"]:
        ledger.skip("the hash of the initial weights: they depend on more than the seed")
        return
    if not isinstance(seed, int) or isinstance(seed, bool):
        return
    try:
        follows = _drawn(str(recipe["name"]), str(recipe["size"]), str(recipe["hash"]), seed)
    except Deep5Error as error:
        ledger.skip(f"the hash of the initial weights: {str(error).splitlines()[0][:100]}")
        return
    ledger.same(1, f"the hash of the initial weights of {who}", provenance.get("initial_weights"), follows)


def without_kinks(document: Mapping[str, Any]) -> bool:
    """Whether the network of one of deep5's own recipes has only operators with continuous derivatives; False where
    the recipe is another.

    Args:
        document: comparison.json.
    """
    recipe = document["recipe"]
    if "model" not in recipe["fixed"]:
        return False
    try:
        network = _network(str(recipe["name"]), str(recipe["size"]), str(recipe["hash"]), 0)
    except Deep5Error:
        return False
    return {node.op_type for node in network.nodes} <= _SMOOTH


def check_own_network(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """The network of a recipe's own code is the one in its hash, which is that of seed 0.

    Args:
        ledger: Receives the findings.
        document: result.json of a run whose network is a graph.
    """
    recipe, provenance = document["recipe"], document["provenance"]
    network = (recipe.get("content") or {}).get("network")
    if network is None:
        return
    parts = {**recipe["fixed"], **recipe["mutable"]}
    if document["seeds"].get("weights") != seed_for(0, "weights") or {"init", "precision"} & parts.keys():
        ledger.skip("the network in the recipe's hash: that of the run depends on more than seed 0")
        return
    if parts.get("loss") is not None:
        ledger.skip("the network in the recipe's hash: that of the run has a loss besides")
        return
    for key, name in (("structure", "network"), ("weights", "initial_weights")):
        if network[key] is not None and provenance[name] is not None:
            ledger.same(1, f"the {name.replace('_', ' ')}, by the recipe's hash", provenance[name], network[key])


def _digits(parts: Mapping[str, Any]) -> tuple[str | None, tuple[tuple[str, Any], ...]]:
    """The digits and their arguments; None if the data are different or otherwise modified."""
    arguments = parts.get("dataset_kwargs") or {}
    fits = parts.get("dataset") == "digits" and isinstance(arguments, Mapping) and arguments.keys() <= _ARGUMENTS.keys()
    if not fits or not all(
        value is None or (isinstance(value, _ARGUMENTS[key]) and isinstance(value, bool) == (_ARGUMENTS[key] is bool))
        for key, value in arguments.items()
    ):
        return None, ()
    size, share = arguments.get("size"), parts.get("validation")
    if (size is not None and size > _LARGEST_IMAGE) or not (share is None or isinstance(share, float)):
        return None, ()
    return "digits", (*sorted(arguments.items()), *([] if share is None else [(_HELD_OUT, share)]))


@lru_cache(maxsize=8)
def _made(arguments: tuple[tuple[str, Any], ...]) -> tuple[str, str, dict[str, Any]]:
    """Hash of the data, hash of the split, description."""
    from deep5.training.datasets.uci_digits import digits
    from deep5.training.held_out import held_out

    given = dict(arguments)
    share = given.pop(_HELD_OUT, None)
    splits = digits(**given)
    if share is not None:
        splits = held_out(splits, share)
    content = hash_of_values([part.content_hash() for part in (splits.train, splits.test)])
    return content, splits.split_hash or content, dict(splits.description)


@lru_cache(maxsize=64)
def _drawn(name: str, size: str, fixed_hash: str, seed: int) -> str:
    """The hash of the weights drawn from a seed.

    Raises:
        UsageError: The recipe is not deep5's own, or differs from the installed one; or its network is not a graph.
    """
    return str(_network(name, size, fixed_hash, seed).weights_hash())


@lru_cache(maxsize=4)
def _network(name: str, size: str, fixed_hash: str, seed: int) -> Any:
    from deep5.core.errors import UsageError
    from deep5.networks.network import Network
    from deep5.recipe.experiment import recipe_parts

    network = recipe_parts(own_recipe(name, size, fixed_hash))["model"].made(seed=seed_for(seed, "weights"))
    if not isinstance(network, Network):
        raise UsageError("the network is native code")
    return network
