"""Runs functions in fresh Python interpreters, which end with this process; with a request and an answer in JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.child_main import answer, call_reporting
from deep5.core.child_process import Hear, Look, supervise
from deep5.core.process_end import Ended

__all__ = ["Answer", "ask", "keep", "python_command", "read_answer", "run_function"]

# The interpreter finds modules where this one does: not in a folder named `deep5` in its working directory.
_PROGRAM = (
    "import json, sys; job = json.loads(sys.argv[1]); sys.path[:] = job['path']; "
    "from deep5.core.child_main import main; main(job, sys.argv[2:])"
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a function in another interpreter.

    Attributes:
        value: What it returned, in JSON types; None with a fault.
        fault: Why there is no answer, in words that follow the name of the process, or None.
        ended: How the process ended.
    """

    value: Any
    fault: str | None
    ended: Ended


def keep(doing: str) -> None:
    """Only keep a report, for the message of an error."""


def python_command(function: Callable[..., object], *arguments: Any, parent: int | None = None) -> list[str]:
    """A command line that calls a function in a fresh Python interpreter.

    Words appended to the command line become one more argument of the function, a list.

    Args:
        function: A function at the top level of its module, which the interpreter imports by name.
        arguments: Its arguments, in JSON types; together less than 100 KiB.
        parent: Process that the interpreter ends with; None: any.
    """
    job = {"path": sys.path, "parent": parent, "function": _name(function), "arguments": arguments}
    return [sys.executable, "-c", _PROGRAM, json.dumps(job)]


def run_function(
    function: Callable[..., object],
    *arguments: Any,
    time_limit_s: float,
    environment: Mapping[str, str] | None = None,
    sent: bytes = b"",
    look: Look | None = None,
    hear: Hear | None = None,
    separate: bool = False,
) -> Ended:
    """Run a function in a fresh Python interpreter, which ends with this process.

    Args:
        function: A function at the top level of its module. With `hear`, its last argument is a `child_main.Report`.
        arguments: Its other arguments, in JSON types; together less than 100 KiB.
        time_limit_s: As for `supervise`, as are the others.
        environment: Environment variables; None: those of this process.
        sent: Its standard input.
        look: Called regularly.
        hear: Called with each report.
        separate: Whether to keep standard error by itself.
    """
    own = os.getpid()
    if hear is None:
        command = python_command(function, *arguments, parent=own)
    else:
        command = python_command(call_reporting, _name(function), arguments, parent=own)
    return supervise(
        command,
        time_limit_s=time_limit_s,
        environment=environment,
        sent=sent,
        look=look,
        hear=hear,
        separate=separate,
    )


def ask(
    function: Callable[..., object],
    *arguments: Any,
    time_limit_s: float,
    environment: Mapping[str, str] | None = None,
    hear: Hear | None = None,
) -> Answer:
    """The result of a function that runs in a fresh Python interpreter; what it prints does not count.

    Args:
        function: As for `run_function`.
        arguments: Its arguments, in JSON types, of any size.
        time_limit_s: Time limit.
        environment: Environment variables; None: those of this process.
        hear: Called with each report.
    """
    with tempfile.TemporaryDirectory(prefix="deep5-child-") as name:
        request = {"function": _name(function), "arguments": arguments}
        Path(name, "request.json").write_text(json.dumps(request))
        ended = run_function(answer, name, time_limit_s=time_limit_s, environment=environment, hear=hear, separate=True)
        return read_answer(ended, Path(name, "answer.json"))


def read_answer(ended: Ended, path: Path) -> Answer:
    """The answer that a process left in a file.

    Args:
        ended: How the process ended.
        path: The file, in JSON.
    """
    fault = ended.fault(answered=path.exists())
    if fault is not None:
        return Answer(value=None, fault=fault, ended=ended)
    try:
        return Answer(value=json.loads(path.read_text()), fault=None, ended=ended)
    except (OSError, ValueError, RecursionError) as error:
        return Answer(value=None, fault=f"wrote what cannot be read ({type(error).__name__}: {error})", ended=ended)


def _name(function: Callable[..., object]) -> str:
    return f"{function.__module__}:{function.__qualname__}"
