"""Source trees that several threads make at once."""

from __future__ import annotations

import ast
import gc
import inspect
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import deep5
from deep5.core.python_source import parse, source_of
from deep5.distributed.communicators.threads import run_in_threads


class Finalized:
    """Garbage that only a collection finds, and whose finalizer runs Python: other threads get their turn."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        sum(range(50))


@pytest.fixture
def many_switches() -> Iterator[None]:
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("many_switches")
def test_libraries_make_trees_on_ranks_that_are_threads() -> None:
    """As NumPy does for headers; without the lock, CPython 3.11.7 fails here in each of 10 repeats."""
    header = "[" + ", ".join("(1, [2, {'a': 3}])" for _ in range(30)) + "]"

    def read(_: object) -> None:
        for _ in range(100):
            garbage = [Finalized() for _ in range(3)]
            del garbage
            assert len(ast.literal_eval(header)) == 30

    run_in_threads(8, read)


@pytest.mark.usefixtures("many_switches")
def test_threads_make_trees_side_by_side() -> None:
    """With `ast.parse` itself, CPython 3.11.7 fails here with a SystemError in four calls of 48."""
    source = Path(inspect.__file__).read_text()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(12):
                garbage = [Finalized() for _ in range(20)]
                del garbage
                assert parse(source).body
                assert source_of(Finalized).startswith("class Finalized")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []


def test_nothing_else_of_deep5_makes_trees() -> None:
    made = re.compile(r"\bast\.parse\(|\binspect\.getsource|from inspect import|from ast import")
    folder = Path(deep5.__file__).parent
    files = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if made.search(path.read_text())}
    assert files == {"core/python_source.py"}
