"""The command `deep5` as a trial starts it: with its fault planted, and its process ID known to its children."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from typing import Any

# On PYTHONPATH: the folder trial_site.
import sitecustomize

import forked

_PLANT = "import sitecustomize; sitecustomize.plant(sitecustomize.role()); "


class _Planted(forked.Popen):
    """A process that is forked, as `forked.Popen`, and has the fault planted, as if its interpreter were fresh."""

    def __init__(self, words: Any, *given: Any, **options: Any) -> None:
        if list(words[:2]) == [sys.executable, "-c"]:
            words = [*words[:2], f"{_PLANT}{words[2]}", *words[3:]]
        super().__init__(words, *given, **options)


def _serve_children() -> bool:
    """Fork a process that children of this one are forked from: they have imported the frameworks, as this one has.

    Returns:
        True in a child, which has run its program; False in this process.
    """
    # A name, not a file: the path of a socket holds 107 bytes, fewer than that of many a folder of trials.
    place = f"\0deep5-trial-{os.getpid()}-{secrets.token_hex(8)}"
    lifeline, held = os.pipe()
    answers, answering = os.pipe()
    if os.fork() == 0:
        os.close(held)
        os.dup2(lifeline, 0)  # it closes when this process ends
        os.dup2(answering, 1)
        try:
            wanted = forked._serve(place)
        except OSError:  # the command was killed while it requested a child
            os._exit(0)
        forked._program(wanted["arguments"], wanted["cwd"])
        return True
    os.close(answering)
    if os.read(answers, 6) != b"ready\n":
        raise RuntimeError("the process to fork children from did not start")
    environment = dict(os.environ)
    forked.server = lambda: (place, environment)  # type: ignore[assignment]
    subprocess.Popen = _Planted  # type: ignore[misc]
    return False


def main() -> None:
    """Run the command of the arguments."""
    os.environ["TRIAL_COMMAND"] = str(os.getpid())
    if "TRIAL_FORKS" in os.environ and _serve_children():
        return
    sitecustomize.plant("command")
    sys.argv[0] = "deep5"
    from deep5.cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
