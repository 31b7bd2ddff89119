"""The basis of every test: caches, the daily sample, and required back-ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import browser
import forked
import kept
import processors
from command import deep5  # noqa: F401 - a fixture

_CACHE = pytest.StashKey[str]()
# From this number of cases on a function has a daily sample; and the seed that draws it.
_FAMILY, _SEED = 12, 0
# The seconds that the daily cases of a long function may take; at least one case runs.
_DAILY_S = 12.0
# Shared modules that draw random numbers.
_DRAWING = ("executor_cases", "operator_cases", "operators_right", "tracing_cases")

# Some frameworks fix their threads at start, once per process: one thread, here and in processes that tests start.
for _name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PJRT_NPROC"):
    os.environ.setdefault(_name, "1")
# Hundreds of processes that tests start import deep5: keep its byte code, even if the environment disables that.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
sys.dont_write_bytecode = False
# On a GPU the tests run three frameworks in one process: none may take all of its memory at its start.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session its own cache, and refuse to start if anything in `DEEP5_REQUIRE` is missing.

    The cache also serves the processes that tests start. Compiled kernels in it are shared with other workers and with
    later runs, since their names hold a hash of everything they depend on; `DEEP5_FRESH=1` compiles all of them again.
    A required back-end that is missing ends the session here, so that no test can skip for lack of it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs this way, and the processes that tests interrupt would inherit it.
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
        except OSError:  # a read-only environment: they are compiled again
            return


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's kernel cache."""
    shutil.rmtree(config.stash.get(_CACHE, ""), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow all but a sample of the cases of long functions, and of functions with at least `_FAMILY` cases.

    `make test-all` runs the other three of four cases, drawn by their names, and more of a long function where the
    drawn cases exceed `_DAILY_S`. Tests marked `daily` run every day.
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
    """The name of a test without the folder of its file: a moved file keeps its sample and its random numbers."""
    file, _, rest = item.nodeid.partition("::")
    return f"tests/{Path(file).name}::{rest}"


def _long_tests() -> dict[str, float]:
    """Seconds of the longest case of each long function, as the last complete run measured it."""
    lines = (Path(__file__).parent / "long_tests.txt").read_text().splitlines()
    return {name: float(seconds) for seconds, name in (line.split() for line in lines)}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` without a GPU, and have a test draw the same numbers whatever ran before it."""
    for module in (getattr(item, "module", None), *map(sys.modules.get, _DRAWING)):
        own = getattr(module, "RNG", None)
        if isinstance(own, np.random.Generator):
            own.bit_generator.state = np.random.default_rng(zlib.crc32(_name(item).encode())).bit_generator.state
    if item.get_closest_marker("gpu") and not processors.any_listed():
        pytest.skip("no framework finds a graphics processor on this machine")


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Fork the Python processes that the module's tests start from one that has imported the frameworks."""
    forked.server()  # its start counts towards no test's time limit
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", forked.Popen)
        yield


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
