"""A fault at a drawn point: loaded by every Python process of a trial, since its folder is on PYTHONPATH.

TRIAL_POINT in the environment is a JSON object: `who` meets the fault (`command`, `rank N` or `child`; None: no
process), at which `number` of the changes to files below `folder`, and `what` happens. Changes are counted over all
processes of one name, from 1, as the length of a file of that name in the folder `counts`; `pids` there lists the
processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

# Raised before the change is made: what happens there happens between two changes.
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def role() -> str:
    """Who this process is: a rank of any launcher, or a child that the command started."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"):
        if name in os.environ:
            return f"rank {os.environ[name]}"
    return "child"


def plant(who: str) -> None:
    """Count the changes of this process, and plant the fault of the environment if it is this process's."""
    said = os.environ.get("TRIAL_POINT")
    if said is None:
        return
    point = json.loads(said)
    with open(os.path.join(point["counts"], "pids"), "a", encoding="utf-8") as file:  # noqa: PTH118, PTH123
        file.write(f"{os.getpid()}\n")
    counted = os.open(os.path.join(point["counts"], who), os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # noqa: PTH118

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and isinstance(given[2], int) and given[2] & _WRITES):
            path = given[0]
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(point["folder"]):
                os.write(counted, b".")
                if point["who"] == who and os.fstat(counted).st_size == point["number"]:
                    _strike(point["what"])

    sys.addaudithook(hook)


def _strike(what: str) -> None:
    if what == "kill the command":
        os.kill(int(os.environ["TRIAL_COMMAND"]), signal.SIGKILL)
    elif what == "kill the group":
        os.killpg(0, signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)


if "TRIAL_POINT" in os.environ and "trial_command.py" not in "".join(sys.orig_argv):
    plant(role())
