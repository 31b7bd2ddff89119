"""Back-ends by registered name or by `FILE.py:NAME`."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from deep5.core.errors import Deep5Error, UsageError, described
from deep5.core.framework import Framework
from deep5.core.plugins import framework, missing_dependency
from deep5.recipe.operator_names import found_in_file, names_file

__all__ = ["framework_in_file", "named_back_end"]


def named_back_end(text: str, folder: Path | None = None) -> Framework:
    """A back-end by name, mode included, or the one that `FILE.py:NAME` names.

    Args:
        text: The name.
        folder: Folder of a relative file; None: the working directory.

    Raises:
        UsageError: It does not exist, or is not a back-end; the file cannot be run.
        MissingDependency: A package that it needs is not installed.
    """
    return framework_in_file(text, folder) if names_file(text) else framework(text)


def framework_in_file(text: str, folder: Path | None = None) -> Framework:
    """The back-end that `FILE.py:NAME` names: a class of `Framework`, or an object of one.

    One object per content of the file, since a back-end holds settings of the process, such as its threads.

    Args:
        text: File, colon, name.
        folder: Folder of a relative file; None: the working directory.

    Raises:
        UsageError: As for `named_back_end`.
        MissingDependency: Likewise.
    """
    path = Path(folder or "", text.rpartition(":")[0] or text).resolve()
    try:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        content = ""  # reported by what reads it
    return _in_file(f"{path}:{text.rpartition(':')[2]}" if ".py:" in text else str(path), content)


@functools.lru_cache(maxsize=64)
def _in_file(text: str, content: str) -> Framework:
    found = found_in_file(text, "CLASS", "frameworks", _is_framework)
    if isinstance(found, type) and issubclass(found, Framework):
        try:
            return found()
        except Deep5Error:
            raise
        except ModuleNotFoundError as error:
            raise missing_dependency(f"the framework {text}", error) from error
        except Exception as error:  # a user's class may raise anything
            raise UsageError(
                f"the framework {text} raised {described(error)} while it was made; allowed: a class that needs no "
                "arguments"
            ) from error
    if not isinstance(found, Framework):
        raise UsageError(
            f"{text} is a {type(found).__name__}; allowed: a class of d5.Framework, such as one of d5.ONNXEngine, or "
            "an object of it"
        )
    return found


def _is_framework(value: object) -> bool:
    if isinstance(value, type):
        return issubclass(value, Framework) and not getattr(value, "__abstractmethods__", None)
    return isinstance(value, Framework)
