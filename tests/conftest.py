"""What every test starts from: caches, the daily sample, and back-ends that must be there."""

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
import kept
import processors
from command import deep5  # noqa: F401 - a fixture

_CACHE = pytest.StashKey[str]()
# From how many cases on a function is drawn from for every day, and what draws.
_FAMILY, _SEED = 12, 0
# Of a function that takes long as many drawn cases run every day as fit into so many seconds, and at least one.
_DAILY_S = 12.0
# What tests share to draw numbers.
_DRAWING = ("executor_cases", "operator_cases", "operators_right", "tracing_cases")

# Some frameworks fix their threads when they start, once a process: one thread, here and in processes that tests start.
for _name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PJRT_NPROC"):
    os.environ.setdefault(_name, "1")
# Hundreds of processes that tests start import deep5: its byte code is kept, also where the environment keeps none.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
sys.dont_write_bytecode = False
# On a graphics processor the tests run three frameworks in one process: none may take all of its memory at its start.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a cache of its own, and refuse to start where what `DEEP5_REQUIRE` lists is missing.

    The cache also serves the processes that tests start. Compiled kernels in it are shared with other workers and with
    later runs, since their names hold a hash of all that they depend on; `DEEP5_FRESH=1` compiles all of them again.
    A required back-end that is missing ends the session here, so that no test can skip for want of it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what runs in the background so, and the processes that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_CACHE] = os.environ["DEEP5_CACHE"] = tempfile.mkdtemp(prefix="deep5-cache-")
    if kept.keeps():
        _share_kernels(Path(config.stash[_CACHE]))
    for name in (word.strip() for word in os.environ.get("DEEP5_REQUIRE", "").split(",")):
        if name:
            _require(name)


def _share_kernels(cache: Path) -> None:
    for name in ("kernels", "torchinductor"):
        shared = kept.FOLDER / name
        try:
            shared.mkdir(parents=True, exist_ok=True)
            (cache / name).symlink_to(shared)
        except OSError:  # an environment that cannot be written to: they are compiled again
            return


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's kernel cache."""
    shutil.rmtree(config.stash.get(_CACHE, ""), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but a sample slow of the functions that take long, and of those with at least `_FAMILY` cases.

    Three of four cases are left to `make test-all`, drawn by their names, and of functions that take long more where
    the drawn ones take more than `_DAILY_S`. What is marked `daily` runs every day.
    """
    long = _long_tests()
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(map(item.get_closest_marker, ("slow", "gpu", "daily"))):
            families[item.nodeid.partition("[")[0]].append(item)
    for name, cases in families.items():
        if len(cases) >= _FAMILY or name in long:
            numbers = {item.nodeid: zlib.crc32(f"{_SEED} {_name(item)}".encode()) for item in cases}
            drawn = sorted(number for number in numbers.values() if number % 4 == 0)
            daily = set(drawn[: max(1, int(_DAILY_S / long[name])) if name in long else None])
            for item in cases:
                if numbers[item.nodeid] not in daily:
                    item.add_marker(pytest.mark.slow)


def _name(item: pytest.Item) -> str:
    """The name of a test without the folder of its file: a file that moves keeps its sample and its random numbers."""
    file, _, rest = item.nodeid.partition("::")
    return f"tests/{Path(file).name}::{rest}"


def _long_tests() -> dict[str, float]:
    """Seconds of the longest case of each function that takes long, as the last complete run measured it."""
    lines = (Path(__file__).parent / "long_tests.txt").read_text().splitlines()
    return {name: float(seconds) for seconds, name in (line.split() for line in lines)}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where there is none, and have a test draw the same numbers whatever ran before it."""
    for module in (getattr(item, "module", None), *map(sys.modules.get, _DRAWING)):
        own = getattr(module, "RNG", None)
        if isinstance(own, np.random.Generator):
            own.bit_generator.state = np.random.default_rng(zlib.crc32(_name(item).encode())).bit_generator.state
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
