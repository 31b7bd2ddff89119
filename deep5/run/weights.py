"""Initial weights of a recipe, and their precision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deep5.core.errors import Deep5Error, MissingDependency, NetworkError, RecipeError
from deep5.core.files import is_file
from deep5.recipe.part import Part, Parts

if TYPE_CHECKING:
    from deep5.networks.network import Network

__all__ = ["as_key", "initial_weights", "prepared"]


def initial_weights(init: Part) -> Path | None:
    """The file under `init`, or None if the network has its own weights.

    Raises:
        RecipeError: The file does not exist.
    """
    if init.value is None:
        return None
    path = Path(init.folder or "", init.value)
    if not is_file(path):
        raise RecipeError(
            f"{init.where}the file of weights {path} is not there; allowed: a .safetensors or an .onnx file"
        )
    return path


def prepared(parts: Parts, network: Network) -> Network:
    """The network with the weights of the file under `init` and in the recipe's precision.

    The weights may be those of the network as it is built, which are then converted, or those that a run in the
    recipe's precision left, which are taken as they are.

    Raises:
        RecipeError: The file does not exist or does not fit; or the network does not support the precision.
    """
    init, precision = parts["init"], parts["precision"]
    try:
        return _with_precision(precision, _with_initial_weights(init, network))
    except RecipeError as error:
        if precision.value is None or not isinstance(error.__cause__, NetworkError) or init.value is None:
            raise
        try:
            return _with_initial_weights(init, _with_precision(precision, network))
        except RecipeError as other:
            # Both list what does not fit; that of the right element type lists less.
            raise min(other, error, key=lambda each: len(str(each))) from None


def _with_initial_weights(part: Part, network: Network) -> Network:
    """The network with the weights of the file under `init`, or unchanged."""
    path = initial_weights(part)
    if path is None:
        return network
    try:
        return network.with_weights(path)
    except MissingDependency:
        raise
    except Deep5Error as error:
        raise RecipeError(f"{part.where}'init': {error}") from error


def _with_precision(part: Part, network: Network) -> Network:
    """The network in the recipe's precision, or in its own if the recipe sets none."""
    precision = part.value
    if precision is None:
        return network
    from deep5.networks.transforms.precision import with_precision

    try:
        return with_precision(network, precision)
    except Deep5Error as error:
        raise RecipeError(f"{part.where}'precision': {as_key(str(error))}") from error


def as_key(message: str) -> str:
    """A message on a network's element type, with its remedy as the key of a recipe.

    >>> as_key("no kernel; remedy: deep5.networks.with_precision(network, 'float32')")
    "no kernel; remedy: precision='float32' in the recipe (--set precision=float32)"
    """
    from deep5.networks.transforms.mixed_precision import AS_FLOAT32

    return message.replace(AS_FLOAT32, "precision='float32' in the recipe (--set precision=float32)")
