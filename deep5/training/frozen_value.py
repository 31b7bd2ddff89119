"""`frozen`: the content of a Python object as a value that can be compared later."""

from __future__ import annotations

import array
import functools
import gc
import io
import itertools
import random
import types
import warnings
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


def frozen(value: Any, *, classes: Callable[[type], bool] = lambda kind: False) -> Any:
    """The content of an object: equal values before and after mean that nothing in it has changed.

    Attributes, items, elements of arrays, closures, and the positions of counters and random generators are included.

    Args:
        value: Any object. Only its first 5,000 parts are compared by content, the others by identity.
        classes: Which classes are compared by the data in their attributes, too; the others only by identity.
    """
    return _Freezer(classes)(value)


class _Freezer:
    def __init__(self, classes: Callable[[type], bool]) -> None:
        self._classes = classes
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            # NaN is unlike itself, 0.0 like -0.0, and True like 1.
            return repr(value) if isinstance(value, (bool, float, complex)) else value
        if isinstance(value, _NAMED) and not (isinstance(value, type) and self._classes(value)):
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
        if isinstance(value, type):
            return id(value), self._mapping(_data(value))
        if type(value).__module__.startswith("torch") and hasattr(value, "get_state"):
            return self(value.get_state())  # a generator
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
        kind = type(value)
        shared = self(kind) if self._classes(kind) else None
        return id(value), self._mapping(parts), shared, _bytes(value)

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
        # Its position: `count(3)`, or what a copy of it would be made from.
        if isinstance(value, (itertools.count, itertools.repeat)):
            return id(value), repr(value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that of `itertools` is deprecated
                position = value.__reduce__()[1:]
        except Exception:  # cannot be pickled: what it refers to, such as another iterator
            position = tuple(gc.get_referents(value))
        return id(value), self(position), getattr(value, "__length_hint__", int)()


def _data(kind: type) -> dict[str, Any]:
    """The attributes of a class that are data."""
    functions = (types.FunctionType, staticmethod, classmethod, property, types.MemberDescriptorType)
    hidden = (types.GetSetDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("__") and not name.startswith("_abc_") and not isinstance(value, (*functions, *hidden))
    }


def _bytes(value: Any) -> bytes | None:
    """The memory of an object of `ctypes`."""
    return memoryview(value).tobytes() if any(kind.__module__ == "_ctypes" for kind in type(value).__mro__) else None


def _file(value: io.IOBase) -> Any:
    """The position of an open file, and the content of one in memory."""
    try:
        content = value.getvalue() if isinstance(value, (io.BytesIO, io.StringIO)) else None
        return id(value), value.tell(), content
    except (OSError, ValueError):  # closed, or without a position
        return id(value)


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
    (io.IOBase, lambda freezer, value: _file(value)),
    (Iterator, _Freezer._iterator),
)
_EXACT: dict[type, Callable[[_Freezer, Any], Any]] = {
    dict: _Freezer._mapping,
    list: _Freezer._items,
    tuple: _Freezer._items,
    types.SimpleNamespace: _Freezer._object,
}
