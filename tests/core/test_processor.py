"""The abilities of a processor, from what Linux lists."""

from __future__ import annotations

import pytest

from deep5.core import processor
from processors import AVX512


@pytest.mark.parametrize(
    ("text", "able"),
    [
        ("processor : 0\nflags\t\t: fpu sse2 avx2 fma\n", False),
        ("processor : 0\nflags\t\t: fpu sse2 avx2 fma avx512f avx512bw\n", True),
        ("processor : 0\nFeatures\t: fp asimd\n", False),
        ("processor : 0\nFeatures\t: fp asimd bf16\n", True),
        ("processor : 0\n", True),
    ],
)
def test_who_adds_bfloat16_in_float32(text: str, able: bool) -> None:
    assert processor._able(text) == able


def test_this_machine_is_looked_at() -> None:
    assert processor.adds_bfloat16_in_float32() or not AVX512
