"""The benchmarks of `make bench`: what each sets up, what it measures, and which process it runs in."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MODULES = ("commands", "data", "operators", "functions", "networks", "workloads", "recorder")
"""The modules of benchmarks next to this one; each registers its own at import."""

Setup = Callable[[Path], Callable[[], object]]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name: Unique, such as `pytorch.lenet_64_step`.
        group: Benchmarks of one group share a process, and with it the import of a framework.
        setup: Takes an empty folder and returns the callable that is measured.
        unit: What `per_call` counts, such as "step".
        per_call: How many units one call of the callable does.
        quick: Whether it is part of the default run.
        once: Whether a process measures one call only, after the setup: for calls that take a second or more.
        peak: Whether a sample is the largest number of bytes by which a call makes the process grow, not its time.
        sample_s: The least length of a sample of time.
    """

    name: str
    group: str
    setup: Setup
    unit: str
    per_call: int = 1
    quick: bool = True
    once: bool = False
    peak: bool = False
    sample_s: float = 0.02


_REGISTERED: dict[str, tuple[str, Benchmark]] = {}
"""By name: the module that registered a benchmark, and the benchmark."""


def register(
    name: str,
    *,
    group: str,
    unit: str = "call",
    per_call: int = 1,
    quick: bool = True,
    once: bool = False,
    peak: bool = False,
    sample_s: float = 0.02,
) -> Callable[[Setup], Setup]:
    """Register the function below as the setup of a benchmark."""

    def keep(setup: Setup) -> Setup:
        if name in _REGISTERED:
            raise ValueError(f"two benchmarks are called {name!r}; remedy: rename one")
        made = Benchmark(
            name=name,
            group=group,
            setup=setup,
            unit=unit,
            per_call=per_call,
            quick=quick,
            once=once,
            peak=peak,
            sample_s=sample_s,
        )
        _REGISTERED[name] = setup.__module__, made
        return setup

    return keep


def benchmarks(modules: Sequence[str] = MODULES) -> dict[str, Benchmark]:
    """Every benchmark of some modules by its name, in the order of the modules."""
    for module in modules:
        importlib.import_module(module)
    return {name: made for name, (module, made) in _REGISTERED.items() if module in modules}


def selected(*, full: bool, only: str = "") -> list[Benchmark]:
    """The benchmarks of a run.

    Args:
        full: Also those that take long.
        only: Parts of names, separated by commas; a benchmark whose name contains one of them is selected, also one
            that takes long.

    Raises:
        ValueError: No benchmark has such a name.
    """
    every = benchmarks()
    words = [word.strip() for word in only.split(",") if word.strip()]
    if not words:
        return [each for each in every.values() if full or each.quick]
    if unknown := [word for word in words if not any(word in name for name in every)]:
        raise ValueError(f"no benchmark is called like {', '.join(unknown)}; allowed: parts of {', '.join(every)}")
    return [each for name, each in every.items() if any(word in name for word in words)]
