"""Convert a recipe of collectives to a plan, and check it without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.errors import RecipeError, UnknownName, UsageError

if TYPE_CHECKING:
    from deep5.bench.collective.plan import CollectivePlan

__all__ = ["check_collectives", "collective_plan"]


def collective_plan(value: Callable[[str], Any], where: Callable[[str], str] = lambda key: "") -> CollectivePlan:
    """The plan that a recipe of collectives requests.

    Args:
        value: Returns the value of a key, or its default.
        where: Returns the file and line of a key, ending in `": "`, or an empty string.

    Raises:
        RecipeError: A value cannot be read.
    """
    from deep5.bench.collective.plan import DTYPES, CollectivePlan, parse_algorithms, parse_segment, parse_sizes

    def read(key: str, parse: Callable[[Any], Any]) -> Any:
        try:
            return parse(value(key))
        except UsageError as error:
            # The option parsers name options as on the command line.
            raise RecipeError(f"{where(key)}{str(error).removeprefix('--')}") from error

    def dtype(name: str) -> str:
        if name not in DTYPES:
            raise UnknownName("element type", name, DTYPES)
        return name

    def algorithms(names: Any) -> tuple[str, ...]:
        return parse_algorithms(names if names is None or isinstance(names, str) else ",".join(names))

    chosen = read("dtype", dtype)
    itemsize = np.dtype(chosen).itemsize
    requested = {
        "sizes_bytes": read("sizes", lambda text: parse_sizes(text, itemsize)),
        "algorithms": read("algorithms", algorithms),
        "segment_bytes": read("segment", parse_segment),
        "dtype": chosen,
        "rounds": value("rounds"),
        "seed": value("seed"),
    }
    # Only the operation can still be invalid.
    plan: CollectivePlan = read("op", lambda op: CollectivePlan(op=op, **requested))
    return plan


def check_collectives(plan: CollectivePlan) -> list[str]:
    """A sentence that describes the measurements of a plan."""
    from deep5.core.quantities import size

    sizes = sorted(plan.sizes_bytes)
    ends = size(sizes[0]) if len(sizes) == 1 else f"{size(sizes[0])} to {size(sizes[-1])}"
    calls = len(sizes) * len(plan.algorithms) * plan.rounds
    return [f"{len(plan.algorithms)} algorithms would be timed at {len(sizes)} sizes, {ends}, in {calls} calls"]
