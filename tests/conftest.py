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
import longest
import processors
import slurm_cluster
from browser import chromium  # noqa: F401 - a fixture
from command import deep5  # noqa: F401 - a fixture

_CACHE = pytest.StashKey[str]()
# The seed of the daily sample: another one draws other cases, and other functions among those that take long.
_SEED = 2
# From this number of cases on, a function runs one of so many daily.
_FAMILY, _PART = 12, 8
# Of a function in tests/long_tests.txt as many cases run daily as take so many seconds, and at least one. If a case
# takes longer, one of so many functions is drawn; from the last limit on, none.
_DAILY_S, _FUNCTIONS = 1.0, 8
_NEVER_S = 20.0
# What tests share to draw numbers.
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
    # The secret that authenticates kernels: of the tests, not of the user who runs them.
    os.environ["XDG_STATE_HOME"] = os.path.join(config.stash[_CACHE], "state")  # noqa: PTH118 - a variable
    if kept.keeps():
        _share_kernels(Path(config.stash[_CACHE]))
    for name in (word.strip() for word in os.environ.get("DEEP5_REQUIRE", "").split(",")):
        if name:
            _require(name)


def _share_kernels(cache: Path) -> None:
    for name in ("kernels", "torchinductor"):
        shared = kept.FOLDER / name
        try:
            shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            (cache / name).symlink_to(shared)
            os.environ["XDG_STATE_HOME"] = str(kept.FOLDER / "state")
        except OSError:  # a read-only environment: they are compiled again
            return


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's kernel cache."""
    shutil.rmtree(config.stash.get(_CACHE, ""), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow all but a sample of the cases of long functions, and of functions with at least `_FAMILY` cases.

    What is marked `daily` always runs, and so do the cases that catch the faults of tests/mutants.txt.
    """
    long = _long_tests()
    catching = {line.partition(" ")[2] for line in _lines("mutants.txt") if line.startswith("test: ")}
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(map(item.get_closest_marker, ("slow", "gpu", "daily"))):
            families[item.nodeid.partition("[")[0]].append(item)
    for name, cases in families.items():
        mean = long[name].mean if name in long else 0.0
        fit = int(_DAILY_S / mean) if mean else len(cases)
        if len(cases) >= _FAMILY:
            fit = min(fit, len(cases) // _PART)
        if fit < len(cases):
            number = {item.nodeid: zlib.crc32(f"{_SEED} {_name(item)}".encode()) for item in cases}
            ordered = sorted((item.nodeid for item in cases), key=number.__getitem__)
            daily = {*ordered[: max(1, fit)]} if mean <= _DAILY_S or _drawn(cases[0], mean) else set()
            for item in cases:
                if item.nodeid not in daily and item.nodeid not in catching:
                    item.add_marker(pytest.mark.slow)


def _drawn(item: pytest.Item, mean_s: float) -> bool:
    """Whether a function of a long test runs one case daily."""
    function = _name(item).partition("[")[0]
    return mean_s < _NEVER_S and zlib.crc32(f"{_SEED} {function}".encode()) % _FUNCTIONS == 0


def _name(item: pytest.Item) -> str:
    """The name of a test without the folder of its file: a moved file keeps its sample and its random numbers."""
    file, _, rest = item.nodeid.partition("::")
    return f"tests/{Path(file).name}::{rest}"


def _long_tests() -> dict[str, longest.Took]:
    """Of the functions that take long, the seconds that the last complete run measured."""
    return longest.read(_lines("long_tests.txt"))


def _lines(name: str) -> list[str]:
    """The lines of a file in this folder."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()


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
    if name == "slurm":
        if slurm_cluster.missing():
            raise pytest.UsageError(
                f"DEEP5_REQUIRE lists 'slurm', but {slurm_cluster.missing()} is missing; remedy: make slurm, as root"
            )
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
