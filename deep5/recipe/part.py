"""`Part`: the value of one key of a recipe; the only place where names are resolved and components are called."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.canonical import copied
from deep5.core.deep500 import ARGUMENTS, PAGE
from deep5.core.errors import (
    Deep5Error,
    MissingDependency,
    RecipeError,
    UsageError,
    contained,
    described,
    suggestion,
)
from deep5.core.plugins import load, missing_dependency
from deep5.recipe.faults import is_onnx_file
from deep5.recipe.file import named_in_file
from deep5.recipe.keys import Key, kind_of
from deep5.recipe.meant import as_settings, names_of, other_optimizers, unknown_argument
from deep5.recipe.own_modules import importable

__all__ = ["Part", "Parts", "is_factory", "part_of", "taken", "where_of"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The value of a key, with its arguments and its position.

    Attributes:
        key: Key in the recipe.
        kind: Kind of the component that a name refers to (a key of `deep5.core.plugins.KINDS`).
        value: A name, `FILE.py:NAME`, an object, or a plain value; the recipe's, or the default.
        stated: Whether the recipe itself sets the key.
        args: Positional arguments of the component.
        kwargs: Its keyword arguments.
        line: File and line of the key, ending in `": "`, or an empty string.
        settings: The settings from outside that changed the key or its arguments, as `--set KEY=VALUE`.
        where_args: As `line`, for the positional arguments.
        where_kwargs: The same for the keyword arguments.
        file: The recipe's file, or None.
        folder: Folder of a relative file; None: the working directory.
    """

    key: str
    kind: str
    value: Any
    stated: bool
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: str
    settings: tuple[str, ...]
    where_args: str
    where_kwargs: str
    file: Path | None
    folder: Path | None

    @property
    def where(self) -> str:
        """The place of the value, as by `where_of`."""
        return where_of(self)

    def component(self) -> Any:
        """The object: loaded by name, or from `FILE.py:NAME`, or as given by the recipe.

        Raises:
            RecipeError: It cannot be found; the message names the recipe's file and line.
            MissingDependency: A package that it needs is not installed.
        """
        return self._resolved(self.value)

    def components(self) -> list[Any]:
        """The objects of a key that holds one or several; all of them get the same arguments."""
        found: list[Any] = []
        for item in self.value if isinstance(self.value, (list, tuple)) else [self.value]:
            resolved = self._resolved(item)
            # A name in a file may refer to several objects.
            found += resolved if isinstance(resolved, (list, tuple)) else [resolved]
        return found

    def _resolved(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if self.key == "model" and is_onnx_file(value):
            return functools.partial(_network_of_file, Path(self.folder or "", value))
        try:
            if ".py:" in value:
                return named_in_file(value, self.folder)
            return value if self.key == "loss" else load(self.kind, value)
        except MissingDependency as error:
            raise MissingDependency(f"{self.where}{error}") from error
        except UsageError as error:
            raise RecipeError(f"{self.where}{error}") from error

    def make(self, made: Any, *given: Any, **named: Any) -> Any:
        """Call a component with the runner's arguments and with the recipe's, which take precedence.

        Args:
            made: A class or a function; any other object is returned unchanged.
            given: Positional arguments before the recipe's.
            named: Keyword arguments, of which the component receives those that it accepts.

        Raises:
            RecipeError: The arguments do not fit; the message names key, file and line.
            MissingDependency: A package that it needs is not installed.
        """
        self.check(made, *given, **named)
        if not is_factory(made):
            return made
        named = taken(made, named)
        try:
            with self._importable(), contained():
                return made(*given, *copied(self.args), **{**named, **copied(self.kwargs)})
        except MissingDependency as error:
            raise MissingDependency(f"{self.where}{error}") from error
        except Deep5Error as error:
            message = as_settings(str(error), made, f"{self.key}_kwargs") if self.settings else str(error)
            raise RecipeError(f"{self.where}{self.key!r}: {message}") from error
        except ModuleNotFoundError as error:
            raise missing_dependency(f"{self.where}{self.key} {self.value!r}", error) from error
        except Exception as error:
            if inspect.isabstract(made):
                raise RecipeError(f"{self.where}{self.key!r}: {_unfinished(made)}") from error
            raise RecipeError(
                f"{self.where}{self.key!r} cannot be made: {described(error)}; allowed: arguments that "
                f"{getattr(made, '__qualname__', self.key)} takes; remedy: --debug shows where"
            ) from error

    @contextmanager
    def _importable(self) -> Iterator[None]:
        """Let a function import modules beside the file that it is in."""
        with ExitStack() as stack:
            if self.file is not None:
                stack.enter_context(importable(self.file))
            if isinstance(self.value, str) and ".py:" in self.value:
                stack.enter_context(importable(Path(self.folder or "", self.value.rpartition(":")[0])))
            yield

    def made(self, *given: Any, **named: Any) -> Any:
        """Call the component; as `component` and `make`."""
        return self.make(self.component(), *given, **named)

    def check(self, made: Any, *given: Any, **named: Any) -> None:
        """Check that a component accepts the arguments of `make`, without calling it.

        Raises:
            RecipeError: It does not; the message shows its signature.
        """
        key, args, kwargs = self.key, self.args, self.kwargs
        if not is_factory(made):
            if args or kwargs:
                raise RecipeError(
                    f"{self.where}{key!r} is an object already; allowed: no {key}_args and no {key}_kwargs"
                )
            return
        try:
            signature = inspect.signature(made)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*given, *args, **{**taken(made, named), **kwargs})
        except TypeError as error:
            wrong, what = unknown_argument(signature, kwargs), str(error)
            if wrong is not None:
                what = f"got an unexpected keyword argument {wrong!r}"  # before the argument that lacks its value
            else:
                wrong = next((name for name in kwargs if f"'{name}'" in what), None)
            where = self.where_kwargs if kwargs and (wrong or not args) else self.where_args if args else self.where
            tail = suggestion(wrong, signature.parameters) if wrong else ""
            if wrong is not None and wrong in kwargs and key == "optimizer":
                tail = self._other_optimizer(wrong, near=False) or tail or self._other_optimizer(wrong, near=True)
            missing = what.partition("missing a required argument: ")[2].strip("'")
            if missing:
                tail = f"; remedy: {missing!r} in {key}_kwargs (--set {key}_kwargs.{missing}=…)"
            if wrong is not None and wrong in ARGUMENTS:
                tail = f"; for Deep500's {wrong!r}, deep5 has {ARGUMENTS[wrong]} ({PAGE})"
            raise RecipeError(
                f"{where}the arguments of {key!r} do not fit: {what}; allowed: {names_of(signature)}{tail}"
            ) from error

    def _other_optimizer(self, wrong: str, *, near: bool) -> str:
        """The tail of a message on an argument that this optimizer lacks."""
        if wrong in kind_of({self.key: self.value}).keys:
            return f"; remedy: the key {wrong!r} of the recipe, which is for every optimizer (--set {wrong}=…)"
        as_setting = not self.where_kwargs
        return other_optimizers(wrong, self.kwargs[wrong], self.value, as_setting=as_setting, near=near)

    def transforms(self) -> tuple[Any, ...]:
        """The transforms of `train_transforms` or `test_transforms`: classes are instantiated, functions are used
        directly."""
        called = bool(self.args or self.kwargs)
        return tuple(one if inspect.isroutine(one) and not called else self.make(one) for one in self.components())

    def schedules(self) -> dict[str, Any]:
        """The schedules by hyperparameter: names are loaded, classes instantiated without arguments."""
        found = {name: self._resolved(item) for name, item in self.value.items()}
        for name, item in found.items():
            if isinstance(item, type):
                try:
                    found[name] = item()
                except TypeError as error:
                    raise RecipeError(
                        f"{self.where}the schedule of {name!r} cannot be made without arguments: {error}; "
                        f"remedy: an object, such as {item.__name__}(…)"
                    ) from error
        return found

    def not_a(self, got: Any, allowed: str) -> RecipeError:
        """The error to raise if a component returns an object of the wrong type for its key."""
        return RecipeError(f"{self.where}{self.key!r} gives a {type(got).__name__}; allowed: {allowed}")


