"""The checksum with which ranks verify that they agree: which differences it detects."""

from __future__ import annotations

import numpy as np
import pytest

from deep5.core.communicator import Communicator
from deep5.core.errors import CommunicationError
from deep5.distributed.agreement import check_agreement, checksum
from deep5.distributed.communicators.threads import run_in_threads

RNG = np.random.default_rng(0)
# Around the rows of 251 words, and the blocks of 64 rows, that it sums.
SIZES = (1, 2, 250, 251, 252, 1000, 251 * 64 - 1, 251 * 64, 251 * 65 + 7)


@pytest.mark.parametrize("size", SIZES)
def test_each_bit_counts(size: int) -> None:
    values = RNG.standard_normal(size)
    before = checksum(values)
    for place in {0, size // 2, size - 1}:
        for bit in range(64):
            other = values.copy()
            other.view(np.uint64)[place] ^= np.uint64(1 << bit)
            assert checksum(other) != before, (place, bit)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8"])
@pytest.mark.parametrize("size", SIZES)
def test_signs_count_however_many_are_turned(dtype: str, size: int) -> None:
    values = (RNG.standard_normal(size) * 100 + 300).astype(dtype)
    values[::2] += values.dtype.type(1)
    before = checksum(values)
    upper = np.frombuffer(values.tobytes(), f"u{values.itemsize}") ^ (1 << (values.itemsize * 8 - 1))
    assert checksum(upper) != before
    for _ in range(50):
        some = RNG.random(size) < 0.5
        if some.any():
            assert checksum(np.where(some, upper, np.frombuffer(values.tobytes(), upper.dtype))) != before


@pytest.mark.parametrize("size", [300, 5000])
def test_places_count(size: int) -> None:
    values = RNG.standard_normal(size)
    for _ in range(100):
        one, two = RNG.choice(size, 2, replace=False)
        if (one - two) % 251:
            other = values.copy()
            other[[one, two]] = values[[two, one]]
            assert checksum(other) != checksum(values)


def test_what_is_equal_is_equal_wherever_it_lies() -> None:
    for size in (0, *SIZES):
        whole = np.zeros(size * 4 + 4, np.uint8)
        values = whole[4:].view(np.float32)
        values[...] = RNG.standard_normal(size)
        assert checksum(values) == checksum(values.copy())


def test_ranks_of_opposite_weights_do_not_agree() -> None:
    values = RNG.standard_normal(1000)

    def work(communicator: Communicator) -> None:
        check_agreement(communicator, [values, values if communicator.rank != 1 else -values], "weights")

    with pytest.raises(CommunicationError, match="the weights of rank 1 differ from those of rank 0; allowed"):
        run_in_threads(3, work)
