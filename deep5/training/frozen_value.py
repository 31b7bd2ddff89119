"""`frozen`: the content of a Python object as a value that can be compared later."""

from __future__ import annotations

import array
import functools
import itertools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from deep5.core.tensors import to_numpy

__all__ = ["frozen"]

# Objects beyond this number are compared by identity: a rule may refer to a network or a data set.
_MOST = 5000
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
_NAMED = (type, types.ModuleType, types.BuiltinFunctionType)


def frozen(value: Any) -> Any:
    """The content of an object: equal values before and after mean that nothing in it has changed.

    Attributes, items, elements of arrays, closures, and the positions of counters and random generators are included.

    Args:
        value: Any object. Only its first 5,000 parts are compared by content, the others by identity.
    """
    return _Freezer()(value)


class _Freezer:
    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            # NaN is unlike itself, and 0.0 like -0.0.
            return repr(value) if isinstance(value, (float, complex)) else value
        if isinstance(value, _NAMED):
            return id(value), value
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        if len(self._seen) >= _MOST:
            return id(value)
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # keeps the id from being used again
        return type(value).__qualname__, self._content(value)

    def _content(self, value: Any) -> Any:
        exact = _EXACT.get(type(value))  # the usual ones, which need no search
        if exact is not None:
            return exact(self, value)
        for kinds, content in _CONTENT:
            if isinstance(value, kinds):
                return content(self, value)
        if type(value).__module__.startswith("numpy.random"):
            # A Generator has a bit generator, which has a state; a RandomState returns its own.
            value = getattr(value, "bit_generator", value)
            return self(value.state if hasattr(value, "state") else value.get_state())
        if not (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
            return self._object(value)
        try:
            return self._array(np.asarray(to_numpy(value)))
        except Exception:  # a library may refuse for any reason: compare the object by its attributes
            return self._object(value)

    def _object(self, value: Any) -> Any:
        parts = dict(getattr(value, "__dict__", {}))
        for base in type(value).__mro__:
            slots = vars(base).get("__slots__", ())
            parts |= {
                name: getattr(value, name)
                for name in ((slots,) if isinstance(slots, str) else slots)
                if name not in ("__dict__", "__weakref__") and hasattr(value, name)
            }
        return id(value), self._mapping(parts)

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        return tuple((self(key), self(part)) for key, part in value.items())

    def _items(self, value: Any) -> Any:
        return tuple(self(part) for part in value)

    def _set(self, value: AbstractSet[Any]) -> Any:
        return tuple(sorted(repr(self(part)) for part in value))

    def _array(self, value: np.ndarray) -> Any:
        if value.dtype.hasobject:
            return value.shape, self._items(value.ravel().tolist())
        return value.dtype.str, value.shape, value.tobytes()

    def _function(self, value: types.FunctionType) -> Any:
        cells = [_cell(cell) for cell in value.__closure__ or ()]
        return id(value), value.__code__, self(cells), self(value.__defaults__), self._mapping(vars(value))

    def _generator(self, value: Any) -> Any:
        frame = value.gi_frame
        return None if frame is None else (frame.f_lasti, self._mapping(dict(frame.f_locals)), self(value.gi_yieldfrom))

    def _iterator(self, value: Any) -> Any:
        # `count(3)` and the remaining length are the position; others have no readable one.
        known = isinstance(value, (itertools.count, itertools.repeat))
        return id(value), repr(value) if known else getattr(value, "__length_hint__", int)()


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


_CONTENT: tuple[tuple[Any, Callable[[_Freezer, Any], Any]], ...] = (
    (Mapping, _Freezer._mapping),
    ((list, tuple, deque), _Freezer._items),
    (AbstractSet, _Freezer._set),
    ((np.ndarray, np.generic), lambda freezer, value: freezer._array(np.asarray(value))),
    (types.FunctionType, _Freezer._function),
    (types.MethodType, lambda freezer, value: (freezer(value.__func__), freezer(value.__self__))),
    (functools.partial, lambda freezer, value: freezer((value.func, value.args, value.keywords))),
    (random.Random, lambda freezer, value: value.getstate()),
    ((bytearray, memoryview, array.array), lambda freezer, value: bytes(value)),
    (types.GeneratorType, _Freezer._generator),
    (Iterator, _Freezer._iterator),
)
_EXACT: dict[type, Callable[[_Freezer, Any], Any]] = {
    dict: _Freezer._mapping,
    list: _Freezer._items,
    tuple: _Freezer._items,
    types.SimpleNamespace: _Freezer._object,
}
