"""`watched_calls`: which functions of Python and C a trace calls, and what the called code can change."""

from __future__ import annotations

import dis
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import Any

from deep5.core.own_files import is_standard
from deep5.training.frozen_value import frozen
from deep5.training.reads import foreign, global_names, is_data
from deep5.training.set_order import hash_differs

__all__ = ["Calls", "holds_impure", "watched_calls", "without_collection"]

# Functions in C whose results differ between calls or processes, by module; None: functions of types.
_TIME, _RANDOM = "the time", "random numbers of the system"
_DATES = ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")
_IMPURE: dict[tuple[str | None, str], str] = {
    **{(None, name): _TIME for name in _DATES},
    **{("posix", name): _RANDOM for name in ("urandom", "getrandom")},
    **{("_ssl", name): _RANDOM for name in ("RAND_bytes", "RAND_pseudo_bytes")},
    ("posix", "times"): _TIME,
    ("resource", "getrusage"): _TIME,
    **{("posix", name): "the number of the process" for name in ("getpid", "getppid")},
    **{("_thread", name): "the identity of the thread" for name in ("get_ident", "get_native_id")},
    ("builtins", "id"): "the address of an object, by id()",
}
_MODULES = {"time", *(module for module, _ in _IMPURE if module not in (None, "builtins"))}
_CONSTANT = ("sleep", "struct_time")
# Modules of the standard library that only pass on what they read; others, such as `logging`, use it for themselves.
_PASSING = (
    *("os", "random", "secrets", "ssl", "threading", "time", "uuid", "datetime", "_pydatetime", "functools"),
    "operator",
)
_LOOK_UPS = ("__hash__", "__eq__", "__repr__")


class _Collection:
    """Whether the garbage collector rests: it is one for all threads, of which several may trace."""

    lock = threading.Lock()
    inside = 0
    was_enabled = False


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection: a framework may read the clock in its callbacks, as JAX does, on any thread."""
    with _Collection.lock:
        if not _Collection.inside:
            _Collection.was_enabled = gc.isenabled()
            gc.disable()
        _Collection.inside += 1
    try:
        yield
    finally:
        with _Collection.lock:
            _Collection.inside -= 1
            if not _Collection.inside and _Collection.was_enabled:
                gc.enable()


class Calls:
    """What is called inside `watched_calls`.

    Args:
        packages: The packages of the rule.

    Attributes:
        impure: What was read that differs between calls or processes.
    """

    def __init__(self, packages: AbstractSet[str]) -> None:
        self.impure: set[str] = set()
        self._packages, self._seen, self._within = set(packages), set[types.CodeType](), set[types.CodeType]()
        self._variables: dict[tuple[int, str], tuple[str, Callable[[], Any]]] = {}

    @property
    def state(self) -> dict[str, Any]:
        """The present content of the variables that the called functions name, classes included, by description."""
        return {
            what: frozen(read(), classes=lambda kind: not foreign(kind.__module__, self._packages))
            for what, read in self._variables.values()
        }

    def watch(self, frame: types.FrameType, event: str, function: Any) -> None:
        """The profile function."""
        if event == "c_call":
            module, known = getattr(function, "__module__", None), function is hash or function is id
            # Most calls are of methods, and of other functions of `builtins`.
            if known or module in _MODULES or (module is None and getattr(function, "__qualname__", "") in _DATES):
                self._c_call(frame, function)
        elif event == "call" and frame.f_code not in self._seen:
            code = frame.f_code
            self._seen.add(code)
            # A module that the rule imports runs once, whenever that is.
            if code.co_name != "<module>" and not foreign(frame.f_globals.get("__name__"), self._packages):
                self._called(frame, code)

    def _c_call(self, frame: types.FrameType, function: Any) -> None:
        what = impure(function)
        if what is None and function is hash and hash_differs(_argument(frame)):
            what = "a hash, which differs between processes"
        if what is None:
            return
        caller: types.FrameType | None = frame
        while caller is not None and caller.f_globals.get("__name__") in _PASSING:
            caller = caller.f_back
        name = "" if caller is None else caller.f_globals.get("__name__", "")
        if is_standard(name):
            return
        # Libraries use addresses and threads for their own purposes, and so do look-ups.
        if what in (_TIME, _RANDOM) or not (foreign(name, self._packages) or frame.f_code.co_name in _LOOK_UPS):
            self.impure.add(what)

    def _called(self, frame: types.FrameType, code: types.CodeType) -> None:
        for module, name in global_names(code, frame.f_globals, self._packages):
            if _is_content(module.get(name)):
                what = f"the global {name!r} of {module.get('__name__')}"
                self._variables[id(module), name] = what, partial(module.get, name)
        # Variables of a function within a traced one are the trace's own.
        for name in () if code in self._within else code.co_freevars:
            if _is_content(value := frame.f_locals.get(name)):
                what = f"the variable {name!r} of {code.co_qualname}"
                self._variables[id(code), name] = what, partial(_itself, value)
        self._within.update(part for part in code.co_consts if isinstance(part, types.CodeType))
        self.impure.update(_passed_on(code, frame.f_globals))


def _is_content(value: Any) -> bool:
    return is_data(value) or isinstance(value, type)


def _itself(value: Any) -> Any:
    return value


def impure(function: Any) -> str | None:
    """What a function in C reads that differs between calls or processes; None if nothing is known."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not isinstance(function, types.BuiltinFunctionType):
        return None
    if module == "time" and name not in _CONSTANT:
        return _TIME
    return _IMPURE.get((module, name))


