"""NumPy's peaks instead of every framework's, measured once: those of six frameworks take seconds, twice each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import pytest

from deep5.bench import measure
from deep5.bench.plan import Plan
from deep5.operators.roofline import Roofline, numpy_roofline


@contextmanager
def quick_peaks() -> Iterator[None]:
    """Let runs of level 0 in this process take these peaks."""

    def numpy_alone(plan: Plan, names: Sequence[str], before: Roofline | None = None) -> Roofline:
        return _measured(plan.threads, plan.peak_dtype)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure, "peaks", numpy_alone)
        yield


@cache
def _measured(threads: int, dtype: str) -> Roofline:
    return numpy_roofline(threads, dtype)
