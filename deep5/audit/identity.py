"""Rule 14: compares a result's recipe, source and environment with the hashes that identify it."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.audit.files import SOURCE_BYTES, json_of, sha256_of
from deep5.audit.finding import Ledger
from deep5.audit.hashes import hash_of_environment, hash_of_values
from deep5.core.errors import UsageError
from deep5.core.quantities import size
from deep5.recipe.of_model import ARGUMENTS
from deep5.results.origin import ORIGIN, SOURCES, origin_schema, source_name
from deep5.results.reading import TABLE_BYTES
from deep5.results.validation import check_document

if TYPE_CHECKING:
    from deep5.recipe.recipe import Recipe

__all__ = ["check_environment", "check_origin", "check_recipe", "own_recipe"]


def check_recipe(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """The recipe's hash follows from its fixed part, the source's from recipe.py, which is hashed and never executed.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json or comparison.json.
    """
    recipe = document["recipe"]
    with ledger.part(14, "the fixed part of the recipe"):
        # The stored values are already canonical: they are hashed without conversion.
        content = recipe.get("content")
        version = 1 if content is None else 2
        ledger.same(14, "the version of the recipe's hash", recipe.get("hash_version") or 1, version)
        stated = recipe["fixed"] if content is None else {"content": content, "fixed": recipe["fixed"]}
        ledger.same(14, "the recipe's hash", recipe["hash"], hash_of_values(stated))
    with ledger.part(14, "the recipe's source"):
        _check_source(ledger, root, document["provenance"]["recipe_source"])
    with ledger.part(14, "the recipe's source"):
        _check_own(ledger, document)


def _check_source(ledger: Ledger, root: Path, expected: str | None) -> None:
    """The stored file of the recipe, or of the model in its place, has the recorded hash."""
    stored = [name for name in SOURCES if lexists(root / name)]
    ledger.hold(14, len(stored) < 2, f"there are {' and '.join(stored)}; allowed: the one file that ran")
    name = (*stored, SOURCES[0])[0]
    network = name.endswith(".onnx")
    if network and (root / name).lstat().st_size > TABLE_BYTES:
        ledger.skip(f"{name}: it is larger than {size(TABLE_BYTES)}")
        return
    found = sha256_of(root, name, most_bytes=TABLE_BYTES if network else SOURCE_BYTES)
    ledger.same(14, f"the hash of {name}", expected, found)


def own_recipe(name: str, size: str, fixed_hash: str) -> Recipe:
    """One of deep5's own recipes, as installed, at a size.

    Args:
        name: Name of the recipe.
        size: One of its sizes.
        fixed_hash: Required hash of its fixed part.

    Raises:
        UsageError: deep5 has no such recipe, or its fixed part differs.
    """
    from deep5.recipe.recipe import load_recipe

    if not _is_installed(name):
        raise UsageError("the recipe is not one of deep5's")
    recipe = load_recipe(name).at_size(size)  # the installed one, not the one in the folder
    if recipe.fixed_hash() != fixed_hash:
        raise UsageError("the recipe's fixed part is not that of the installed one")
    return recipe


def _check_own(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """A result with the name of one of deep5's own recipes in the closed division has exactly that recipe."""
    from deep5.core.version import __version__
    from deep5.recipe.recipe import load_recipe

    recipe, source = document["recipe"], document["provenance"]["recipe_source"]
    name, closed = str(recipe["name"]), recipe["division"] == "closed"
    if not _is_installed(name):
        return
    found = load_recipe(name)
    if found.source_hash() != source:
        made_by = (document["software"] or {}).get("deep5")
        if made_by != __version__:
            ledger.skip("the recipe's file: another version of deep5 made the result")
        else:
            ledger.hold(
                14,
                not closed,
                f"the division is closed, and recipe.py is not the recipe {name!r} of deep5 {__version__}; allowed: "
                "that file, or the open division",
            )
        return
    if recipe["size"] not in ("full", *found.sizes):
        ledger.hold(14, False, f"the size {recipe['size']!r:.60} is not one of the recipe's")
        return
    at_size = found.at_size(recipe["size"])
    ledger.same(
        14,
        f"the fixed part of {name} at the size {recipe['size']!r:.60} by its own file",
        recipe["hash"],
        at_size.fixed_hash(),
    )
    if closed:
        ledger.hold(14, at_size.published, "the division is closed, and the size is not the published one")
        goals = [entry.get("goal") for entry in recipe["metrics"]]
        ledger.same(14, "the goals by the recipe's own file", goals, [e["goal"] for e in found.describe()["metrics"]])


def _is_installed(name: str) -> bool:
    from deep5.recipe.registered import registered_recipe

    found = registered_recipe(name)
    return found is not None and found.point.value.startswith("deep5.recipes.")


def check_origin(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """origin.json, if there is one, names the recipe and only settings of the run; results of older versions have none.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json.
    """
    with ledger.part(14, ORIGIN):
        if (found := json_of(root, ORIGIN)) is None:
            return
        check_document(found, origin_schema())
        recipe, file, model = document["recipe"], found["file"], found.get("model")
        ledger.hold(
            14,
            (file is None) == (document["provenance"]["recipe_source"] is None),
            f"{ORIGIN} names the recipe's file {file!r:.100}, and the run's source has another state",
        )
        if file is not None and not found["registered"]:
            name = Path(file).stem if model is None or _is_onnx(model) else model.rpartition(":")[2]
            ledger.same(14, f"the recipe's name, by {ORIGIN}", recipe["name"], name)
        if model is not None:
            stored = source_name(model)
            ledger.hold(14, lexists(root / stored), f"{ORIGIN} names a model, and there is no {stored}")
            goals = [entry.get("goal") for entry in recipe["metrics"]]
            ledger.hold(11, not any(goals), f"a model in place of a recipe has no goals; stored {goals!r:.100}")
        # The arguments of such a model can be set.
        settable = {*recipe["mutable"], *(() if model is None else ARGUMENTS)}
        odd = sorted(found["settings"].keys() - settable)
        ledger.hold(14, not odd, f"{ORIGIN} has settings that the run has not: {', '.join(odd)[:100]}")


def _is_onnx(model: str) -> bool:
    return source_name(model) == "model.onnx"


def check_environment(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """The environment's hash follows from the stored machine and software; environment.json agrees.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json or comparison.json.
    """
    before, software = document["system"]["before"], document["software"]
    stored = document["provenance"]["environment"]
    with ledger.part(14, "machine and software"):
        if before is None or software is None:
            ledger.hold(14, stored is None, "an environment's hash is stored, and no machine or no software")
        else:
            ledger.same(14, "the environment's hash", stored, hash_of_environment(before, software))
    with ledger.part(14, "environment.json"):
        resumed = document.get("resumed") or []
        name = f"environment-{len(resumed) + 1}.json" if resumed else "environment.json"
        reported = json_of(root, name)
        # A run writes it at its start; a comparison has none.
        ended = "level" in document and document["status"] == "success"
        ledger.hold(
            14, reported is not None or not ended, f"there is no {name}; allowed: the environment of every process"
        )
        if reported is not None:
            ledger.same(14, f"software in {name}", reported["software"], software)
            ledger.same(14, f"machine in {name}", reported["system"], before)
    with ledger.part(14, "the machine"):
        after = document["system"]["after"]
        if after is not None and before is not None:
            for key in ("model", "architecture", "logical_cores"):
                ledger.same(14, f"the processor's {key} before and after", before["cpu"][key], after["cpu"][key])
