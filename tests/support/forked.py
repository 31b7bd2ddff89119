"""Python programs in processes that are forked from one that has imported the frameworks.

A cold `deep5 run` spends most of its processor time on imports. `Popen` does what `subprocess.Popen` does: a command
of this Python becomes a child of this process that was forked from the server, and any other command, or one that
would not find a fresh interpreter there, starts cold. Tests of imports, of threads, of memory, and of what a fresh
interpreter does start theirs cold.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

# No module that starts a thread: a child only has the forking thread, and would wait for the others.
PRELOADED = (
    "numpy",
    "scipy.stats",
    "onnx",
    "onnx_ir",
    "rich.console",
    "click",
    "torch",
    "torch._dynamo",
    "deep5.cli.main",
    "deep5.frameworks.pytorch.framework",
    "deep5.frameworks.reference.framework",
    "deep5.run.execute",
    "deep5.training.trainer",
)

ALSO: list[str] = []
"""More modules that the server imports, for a program whose processes need them; set before it starts."""

_PR_SET_CHILD_SUBREAPER = 36
_COLD = subprocess.Popen  # whatever a test puts in its place
_LOCK = threading.Lock()
# Read when the interpreter or a library starts: the server has read them already.
_READ_EARLY = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_")
# The server has one thread for each of these, and an own way to switch the last one on.
_ONE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_FAULTS = "PYTHONFAULTHANDLER"


def run(
    arguments: Sequence[str], *, cwd: Path | None = None, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with one thread.

    Args:
        arguments: Arguments of `python`.
        cwd: Where it runs; the current folder by default.
        timeout: Seconds after which it is killed.

    Raises:
        subprocess.TimeoutExpired: It did not end in time.
    """
    words = [sys.executable, *arguments]
    environment = {**os.environ, **dict.fromkeys(_ONE, "1")}
    # Files, not pipes: processes that the program leaves hold none open.
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        with Popen(words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as process:
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(words, status, *texts)


class Popen(_COLD):  # type: ignore[type-arg]
    """A process, forked from the server where a fresh interpreter would do the same."""

    forked = False
    """Whether the server started it."""

    def _execute_child(self, *given: Any) -> None:
        names = (
            *("args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo"),
            *("creationflags", "shell", "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"),
            *("restore_signals", "gid", "gids", "uid", "umask", "start_new_session", "process_group"),
        )
        asked = dict(zip(names, given, strict=True))
        if not _can_be_forked(asked):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self.pid = _ask(asked)
        self.forked = self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in ends))  # type: ignore[attr-defined]


def _can_be_forked(asked: Mapping[str, Any]) -> bool:
    words = asked["args"]
    if not isinstance(words, list | tuple) or len(words) < 2 or str(words[0]) != sys.executable:
        return False
    plain = ("executable", "preexec_fn", "shell", "gid", "gids", "uid")
    if any(asked[name] for name in plain) or asked["umask"] >= 0 or asked["process_group"] >= 0:
        return False
    first = str(words[2 if words[1] == "-W" else 1])
    if first not in ("-m", "-c") and (first.startswith("-") or not first.endswith(".py")):
        return False
    environment = os.environ if asked["env"] is None else asked["env"]
    _, own = server()
    for name in {*own, *environment}:
        if name.startswith(_READ_EARLY) and name != _FAULTS:
            told = own.get(name) if name not in _ONE else "1"
            if environment.get(name, told if name in _ONE else None) != told:
                return False
    return True


