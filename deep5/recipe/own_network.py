"""Networks that a recipe's own code creates: with the same initial weights at one seed, or reported if not."""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
import sys
import time
import warnings
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from deep5.core.errors import Deep5Error, RecipeError, described
from deep5.core.own_files import is_own_module
from deep5.core.plugins import name_of
from deep5.core.seeds import derive_seed
from deep5.core.tensors import to_numpy
from deep5.networks.flax_state import flax_values, is_flax
from deep5.networks.keras_structure import is_keras, keras_structure
from deep5.recipe.faults import is_onnx_file, is_pair
from deep5.recipe.generators import seeded_call
from deep5.recipe.opened_files import noting
from deep5.recipe.part import Part, is_factory, taken
from deep5.recipe.registered import own_registered

__all__ = ["IDENTITY_SEED", "Digest", "described_network", "is_own_network", "made_network"]

IDENTITY_SEED = derive_seed(0, "weights")
"""The seed of the initial weights in a recipe's hash: that of the weights of a run with seed 0."""

# A network that takes longer is not created a second time to compare the two.
_CHEAP_S = 10.0
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_AN_OBJECT = (
    "the model is an object: its initial weights are those that it has, whatever the seed; remedy: give its class or a "
    "function that returns it, which draws them from the seed"
)
# By component, whether two networks created at one seed had the same weights.
_REPEATS: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Hashes of a network.

    Attributes:
        structure: Of its structure; None if it differs each time.
        weights: Of its initial weights; None if they differ each time.
        attributes: What it computes with besides its weights; see `attributes_of`.
    """

    structure: str | None
    weights: str | None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, str | None]:
        """The hashes of the structure with the attributes, and of the weights, in JSON types."""
        structure = self.structure
        if structure is not None and self.attributes:
            structure = hashlib.sha256(
                "\n".join([structure, *(f"{name} {text}" for name, text in sorted(self.attributes.items()))]).encode()
            ).hexdigest()
        return {"structure": structure, "weights": self.weights}


def is_own_network(value: Any) -> bool:
    """Whether the value of `model` is the user's: code that creates a network, a file, or a model of a library."""
    if is_onnx_file(value) or is_pair(value):
        return True
    if isinstance(value, str):
        return ".py:" in value or own_registered("networks", value) is not None
    if not is_factory(value):
        return not hasattr(value, "structure_hash")  # a network as an object is its own canonical form
    return name_of("networks", value) is None or is_own_module(str(getattr(value, "__module__", None)))


def made_network(part: Part, seed: int) -> tuple[Any, str | None]:
    """The network under `model`.

    The global generators are seeded while code that is not deep5's creates it. If that is cheap, it is created twice.

    Args:
        part: The part `model`.
        seed: The seed of the initial weights.

    Returns:
        The network; and a warning if its initial weights are not the same each time it is created, else None.

    Raises:
        RecipeError: As `Part.made`.
        MissingDependency: As `Part.made`.
    """
    component = part.component()
    if is_onnx_file(part.value):
        return part.make(component), None
    shipped = str(getattr(component, "__module__", "")).startswith("deep5.")
    if shipped and not is_own_network(part.value):
        return part.make(component, seed=seed), None
    network, seconds = _timed(part, component, seed)
    if network is component:
        if is_pair(component) or hasattr(component, "structure_hash"):
            return network, None
        return _copied(part, component), _AN_OBJECT
    repeats = _known(component)
    if repeats is None and seconds < _CHEAP_S:
        repeats = _remember(component, digest_of(network) == digest_of(_timed(part, component, seed)[0]))
    return network, None if repeats is not False else (
        f"the network of the recipe's own code under {part.key!r} is another one each time, with one seed: "
        "a run cannot be repeated; remedy: draw its weights from the argument seed, or from the global generators of "
        "Python, NumPy, PyTorch or TensorFlow, without seeding them from the time"
    )


