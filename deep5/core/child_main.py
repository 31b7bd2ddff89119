"""Main function of a Python child process; imports little, so that the called function decides what loads first.

`python_child` writes the command line that calls it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from deep5.core.library_reports import hide_reports
from deep5.core.parent_watch import die_with_parent
from deep5.core.progress import silenced

__all__ = ["Report", "answer", "call_reporting", "main"]

Report = Callable[[str], None]
"""Reports the current action to the parent, in words that follow "in"."""


def main(job: Mapping[str, Any], words: Sequence[str]) -> None:
    """Call a function.

    Args:
        job: `parent`, the process to end with, or None; `function`, as `MODULE:NAME`; its `arguments`.
        words: The remaining words of the command line, passed as one more argument if there are any.
    """
    if job["parent"] is not None:
        die_with_parent(job["parent"])
    hide_reports()
    # The parent reports progress, and quotes what this process prints in the message of an error.
    with silenced():
        _function(job["function"])(*job["arguments"], *([list(words)] if words else []))


def call_reporting(name: str, arguments: Sequence[Any], words: Sequence[str]) -> None:
    """Call a function with one more argument, a `Report`.

    Args:
        name: The function, as `MODULE:NAME`.
        arguments: Its other arguments.
        words: The handle of the pipe to the parent.
    """
    handle = int(words[0])

    def report(doing: str) -> None:
        os.write(handle, " ".join(doing.splitlines()).encode(errors="backslashreplace") + b"\n")

    _function(name)(*arguments, report)


def answer(folder: str, *more: Report) -> None:
    """Call the function that `request.json` in a folder names, and write its result to `answer.json`.

    Args:
        folder: The folder.
        more: Passed to the function as further arguments.
    """
    request = json.loads(Path(folder, "request.json").read_text())
    result = _function(request["function"])(*request["arguments"], *more)
    Path(folder, "answer.json").write_text(json.dumps(result))


def _function(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    found: Callable[..., object] = getattr(import_module(module), function)
    return found
