"""The benchmarks of `make bench`: what each sets up, what it measures, and which process it runs in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MODULES = ("commands", "data", "operators", "functions", "networks")
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
    """

    name: str
    group: str
    setup: Setup
    unit: str
    per_call: int = 1
    quick: bool = True
    once: bool = False


_REGISTERED: dict[str, Benchmark] = {}


def register(
    name: str,
    *,
    group: str,
    unit: str = "call",
    per_call: int = 1,
    quick: bool = True,
    once: bool = False,
) -> Callable[[Setup], Setup]:
    """Register the function below as the setup of a benchmark."""

    def keep(setup: Setup) -> Setup:
        if name in _REGISTERED:
            raise ValueError(f"two benchmarks are called {name!r}; remedy: rename one")
        _REGISTERED[name] = Benchmark(
            name=name, group=group, setup=setup, unit=unit, per_call=per_call, quick=quick, once=once
        )
        return setup

    return keep


def benchmarks() -> dict[str, Benchmark]:
    """Every benchmark by its name, in the order of the modules."""
    for module in MODULES:
        importlib.import_module(module)
    return dict(_REGISTERED)


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
