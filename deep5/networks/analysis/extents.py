"""Values for the symbolic dimensions of a network's inputs."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.arguments import is_whole
from deep5.core.errors import NetworkError, brief
from deep5.networks.network import Network

__all__ = ["batch_extents", "chosen_extents", "missing_extents"]

# Larger networks fit no machine, and shapes are inferred in 64 bits.
_MOST_EXTENT = 2**31 - 1


def batch_extents(network: Network) -> tuple[str, ...]:
    """The symbolic first dimensions of a network's inputs, which a batch size sets.

    >>> from deep5.networks import lenet
    >>> batch_extents(lenet())
    ('N',)
    """
    firsts = (spec.shape[0] for spec in network.inputs.values() if spec.shape)
    return tuple(dict.fromkeys(extent for extent in firsts if isinstance(extent, str)))


def missing_extents(network: Network, given: Mapping[str, int]) -> list[str]:
    """The symbolic dimensions of a network's inputs that have no value yet, each once."""
    symbols = (extent for spec in network.inputs.values() for extent in spec.shape if isinstance(extent, str))
    return [symbol for symbol in dict.fromkeys(symbols) if symbol not in given]


def chosen_extents(
    network: Network, batch: int | None, given: Mapping[str, int], *, partial: bool = False
) -> dict[str, int]:
    """The symbolic dimensions of a network's inputs as integers; arguments and errors as for `analyse`."""
    if not isinstance(given, Mapping):
        raise NetworkError(
            f"got extents={brief(given)}; allowed: a mapping from names to integers; remedy: extents={{'N': 32}}"
        )
    symbols = missing_extents(network, {})
    for name, extent in (("batch", batch), *given.items()):
        if extent is not None and (not is_whole(extent) or not 1 <= extent <= _MOST_EXTENT):
            raise NetworkError(f"got {name} = {brief(extent)}; allowed: an integer from 1 to {_MOST_EXTENT}")
    unknown = [name for name in given if name not in symbols]
    if unknown:
        raise NetworkError(
            f"no input has a symbolic dimension {brief(unknown[0])}; allowed: "
            f"{', '.join(symbols) or 'none, all are fixed'}"
        )
    firsts = batch_extents(network)
    if batch is not None and all(symbol in given for symbol in firsts):
        named = ", ".join(f"{name} = {extent}" for name, extent in given.items())
        raise NetworkError(
            f"no dimension of an input is left for the batch size: got batch = {batch}"
            f"{f' beside {named}' if named else ''}, inputs {', '.join(map(str, network.inputs.values()))}; allowed: a "
            "batch where an input's first dimension is symbolic and not given by its name; remedy: one of both"
        )
    sizes = {symbol: given.get(symbol, batch if symbol in firsts else None) for symbol in symbols}
    chosen = {symbol: int(extent) for symbol, extent in sizes.items() if extent is not None}
    if (missing := missing_extents(network, chosen)) and not partial:
        of_batch = "batch=, or " if any(symbol in firsts for symbol in missing) else ""
        what = "the dimension {} of an input is" if len(missing) == 1 else "the dimensions {} of inputs are"
        others = "" if of_batch else ", and a batch sets only first dimensions"
        extents = ", ".join(f"{symbol!r}: …" for symbol in missing)
        options = " ".join(f"--extent {symbol}=…" for symbol in missing)
        raise NetworkError(
            f"{what.format(', '.join(map(repr, missing)))} not known{others}; "
            f"remedy: {of_batch}extents={{{extents}}}, on the command line {options}"
        )
    return chosen
