"""`ALGORITHMS`: all-reduce algorithms by name, and the bytes each rank sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from deep5.core.errors import UnknownName
from deep5.distributed.collectives.binomial_tree import binomial_tree, binomial_tree_sent
from deep5.distributed.collectives.pipeline import pipeline, pipeline_sent
from deep5.distributed.collectives.rabenseifner import rabenseifner, rabenseifner_sent
from deep5.distributed.collectives.recursive_doubling import recursive_doubling, recursive_doubling_sent
from deep5.distributed.collectives.ring import ring, ring_sent

__all__ = ["ALGORITHMS", "AllReduceFunction", "algorithm", "sent_bytes"]

AllReduceFunction = Callable[..., None]
"""Called as `ring(communicator, buffer, op="sum", timeout_s=60.0)`, with the same arguments on every rank."""

ALGORITHMS: Mapping[str, AllReduceFunction] = MappingProxyType(
    {
        "ring": ring,
        "recursive_doubling": recursive_doubling,
        "rabenseifner": rabenseifner,
        "binomial_tree": binomial_tree,
        "pipeline": pipeline,
    }
)
"""deep5's own all-reduce algorithms."""

_SENT: Mapping[str, Callable[[int, int, int], int]] = MappingProxyType(
    {
        "ring": ring_sent,
        "recursive_doubling": recursive_doubling_sent,
        "rabenseifner": rabenseifner_sent,
        "binomial_tree": binomial_tree_sent,
        "pipeline": pipeline_sent,
    }
)


def algorithm(name: str) -> AllReduceFunction:
    """Look up an algorithm by name.

    Raises:
        UnknownName: No algorithm has this name.
    """
    if name not in ALGORITHMS:
        raise UnknownName("all-reduce algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def sent_bytes(name: str, rank: int, ranks: int, elements: int, itemsize: int) -> int:
    """Bytes that one rank sends in one call: exactly the number that its communicator counts.

    Summed over all ranks this is 2(P - 1)m for a buffer of m bytes, and (Q log2 Q + 2(P - Q))m for recursive doubling,
    where Q is the largest power of two not above P.

    Args:
        name: Name of the algorithm.
        rank: The sending rank.
        ranks: Number of ranks.
        elements: Number of elements in the buffer.
        itemsize: Bytes per element.

    Raises:
        UnknownName: No algorithm has this name.

    >>> [sent_bytes("ring", rank, 4, 1000, 4) for rank in range(4)]
    [6000, 6000, 6000, 6000]
    """
    algorithm(name)
    return _SENT[name](rank, ranks, elements) * itemsize