def holds_impure(value: Any) -> str | None:
    """What a partial function reads that differs between calls or processes."""
    while isinstance(value, partial):
        for argument in value.args:
            if (what := impure(argument)) is not None:
                return what
        value = value.func
        if (what := impure(value)) is not None:
            return what
    return None


def _passed_on(code: types.CodeType, namespace: dict[str, Any]) -> Iterator[str]:
    """What functions in C read that are passed to others, which call them unseen: `functools.partial(time.time)`."""
    value: Any = None
    called = False
    for step in dis.get_instructions(code):
        marked = "NULL" in step.argrepr or step.opname == "LOAD_METHOD"  # what is loaded will be called
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            value, called = namespace.get(step.argval), marked
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType):
            value, called = getattr(value, step.argval, None), called or marked
        else:
            value = None
        if not called and (what := impure(value)) is not None and what != _IMPURE["builtins", "id"]:
            yield what
    if "datetime64" in code.co_names and {"now", "today"} & set(map(str, code.co_consts)):
        yield _TIME


def _argument(frame: types.FrameType) -> Any:
    """The argument of a call of one argument, if it is a constant, a variable or an attribute of one."""
    steps = [step for step in dis.get_instructions(frame.f_code) if step.offset < frame.f_lasti]
    names: list[str] = []
    while steps and steps[-1].opname in ("PRECALL", "CACHE", "LOAD_ATTR"):
        step = steps.pop()
        if step.opname == "LOAD_ATTR":
            names.insert(0, step.argval)
    if not steps:
        return None
    step, value = steps[-1], None
    if step.opname == "LOAD_CONST":
        value = step.argval
    elif step.opname in ("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_FAST_BORROW"):
        value = frame.f_locals.get(step.argval)
    elif step.opname == "LOAD_GLOBAL":
        value = frame.f_globals.get(step.argval)
    for name in names:
        value = getattr(value, name, None)
    return value


@contextmanager
def watched_calls(packages: AbstractSet[str]) -> Iterator[Calls]:
    """Inside the context, note what cannot be seen in a result: the time in seconds is the same in two traces.

    Args:
        packages: The packages of the rule; those of the standard library and of others do not count.
    """
    calls = Calls(packages)
    if sys.getprofile() is not None:  # the user profiles: a C profiler cannot be called from here
        yield calls
        return
    with without_collection():
        sys.setprofile(calls.watch)
        try:
            yield calls
        finally:
            sys.setprofile(None)
