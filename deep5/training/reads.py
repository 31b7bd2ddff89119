"""`Reads`: what an update rule's methods read besides their arguments, and whether it has changed since."""

from __future__ import annotations

import copy
import dis
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from deep5.core.own_files import is_standard
from deep5.training.frozen_value import frozen
from deep5.training.rule import UpdateRule
from deep5.training.set_order import another_order

__all__ = ["Reads", "foreign", "global_names", "is_data", "own_attributes", "packages_of", "recorded_copy"]

_MISSING = object()
# Types whose values are constants: equality is cheap and certain.
_PLAIN = (bool, int, str, bytes, type(None))
# Functions whose globals are followed: a rule's own and its module's.
_MOST = 200


class _Recorder:
    """The first base of a recorded copy: notes each attribute that the rule's methods read."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Call no hook of the rule's class: a recorded copy is not a new rule."""

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "_deep5_reads").add(name)
        return super().__getattribute__(name)


def recorded_copy(rule: UpdateRule, reads: set[str], *, reordered: bool = False) -> Any:
    """A copy of a rule, of a class of the same name, that notes in `reads` the attributes that its methods read.

    Args:
        rule: The rule.
        reads: The names are added to it.
        reordered: Whether its sets of strings are iterated over in another order, as in another process.
    """
    kind = type(rule)
    own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    # Not the metaclass's own constructor, which may register classes.
    recorder = type.__new__(type(kind), kind.__name__, (_Recorder, kind), {**own, "_deep5_reads": reads})
    plain, bound = copy.copy(rule), object.__new__(recorder)
    own_attributes(bound).update(vars(plain))
    if reordered:
        attributes = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()} | vars(
            plain
        )
        for name, value in attributes.items():
            if isinstance(value, (set, frozenset)) and (other := another_order(value)) is not None:
                own_attributes(bound)[name] = other
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(plain, name):
                object.__setattr__(bound, name, getattr(plain, name))
    return bound


def own_attributes(rule: UpdateRule) -> dict[str, Any]:
    """The attributes of the instance itself, not recorded as read."""
    found: dict[str, Any] = object.__getattribute__(rule, "__dict__")
    return found


class Reads:
    """The values that a traced rule has read, apart from hyperparameters: they are constants of its compiled step.

    Args:
        rule: The rule.
        names: The attributes that its methods read, without those that a trace sets itself.

    Values that a method computes from others (properties) are checked by what they read.

    Attributes:
        names: As given.
    """

    def __init__(self, rule: UpdateRule, names: AbstractSet[str]) -> None:
        self._rule, self.names, own, kind = rule, frozenset(names), vars(rule), type(rule)
        monitored = set(own) | set(names) if names & {"__dict__"} else names
        ignored = {*rule.hyper, "__dict__", "__class__"}
        self._names = tuple(sorted(name for name in {*monitored, "hyper", "scope"} - ignored if name[:2] != "__"))
        inside = [name for name in self._names if name in own]
        plain = [name for name in inside if type(own[name]) in _PLAIN]
        self._plain = _getter(itemgetter, plain)
        self._plain_kept = self._plain(own)
        self._before = {name: own[name] if name in plain else _Content() for name in inside}
        rest = [name for name in self._names if name not in own]
        found = [name for name in rest if hasattr(kind, name)]
        self._above = _getter(attrgetter, found)
        self._above_kept = self._above(kind)
        self._class_before = dict(zip(found, self._above_kept, strict=True))
        self._missing, self._outside = [name for name in rest if not hasattr(kind, name)], frozenset(rest)
        parts: list[tuple[str, Callable[[], Any]]] = [
            (f"the attribute {name!r}", partial(own.get, name, _MISSING)) for name in inside if name not in plain
        ]
        for name in found:
            value = inspect.getattr_static(kind, name)
            constant = callable(value) or isinstance(value, (property, staticmethod, classmethod, *_PLAIN))
            if not (constant or (isinstance(value, tuple) and _plain_throughout(value))):
                # By the class, so that a slot of an instance is read from the instance.
                where: Any = rule if inspect.isdatadescriptor(value) else kind
                parts.append((f"the attribute {name!r}", partial(getattr, where, name, None)))
        parts += _globals(rule, self._names)
        self._parts = [(what, read, _comparison(read())) for what, read in parts]

    @property
    def value(self) -> Any:
        """Everything that was read, in a form that can be compared."""
        own, kind = vars(self._rule), type(self._rule)
        values = {name: own.get(name, getattr(kind, name, _MISSING)) for name in self._names}
        plain = {f"the attribute {name!r}": value for name, value in values.items() if type(value) in _PLAIN}
        return plain | {what: frozen(read()) for what, read, _ in self._parts}

    def changed(self) -> str | None:
        """What has changed since the trace, or None. Takes about 0.4 us where all values are plain."""
        own, kind = vars(self._rule), type(self._rule)
        try:
            same = (
                self._plain(own) == self._plain_kept
                and self._above(kind) == self._above_kept
                and self._outside.isdisjoint(own)
            )
        except (KeyError, AttributeError, ValueError):  # one is gone, or of a type without equality
            same = False
        if not same or self._missing:
            for name in self._names:
                if (what := self._difference(name, own, kind)) is not None:
                    return what
        for what, read, equal in self._parts:
            if not equal(read()):
                return f"{what} is another one, or its content has changed; it is now {read()!r:.60}"
        return None

    def _difference(self, name: str, own: dict[str, Any], kind: type) -> str | None:
        what = f"the attribute {name!r}"
        if name in self._before:
            value, before = own.get(name, _MISSING), self._before[name]
        elif name in own:
            return f"{what}, which the instance did not have, is {own[name]!r:.60}"
        else:
            value, before = getattr(kind, name, _MISSING), self._class_before.get(name, _MISSING)
        if value is before or (type(value) in _PLAIN and type(before) in _PLAIN and value == before):
            return None
        if before is _MISSING:
            return f"{what}, which the rule did not have, is {value!r:.60}"
        if isinstance(before, _Content):
            return None  # compared by content, below
        return f"{what} is gone" if value is _MISSING else f"{what} is {value!r:.60} instead of {before!r:.60}"


