"""The measurements of `deep5 bench collective`: algorithms, sizes, element type, rounds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import psutil

from deep5.core.communicator import TIMEOUT_S, Reduction
from deep5.core.errors import UnknownName, UsageError, brief, suggestion
from deep5.distributed.collectives.algorithms import ALGORITHMS
from deep5.distributed.collectives.pipeline import SEGMENT_BYTES

__all__ = ["DTYPES", "LIBRARY", "SIZE_SETS", "CollectivePlan", "parse_algorithms", "parse_segment", "parse_sizes"]

LIBRARY = "library"
"""Name of the communicator's own all-reduce among the algorithms."""

DTYPES = ("float16", "float32", "float64", "int32", "int64")
"""Element types that can be timed: those whose sum float64 or int64 can check."""

SIZE_SETS = ("deepbench",)
"""Named sets of sizes: that of DeepBench (Baidu Research, https://github.com/baidu-research/DeepBench, Apache-2.0),
`code/kernels/all_reduce_problems.h`: numbers of elements, which are float32 there."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FACTOR = 4


@dataclass(frozen=True, kw_only=True)
class CollectivePlan:
    """The plan of a measurement, the same on every rank.

    Attributes:
        sizes_bytes: Sizes of the buffers, each a multiple of the element size, above zero.
        algorithms: Names, including "library" for the communicator's own.
        dtype: One of `DTYPES`.
        op: Reduction operation.
        rounds: Timed calls of each algorithm and size.
        warm_up: Minimum number of calls before them.
        warm_up_s: Seconds of calls of all algorithms before the first size is timed: newly started ranks share a core
            or sleep, which would distort the first sizes.
        segment_bytes: Segment size of the pipeline.
        seed: Seed of the buffers and of the order.
        timeout_s: Time limit of every call.

    Raises:
        UsageError: A value is invalid.
    """

    sizes_bytes: tuple[int, ...]
    algorithms: tuple[str, ...] = (*ALGORITHMS, LIBRARY)
    dtype: str = "float32"
    op: Reduction = "sum"
    rounds: int = 20
    warm_up: int = 2
    warm_up_s: float = 0.1
    segment_bytes: int = SEGMENT_BYTES
    seed: int = 0
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UnknownName("element type", self.dtype, DTYPES)
        if self.op not in get_args(Reduction):
            raise UnknownName("reduction", self.op, get_args(Reduction))
        if self.rounds < 1 or self.warm_up < 0:
            raise UsageError(
                f"got {self.rounds!r} rounds and {self.warm_up!r} warm-up rounds; allowed: at least 1, and at least 0"
            )
        itemsize = np.dtype(self.dtype).itemsize
        bad = [size for size in self.sizes_bytes if size < 1 or size % itemsize]
        if bad or not self.sizes_bytes:
            raise UsageError(
                f"got sizes of {bad or 'none'} bytes; allowed: at least one, each a multiple of {itemsize}, an element "
                f"of {self.dtype}"
            )

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return np.dtype(self.dtype).itemsize

    def to_json(self) -> str:
        """The plan as JSON, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CollectivePlan:
        """The inverse of `to_json`."""
        found: dict[str, Any] = json.loads(text)
        for name in ("sizes_bytes", "algorithms"):
            found[name] = tuple(found[name])
        return cls(**found)


def parse_algorithms(text: str | None, known: Iterable[str] = ALGORITHMS) -> tuple[str, ...]:
    """The algorithms of `ring,library`; None: all.

    Raises:
        UnknownName: An algorithm does not exist.
        UsageError: The list is empty or has a duplicate.
    """
    allowed = (*known, LIBRARY)
    if text is None:
        return allowed
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise UnknownName("all-reduce algorithm", name, allowed)
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--algorithms {text!r}; allowed: comma-separated names, each once: {', '.join(allowed)}")
    return tuple(names)


def parse_sizes(text: str | None, itemsize: int, *, most: str = "64M") -> tuple[int, ...]:
    """Sizes in bytes of `4:64M` (factor 4), `4:64M:2`, `1K,1M` or `deepbench`; None: from one element.

    Args:
        text: As on the command line; K, M and G are powers of 1024.
        itemsize: Bytes per element.
        most: The largest size if `text` is None.

    Raises:
        UsageError: It cannot be read, or a size is not a multiple of the element size.

    >>> parse_sizes("4:1K", 4), parse_sizes("8:1K:8", 4), parse_sizes("12,2K", 4)
    ((4, 16, 64, 256, 1024), (8, 64, 512), (12, 2048))
    """
    if text is None:
        text = f"{itemsize}:{most}"
    if text in SIZE_SETS:
        from deep5.operators.problems import problem_rows

        return tuple(int(row["elements"]) * itemsize for row in problem_rows("all_reduce"))
    sizes = _range(text) if ":" in text else [_bytes(part, text) for part in text.split(",")]
    wrong = [size for size in sizes if size % itemsize]
    if wrong:
        raise UsageError(f"--sizes {text!r}: {wrong[0]} bytes are not a multiple of an element's {itemsize} bytes")
    if len(set(sizes)) < len(sizes):
        raise UsageError(f"--sizes {brief(text)}; allowed: each size once")
    # At least two ranks, each with its input, its output, the expected result and a buffer of the algorithm.
    most_bytes = psutil.virtual_memory().total // 8
    if max(sizes) > most_bytes:
        raise UsageError(
            f"--sizes {brief(text)}: {max(sizes)} bytes; allowed: at most {most_bytes}, an eighth of this machine's "
            "memory, since every rank keeps four buffers of the size; remedy: smaller sizes"
        )
    return tuple(sizes)


def parse_segment(text: str | None) -> int:
    """The size of a segment in bytes, of `128K`; None: the default.

    Raises:
        UsageError: It cannot be read.
    """
    if text is None:
        return SEGMENT_BYTES
    try:
        return _bytes(text, text)
    except UsageError as error:
        raise UsageError(
            f"--segment {brief(text)} cannot be read; allowed: bytes above 0, such as 64K; suffixes: K, M, G"
        ) from error


def _range(text: str) -> list[int]:
    parts = text.split(":")
    if len(parts) > 3:
        raise _unreadable(text)
    first, last = (_bytes(part, text) for part in parts[:2])
    factor = _bytes(parts[2], text) if len(parts) == 3 else _FACTOR
    if factor < 2 or last < first:
        raise _unreadable(text)
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def _bytes(part: str, whole: str) -> int:
    found = re.fullmatch(r"\s*([0-9]{1,15})([KMG]?)\s*", part, re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise _unreadable(whole)
    return int(found[1]) * _UNITS[found[2].upper()]


def _unreadable(text: str) -> UsageError:
    return UsageError(
        f"--sizes {brief(text)} cannot be read; allowed: FIRST:LAST or FIRST:LAST:FACTOR with a factor of at least 2, "
        f"comma-separated sizes such as 1K,1M (suffixes: K, M, G), or {', '.join(SIZE_SETS)}"
        f"{suggestion(text, SIZE_SETS)}"
    )
