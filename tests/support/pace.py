"""How slow this machine is: a limit in microseconds is of a machine as fast as the one whose figures it stands beside.

The processors of shared machines change their speed by a factor of two within hours, everything on them alike: calls of
PyTorch, of JAX and of the interpreter. Limits on ratios need none of this.
"""

from __future__ import annotations

import timeit

# Microseconds of a turn on the machine of docs/overhead.md's figures, where a step of the trainer takes 2 us. Reckoned
# back from an hour when a turn took 0.139 us, and five of six of those figures 1.55 to 1.7 times as long.
REFERENCE_US = 0.085
# What is slower than this is no machine to judge times on, and fails. Shared ones were up to three times as slow.
SLOWEST = 4.0
_TURNS = 200


class _Pair:
    def __init__(self) -> None:
        self.one = 1

    def turn(self, other: int) -> dict[str, int]:
        return {"one": self.one, "other": other}


def _same(value: int) -> int:
    return value


def _turns() -> None:
    pair = _Pair()
    for number in range(_TURNS):
        pair.turn(_same(number))


def slowness() -> float:
    """How many times as long the interpreter's calls take here and now as there, from 1 to `SLOWEST`.

    The least of many, some 30 ms in all: what others do beside it does not count.
    """
    least = min(timeit.repeat(_turns, number=10, repeat=100)) / 10 / _TURNS
    return min(SLOWEST, max(1.0, least * 1e6 / REFERENCE_US))
