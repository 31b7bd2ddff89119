"""The memory of this process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from deep5.core.memory import peak_bytes


def test_a_small_program_that_a_large_one_starts_reports_its_own_peak() -> None:
    """Linux's getrusage keeps the peak of the program that called exec: it would report the large one's here."""
    held = np.ones(1 << 25)
    assert peak_bytes() > held.nbytes
    code = "from deep5.core.memory import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert 1 << 20 < int(done.stdout) < held.nbytes