def part_of(
    key: str,
    about: Key,
    stated: Mapping[str, Any],
    *,
    where: Callable[[str], str],
    settings: Mapping[str, Sequence[str]],
    file: Path | None,
    folder: Path | None,
) -> Part:
    """The part of a key; lists and dicts are copies.

    Args:
        key: The key.
        about: Its definition.
        stated: The recipe's values by key.
        where: Returns the file and line of a key, ending in `": "`, or an empty string.
        settings: By key, the settings from outside that changed it, as `--set KEY=VALUE`.
        file: The recipe's file, or None.
        folder: Folder of a relative file; None: the working directory.
    """
    return Part(
        key=key,
        kind=about.kind or key,
        value=copied(stated.get(key, about.default)),
        stated=key in stated,
        args=tuple(stated.get(f"{key}_args", ())),
        kwargs=copied(stated.get(f"{key}_kwargs", {})),
        line=where(key),
        settings=tuple(text for name in (key, f"{key}_args", f"{key}_kwargs") for text in settings.get(name, ())),
        where_args=where(f"{key}_args"),
        where_kwargs=where(f"{key}_kwargs"),
        file=file,
        folder=folder,
    )


def where_of(part: Part, *others: Part) -> str:
    """Where a fault is, ending in `": "`: file and line of a part, after the settings that changed it or the others.

    It is an empty string if the part has no line: a message names a key that was set.

    Args:
        part: The part that the message is about.
        others: Parts with which it does not fit.
    """
    settings = list(dict.fromkeys(text for each in (part, *others) for text in each.settings))
    if not part.line or not settings:
        return part.line
    more = f" and {len(settings) - _SHOWN} more" if len(settings) > _SHOWN else ""
    return f"{', '.join(settings[:_SHOWN])}{more} ({part.line.removesuffix(': ')}): "