def _ask(asked: Mapping[str, Any]) -> int:
    """Have the server fork a child of this process; returns its process ID."""
    place, _ = server()
    passed = [int(number) for number in asked["pass_fds"]]
    request = {
        "arguments": [os.fsdecode(word) for word in asked["args"][1:]],
        "cwd": os.fsdecode(asked["cwd"] or Path.cwd()),
        "environment": dict(os.environ if asked["env"] is None else asked["env"]),
        "parent": os.getpid(),
        "session": bool(asked["start_new_session"]),
        "processors": sorted(os.sched_getaffinity(0)),
        "passed": passed,
    }
    own = [
        asked[name] if asked[name] >= 0 else number for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
    ]
    with _LOCK, socket.socket(socket.AF_UNIX) as link:
        link.connect(place)
        _subreaper(True)
        try:
            socket.send_fds(link, [b"!"], [*own, *passed])
            link.sendall(json.dumps(request).encode() + b"\n")
            with link.makefile("r") as answer:
                # The link is closed when the process between is gone, and this one has its child.
                return int(answer.read())
        finally:
            _subreaper(False)


def _subreaper(on: bool) -> None:
    """Whether this process becomes the parent of the orphans among its descendants."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


@cache
def server() -> tuple[str, dict[str, str]]:
    """Start the process to fork from, once; it ends with this one. Returns its socket and its environment."""
    folder = tempfile.mkdtemp(prefix="deep5-forked-")
    place = str(Path(folder, "link"))
    # BLAS libraries start their threads when they are loaded, and a process with threads cannot be forked from.
    environment = {**os.environ, **dict.fromkeys(_ONE, "1")}
    started = _COLD(
        [sys.executable, __file__, place, *ALSO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        env=environment,
    )
    atexit.register(started.kill)
    assert started.stdout is not None
    if started.stdout.readline() != b"ready\n":
        raise RuntimeError("the process to fork from did not start")
    return place, environment


def _serve(place: str) -> dict[str, Any]:
    """Answer requests one after another, until standard input closes; returns in each child, with its request."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            if 0 in select.select([0, listener], [], [])[0]:
                os._exit(0)
            link, _ = listener.accept()
            with link:
                _, numbers, _, _ = socket.recv_fds(link, 1, 64)
                with link.makefile("r") as lines:
                    request: dict[str, Any] = json.loads(lines.readline())
                between = os.fork()
                if between == 0:
                    # The child of a process that ends goes to the one that asked.
                    child = os.fork()
                    if child:
                        link.sendall(str(child).encode())
                        os._exit(0)
                    listener.close()
                    link.close()
                    _become(request, numbers)
                    return request
                for number in numbers:
                    os.close(number)
                os.waitpid(between, 0)


def _become(request: Mapping[str, Any], numbers: Sequence[int]) -> None:
    """Take the parent, the folder, the environment, the processors and the files of a request."""
    if request["session"]:
        os.setsid()
    while (parent := os.getppid()) != request["parent"]:
        if parent == 1:
            os._exit(1)
        time.sleep(0.0005)
    os.sched_setaffinity(0, request["processors"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    wanted = [0, 1, 2, *request["passed"]]
    above = max(wanted) + 1
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in numbers]
    for number in numbers:
        os.close(number)
    for number, target in zip(moved, wanted, strict=True):
        os.dup2(number, target)
        os.close(number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get(_FAULTS):
        faulthandler.enable()


def _program(arguments: list[str], folder: str) -> None:
    """Do what `python` does with these arguments."""
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.path[0] = folder
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *arguments[2:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)  # noqa: S102 - as `python -c`
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(str(Path(arguments[0]).absolute()), run_name="__main__")


if __name__ == "__main__":
    for name in [*PRELOADED, *sys.argv[2:]]:
        __import__(name)
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise RuntimeError(
            f"an import of {', '.join([*PRELOADED, *sys.argv[2:]])} started a thread; remedy: leave it out"
        )
    gc.freeze()  # children leave what they share as it is
    wanted = _serve(sys.argv[1])
    try:
        _program(wanted["arguments"], wanted["cwd"])
    except KeyboardInterrupt as interrupt:
        # As an interpreter that started cold: the signal ends it, after its functions for the end.
        sys.excepthook(KeyboardInterrupt, interrupt, interrupt.__traceback__)
        atexit._run_exitfuncs()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
