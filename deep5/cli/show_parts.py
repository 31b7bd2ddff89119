"""Shared parts of the commands below `deep5 show`: settings, calls, the folder, and printing."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from deep5.core.errors import Deep5Error, UsageError, suggestion
from deep5.core.terminal import styled_where_fit
from deep5.recipe.meant import as_settings, names_of, unknown_argument

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["called", "check_folder", "nested", "pairs", "printed"]


class _Printable(Protocol):
    def print(self, console: Console) -> None: ...


def check_folder(out: str) -> None:
    """Check that a folder may receive the files of `deep5 show`.

    Raises:
        UsageError: The name is empty, or the folder holds another result.
    """
    from deep5.results.kind import NETWORK_KIND, kind_of

    if not out.strip():
        raise UsageError(f"--out {out!r}; allowed: the name of a folder; remedy: --out pictures, say, or --out .")
    if kind_of(out) not in (None, NETWORK_KIND):
        raise UsageError(f"{out} holds a {kind_of(out)}; allowed: a folder without other results")


def pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """The values of a repeatable option `NAME=VALUE` by name.

    Raises:
        UsageError: A name is given twice, or there is no '='.
    """
    from deep5.recipe.settings import parse_setting

    found = [parse_setting(text) for text in texts]
    names = [name for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{option} {name} is given twice; allowed: once")
    return dict(found)


def nested(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with `train.input=x.npy` as an entry of the mapping `train`, as `deep5 run --set` sets it.

    Raises:
        UsageError: A name is set as a whole and in part, or a part has no name.
    """
    from deep5.recipe.settings import entered

    found: dict[str, Any] = {}
    for key, value in arguments.items():
        path = key.split(".")
        if not all(path):
            raise UsageError(f"--set {key}=…; allowed: a name, or names with dots between them, such as train.input")
        if len(path) > 1 and any(".".join(path[:count]) in arguments for count in range(1, len(path))):
            raise UsageError(f"--set {path[0]} and --set {key} are both given; allowed: the whole value, or its parts")
        found = entered(found, path, value)
    return found


def called(text: str, make: Any, arguments: Mapping[str, Any]) -> Any:
    """What a component's function returns.

    Args:
        text: The component's name, for messages.
        make: The function or class.
        arguments: Its keyword arguments.

    Raises:
        UsageError: They do not fit, or the function raises an error.
    """
    try:
        signature = inspect.signature(make)
        signature.bind(**arguments)
    except TypeError as error:
        wrong = unknown_argument(signature, arguments)
        what = error if wrong is None else f"got an unexpected keyword argument {wrong!r}"
        raise UsageError(
            f"the arguments of {text!r} do not fit: {what}; allowed: {names_of(signature)}"
            f"{suggestion(wrong, signature.parameters) if wrong else ''}"
        ) from error
    try:
        return make(**arguments)
    except UsageError as error:
        if (message := as_settings(str(error), make)) != str(error):
            raise UsageError(message) from error
        raise
    except Deep5Error as error:
        raise UsageError(f"{text}: {as_settings(str(error), make)}") from error
    except Exception as error:
        raise UsageError(
            f"{text} raised {type(error).__name__} when it was constructed: {error}; allowed: arguments that it takes"
        ) from error


def printed(record: _Printable) -> str:
    """What a record prints on a terminal of this width, or on 100 columns."""
    from rich.console import Console

    console = styled_where_fit(Console())
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=100)
    with console.capture() as text:
        record.print(console)
    return "\n".join(line.rstrip() for line in text.get().rstrip("\n").splitlines())
