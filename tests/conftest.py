"""What every test starts from: a kernel cache of its own, and back-ends that must be there."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import browser
import processors
from command import deep5  # noqa: F401 - a fixture

_CACHE = pytest.StashKey[str]()
# From how many cases on a function is drawn from for every day, and what draws.
_FAMILY, _SEED = 12, 0
# What tests share to draw numbers.
_DRAWING = ("operator_cases", "operators_right", "tracing_cases")

# Some frameworks fix their threads when they start, once a process: one thread, here and in processes that tests start.
for _name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PJRT_NPROC"):
    os.environ.setdefault(_name, "1")
# On a graphics processor the tests run three frameworks in one process: none may take all of its memory at its start.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a kernel cache, and refuse to start where what `DEEP5_REQUIRE` lists is missing.

    The cache also serves the processes that tests start: no kernel left on the machine by an older run can pass a test.
    A required back-end that is missing ends the session here, so that no test can skip for want of it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what runs in the background so, and the processes that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_CACHE] = os.environ["DEEP5_CACHE"] = tempfile.mkdtemp(prefix="deep5-cache-")
    for name in (word.strip() for word in os.environ.get("DEEP5_REQUIRE", "").split(",")):
        if name:
            _require(name)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's kernel cache."""
    shutil.rmtree(config.stash.get(_CACHE, ""), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave a sample of large families to every day's suite, and let tests of times try again."""
    _sample(items)
    _try_again(items)


def _sample(items: list[pytest.Item]) -> None:
    """Mark all but a sample slow of the functions that take their time, and of those with at least `_FAMILY` cases.

    Three of four are left to `make test-all`, drawn by their names; what is marked `daily` is not.
    """
    long = set((Path(__file__).parent / "long_tests.txt").read_text().split())
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(map(item.get_closest_marker, ("slow", "gpu", "daily"))):
            families[item.nodeid.partition("[")[0]].append(item)
    for name, cases in families.items():
        if len(cases) >= _FAMILY or name in long:
            for item in cases:
                if zlib.crc32(f"{_SEED} {item.nodeid}".encode()) % 4:
                    item.add_marker(pytest.mark.slow)


def _try_again(items: list[pytest.Item]) -> None:
    """Let a test of the shorter suite that judges a time try three times before it fails; `-rR` shows each failed try.

    Processors of shared machines were seen to change their speed by half from one second to the next: what is timed
    before such a change cannot be held against what is timed behind it. A defect fails every time. Slow tests
    have one try: that of the overhead recipes repeats its runs by itself, and says of how many a goal is kept.
    """
    for item in items:
        if item.get_closest_marker("timing") and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=3))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where there is none, and have a test draw the same numbers whatever ran before it."""
    for module in (getattr(item, "module", None), *map(sys.modules.get, _DRAWING)):
        own = getattr(module, "RNG", None)
        if isinstance(own, np.random.Generator):
            own.bit_generator.state = np.random.default_rng(zlib.crc32(item.nodeid.encode())).bit_generator.state
    if item.get_closest_marker("gpu") and not processors.any_listed():
        pytest.skip("no framework finds a graphics processor on this machine")


def _require(name: str) -> None:
    if name == "gpu":
        if not processors.any_listed():
            raise pytest.UsageError("DEEP5_REQUIRE lists 'gpu', but no framework finds a graphics processor")
        return
    if name == "browser":
        if (told := browser.missing()) is not None:
            raise pytest.UsageError(f"DEEP5_REQUIRE lists 'browser', but {told}")
        return
    from deep5.core import plugins
    from deep5.core.errors import Deep5Error

    try:
        plugins.framework(name)
    except Deep5Error as error:
        raise pytest.UsageError(f"DEEP5_REQUIRE lists {name!r}, but: {error}") from error
