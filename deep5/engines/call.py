"""Calls of functions by name, with requests and answers in JSON: what travels to another machine."""

from __future__ import annotations

import base64
import io
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from deep5.core import errors
from deep5.core.errors import Deep5Error, RunFailed, UsageError, described
from deep5.engines.lease import Interrupted
from deep5.engines.request import RunRequest

__all__ = [
    "ANSWER",
    "ENGINE",
    "FIRST",
    "Function",
    "answer_of",
    "forget",
    "function_name",
    "packed",
    "place_for",
    "result",
    "unpack",
]

Function = Callable[[Mapping[str, Any]], dict[str, Any]]
"""What an engine calls: a function at the top level of a module of deep5, whose request has a `RunRequest` in `run`."""

ENGINE, ANSWER = "engine", ".answer.json"
"""Folder with the files of an engine, next to that of the runs; and the end of the name of an answer there."""

FIRST = "1"
"""The only attempt of a run in an archive."""

_PACKAGE = "deep5."


def function_name(function: Function) -> str:
    """The name by which another process finds a function.

    Args:
        function: The function.
    """
    return f"{function.__module__}:{function.__qualname__}"


def answer_of(name: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function, and answer with its result or its error.

    Args:
        name: Its name, of a function of deep5.
        request: Its argument.

    Raises:
        Interrupted: The run was interrupted; there is no answer.
    """
    module, _, function = name.partition(":")
    if not module.startswith(_PACKAGE):
        raise UsageError(f"a call of {name!r:.80}; allowed: a function of deep5")
    try:
        return {"result": getattr(import_module(module), function)(request)}
    except Interrupted:
        raise
    except Exception as error:  # the caller raises it again
        kind = type(error).__name__ if isinstance(error, Deep5Error) else ""
        return {"error": str(error) if kind else described(error), "kind": kind}


def result(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The result in an answer.

    Args:
        answer: What `answer_of` returned.

    Raises:
        Deep5Error: The one that the function raised.
        RunFailed: It raised an error of another kind.
    """
    if "result" in answer:
        found: dict[str, Any] = answer["result"]
        return found
    kind = getattr(errors, str(answer["kind"]), None)
    known = isinstance(kind, type) and issubclass(kind, Deep5Error) and kind is not errors.UnknownName
    raise (kind if known and kind is not None else RunFailed)(answer["error"])


@contextmanager
def place_for(run: RunRequest) -> Iterator[RunRequest]:
    """The run with a folder on this machine: the one it names, or a temporary one where no folder is shared.

    Args:
        run: The run.
    """
    if run.shared:
        yield run
        return
    # Also removed if this process is interrupted: the run then starts again.
    own = tempfile.mkdtemp(prefix="deep5-run-")
    try:
        yield replace(run, folder=own)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def packed(run: RunRequest) -> str | None:
    """The folder of a run as an archive in text; None if it is shared.

    Args:
        run: The run, from `place_for`.
    """
    if run.shared:
        return None
    data, root = io.BytesIO(), Path(run.folder)
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted((root / run.key).rglob("*")):
            archive.write(path, path.relative_to(root))
    return base64.b64encode(data.getvalue()).decode()


def unpack(archive: str, folder: Path, key: str) -> int:
    """Write the folder of a run from its archive, as the run's next attempt.

    Args:
        archive: What `packed` returned.
        folder: The folder with a folder per run.
        key: The run.

    Returns:
        The attempt's number.

    Raises:
        UsageError: It is damaged, or holds what a run does not write.
        OSError: It cannot be written.
    """
    own = folder / key
    own.mkdir(parents=True, exist_ok=True)
    arrived = Path(tempfile.mkdtemp(prefix=".arrived-", dir=own))
    try:
        with zipfile.ZipFile(io.BytesIO(base64.b64decode(archive, validate=True))) as opened:
            opened.extractall(arrived)  # which writes nothing elsewhere, and no link
        number = 1 + max((int(path.name) for path in own.iterdir() if path.name.isdecimal()), default=0)
        (arrived / key / FIRST).rename(own / str(number))
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, FileNotFoundError, RuntimeError) as error:
        raise UsageError(f"the archive of the run {key} is damaged: {error}; allowed: what a worker sent") from error
    finally:
        shutil.rmtree(arrived, ignore_errors=True)
    return number


def forget(folder: Path, key: str) -> None:
    """Remove what a run left, so that it starts again.

    Args:
        folder: The folder with a folder per run.
        key: The run.
    """
    shutil.rmtree(folder / key, ignore_errors=True)
    (folder.parent / ENGINE / f"{key}{ANSWER}").unlink(missing_ok=True)
