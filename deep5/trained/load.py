"""Load a run's network on a framework, and its samples; nothing in the result folder is executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deep5.core.canonical import canonical_hash
from deep5.core.errors import Deep5Error, MissingDependency, UsageError
from deep5.core.files import is_file
from deep5.core.former_paths import present_name
from deep5.core.plugins import framework, load, registered
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.of_model import ARGUMENTS
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.results.reading import read_object
from deep5.results.result import Result
from deep5.results.result import load as load_result

if TYPE_CHECKING:
    from deep5.networks.network import Network
    from deep5.training.dataset import Splits

__all__ = [
    "Samples",
    "Trained",
    "class_names",
    "executor_of",
    "same_data",
    "samples_of",
    "splits_of",
    "trained",
    "transforms_of",
    "weights_of",
]

NETWORK, WEIGHTS = "network.onnx", "weights.safetensors"
# Keys that a result's samples depend on, with the registry of each; the rest of its recipe is not used.
_KINDS = {"dataset": "datasets", "validation_sampler": "samplers", "test_transforms": "transforms"}
_SUFFIXES = ("", "_args", "_kwargs")
# One more, which is a number.
_VALIDATION = "validation"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A result, and the recipe that its samples are created by.

    Attributes:
        result: The result of the folder.
        recipe: The user's, which may contain its own code; or built only from the registered names in the result; None
            if those are not sufficient.
        reason: Why `recipe` is None.
        notes: Notes on both, one sentence each.
        given: Whether the recipe is the user's.
    """

    result: Result
    recipe: Recipe | None
    reason: str
    notes: tuple[str, ...]
    given: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """The recipe's parts as recorded in the result."""
        recorded = self.result.document["recipe"]
        return {**recorded["fixed"], **recorded["mutable"]}


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples for the evaluation of a network.

    Attributes:
        batches: A source of batches.
        description: Description of the data set.
        same: Whether the data and their split are bit-identical to the run's; None if unknown.
        unknown: Why that is unknown; empty if it is known.
    """

    batches: Any
    description: Mapping[str, Any]
    same: bool | None
    unknown: str = ""


def class_names(description: Mapping[str, Any]) -> dict[int, str]:
    """Names of the classes by number.

    Args:
        description: Description of a data set; the result is empty if it has no names.
    """
    given = description.get("classes")
    if isinstance(given, list):
        return {number: str(name) for number, name in enumerate(given)}
    if isinstance(given, Mapping):
        return {int(number): str(name) for name, number in given.items() if isinstance(number, int)}
    return {}


def trained(folder: str | Path, recipe: str | Path | None = None) -> Trained:
    """Read a result folder.

    Args:
        folder: Folder of a level-2 run.
        recipe: Its recipe, as for `load_recipe`, if it has its own components; its hash is compared, and the run's
            settings of its samples are applied again.

    Raises:
        UsageError: Not a result folder, no trained network in it, another recipe, or a recipe whose samples were set to
            something other than a registered name.
    """
    result = load_result(folder)
    if not any(is_file(result.folder / name) for name in (NETWORK, WEIGHTS)):
        if result.document.get("recorded") is not None:
            raise UsageError(
                f"{result.folder} is a recording, and a recorder saves no network; allowed: a training run of deep5"
            )
        raise UsageError(
            f"{result.folder} holds no trained network: the run has the status {result.status!r} and the level "
            f"{result.document['level']}; allowed: a training run that finished"
        )
    if recipe is not None:
        given, notes = _given_recipe(result, recipe)
        return Trained(result=result, recipe=given, reason="", notes=notes, given=True)
    try:
        return Trained(result=result, recipe=_recorded_recipe(result), reason="", notes=())
    except UsageError as error:
        return Trained(result=result, recipe=None, reason=str(error), notes=())


def _given_recipe(result: Result, name_or_path: str | Path) -> tuple[Recipe, tuple[str, ...]]:
    recorded = result.document["recipe"]
    recipe = load_recipe(name_or_path).at_size(recorded["size"] or "full")
    if recipe.in_place is not None:
        recipe = recipe.with_settings({key: recorded["fixed"][key] for key in ARGUMENTS if key in recorded["fixed"]})
    found = recipe.fixed_hash(recorded.get("hash_version") or 1)
    if found != recorded["hash"]:
        raise UsageError(
            f"the recipe {name_or_path} has the fixed part {found[:12]}, the result {result.folder} that "
            f"of {recorded['name']!r}, {str(recorded['hash'])[:12]}; allowed: the recipe of the run, as it was"
        )
    recipe = _as_set(recipe, recorded["mutable"])
    ran = result.document["provenance"]["recipe_source"]
    if recipe.source_hash() != ran and (ran is not None or recipe.in_place is None):  # None: of an older deep5
        what = "recipe" if recipe.in_place is None else "model"
        return recipe, (f"the {what}'s file was changed since the run; its fixed part is the same",)
    return recipe, ()


def _as_set(recipe: Recipe, recorded: Mapping[str, Any]) -> Recipe:
    """The recipe with the run's values of the keys that its samples depend on, if settings changed them.

    Raises:
        UsageError: A key was set to something other than a registered name.
    """
    own, mutable = recipe.describe()["mutable"], dict(recipe.mutable)
    remedy = f"a file that refers to it instead of {recipe.path or recipe.name}"
    for key, kind in _KINDS.items():
        for name in (f"{key}{suffix}" for suffix in _SUFFIXES):
            if name not in recorded:
                mutable.pop(name, None)
            elif name not in own or own[name] != recorded[name]:
                mutable[name] = _named(recorded[name], key, kind, remedy) if name == key else recorded[name]
    if _VALIDATION in recorded:
        mutable[_VALIDATION] = recorded[_VALIDATION]
    else:
        mutable.pop(_VALIDATION, None)
    return replace(recipe, mutable=mutable)


def _recorded_recipe(result: Result, keys: Iterable[str] = _KINDS) -> Recipe:
    """A recipe built from the registered names that the result records under these keys.

    Raises:
        UsageError: A value is the recipe's own code.
    """
    recorded = result.document["recipe"]
    parts = {**recorded["fixed"], **recorded["mutable"]}
    known: dict[str, Any] = {}
    for key in keys:
        known |= {name: parts[name] for suffix in _SUFFIXES if (name := f"{key}{suffix}") in parts}
        if key in known:
            remedy = f"--recipe with the recipe's file, which is {recorded['name']!r} in the result"
            known[key] = _named(known[key], key, _KINDS[key], remedy)
    if "dataset" in known and _VALIDATION in parts:
        known[_VALIDATION] = parts[_VALIDATION]
    return Recipe(name=recorded["name"], fixed=known, mutable={}, metrics=())


def _named(value: Any, key: str, kind: str, remedy: str) -> Any:
    """The value that a result records under a key, by its registered name."""
    if key != "test_transforms":
        _check_registered(value, key, kind, remedy)
        return value
    return [_transform(entry, remedy) for entry in (value if isinstance(value, (list, tuple)) else [value])]


def _check_registered(value: Any, key: str, kind: str, remedy: str) -> None:
    # A name with a colon would load a file, and a result folder is untrusted.
    if not isinstance(value, str) or present_name(kind, value) not in registered(kind):
        raise UsageError(
            f"{key!r} of this result is {str(value)[:80]!r}, which is none of the registered {kind}; remedy: {remedy}"
        )


def _transform(entry: Any, remedy: str) -> Any:
    """A transform by its registered name, or by its own description."""
    if isinstance(entry, Mapping) and isinstance(entry.get("transform"), str):
        fields = {name: _tuples(value) for name, value in entry.items() if name != "transform"}
        _check_registered(entry["transform"], "test_transforms", "transforms", remedy)
        try:
            return load("transforms", entry["transform"])(**fields)
        except TypeError as error:
            raise UsageError(f"'test_transforms' of this result holds {str(entry)[:80]}: {error}") from error
    _check_registered(entry, "test_transforms", "transforms", remedy)
    return entry


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def transforms_of(run: Trained) -> tuple[Any, ...]:
    """Transforms of the run's test samples after their data set.

    Raises:
        UsageError: They are the recipe's own code, and the recipe is not given.
    """
    recipe = run.recipe or _recorded_recipe(run.result, ("test_transforms",))
    return recipe_parts(recipe)["test_transforms"].transforms()


def weights_of(run: Trained) -> tuple[Network, tuple[str, ...]]:
    """The trained network, and notes on it.

    Raises:
        UsageError: The result holds only its weights.
        NetworkError: A file is damaged.
    """
    from deep5.networks.network import Network

    folder = run.result.folder
    if not is_file(folder / NETWORK):
        raise UsageError(
            f"{folder} holds no {NETWORK}: the network was native code; remedy: --recipe with the recipe that makes "
            "it, or with the FILE.py:NAME that was run"
        )
    network = Network.from_onnx(folder / NETWORK)
    if is_file(folder / WEIGHTS):
        network = network.with_weights(folder / WEIGHTS)
    recorded = run.result.document["provenance"]["trained_weights"]
    if recorded is not None and network.weights_hash() != recorded:
        return network, ("the weights in the folder are not those that the run wrote: their hash differs",)
    return network, ()


def executor_of(run: Trained, name: str | None, device: str) -> tuple[Any, tuple[str, ...]]:
    """The trained network on a framework, and notes on it.

    Args:
        run: The result.
        name: Name of the framework; None: the run's.
        device: The device to use.

    Raises:
        UsageError: No such framework; or native code without its recipe, or on a framework that is not its own.
        Unsupported: The framework does not run it.
    """
    recorded = run.result.document["framework"] or {}
    if not is_file(run.result.folder / NETWORK) and run.given:
        return _native_executor(run, name), ()
    network, notes = weights_of(run)
    if name is None:
        name = str(recorded.get("name"))
        if name.partition(":")[0] not in registered("frameworks"):
            raise UsageError(f"the run's framework was {name!r}, which is not registered; remedy: --framework NAME")
    found = framework(name)
    threads = (run.result.document["threads"] or {}).get("asked")
    if threads is not None:
        try:
            found.set_threads(threads)
        except UsageError as error:
            notes = (*notes, f"the number of threads is not the run's: {error}")
    return found.executor(network, device=device), notes


def _native_executor(run: Trained, name: str | None) -> Any:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    from deep5.run.assemble import assemble

    assert run.recipe is not None  # noqa: S101 - the caller looked
    executor = assemble(recipe_parts(run.recipe)).executor
    own = executor.settings().get("framework")
    if name not in (None, own):
        raise UsageError(f"--framework {name}, but {run.result.folder} holds no {NETWORK}; allowed: {own}, its own")
    path = run.result.folder / WEIGHTS
    try:
        executor.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise UsageError(f"the weights {path} cannot be read: {error}; allowed: the file that the run wrote") from error
    return executor


def splits_of(recipe: Recipe) -> Splits:
    """The data set of a recipe; raises a `UsageError` if it cannot be created."""
    from deep5.run import assemble_samples

    parts = recipe_parts(recipe)
    return cast("Splits", assemble_samples.splits_of(parts["dataset"], parts["validation"]))


def samples_of(run: Trained, network: Any, split: str, data: str | None, arguments: Mapping[str, Any]) -> Samples:
    """The samples for the evaluation, in batches, prepared like the run's test samples.

    Args:
        run: The result.
        network: The network whose inputs they are for.
        split: `"test"` or `"train"`.
        data: Another data set, by its registered name or as `FILE.py:NAME`; None: the run's.
        arguments: Arguments of that data set, by name.

    Raises:
        UsageError: The data set cannot be created, or does not fit the network; or the transforms of the run's test
            samples are the recipe's own code, and the recipe is not given.
    """
    recipe = source = run.recipe
    if data is not None:
        # Samples are prepared as in the run, whatever their data set.
        recipe = recipe or _recorded_recipe(run.result, ("validation_sampler", "test_transforms"))
        fixed = {"dataset": data, "dataset_kwargs": dict(arguments)}
        source = Recipe(name=recipe.name, fixed=fixed, mutable={}, metrics=())
    elif arguments:
        raise UsageError("--set is for the data set of --data; remedy: name one")
    if recipe is None or source is None:
        raise UsageError(run.reason)
    splits = splits_of(source)
    same, unknown = same_data(run, splits)
    chosen = splits.train if split == "train" else splits.test
    return Samples(
        batches=_sampler(run, recipe, network, chosen),
        description=splits.description,
        same=same,
        unknown=unknown,
    )


def same_data(run: Trained, splits: Any) -> tuple[bool | None, str]:
    """Whether data and split are the run's; or None, and why that is unknown."""
    hashes = [splits.train.content_hash(), splits.test.content_hash()]
    provenance = run.result.document["provenance"]
    if provenance["data"] is None:
        return None, "the run did not record the hash of its data"
    if None in hashes:
        return None, "the hash of the data is unknown without reading all of them"
    data = canonical_hash(hashes)
    if data == provenance["data"]:
        return (splits.split_hash or data) == provenance["split"], ""
    then, now = _described_hash(run.result.folder), splits.description.get("hash")
    if then is not None and then != now:
        return None, f"the run's hash of its data covers something else: {then!r:.120}; now {now!r:.120}"
    return False, ""


def _described_hash(folder: Path) -> str | None:
    """What the run's hash of its data covers, as its description states."""
    try:
        described = read_object(folder / "dataset.json", root=folder)
    except UsageError:
        return None
    found = described.get("hash")
    return found if isinstance(found, str) else None


def _sampler(run: Trained, recipe: Recipe, network: Any, samples: Any) -> Any:
    from deep5.training.transforms import fitted

    parts = recipe_parts(recipe)
    transforms = parts["test_transforms"].transforms()
    try:
        fit, found = fitted(samples, transforms, network.inputs)
    except UsageError as error:
        raise UsageError(f"data set and network do not fit: {error}") from error
    size = run.described.get("batch_size")
    # The batch size of the run, so that its sums are reproduced.
    size = max(size, 256) if isinstance(size, int) else 256
    size = min(size, len(fit)) if hasattr(fit, "__len__") else size
    sampler = parts["validation_sampler"]
    # Random transforms depend on it.
    seed = run.result.document["seeds"].get("order", 0)
    try:
        return sampler.made(fit, size, seed=seed, transforms=found)
    except MissingDependency:
        raise
    except Deep5Error as error:
        raise UsageError(f"the samples cannot be put into batches: {error}") from error