def described_network(part: Part) -> Digest | None:
    """The hashes of the network under `model` at the identity's seed; None if its values cannot be read.

    Raises:
        RecipeError: As `Part.made`.
        MissingDependency: As `Part.made`.
    """
    component = part.component()
    # Each time by itself: a file that only the first call writes, such as a cache, is read by all later ones.
    with noting():
        network, seconds = _timed(part, component, IDENTITY_SEED)
    found = digest_of(network)
    if found is None or _known(component) is True or seconds >= _CHEAP_S:
        return found
    del network
    with noting():
        again = digest_of(_timed(part, component, IDENTITY_SEED)[0])
    _remember(component, found == again)
    assert again is not None  # noqa: S101 - it is of the same kind
    return Digest(
        structure=found.structure if found.structure == again.structure else None,
        weights=found.weights if found.weights == again.weights else None,
        # Without what differs each time, such as a time.
        attributes={name: text for name, text in found.attributes.items() if again.attributes.get(name) == text},
    )


def _copied(part: Part, model: Any) -> Any:
    """A copy of a model, which training changes in place: the next run starts from the same weights."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what Keras uses of NumPy
            return copy.deepcopy(model)
    except Exception as error:
        raise RecipeError(
            f"{part.where}{part.key!r} is a {type(model).__name__} that cannot be copied ({described(error)}), and a "
            "run trains a copy; remedy: its class, or a function that returns it"
        ) from error


def _timed(part: Part, component: Any, seed: int) -> tuple[Any, float]:
    begin = time.perf_counter()
    network = seeded_call(seed, lambda: part.make(component, seed=seed, **_streams(component, seed)))
    return network, time.perf_counter() - begin


def _streams(component: Any, seed: int) -> dict[str, Any]:
    """Flax's random streams, for a class that takes them: JAX has no global generator to seed."""
    nnx = getattr(sys.modules.get("flax"), "nnx", None)
    if nnx is None or not (isinstance(component, type) and issubclass(component, nnx.Module)):
        return {}
    return {"rngs": nnx.Rngs(seed)} if taken(component, {"rngs": None}) else {}


def _known(component: Any) -> bool | None:
    try:
        return _REPEATS.get(component)
    except TypeError:  # some callables have no weak references
        return None


def _remember(component: Any, repeats: bool) -> bool:
    with suppress(TypeError):
        _REPEATS[component] = repeats
    return repeats


def digest_of(network: Any) -> Digest | None:
    """The hashes of a network of any kind: of deep5, a module with `state_dict()` or `get_weights()`, a module of Flax,
    or arrays in dicts and lists; None for others."""
    if hasattr(network, "structure_hash") and hasattr(network, "weights_hash"):
        return Digest(structure=network.structure_hash(), weights=network.weights_hash())
    values: Any = network
    for name in ("state_dict", "get_weights"):
        if callable(read := getattr(network, name, None)) and not inspect.isclass(network):
            values = read()
            break
    if is_flax(network):
        values = flax_values(network)
    structure, weights = hashlib.sha256(), hashlib.sha256()
    if values is not network:
        described = keras_structure(network) if is_keras(network) else f"{type(network).__qualname__} {network!r}"
        structure.update(_ADDRESS.sub("", described).encode())
    try:
        count = _add(structure, weights, "", values)
    except (Deep5Error, TypeError, ValueError, RecursionError):
        return None
    if not count and not is_flax(network):
        return None
    from deep5.networks.module_state import attributes_of

    return Digest(structure=structure.hexdigest(), weights=weights.hexdigest(), attributes=attributes_of(network))


def _add(structure: Any, weights: Any, name: str, value: Any) -> int:
    """Add values to the digests.

    Returns:
        Their number.
    """
    if isinstance(value, Mapping):
        return sum(_add(structure, weights, f"{name}/{key}", value[key]) for key in sorted(value, key=str))
    if isinstance(value, (list, tuple)):
        return sum(_add(structure, weights, f"{name}/{number}", item) for number, item in enumerate(value))
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        # Settings among the arrays, such as sizes.
        if value is None or isinstance(value, (bool, int, float, str)):
            structure.update(f"{name} {value!r}\n".encode())
            return 0
        raise TypeError(f"{type(value).__name__} is no array")
    array = to_numpy(value)
    structure.update(f"{name} {array.dtype} {array.shape}\n".encode())
    weights.update(f"{name} {array.dtype} {array.shape}\n".encode())
    weights.update(array.tobytes())
    return 1
