"""Components: the only place where what stands under a recipe's key becomes an object, called with its arguments."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from deep5.core.communicator import Communicator, SingleRank
from deep5.core.errors import Deep5Error, MissingDependency, RecipeError, UsageError, suggestion
from deep5.core.plugins import load, missing_dependency
from deep5.recipe.file import named_in_file
from deep5.recipe.recipe import Recipe

__all__ = [
    "check_arguments",
    "check_candidates",
    "component",
    "components_of",
    "is_factory",
    "make",
    "make_candidate",
    "not_a",
    "schedule_components",
    "transform_components",
]

# What a side of a timing recipe is given where it has parameters of these names.
_GIVEN_TO_CANDIDATES = ("steps", "seed", "threads", "communicator")


def component(recipe: Recipe, key: str, kind: str) -> Any:
    """The object under a key: loaded by name, or from `FILE.py:NAME`, or as the recipe gave it.

    Raises:
        UsageError: It cannot be found; the message names the recipe's file and line.
    """
    return _resolve(recipe, key, kind, recipe.value(key))


def _resolve(recipe: Recipe, key: str, kind: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if ".py:" in value:
            return named_in_file(value, recipe.folder_of(key))
        return load(kind, value)
    except MissingDependency as error:
        raise MissingDependency(f"{recipe.where(key)}{error}") from error
    except UsageError as error:
        raise RecipeError(f"{recipe.where(key)}{error}") from error


def make(recipe: Recipe, key: str, made: Any, *given: Any, **named: Any) -> Any:
    """Call a component with what the runner gives and with the recipe's `_args` and `_kwargs`, which win.

    Args:
        recipe: Gives the arguments.
        key: Whose component it is.
        made: A class or a function; an object is returned as it is.
        given: Arguments before the recipe's.
        named: Arguments by name, of which those are handed over that the component takes.

    Raises:
        RecipeError: The arguments do not fit; the message names key, file and line.
    """
    args, kwargs = tuple(recipe.value(f"{key}_args")), dict(recipe.value(f"{key}_kwargs"))
    if not is_factory(made):
        check_arguments(recipe, key, made)
        return made
    check_arguments(recipe, key, made, *given, **named)
    named = _taken(made, named)
    try:
        return made(*given, *args, **{**named, **kwargs})
    except MissingDependency as error:
        raise MissingDependency(f"{recipe.where(key)}{error}") from error
    except Deep5Error as error:
        raise RecipeError(f"{recipe.where(key)}{key!r}: {error}") from error
    except ModuleNotFoundError as error:
        raise missing_dependency(f"{recipe.where(key)}{key} {recipe.value(key)!r}", error) from error
    except Exception as error:
        if inspect.isabstract(made):
            raise RecipeError(f"{recipe.where(key)}{key!r}: {_unfinished(made)}") from error
        raise RecipeError(
            f"{recipe.where(key)}{key!r} raised {type(error).__name__} while it was made: {error}"
        ) from error


def _unfinished(made: type) -> str:
    """What to say of a class that lacks methods which its base asks for."""
    from deep5.distributed.schemes.check import shown

    file = getattr(sys.modules.get(made.__module__), "__file__", None)
    missing = {name: getattr(made, name) for name in sorted(getattr(made, "__abstractmethods__", ()))}
    wanted = [shown(name, method) if callable(method) else name for name, method in missing.items()]
    return (
        f"{made.__name__}{f' of {file}' if file else ''} has no {' and no '.join(missing)}; allowed: a class with all "
        f"methods that its base asks for; remedy: write {', '.join(wanted)} in it"
    )


def is_factory(made: Any) -> bool:
    """Whether a component is called to give the object, or is the object."""
    return isinstance(made, (type, functools.partial)) or inspect.isroutine(made)


def check_arguments(recipe: Recipe, key: str, made: Any, *given: Any, **named: Any) -> None:
    """Whether a component takes what `make` would call it with; it is not called.

    Raises:
        RecipeError: It does not; the message shows its signature.
    """
    args, kwargs = recipe.value(f"{key}_args"), recipe.value(f"{key}_kwargs")
    if not is_factory(made):
        if args or kwargs:
            raise RecipeError(
                f"{recipe.where(key)}{key!r} is an object already; allowed: no {key}_args and no {key}_kwargs"
            )
        return
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given, *args, **{**_taken(made, named), **kwargs})
    except TypeError as error:
        wrong = next((name for name in kwargs if f"'{name}'" in str(error)), None)
        where = recipe.where(f"{key}_kwargs" if kwargs and (wrong or not args) else f"{key}_args" if args else key)
        tail = suggestion(wrong, signature.parameters) if wrong else ""
        raise RecipeError(f"{where}the arguments of {key!r} do not fit: {error}; allowed: {signature}{tail}") from error


def _taken(made: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Of the runner's arguments by name, those that a component has parameters for."""
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in named.items() if name in parameters}


