"""The distributed scheme of a recipe's ranks, with its compression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, RecipeError, UsageError
from deep5.core.plugins import load, registered
from deep5.core.seeds import derive_seed
from deep5.recipe.part import Part, Parts, is_factory

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.distributed.schemes.base import DistributedOptimizer

__all__ = ["plain_scheme", "wrapped"]


def plain_scheme(parts: Parts) -> DistributedOptimizer:
    """The recipe's scheme with its compression, without an optimizer; all-reduce if the recipe names none.

    Raises:
        RecipeError: It cannot be found or created, or is incompatible with its compression.
    """
    from deep5.distributed.compression import Compression
    from deep5.distributed.schemes.base import DistributedOptimizer
    from deep5.distributed.schemes.check import check_initialised, check_method

    value = parts["scheme"].value
    made = load("schemes", "all_reduce") if value is None else parts["scheme"].component()
    compression = parts["compression"].component()
    if isinstance(compression, type):
        compression = parts["compression"].make(compression)
    if isinstance(compression, Compression):
        try:
            check_initialised(compression, Compression, "_scratch")
        except UsageError as error:
            raise RecipeError(f"{parts['compression'].where}'compression': {error}") from error
    given = {} if compression is None else {"compression": compression}
    if not is_factory(made) and given:
        raise RecipeError(
            f"{parts['compression'].where}'compression' is for a scheme that is named, and 'scheme' is an object; "
            f"remedy: {type(made).__name__}(compression=…)"
        )
    scheme = parts["scheme"].make(made, **given)
    if not isinstance(scheme, DistributedOptimizer):
        raise parts["scheme"].not_a(scheme, "a d5.DistributedOptimizer, its class or name")
    try:
        check_initialised(scheme, DistributedOptimizer, "compression")
        check_method(scheme, "step", DistributedOptimizer)
    except UsageError as error:
        raise RecipeError(f"{parts['scheme'].where}'scheme': {error}") from error
    if isinstance(compression, Compression) and scheme.compression is None and scheme.compresses:
        # A class whose own __init__ does not accept it.
        scheme.compression = compression
    if given and scheme.compression is None:
        takers = [name for name in registered("schemes") if getattr(load("schemes", name), "compresses", False)]
        raise RecipeError(
            f"{parts['compression'].where}{type(scheme).__name__} takes no compression; allowed: None, or one of the "
            f"schemes that take one: {', '.join(takers)}; remedy: --set compression=None"
        )
    return scheme


def wrapped(
    part: Part, scheme: DistributedOptimizer, optimizer: Any, communicator: Communicator, seed: int
) -> DistributedOptimizer:
    """Wrap an optimizer in a scheme.

    Raises:
        RecipeError: They are incompatible.
    """
    try:
        return scheme.wrap(optimizer, communicator, seed=derive_seed(seed, "scheme"))
    except Deep5Error as error:
        raise RecipeError(f"{part.where}{error}") from error
