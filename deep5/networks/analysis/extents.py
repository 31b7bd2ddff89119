"""Values for the symbolic dimensions of a network's inputs."""

from __future__ import annotations

from collections.abc import Mapping

from deep5.core.arguments import is_whole
from deep5.core.errors import NetworkError, brief
from deep5.networks.network import Network

__all__ = ["batch_extents", "chosen_extents"]

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


def chosen_extents(network: Network, batch: int | None, given: Mapping[str, int]) -> dict[str, int]:
    """The symbolic dimensions of a network's inputs as integers; arguments and errors as for `analyse`."""
    if not isinstance(given, Mapping):
        raise NetworkError(
            f"got extents={brief(given)}; allowed: a mapping from names to integers; remedy: extents={{'N': 32}}"
        )
    symbols = dict.fromkeys(
        extent for spec in network.inputs.values() for extent in spec.shape if isinstance(extent, str)
    )
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
    chosen = {}
    for symbol in symbols:
        extent = given.get(symbol, batch if symbol in firsts else None)
        if extent is None:
            of_batch = "batch=, or " if symbol in firsts else ""
            raise NetworkError(
                f"the dimension {symbol!r} of an input is not known{'' if of_batch else ', and no batch size'}; "
                f"remedy: {of_batch}extents={{{symbol!r}: …}}, on the command line --extent {symbol}=…"
            )
        chosen[symbol] = int(extent)
    return chosen