def components_of(recipe: Recipe, key: str, kind: str) -> list[Any]:
    """What stands under a key that holds one or many, names loaded; its `_args` and `_kwargs` are for each of them."""
    value = recipe.value(key)
    found: list[Any] = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        resolved = _resolve(recipe, key, kind, item)
        # In a file there may be several of them under one name.
        found += resolved if isinstance(resolved, (list, tuple)) else [resolved]
    return found


def transform_components(recipe: Recipe, key: str) -> tuple[Any, ...]:
    """What stands under `train_transforms` or `test_transforms`: a class is made, a function is a transform itself."""
    args = recipe.value(f"{key}_args") or recipe.value(f"{key}_kwargs")
    return tuple(
        one if inspect.isroutine(one) and not args else make(recipe, key, one)
        for one in components_of(recipe, key, "transforms")
    )


def schedule_components(recipe: Recipe) -> dict[str, Any]:
    """The schedules by hyperparameter: names loaded, classes made without arguments."""
    found = {name: _resolve(recipe, "schedules", "schedules", item) for name, item in recipe.value("schedules").items()}
    for name, item in found.items():
        if isinstance(item, type):
            try:
                found[name] = item()
            except TypeError as error:
                raise RecipeError(
                    f"{recipe.where('schedules')}the schedule of {name!r} cannot be made without arguments: {error}; "
                    f"remedy: an object, such as {item.__name__}(…)"
                ) from error
    return found


def check_candidates(recipe: Recipe, *, ranks: bool) -> None:
    """Whether both sides of a timing recipe take their arguments; neither is called.

    Args:
        recipe: One that times code.
        ranks: Whether it runs as ranks, which one side at least has to know of.

    Raises:
        RecipeError: One does not; or neither takes a communicator, and there are ranks.
    """
    taken: list[str] = []
    for key in ("candidate", "baseline"):
        made = component(recipe, key, "candidates")
        given = dict.fromkeys(_GIVEN_TO_CANDIDATES)
        check_arguments(recipe, key, made, **given)
        taken += _taken(made, given)
    if ranks and "communicator" not in taken:
        raise RecipeError(
            f"{recipe.where('ranks')}{recipe.name} times code for ranks, and neither candidate nor baseline takes "
            "them; allowed: a parameter called 'communicator' of one of them; remedy: that, or one process without "
            "ranks"
        )


def make_candidate(recipe: Recipe, key: str, communicator: Communicator | None = None) -> Any:
    """One side of a timing recipe: `candidate` or `baseline` called with its arguments.

    Args:
        recipe: One that times code.
        key: Which side.
        communicator: Of all ranks that make it, for a side that has a parameter of that name; None: of one.

    Raises:
        RecipeError: It is no function, or what it gives cannot be called.
    """
    made = component(recipe, key, "candidates")
    if not is_factory(made):
        raise not_a(recipe, key, made, "a function that gives a function of no arguments")
    given = {name: recipe.value(name) for name in ("steps", "seed", "threads")}
    workload = make(recipe, key, made, **given, communicator=SingleRank() if communicator is None else communicator)
    if not callable(workload):
        raise not_a(recipe, key, workload, "a function that gives a function of no arguments")
    return workload


def not_a(recipe: Recipe, key: str, got: Any, allowed: str) -> RecipeError:
    """The error to raise where a component gives something else than its key holds."""
    return RecipeError(f"{recipe.where(key)}{key!r} gives a {type(got).__name__}; allowed: {allowed}")
