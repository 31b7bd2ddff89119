"""`StateWatch`: finds operators that change the process's state: random seeds, NumPy's error handling, the folder."""

from __future__ import annotations

import locale
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["StateWatch"]


def _numpy_random() -> Any:
    kind, words, *rest = np.random.get_state()  # noqa: NPY002
    return kind, np.asarray(words).tobytes(), *rest


def _seed_numpy(state: Any) -> None:
    kind, words, *rest = state
    np.random.set_state((kind, np.frombuffer(words, np.uint32), *rest))  # noqa: NPY002


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was deleted
        return ""


def _to_folder(name: str) -> None:
    if name:
        os.chdir(name)


def _set_environment(values: dict[str, str]) -> None:
    for name in set(os.environ) - set(values):
        del os.environ[name]
    os.environ.update(values)


_ERRORS = "numpy.geterr()"
# Name, how it is read, and how it is restored.
_STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the state of numpy.random": (_numpy_random, _seed_numpy),
    "the state of random": (random.getstate, random.setstate),
    _ERRORS: (np.geterr, lambda value: np.seterr(**value)),
    "numpy.get_printoptions()": (np.get_printoptions, lambda value: np.set_printoptions(**value)),
    "the working directory": (_folder, _to_folder),
    "os.environ": (lambda: dict(os.environ), _set_environment),
    "the locale": (lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)),
}


# Calls that are watched after one that changed something: a second one that does is not an import.
_NEXT = 8


class StateWatch:
    """Compares the process's state before and after the first call with each kind of arguments, and restores it."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._changed: Counter[str] = Counter()
        self._first: dict[str, Any] = {}
        self._left = 0

    @property
    def changed(self) -> list[str]:
        """What calls changed; not what only one did, since it may have imported a module that does."""
        return [name for name, count in self._changed.items() if count > 1]

    def restore(self) -> None:
        """Undo what calls changed, those that were not watched included."""
        for name in self.changed:
            if name != _ERRORS:  # calls are made within numpy.errstate, which restores it
                _STATES[name][1](self._first[name])

    @contextmanager
    def watched(self, method: str, given: Sequence[np.ndarray]) -> Iterator[None]:
        """Within, a method runs on arrays."""
        kind = (method, *((value.shape, value.dtype, value.strides) for value in given))
        if kind in self._seen and not self._left:
            yield
            return
        self._seen.add(kind)
        self._left = max(0, self._left - 1)
        before = {name: read() for name, (read, _) in _STATES.items()}
        try:
            yield
        finally:
            for name, (read, restore) in _STATES.items():
                if read() != before[name]:
                    self._left = _NEXT if name not in self._changed else self._left
                    self._changed[name] += 1
                    self._first.setdefault(name, before[name])
                    restore(before[name])