class _Content:
    """Stands for a value that is compared by its content."""


class _getter:  # noqa: N801 - a function with a list of names
    """`itemgetter` or `attrgetter` that always returns a tuple."""

    def __init__(self, kind: Callable[..., Callable[[Any], Any]], names: list[str]) -> None:
        self.names = names
        get = kind(*names) if names else None
        if get is None:
            self._get: Callable[[Any], tuple[Any, ...]] = lambda source: ()
        elif len(names) == 1:
            self._get = lambda source: (get(source),)
        else:
            self._get = get

    def __call__(self, source: Any) -> tuple[Any, ...]:
        return self._get(source)


def _comparison(value: Any) -> Callable[[Any], bool]:
    """A function that compares a later value with this one, fast for what rules usually hold."""
    if _plain_throughout(value):
        kept = copy.deepcopy(value)
        return lambda now: type(now) is type(kept) and bool(now == kept)
    if type(value) is np.ndarray and not value.dtype.hasobject:
        content, kind, shape = value.tobytes(), value.dtype, value.shape
        return lambda now: (
            type(now) is np.ndarray and now.dtype == kind and now.shape == shape and now.tobytes() == content
        )
    before = frozen(value)
    return lambda now: bool(frozen(now) == before)


def _plain_throughout(value: Any) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_plain_throughout, value))
    if type(value) is dict:
        return all(map(_plain_throughout, value)) and all(map(_plain_throughout, value.values()))
    return type(value) in _PLAIN


def _globals(rule: UpdateRule, names: tuple[str, ...]) -> list[tuple[str, Callable[[], Any]]]:
    """Global variables, and variables of enclosing functions, that the methods of these names read."""
    found: dict[tuple[int, str], tuple[str, Callable[[], Any]]] = {}
    packages = packages_of(rule)
    work: list[Any] = [inspect.getattr_static(rule, name, None) for name in names]
    done: set[int] = set()
    while work:
        value = _function(work.pop())
        if value is None or id(value) in done or len(done) > _MOST or foreign(value.__module__, packages):
            continue
        done.add(id(value))
        work.append(vars(value).get("__wrapped__"))
        if vars(value).keys() - {"__wrapped__"}:
            found[id(value), "attributes"] = (
                f"the attributes of {value.__qualname__}",
                partial(vars, value),
            )
        for cell, name in zip(value.__closure__ or (), value.__code__.co_freevars, strict=True):
            content = _content(cell)
            if _function(content) is not None:
                work.append(content)
            elif is_data(content):
                found[id(cell), name] = (f"the variable {name!r}", partial(_content, cell))
        if value.__defaults__ or value.__kwdefaults__:
            found[id(value), "defaults"] = (
                f"the defaults of {value.__qualname__}",
                partial(_defaults, value),
            )
        for module, name in global_names(value.__code__, value.__globals__, packages):
            content = module.get(name, _MISSING)
            if _function(content) is not None:
                work.append(content)
            elif content is not _MISSING and is_data(content):
                found[id(module), name] = (
                    f"the global {name!r}",
                    partial(module.get, name, _MISSING),
                )
    return list(found.values())


def packages_of(rule: UpdateRule) -> set[str]:
    """The packages that define a rule's class and its bases."""
    return {base.__module__.partition(".")[0] for base in type(rule).__mro__}


def global_names(
    code: types.CodeType, namespace: dict[str, Any], packages: set[str]
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The global variables that a function reads, also as `module.name` or `Class.name`: the namespace and the name."""
    value: Any = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield namespace, step.argval
            value = namespace.get(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, (types.ModuleType, type)):
            holder = _holder(value, step.argval, packages)
            if holder is not None:
                yield holder, step.argval
            value = None if holder is None else holder.get(step.argval)
        else:
            value = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant, namespace, packages)


def _holder(value: types.ModuleType | type, name: str, packages: set[str]) -> Mapping[str, Any] | None:
    """The namespace of a module, or of a class or its base, that has a name and may change."""
    if isinstance(value, types.ModuleType):
        followed = not foreign(value.__name__, packages) or (value.__name__, name) == ("os", "environ")
        return vars(value) if followed else None
    bases = (base for base in value.__mro__ if name in vars(base))
    base = next(bases, None)
    return None if base is None or foreign(base.__module__, packages) else vars(base)


def _function(value: Any) -> types.FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    value = (
        getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod, types.MethodType)) else value
    )
    if callable(value) and not isinstance(value, (type, types.FunctionType)):
        value = getattr(value, "__wrapped__", value)
    return value if isinstance(value, types.FunctionType) else None


def is_data(value: Any) -> bool:
    """Whether a global is data: neither a class, a module nor a function of an installed package."""
    return not isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType, types.FunctionType))


def foreign(module: str | None, packages: set[str]) -> bool:
    """Whether a module belongs to the standard library, to deep5 or to an installed package other than the rule's."""
    name = (module or "").partition(".")[0]
    if name == "__main__":
        return False
    if name in ("deep5", "numpy") or is_standard(name):
        return True
    return name not in packages and "site-packages" in (getattr(sys.modules.get(module or ""), "__file__", None) or "")


def _defaults(function: types.FunctionType) -> Any:
    return function.__defaults__, function.__kwdefaults__


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None
