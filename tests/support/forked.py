"""Python programs in processes that are forked from one that has imported the frameworks.

A cold `deep5 run` spends most of its processor time on imports. `run` takes the arguments of `python`, of which it
supports `-m MODULE`, `-c PROGRAM`, a file, and `-W error` before them, and returns the result of `subprocess.run`.
Tests of imports, of signals and of fresh interpreters start theirs cold.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

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


def run(
    arguments: Sequence[str], *, cwd: Path | None = None, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Args:
        arguments: Arguments of `python`.
        cwd: Where it runs; the current folder by default.
        timeout: Seconds after which it is killed.

    Raises:
        subprocess.TimeoutExpired: It did not end in time.
    """
    words = [sys.executable, *arguments]
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        request = {"arguments": [*arguments], "cwd": str(cwd or Path.cwd()), "environment": dict(os.environ)}
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(_server())
            socket.send_fds(link, [b"!"], [out.fileno(), err.fileno()])
            link.sendall(json.dumps(request).encode() + b"\n")
            answers = link.makefile("r")
            child = int(answers.readline())
            link.settimeout(timeout)
            try:
                status = int(answers.readline())
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout) from None
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(words, status, *texts)


@cache
def _server() -> str:
    """Start the process to fork from; it ends with this one."""
    folder = tempfile.mkdtemp(prefix="deep5-forked-")
    place = str(Path(folder, "link"))
    # BLAS libraries start their threads when they load, and a process with threads cannot be forked.
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    server = subprocess.Popen(
        [sys.executable, __file__, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **alone},
    )
    atexit.register(server.kill)
    assert server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        raise RuntimeError("the process to fork from did not start")
    return place


def _serve(place: str) -> tuple[list[str], str]:
    """Answer requests one after another; returns in each child, with its program."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            link, _ = listener.accept()
            with link:
                _, (out, err), _, _ = socket.recv_fds(link, 1, 2)
                with link.makefile("r") as lines:
                    request = json.loads(lines.readline())
                child = os.fork()
                if child == 0:
                    listener.close()
                    _become(request, out, err)
                    return request["arguments"], request["cwd"]
                os.close(out)
                os.close(err)
                link.sendall(f"{child}\n".encode())
                _, status = os.waitpid(child, 0)
                try:
                    link.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                except BrokenPipeError:  # it was killed, and no process waits
                    continue


def _become(request: dict[str, object], out: int, err: int) -> None:
    """Set the folder, the environment and the outputs of a request."""
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.update(environment)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, given in ((1, out), (2, err)):
        os.dup2(given, number)
        os.close(given)
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as `python -c`
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    for name in PRELOADED:
        __import__(name)
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise RuntimeError(f"an import of {', '.join(PRELOADED)} started a thread; remedy: leave it out")
    gc.freeze()  # children do not touch shared memory
    _program(*_serve(sys.argv[1]))