# More settings than these make a message hard to read.
_SHOWN = 3

Parts = Mapping[str, Part]
"""The parts of a recipe, by key: all keys allowed for its kind."""


def is_factory(made: Any) -> bool:
    """Whether a component must be called to create the object, instead of being the object."""
    return isinstance(made, (type, functools.partial)) or inspect.isroutine(made)


def taken(made: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """The runner's keyword arguments for which a component has parameters."""
    try:
        # A class whose metaclass takes anything states its parameters in its constructor.
        constructor: Any = getattr(made, "__init__") if isinstance(made, type) else made  # noqa: B009
        parameters = inspect.signature(constructor).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in named.items() if name in parameters}


def _network_of_file(path: Path, *, parameters: Any = None) -> Any:
    """The network of an ONNX file; `parameters` as for `Network.from_onnx`."""
    from deep5.networks.network import Network

    return Network.from_onnx(path, parameters=parameters)


def _unfinished(made: type) -> str:
    """Message on a class that lacks methods which its base requires."""
    from deep5.distributed.schemes.check import shown

    file = getattr(sys.modules.get(made.__module__), "__file__", None)
    missing = {name: getattr(made, name) for name in sorted(getattr(made, "__abstractmethods__", ()))}
    wanted = [shown(name, method) if callable(method) else name for name, method in missing.items()]
    return (
        f"{made.__name__}{f' of {file}' if file else ''} has no {' and no '.join(missing)}; allowed: a class with all "
        f"methods that its base requires; remedy: write {', '.join(wanted)} in it"
    )
